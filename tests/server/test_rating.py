"""Blind rating over HTTP: nothing that judges said before one is done, and nothing lost that was acknowledged."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import pyarrow.parquet as pq
import pytest

from dicast.app import datasets
from dicast.app.access.scopes import Scope
from dicast.app.application import Dicast
from dicast.app.cli.console import Terminal
from dicast.app.cli.statistics import show_statistics
from dicast.app.domain.dimension import Dimension, Scale
from dicast.app.domain.item import RatingSource
from dicast.app.domain.job import EvaluationJob
from dicast.app.domain.report import ReportDimension
from dicast.app.operator.rating import _describe_dimension, _described_dimensions
from dicast.app.reports.blind import BlindRatings, Queue, QueuedItem
from dicast.app.reports.files import read_report
from dicast.app.reports.finishing import keep_ratings
from dicast.app.reports.folders import job_folder
from dicast.app.reports.stored_items import set_aside
from tests.page.world import ended, finished, job, pairs
from tests.server.serving import client, problem

ITEMS = 8


@pytest.fixture
def people(dicast: Dicast, address: str):
    """Somebody who may rate and see nothing else, before a job with a sample of five."""
    finished(dicast, "r", ITEMS)
    submitter = dicast.tokens.issue("owner", [Scope.JOB_SUBMIT], ttl_s=600)
    with client(address, submitter) as http:
        assert http.post("/jobs/r/rating", json={"size": 5, "seed": 3}).status_code == 201
    with client(address, dicast.tokens.issue("rater", [Scope.RATING_WRITE], ttl_s=600)) as http:
        yield http


def rate(http: httpx2.Client, rater: str, item: str, score: int | None, dimension: str = "clear") -> httpx2.Response:
    given = {"rater": rater, "item_id": item, "dimension": dimension, "score": score}
    return http.post("/jobs/r/rating/scores", json=given)


def kept(dicast: Dicast) -> BlindRatings:
    return BlindRatings(job_folder(dicast.settings.results_dir, "r"))


def own_id(dicast: Dicast, rater: str, code: str, job: str = "r") -> str:
    """The id of the item that a rater knows under this code."""
    blind = BlindRatings(job_folder(dicast.settings.results_dir, job))
    return blind.codes(blind.queue(), rater)[code].id


def test_nothing_of_the_judges_is_sent_before_a_rater_is_done(people: httpx2.Client, dicast: Dicast) -> None:
    seen = people.get("/jobs/r/rating?rater=ada").json()
    assert len(seen["items"]) == 5 and seen["given"] == {} and not seen["finished"]
    assert [of["id"] for of in seen["dimensions"]] == ["clear", "fair", "sound"]
    assert seen["dimensions"][0]["levels"]["3"] == "a position, but late"
    item = people.get("/jobs/r/rating/item", params={"rater": "ada", "id": seen["items"][0]})
    assert item.json()["texts"].keys() == {"text", "prompt"}
    assert "judge" not in item.text and "statistician" not in json.dumps(seen)
    for path in ("opinions", "report", "items", "item?id=essay-001", "scores", "errors", "rating/file"):
        problem(people.get(f"/jobs/r/{path}"), 403, "token-refused")
    problem(people.get("/jobs/r/rating/agreement?rater=ada"), 409, "rating-not-done")
    problem(people.post("/jobs/r/rating/finish", json={"rater": "ada"}), 422, "rating-refused")
    other = people.get("/jobs/r/rating?rater=ben").json()["items"]
    mine = [own_id(dicast, "ada", code) for code in seen["items"]]
    theirs = [own_id(dicast, "ben", code) for code in other]
    assert sorted(theirs) == sorted(mine) and theirs != mine, "each has an order of their own"
    assert not set(other) & set(seen["items"]) and people.get("/jobs/r/rating?rater=ben").json()["items"] == other
    assert "essay" not in json.dumps(seen) + item.text, "what an item is called may tell what it is of"
    problem(people.get("/jobs/r/rating/item", params={"rater": "ada", "id": mine[0]}), 404, "not-found")
    problem(rate(people, "ada", mine[0], 3), 422, "rating-refused")


def test_what_cannot_be_said_is_kept_and_counts_as_seen(people: httpx2.Client, dicast: Dicast) -> None:
    first, second = people.get("/jobs/r/rating?rater=ada").json()["items"][:2]

    def note(item: str, **more: object) -> httpx2.Response:
        given = {"rater": "ada", "item_id": item, "dimension": "clear", **more}
        return people.post("/jobs/r/rating/notes", json=given)

    assert note(first, cannot_say=True, note=" The text is cut off. ").status_code == 200
    assert note(second, note="Nice.").status_code == 200
    rate(people, "ada", second, 4)
    view = people.get("/jobs/r/rating?rater=ada").json()
    assert view["noted"] == {
        first: {"clear": {"cannot_say": True, "note": "The text is cut off."}},
        second: {"clear": {"cannot_say": False, "note": "Nice."}},
    }
    assert view["raters"] == [{"name": "ada", "ratings": 1, "cannot_say": 1, "finished": False}]
    assert people.get("/jobs/r/rating?rater=ben").json()["noted"] == {}
    note(second)
    assert list(kept(dicast).notes()) == [(own_id(dicast, "ada", first), "clear", "ada")]
    with client(str(people.base_url), dicast.tokens.issue("reader", [Scope.JOB_READ], ttl_s=60)) as reader:
        told = reader.get("/jobs/r/item", params={"id": own_id(dicast, "ada", first)}).json()["notes"]
    assert told == [{"rater": "ada", "dimension": "clear", "cannot_say": True, "note": "The text is cut off."}]
    problem(note("none", cannot_say=True), 422, "rating-refused")
    problem(note(first, note="x" * 2001), 422, "request-refused")
    people.post("/jobs/r/rating/finish", json={"rater": "ada"}, timeout=60)
    problem(note(first, note="late"), 422, "rating-refused")


def test_a_sample_of_what_judges_dispute_is_drawn(dicast: Dicast, address: str) -> None:
    finished(dicast, "r", 60)
    with client(address, dicast.tokens.issue("owner", [Scope.JOB_SUBMIT], ttl_s=600)) as http:
        assert http.post("/jobs/r/rating", json={"size": 12, "disputed": True}).status_code == 201
    items = kept(dicast).queue().items
    assert len({item.probability for item in items}) > 1, "the more they differ, the likelier an item is drawn"


GUARANTEED = {"combine": "mean", "escalate": {"difference": 2, "agree": 0.8, "confidence": 0.9}}


def test_what_the_judges_left_to_people_is_rated_first_and_no_rater_is_told_why(dicast: Dicast, address: str) -> None:
    document = job("r", 60)
    clear, fair, _ = document["dimensions"]
    ended(dicast, {**document, "dimensions": [{**clear, "panel": GUARANTEED}, fair]})
    opinions = pq.read_table(job_folder(dicast.settings.results_dir, "r") / "opinions.parquet").to_pylist()
    said = {(o["item_id"], o["judge"]): o["score"] for o in opinions if o["criterion_id"] == "clear"}
    first, second, _ = (agent["name"] for agent in document["agents"])
    undecided = {item for item, judge in said if abs(said[item, first] - said[item, second]) >= 2}
    assert 3 <= len(undecided) <= 20

    with client(address, dicast.tokens.issue("owner", [Scope.JOB_SUBMIT], ttl_s=600)) as owner:
        plain = owner.post("/jobs/r/rating", json={"size": 10, "undecided": False}).json()
        assert (len(plain["items"]), plain["first"], plain["first_left"]) == (10, 0, 0)
        assert {item.probability for item in kept(dicast).queue().items} == {None}
        opened = owner.post("/jobs/r/rating", json={"size": 10, "seed": 3})
    assert opened.status_code == 201 and opened.json()["first"] == opened.json()["first_left"] == len(undecided)
    chances = {item.id: item.probability for item in kept(dicast).queue().items}
    assert {chances[item] for item in undecided} == {1.0}, "all of them are there"
    assert {chances[item] for item in chances.keys() - undecided} == {10 / (60 - len(undecided))}

    with client(address, dicast.tokens.issue("rater", [Scope.RATING_WRITE], ttl_s=600)) as http:
        orders = []
        for rater in ("ada", "ben"):
            view = http.get(f"/jobs/r/rating?rater={rater}")
            orders.append([own_id(dicast, rater, code) for code in view.json()["items"]])
            assert set(orders[-1][: len(undecided)]) == undecided and len(orders[-1]) == len(undecided) + 10
            item = http.get("/jobs/r/rating/item", params={"rater": rater, "id": view.json()["items"][0]})
            told = view.text + item.text
            assert not [word for word in ("decide", "panel", "escalat", "judge", "prob") if word in told]
        assert orders[0] != orders[1]
        code = http.get("/jobs/r/rating?rater=ada").json()["items"][0]
        lefts = []
        for answer in (
            lambda: rate(http, "ada", code, 3),
            lambda: http.post("/jobs/r/rating/notes", json={
                "rater": "ada", "item_id": code, "dimension": "fair", "cannot_say": True,
            }),
        ):  # fmt: skip
            assert answer().status_code == 200
            lefts.append(http.get("/jobs/r/rating?rater=ada").json()["first_left"])
        assert lefts == [len(undecided), len(undecided) - 1], "an item is done when each of its questions is answered"
        assert http.get("/jobs/r/rating?rater=ben").json()["first_left"] == len(undecided)


def test_ratings_are_kept_changed_and_taken_back(people: httpx2.Client, dicast: Dicast) -> None:
    first, second = people.get("/jobs/r/rating?rater=ada").json()["items"][:2]
    for score in (2, 2, 4):
        assert rate(people, "ada", first, score).status_code == 200
    theirs = people.get("/jobs/r/rating?rater=ben").json()["items"]
    rate(people, "ben", next(code for code in theirs if own_id(dicast, "ben", code) == own_id(dicast, "ada", first)), 1)
    rate(people, "ada", second, 5)
    rate(people, "ada", second, None)
    item = own_id(dicast, "ada", first)
    assert kept(dicast).ratings() == {(item, "clear", "ada"): 4, (item, "clear", "ben"): 1}
    assert people.get("/jobs/r/rating?rater=ada").json()["given"] == {first: {"clear": 4}}
    for wrong in ({"score": 6}, {"score": 0}, {"dimension": "none"}, {"item": "none"}):
        given = {"item": first, "score": 3, "dimension": "clear", **wrong}
        problem(rate(people, "ada", given["item"], given["score"], given["dimension"]), 422, "rating-refused")
    for wrong_name in ("", " ada", "a\x00b", "x" * 61, "\u202eada"):
        assert rate(people, wrong_name, first, 3).status_code == 422
    job_of = EvaluationJob.model_validate({**job("x", 1), "ratings": str(kept(dicast).file)})
    assert {(r.rater, r.score) for r, _ in datasets.read_ratings(job_of)} == {("ada", 4.0), ("ben", 1.0)}


def test_pairs_are_rated_with_their_sides_by_chance_and_kept_as_they_are(dicast: Dicast, address: str) -> None:
    ended(dicast, pairs("p", 12))
    with client(address, dicast.tokens.issue("owner", [Scope.JOB_SUBMIT, Scope.RATING_WRITE], ttl_s=600)) as http:
        assert http.post("/jobs/p/rating", json={"size": 12}).status_code == 201
        seen, turned = set(), []
        for rater in ("ada", "ben"):
            for item in http.get("/jobs/p/rating", params={"rater": rater}).json()["items"]:
                shown = http.get("/jobs/p/rating/item", params={"rater": rater, "id": item}).json()["texts"]
                own_first = shown["text_a"].startswith("The first")
                seen.add((rater, own_first))
                turned += [] if own_first else [(rater, own_id(dicast, rater, item, "p"))]
                for dimension, score in (("better", 1 if own_first else -1), ("clearer", 2 if own_first else -2)):
                    given = {"rater": rater, "item_id": item, "dimension": dimension, "score": score}
                    assert http.post("/jobs/p/rating/scores", json=given).json() == given
        view = http.get("/jobs/p/rating", params={"rater": "ben"}).json()
    assert len(seen) == 4, "each rater sees some as they lie and some turned"
    assert {item for rater, item in turned if rater == "ada"} != {item for rater, item in turned if rater == "ben"}
    blind = BlindRatings(job_folder(dicast.settings.results_dir, "p"))
    kept_scores = {(key[1], score) for key, score in blind.ratings().items()}
    assert kept_scores == {("better", 1), ("clearer", 2)}, "all preferred the item's own A"
    lines = [json.loads(line) for line in blind.file.read_text().splitlines()]
    assert {(line["rater"], line["item_id"]) for line in lines if line["swapped"]} == set(turned)
    back = {own_id(dicast, "ben", code, "p"): given["better"] for code, given in view["given"].items()}
    assert {item for item, score in back.items() if score == -1} == {item for rater, item in turned if rater == "ben"}
    job_of = EvaluationJob.model_validate({**pairs("x", 12), "ratings": str(blind.file)})
    assert {(r.dimension, r.score) for r, _ in datasets.read_ratings(job_of)} == {("better", 1.0), ("clearer", 2.0)}


def test_a_line_that_was_cut_off_costs_nothing_that_was_acknowledged(people: httpx2.Client, dicast: Dicast) -> None:
    first, second = people.get("/jobs/r/rating?rater=ada").json()["items"][:2]
    rate(people, "ada", first, 3)
    with kept(dicast).file.open("ab") as file:
        file.write(b'{"item_id": "' + second.encode())
    one, two = own_id(dicast, "ada", first), own_id(dicast, "ada", second)
    assert kept(dicast).ratings() == {(one, "clear", "ada"): 3}
    assert rate(people, "ada", second, 2).status_code == 200
    assert kept(dicast).ratings() == {(one, "clear", "ada"): 3, (two, "clear", "ada"): 2}
    assert all(json.loads(line) for line in kept(dicast).file.read_text().splitlines())


def test_raters_at_once_lose_nothing(people: httpx2.Client, dicast: Dicast, address: str) -> None:
    token = people.headers["authorization"].split()[1]

    def all_of(rater: str) -> None:
        with client(address, token) as http:
            items = http.get("/jobs/r/rating", params={"rater": rater}).json()["items"]
            for dimension in ("clear", "fair"):
                for n, item in enumerate(items):
                    assert rate(http, rater, item, 5, dimension).status_code == 200
                    assert rate(http, rater, item, 1 + n % 4, dimension).status_code == 200

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(all_of, ("ada", "ben", "cleo", "dan")))
    found = kept(dicast).ratings()
    assert len(found) == 4 * 2 * 5 and 5 not in found.values()


def test_who_is_done_sees_the_agreement_and_rates_no_more(people: httpx2.Client, dicast: Dicast) -> None:
    items = people.get("/jobs/r/rating?rater=ada").json()["items"]
    for n, item in enumerate(items):
        for dimension, score in (("clear", 1 + n % 5), ("fair", 3), ("sound", 10 * n)):
            assert rate(people, "ada", item, score, dimension).status_code == 200
    found = people.post("/jobs/r/rating/finish", json={"rater": "ada"}, timeout=60).json()
    assert (found["rater"], found["ratings"], found["reason"]) == ("ada", 15, None)
    assert [of["dimension"] for of in found["dimensions"]] == ["clear", "fair", "sound"]
    assert all(of["summary"] and {v["name"] for v in of["voices"]} >= {"statistician"} for of in found["dimensions"])
    assert len(found["compared"]) == 15 and found["compared"][0]["judges"].keys() >= {"copy editor"}
    problem(rate(people, "ada", items[0], 1), 422, "rating-refused")
    problem(people.get("/jobs/r/rating/agreement?rater=ben"), 409, "rating-not-done")
    report = read_report(dicast.settings.results_dir, "r")
    assert report.rated and report.statistics is not None and report.statistics.dimensions[0].raters == ["ada"]
    with client(str(people.base_url), dicast.tokens.issue("o", [Scope.JOB_SUBMIT], ttl_s=60)) as owner:
        problem(owner.post("/jobs/r/rating", json={"size": 2}), 422, "rating-refused")


def all_rated(http: httpx2.Client, rater: str) -> None:
    for n, item in enumerate(http.get(f"/jobs/r/rating?rater={rater}").json()["items"]):
        for dimension, score in (("clear", 1 + n % 5), ("fair", 3), ("sound", 10 * n)):
            assert rate(http, rater, item, score, dimension).status_code == 200


def test_ratings_that_statistics_cannot_be_computed_with_stay_out_of_the_report(
    dicast: Dicast, address: str, tmp_path: Path
) -> None:
    """They were kept, and no report of the job could be made any more."""
    finished(dicast, "r", ITEMS)
    folder = job_folder(dicast.settings.results_dir, "r")
    dimensions = _described_dimensions(dicast, read_report(folder.parent, "r"))
    items = [QueuedItem(f"essay-00{n}", {"text": "t"}, 1.0 if n % 2 else 1e-308) for n in range(1, ITEMS)]
    kept(dicast).open_queue(Queue(dimensions, items))
    before = (folder / "report.json").read_bytes()
    with client(address, dicast.tokens.issue("rater", [Scope.RATING_WRITE], ttl_s=600)) as http:
        all_rated(http, "ada")
        told = http.post("/jobs/r/rating/finish", json={"rater": "ada"}, timeout=60)
    assert told.status_code == 200 and told.json()["ratings"] == 3 * len(items)
    assert told.json()["reason"].startswith("the ratings are not in the report: the statistics cannot be computed")
    assert (folder / "report.json").read_bytes() == before and not (folder / "ratings.jsonl").exists()
    assert next((line.action, line.outcome) for line in dicast.audit.lines()) == ("rating.finish", "not kept")
    show_statistics(Terminal(), str(folder), [], None, recompute=True, json=True)


def test_ratings_that_were_added_over_http_can_be_taken_back(people: httpx2.Client, dicast: Dicast) -> None:
    folder = job_folder(dicast.settings.results_dir, "r")
    all_rated(people, "ada")
    problem(people.post("/jobs/r/rating/forget"), 403, "token-refused")
    with client(str(people.base_url), dicast.tokens.issue("o", [Scope.JOB_SUBMIT], ttl_s=60)) as owner:
        problem(owner.post("/jobs/r/rating/forget"), 409, "no-added-ratings")
        people.post("/jobs/r/rating/finish", json={"rater": "ada"}, timeout=60)
        assert read_report(folder.parent, "r").rated and (folder / "ratings.jsonl").exists()
        told = owner.post("/jobs/r/rating/forget", timeout=60)
        assert told.json() == {"job": "r", "ratings": 15, "rated": False}
    report = read_report(folder.parent, "r")
    assert not report.rated and not (folder / "ratings.jsonl").exists()
    assert len(kept(dicast).ratings()) == 15, "what people have rated is kept"
    (line,) = [line for line in dicast.audit.lines() if line.action == "rating.forget" and line.outcome == "done"]
    assert (line.actor, line.object, line.details["ratings"]) == ("o", "r", 15)
    again = people.post("/jobs/r/rating/finish", json={"rater": "ada"}, timeout=60).json()
    assert again["reason"] is None and read_report(folder.parent, "r").rated


def test_a_rater_who_is_done_while_the_job_is_resumed_is_told_so(
    people: httpx2.Client, dicast: Dicast, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = job_folder(dicast.settings.results_dir, "r")
    all_rated(people, "ada")

    def meanwhile(*given: object) -> object:
        set_aside(folder.parent, "r", (folder / "incarnation").read_text(), waits=lambda: True)
        return keep_ratings(*given)  # type: ignore[arg-type]

    monkeypatch.setattr("dicast.app.server.routes.rating.keep_ratings", meanwhile)
    told = people.post("/jobs/r/rating/finish", json={"rater": "ada"}, timeout=60)
    problem(told, 409, "run-changed")
    assert not (folder / "report.json").exists() and not (folder / "ratings.jsonl").exists()


def test_a_sample_may_come_from_a_file(dicast: Dicast, http: httpx2.Client, token: str, address: str) -> None:
    finished(dicast, "r", ITEMS)
    rows = [
        {"item_id": f"essay-00{n}", "rater": who, "probability": 0.5, "clear": None, "text": f"t{n}"}
        for who in "ab"
        for n in (1, 2)
    ]
    path = http.post("/uploads?ending=.jsonl", content="".join(json.dumps(row) + "\n" for row in rows)).json()["path"]
    assert len(http.post("/jobs/r/rating", json={"path": path}).json()["items"]) == 2
    assert sorted(item.id for item in kept(dicast).queue().items) == ["essay-001", "essay-002"]
    with client(address, dicast.tokens.issue("rater", [Scope.RATING_WRITE], ttl_s=600)) as rater:
        codes = rater.get("/jobs/r/rating?rater=ada").json()["items"]
        rate(rater, "ada", next(code for code in codes if own_id(dicast, "ada", code) == "essay-001"), 3)
    assert http.get("/jobs/r/rating/file").json() == {
        "item_id": "essay-001", "dimension": "clear", "rater": "ada", "score": 3, "probability": 0.5,
    }  # fmt: skip
    problem(http.post("/jobs/r/rating", json={"path": "/etc/passwd"}), 403, "file-refused")


def test_ratings_are_added_to_an_ended_job_by_the_command(
    dicast: Dicast, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    finished(dicast, "r", ITEMS)
    folder = job_folder(dicast.settings.results_dir, "r")
    path = tmp_path / "people.csv"
    path.write_text("item_id,rater,clear\n" + "".join(f"essay-00{n},ada,{1 + n % 5}\n" for n in range(ITEMS)))
    show_statistics(Terminal(), str(folder), [], None, recompute=False, json=True, ratings=str(path))
    told = json.loads(capsys.readouterr().out)
    assert (told["rated"], told["statistics"]["state"]) == (True, "computed")
    assert told["statistics"]["dimensions"][0]["rated_items"] == ITEMS
    for wrong, message in (("nobody,ada,1", "has no opinion in job r"), ("essay-001,ada,9", "from 1 to 5"),
                           ("essay-001,ada,1\nessay-001,ada,2", "already")):  # fmt: skip
        path.write_text(f"item_id,rater,clear\n{wrong}\n")
        with pytest.raises(datasets.DatasetError, match=message):
            show_statistics(Terminal(), str(folder), [], None, recompute=False, json=True, ratings=str(path))


def test_pairs_whose_metadata_are_named_like_those_of_lists_are_rated_as_pairs(
    dicast: Dicast, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = pairs("p", 4)
    for item in document["items"]:
        item["metadata"] = {"list": "news", "candidate_a": "ours", "candidate_b": "theirs"}
    ended(dicast, {**document, "keep": ["list", "candidate_a", "candidate_b"]})
    path = tmp_path / "people.csv"
    path.write_text("item_id,dimension,rater,score\n" + "".join(f"pair-{n},better,ada,A\n" for n in range(4)))
    folder = job_folder(dicast.settings.results_dir, "p")
    show_statistics(Terminal(), str(folder), [], None, recompute=False, json=True, ratings=str(path))
    assert json.loads(capsys.readouterr().out)["rated"]


def test_labels_and_checklists_are_rated_in_their_own_words(tmp_path: Path) -> None:
    scales = {
        "tone": Scale(labels=["rude", "plain", "kind"], ordered=False),
        "facts": Scale(checklist=["One?", "Two?", "Three?"]),
        "better": Scale(preference="choice"),
    }  # fmt: skip
    dimensions = [Dimension(id=name, instructions="?", scale=scale) for name, scale in scales.items()]
    told = [_describe_dimension(ReportDimension.from_dimension(dimension), dimension) for dimension in dimensions]
    blind = BlindRatings(tmp_path)
    blind.open_queue(Queue(told, [QueuedItem("i", {"text": "t"}), QueuedItem("k", {"text": "t"})]))
    for item, score in (("i", 2), ("k", 1)):
        blind.rate(item, "tone", "ada", score)
        blind.rate(item, "facts", "ada", score)
        blind.rate(item, "better", "ada", score - 2)
    blind.rate("k", "tone", "ada", 0)
    assert blind.ratings()["k", "tone", "ada"] == 0 and blind.ratings()["i", "facts", "ada"] == 2
    rows = [json.loads(line)["score"] for line in blind.file.read_text().splitlines()]
    assert {"kind", "rude", "tie", "B"} <= set(rows)
    job_of = EvaluationJob.model_construct(items=[], dimensions=dimensions, ratings=RatingSource(path=str(blind.file)))
    read = {(r.item_id, r.dimension): r.score for r, _ in datasets.read_ratings(job_of)}
    assert read == {
        ("i", "tone"): 2, ("k", "tone"): 0, ("i", "facts"): 2, ("k", "facts"): 1,
        ("i", "better"): 0, ("k", "better"): -1,
    }  # fmt: skip
