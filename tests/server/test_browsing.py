"""A finished job's results over HTTP, as a person looks through them."""

from __future__ import annotations

from pathlib import Path

import httpx2
import orjson

from dicast.app.application import Dicast
from dicast.app.datasets import fingerprint
from dicast.app.domain.item import Item, ItemSource
from dicast.app.reports.folders import job_folder
from dicast.app.reports.stored_items import write_items
from tests.server.serving import JOB, problem
from tests.server.test_results import HOSTILE as GIVEN
from tests.server.test_results import finished

HOSTILE = GIVEN.encode("utf-8", "replace").decode()
"""As files keep it: half surrogate pairs have no UTF-8."""


def test_items_scores_and_one_item(http: httpx2.Client, dicast: Dicast) -> None:
    finished(dicast, "r", 25, failed=3)
    page = http.get("/jobs/r/items", params={"limit": 10, "offset": 20}).json()
    assert (page["total"], [item["id"] for item in page["items"]]) == (25, [f"i{n}" for n in range(20, 25)])
    assert page["items"][0]["scores"] == [{"mean": 5.0, "spread": None, "n": 1}]
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
