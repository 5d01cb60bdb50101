"""What a running job's judges have said so far, over HTTP: of which items, with which intervals, and at what cost."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import product
from statistics import fmean
from typing import Any

import httpx2
import numpy as np
import orjson
import pytest

from dicast.app.analysis.estimates import Estimate
from dicast.app.analysis.sequences import interim_mean
from dicast.app.application import Dicast
from dicast.app.domain.arrangement import arrangement_of
from dicast.app.domain.item import Item
from dicast.app.domain.opinion import ErrorKind, EvaluationError, Opinion
from dicast.app.domain.price import Place, Price, TokenRates
from dicast.app.operator.interim import RunningJobs
from dicast.app.reports.files import write_page
from dicast.app.reports.folders import begin, job_folder
from dicast.app.reports.stored_items import write_arranged

ITEMS = 60
JUDGES = ("strict", "kind")


def a_job(name: str, **more: Any) -> dict[str, Any]:
    items = [{"id": f"i{n}", "text": "a text", "metadata": {"system": f"bot {n % 3}"}} for n in range(ITEMS)]
    dimensions = [{"id": "good", "instructions": "?", "scale": {"min": 1, "max": 5}}]
    agents = [{"name": judge} for judge in JUDGES]
    return {"id": name, "items": items, "agents": agents, "dimensions": dimensions, "groups": ["system"], **more}


def runs(dicast: Dicast, document: dict[str, Any], *, in_order: list[Item] | None = None) -> list[Item]:
    """Submit a job and have it run; return its items in the order in which they are judged."""
    dicast.submit(document)
    name = document["id"]
    layout = dicast.ledger.layout(name)
    begin(dicast.settings.results_dir, name, layout.incarnation)
    dicast.store.hset(dicast.keys.at("job", name), mapping={"state": "running", "started_ms": 1})
    items = [Item.model_validate(item) for item in document["items"]]
    arrangement = arrangement_of(layout.spec)
    if arrangement.needed:
        folder = job_folder(dicast.settings.results_dir, name)
        write_arranged(folder, iter(items), arrangement, random.Random(7), len(items))
        items = [Item.model_validate_json(line) for line in (folder / "arranged.jsonl").read_bytes().splitlines()]
    return items


def score_of(item: Item, judge: str) -> int:
    """Bot 2 is best, and the kind judge gives a point more."""
    return 1 + int(item.metadata["system"][-1]) + (judge == "kind") + (int(item.id[1:]) % 2)


def judged(
    dicast: Dicast, name: str, items: list[Item], page: int, *, lane: int = 0, failed: frozenset[str] = frozenset(),
    score: Callable[[Item, str], int] = score_of,
) -> None:  # fmt: skip
    """Write a page of a lane."""
    layout = dicast.ledger.layout(name)
    opinions, errors = [], []
    for item in items:
        for agent, dimension in product(layout.lanes[lane].agents, layout.spec.dimensions):
            judge = layout.spec.agents[agent].name
            value = None if item.id in failed else score(item, judge)
            opinions.append(
                Opinion(judge=judge, criterion_id=dimension.id, item_id=item.id, replicate=0, score=value, argument="",
                        model="m", metadata=item.metadata)
            )  # fmt: skip
            if value is None:
                errors.append(
                    EvaluationError(judge=judge, criterion_id=dimension.id, item_id=item.id, replicate=0,
                                    kind=ErrorKind.TIMEOUT, message="no answer within 60 s")
                )  # fmt: skip
    write_page(dicast.settings.results_dir, name, layout.incarnation, str(lane), page, opinions, errors)


def panel(items: list[Item], system: str) -> list[float]:
    return [fmean(score_of(item, judge) for judge in JUDGES) for item in items if item.metadata["system"] == system]


def rows_of(told: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in told["charts"][0]["rows"]}


def test_random_order_gives_intervals_of_all_items_that_hold_however_often_one_looks(
    http: httpx2.Client, dicast: Dicast
) -> None:
    items = runs(dicast, a_job("capped", max_calls=1000))
    assert [item.id for item in items] != [f"i{n}" for n in range(ITEMS)]
    for page, first in enumerate((0, 20)):
        judged(dicast, "capped", items[first : first + 20], page)
        told = http.get("/jobs/capped/so-far").json()
    assert (told["items"], told["of"], told["kind"]) == (40, ITEMS, "anytime")
    assert "in the judges' opinion" in told["note"] and "means of the 40 of 60 items" in told["note"]
    assert "all items of its system that get a score" in told["note"] and "however often one looks" in told["note"]
    for system, row in rows_of(told).items():
        scores = panel(items[:40], system)
        expected = interim_mean(np.asarray(scores), (1, 5), 20)  # of the 20 items that each has
        assert isinstance(expected, Estimate) and row["items"] == len(scores)
        assert row["text"] == f"{fmean(scores):.2f} ({expected.low:.2f} to {expected.high:.2f})"
        assert expected.low <= fmean(panel(items, system)) <= expected.high
    judged(dicast, "capped", items[40:], 2)
    told = http.get("/jobs/capped/so-far").json()
    for system, row in rows_of(told).items():  # all are judged: nothing is unknown
        assert (
            row["low"] == row["high"] == row["place"] == pytest.approx(25 * (fmean(panel(items, system)) - 1), abs=0.01)
        )


def test_the_order_of_a_file_is_no_sample_so_its_intervals_are_certain(http: httpx2.Client, dicast: Dicast) -> None:
    items = runs(dicast, a_job("plain"))
    judged(dicast, "plain", items[:30], 0, failed=frozenset({"i0"}))
    told = http.get("/jobs/plain/so-far").json()
    assert (
        told["kind"] == "certain"
        and "not taken for a random sample" in told["note"]
        and "whatever the others get" in told["note"]
    )
    row, scores = rows_of(told)["bot 0"], panel(items[1:30], "bot 0")
    assert (row["items"], len(scores)) == (9, 9)
    least, most = ((sum(scores) + 10 * end) / 19 for end in (1, 5))  # one of its 20 items has no score
    assert row["text"] == f"{fmean(scores):.2f} ({least:.2f} to {most:.2f})"
    assert not any(row["leads"] for row in rows_of(told).values())


def test_only_items_count_that_all_judges_have_judged(http: httpx2.Client, dicast: Dicast) -> None:
    """Items that take long are not left out: what lies behind an open one waits."""
    agents = [{"name": "strict", "pool": "sim"}, {"name": "kind", "pool": "other"}]
    items = runs(dicast, a_job("two-lanes", agents=agents, max_calls=1000))
    judged(dicast, "two-lanes", items[:30], 0, lane=0)
    assert http.get("/jobs/two-lanes/so-far").json()["charts"] == []
    judged(dicast, "two-lanes", items[20:40], 1, lane=1)  # its page 0 is still open
    told = http.get("/jobs/two-lanes/so-far").json()
    assert (told["items"], told["charts"]) == (0, [])
    judged(dicast, "two-lanes", items[:20], 0, lane=1)
    told = http.get("/jobs/two-lanes/so-far").json()
    assert told["items"] == 30
    assert sum(row["items"] for row in told["charts"][0]["rows"]) == 30
    assert [(judge["name"], judge["scored"]) for judge in told["judges"]] == [("strict", 30), ("kind", 40)]


def test_without_groups_there_is_the_mean_of_the_panel(http: httpx2.Client, dicast: Dicast) -> None:
    items = runs(dicast, a_job("whole", groups=[], max_calls=1000))
    judged(dicast, "whole", items[:30], 0)
    told = http.get("/jobs/whole/so-far").json()
    (row,) = told["charts"][0]["rows"]
    scores = [score for system in range(3) for score in panel(items[:30], f"bot {system}")]
    assert row["name"] == "all items" and row["text"].startswith(f"{fmean(scores):.2f} (")
    assert "mean of all items of the job that get a score" in told["note"]


def test_labels_without_an_order_have_their_shares(http: httpx2.Client, dicast: Dicast) -> None:
    """Of all items, whatever the groups; an item without a label counts for none."""
    labels = ["red", "green", "blue"]
    dimensions = [{"id": "good", "instructions": "?", "scale": {"labels": labels, "ordered": False}}]
    items = runs(dicast, a_job("labels", dimensions=dimensions, max_calls=1000))
    given = dict(zip([item.id for item in items], [0, 1, 1, 0, 1] * 12, strict=True))
    judged(dicast, "labels", items[:30], 0, failed=frozenset({items[0].id}), score=lambda item, _: given[item.id])
    told = http.get("/jobs/labels/so-far").json()
    (chart,) = told["charts"]
    assert (chart["unit"], chart["by"], told["kind"]) == ("percent of labels", "", "anytime")
    assert [row["name"] for row in chart["rows"]] == ["green", "red", "blue"]
    for row in chart["rows"]:
        shares = [float(given[item.id] == labels.index(row["name"])) for item in items[1:30]]
        expected = interim_mean(np.array(shares), (0, 1), ITEMS - 1)
        assert isinstance(expected, Estimate)
        assert (row["items"], row["place"]) == (29, round(100 * fmean(shares), 3))
        assert (row["low"], row["high"]) == (round(100 * expected.low, 3), round(100 * expected.high, 3))
    assert "labels of the 30 of 60 items" in told["note"]
    assert "An interval is of the share of a label among all items that get a score" in told["note"]


def test_labels_stand_beside_means(http: httpx2.Client, dicast: Dicast) -> None:
    topic = {"id": "topic", "instructions": "?", "scale": {"labels": ["law", "money"], "ordered": False}}
    number = {"id": "good", "instructions": "?", "scale": {"min": 0, "max": 5}}
    document = a_job("mixed", dimensions=[number, topic], agents=[{"name": "strict"}], max_calls=1000)
    items = runs(dicast, document)
    judged(dicast, "mixed", items[:30], 0, score=lambda *_: 1)
    told = http.get("/jobs/mixed/so-far").json()
    assert [(chart["dimension"], chart["unit"]) for chart in told["charts"]] == [
        ("good", "percent of the scale"), ("topic", "percent of labels"),
    ]  # fmt: skip
    assert {row["name"]: row["place"] for row in told["charts"][1]["rows"]} == {"money": 100.0, "law": 0.0}
    assert "means and labels of the 30" in told["note"]
    assert "the mean of all items of its system or the share of a label among all items" in told["note"]


def test_candidates_of_pairs_have_their_shares_of_comparisons_won(http: httpx2.Client, dicast: Dicast) -> None:
    """Of pairs in random order; a tie counts half, and a pair without a score for none."""
    items = [
        {"id": f"i{n}", "text_a": "one", "text_b": "other",
         "metadata": {"system_a": f"bot {n % 3}", "system_b": f"bot {(n + 1) % 3}"}}
        for n in range(ITEMS)
    ]  # fmt: skip
    dimensions = [{"id": "good", "instructions": "?", "scale": {"preference": "choice"}}]
    document = a_job("pairs", items=items, dimensions=dimensions, keep=["system_a", "system_b"], orders="given")
    pairs = runs(dicast, {**document, "groups": [], "max_calls": 1000})
    choices = dict(zip([pair.id for pair in pairs], [1, 1, 0, -1, -1] * 12, strict=True))
    judged(dicast, "pairs", pairs[:30], 0, failed=frozenset({pairs[0].id}), score=lambda item, _: choices[item.id])
    told = http.get("/jobs/pairs/so-far").json()
    (chart,) = told["charts"]
    assert (chart["unit"], chart["by"], told["kind"]) == ("percent of comparisons won", "candidate", "anytime")
    wins: dict[str, list[float]] = {}
    for pair in pairs[1:30]:
        won = (choices[pair.id] + 1) / 2
        wins.setdefault(pair.metadata["system_a"], []).append(won)
        wins.setdefault(pair.metadata["system_b"], []).append(1 - won)
    rows = rows_of(told)
    assert {name: (row["items"], row["place"]) for name, row in rows.items()} == {
        name: (len(shares), round(100 * fmean(shares), 3)) for name, shares in wins.items()
    }
    for name, shares in wins.items():
        population = 40 - (name in pairs[0].metadata.values())
        expected = interim_mean(np.array(shares), (0, 1), population)
        assert isinstance(expected, Estimate)
        assert (rows[name]["low"], rows[name]["high"]) == (round(100 * expected.low, 3), round(100 * expected.high, 3))
    assert "shares won of the 30 of 60 pairs" in told["note"]


def test_failures_and_cost_are_told_by_judge_with_what_is_unknown_or_unpriced(
    http: httpx2.Client, dicast: Dicast
) -> None:
    items = runs(dicast, a_job("bill"))
    judged(dicast, "bill", items[:10], 0, failed=frozenset({"i3", "i4"}))
    places = [[Place("sim", "dear", Price(TokenRates(2, 3, 2, 2)))], [Place("sim", "free")]]
    books = {
        "b:0.0.20781:calls": 9, "b:0.0.20781:spent": 10**12, "b:0.0.20781:unknown_calls": 1,
        "b:0.0.20781:unknown": 5 * 10**11, "b:1.0.20781:calls": 7,
    }  # fmt: skip
    totals = {"spent": 10**12, "unknown": 5 * 10**11, "reserved_cost": 2 * 10**11}
    stored = orjson.dumps([[place.as_dict() for place in own] for own in places])
    dicast.store.hset(dicast.keys.at("job", "bill"), mapping={**books, **totals, "places": stored})
    strict, kind = http.get("/jobs/bill/so-far").json()["judges"]
    assert (strict["scored"], strict["failed"]) == (8, 2)
    assert strict["cost"] == "1.00 USD, and at most 0.50 USD in calls of unknown cost"
    assert kind["cost"] == "the unpriced calls of sim/free"
    (first, second) = http.get("/jobs/bill/so-far").json()["failed"]
    assert (first["judge"], first["count"], first["cause"]) == ("strict", 2, "no answer in time")
    assert first["message"] == second["message"] == "no answer within 60 s"
    view = http.get("/jobs/bill").json()
    assert view["cost"] == (
        "1.00 USD spent, 0.20 USD reserved, at most 0.50 USD of unknown cost; besides, the unpriced calls of sim/free"
    )
    assert (view["spent"], view["unpriced"]) == ("1.00 USD", ["sim/free"])
    (listed,) = http.get("/jobs").json()["jobs"]
    assert (listed["spent"], listed["unpriced"], listed["health"]) == ("1.00 USD", ["sim/free"], None)


def test_each_page_is_read_once_and_an_ended_job_has_a_report_instead(
    http: httpx2.Client, dicast: Dicast, monkeypatch: pytest.MonkeyPatch
) -> None:
    items = runs(dicast, a_job("read"))
    judged(dicast, "read", items[:30], 0)
    running = RunningJobs()
    first = running.so_far(dicast, "read")
    folder = job_folder(dicast.settings.results_dir, "read") / "parts"
    for path in folder.rglob("*.jsonl"):
        path.write_text("not a page any more")
    assert running.so_far(dicast, "read") == first and first.items == 30
    dicast.store.hset(dicast.keys.at("job", "read"), "state", "cancelled")
    told = http.get("/jobs/read/so-far").json()
    assert (told["items"], told["charts"], told["judges"]) == (0, [], [])


@pytest.mark.parametrize(
    ("scale", "kind"), [({"min": 1, "max": 5}, "anytime"), ({"labels": ["red", "blue"]}, "certain")]
)
def test_items_of_two_groups_in_turn_are_no_sample_of_all_items(
    http: httpx2.Client, dicast: Dicast, scale: dict[str, Any], kind: str
) -> None:
    """Within each group they come in random order, which tells nothing of the labels of all."""
    nominal = {"ordered": False} if "labels" in scale else {}
    dimensions = [
        {"id": "good", "instructions": "?", "scale": {"min": 1, "max": 5}},
        {"id": "second", "instructions": "?", "scale": scale | nominal},
    ]
    items = [{"id": f"i{n}", "text": "a text", "metadata": {"system": f"bot {n % 2}"}} for n in range(ITEMS)]
    question = {"dimension": "good", "difference": {"by": "system", "of": ["bot 1", "bot 0"]}}
    arranged = runs(dicast, a_job("turns", items=items, dimensions=dimensions, question=question))
    judged(dicast, "turns", arranged[:20], 0, score=lambda _item, _judge: 1)
    assert http.get("/jobs/turns/so-far").json()["kind"] == kind
