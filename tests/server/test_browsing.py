"""A finished job's results over HTTP, as a person looks through them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx2
import orjson

from dicast.app.application import Dicast
from dicast.app.datasets import fingerprint
from dicast.app.domain.item import Item, ItemSource, Rating
from dicast.app.reports.folders import job_folder
from dicast.app.reports.stored_items import RatingsChange, write_items
from tests.page.world import ended, registered
from tests.reports import kinds
from tests.server.serving import JOB, problem
from tests.server.test_results import HOSTILE as GIVEN
from tests.server.test_results import finished

HOSTILE = GIVEN.encode("utf-8", "replace").decode()
"""As files keep it: half surrogate pairs have no UTF-8."""


def test_items_scores_and_one_item(http: httpx2.Client, dicast: Dicast) -> None:
    finished(dicast, "r", 25, failed=3)
    page = http.get("/jobs/r/items", params={"limit": 10, "offset": 20}).json()
    assert (page["total"], [item["id"] for item in page["items"]]) == (25, [f"i{n}" for n in range(20, 25)])
    assert page["items"][0]["scores"] == [{"mean": 5.0, "spread": None, "n": 1, "judges": {"a": 5.0}, "people": {}}]
    assert http.get("/jobs/r/items?failed=true").json()["total"] == 3
    assert http.get("/jobs/r/items", params={"search": "I24"}).json()["total"] == 1
    assert http.get("/jobs/r/items", params={"argument": "<SCRIPT>"}).json()["total"] == 25
    assert http.get("/jobs/r/scores").json() == {
        "scores": [{"judge": "a", "dimension": "d", "counts": {"5": 22}, "failed": 3}]
    }
    one = http.get("/jobs/r/item?id=i7").json()
    assert (len(one["opinions"]), one["opinions"][0]["argument"], one["more"]) == (1, f"{HOSTILE} 7", False)
    failed = http.get("/jobs/r/item?id=i1").json()
    assert [error["message"] for error in failed["errors"]] == ["gone"]
    problem(http.get("/jobs/r/item?id=nothing"), 404, "not-found")
    problem(http.get("/jobs/r/items?judge=nobody"), 404, "not-found")
    problem(http.get("/jobs/none/items"), 404, "unknown-job")
    dicast.submit({**JOB, "id": "waits"})
    problem(http.get("/jobs/waits/items"), 409, "job-not-ended")


def _support(dicast: Dicast) -> None:
    """A job of two systems, with two ratings by a person."""
    ended(dicast, {
        **JOB, "id": "s", "keep": ["system"], "agents": [{"name": "a", "persona": "Be kind."}, {"name": "b"}],
        "items": [{"id": f"i{n}", "text": f"The {'PARCEL' if n % 3 else 'refund'} of {n}\n\n comes",
                   "metadata": {"system": "one" if n % 2 else "two=2"}} for n in range(12)],
    })  # fmt: skip
    folder = job_folder(dicast.settings.results_dir, "s")
    RatingsChange([Rating("i3", "d", "ada", 4.0), Rating("i4", "d", "ada", 1.0)], added=True).apply(folder)


def test_items_are_found_by_metadata_texts_ratings_and_spread(http: httpx2.Client, dicast: Dicast) -> None:
    _support(dicast)

    def found(**asked: object) -> list[str]:
        return [item["id"] for item in http.get("/jobs/s/items", params=asked).json()["items"]]

    assert found(metadata="system=two=2") == [f"i{n}" for n in range(0, 12, 2)]
    assert found(text="parcel", metadata="system=one") == ["i1", "i5", "i7", "i11"]
    assert found(rated=True) == ["i3", "i4"]
    assert found(rated=True, text="refund") == ["i3"]
    whole = http.get("/jobs/s/items", params={"sort": "disagreement"}).json()["items"]
    middle = whole[5]["disagreement"]
    assert found(least_spread=middle, most_spread=middle) == [
        item["id"] for item in sorted(whole, key=lambda item: item["place"]) if item["disagreement"] == middle
    ]
    problem(http.get("/jobs/s/items?metadata=colour=red"), 404, "not-found")
    problem(http.get("/jobs/s/items?metadata=system"), 422, "request-refused")
    problem(http.get("/jobs/s/items?colour=red"), 422, "request-refused")
    one = http.get("/jobs/s/items?rated=true&excerpts=true&limit=1").json()["items"][0]
    assert (one["metadata"], one["excerpt"]) == ({"system": "one"}, "The refund of 3 comes")
    (score,) = one["scores"]
    assert score["people"] == {"ada": 4.0} and set(score["judges"]) == {"a", "b"}
    told = http.get("/jobs/s/facets").json()
    values = [{"value": "one", "items": 6}, {"value": "two=2", "items": 6}]
    assert told == {"metadata": {"system": values}, "items": 12, "failed": 0, "rated": 2}
    points = http.get("/jobs/s/points?group=system").json()["points"]
    assert [point["id"] for point in points] == [f"i{n}" for n in range(12)]
    assert {(point["score"], point["spread"], point["group"]) for point in points} == {
        (item["overall"], item["disagreement"], item["metadata"]["system"]) for item in whole
    }


def test_an_items_ratings_and_prompts_are_shown(http: httpx2.Client, dicast: Dicast) -> None:
    _support(dicast)
    assert http.get("/jobs/s/item?id=i3").json()["ratings"] == [{"rater": "ada", "dimension": "d", "score": 4.0}]

    def prompt(**asked: str) -> dict[str, Any]:
        return http.get("/jobs/s/prompt", params={"id": "i3", "judge": "a", "dimension": "d", **asked}).json()

    first, again = prompt(), prompt()
    assert "Be kind." in first["system"] and "> The refund of 3" in first["user"] and first["dimensions"] == ["d"]
    assert first["user"] != again["user"], "the nonce is drawn anew"
    assert "no such judge" in prompt(judge="nobody")["reason"]
    assert "not among the job's items" in prompt(id="nothing")["reason"]
    dicast.store.delete(dicast.keys.at("job", "s"))
    assert "is gone" in prompt()["reason"]


def test_a_text_is_shown_as_far_as_it_is_known(http: httpx2.Client, dicast: Dicast, tmp_path: Path) -> None:
    finished(dicast, "r", 2)
    told = http.get("/jobs/r/text?id=i0").json()
    assert told["item"] is None and "hold no copy of them" in told["reason"]
    write_items(dicast.settings.results_dir, "r", "abc", [[Item(id="i0", text=HOSTILE, prompt="why?")]])
    assert http.get("/jobs/r/text?id=i0").json() == {
        "item": {"id": "i0", "text": HOSTILE, "prompt": "why?"}, "reason": None,
    }  # fmt: skip
    assert "not among the job's items" in http.get("/jobs/r/text?id=i1").json()["reason"]
    (job_folder(dicast.settings.results_dir, "r") / "items.jsonl").unlink()
    path = tmp_path / "items.jsonl"
    path.write_bytes(b"".join(orjson.dumps({"id": f"i{n}", "text": f"text {n}"}) + b"\n" for n in range(1200)))
    mark, source = fingerprint(ItemSource(path=str(path))), {"path": str(path)}
    spec = orjson.loads(dicast.store.hget(dicast.keys.at("job", "r"), "spec"))
    fields = {"spec": orjson.dumps({**spec, "items": source}).decode(), "fingerprint": mark}
    dicast.store.hset(dicast.keys.at("job", "r"), mapping=fields)
    assert http.get("/jobs/r/text?id=i1100").json()["item"] == {"id": "i1100", "text": "text 1100"}
    path.write_bytes(path.read_bytes() + b'{"id": "more", "text": "more"}\n')
    assert "has changed" in http.get("/jobs/r/text?id=i1").json()["reason"]
    path.unlink()
    assert "cannot be read from here" in http.get("/jobs/r/text?id=i1").json()["reason"]


def test_the_html_report_is_sent_as_a_file(http: httpx2.Client, dicast: Dicast) -> None:
    finished(dicast, "r", 2)
    problem(http.get("/jobs/r/report.html"), 503, "results-away")
    path = job_folder(dicast.settings.results_dir, "r") / "report.html"
    path.write_text("<!doctype html><title>r</title>")
    reply = http.get("/jobs/r/report.html")
    assert reply.text == "<!doctype html><title>r</title>" and "attachment" in reply.headers["content-disposition"]


def test_two_runs_are_compared_by_system_first(http: httpx2.Client, dicast: Dicast) -> None:
    root = dicast.settings.results_dir
    for name, changed in (("before", ""), ("after", "claude-bot")):
        registered(dicast, kinds.systems(root, name, changed)[1])
    told = http.get("/jobs/after/compare?from=before&most=3").json()
    assert told["summary"][0].startswith("Only claude-bot changed: -") and told["by"] == "system"
    assert len(told["moved"]) == 3 and {each["system"] for each in told["systems"]} == set(kinds.SYSTEMS)
    assert told["moved"][0]["first_text"].startswith("I am sorry")
    finished(dicast, "other", 3)
    problem(http.get("/jobs/after/compare?from=other"), 409, "runs-differ")
    problem(http.get("/jobs/after/compare?from=nothing"), 404, "unknown-job")
    problem(http.get("/jobs/after/compare"), 422, "request-refused")
