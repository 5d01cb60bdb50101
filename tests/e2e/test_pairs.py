"""Pairs that are judged in both orders, batched, by planted judges: real workers, store, messages and files."""

from __future__ import annotations

import json
import subprocess
from itertools import product
from typing import Any

import pyarrow.parquet as pq
import pytest

from dicast.app.reports.results import to_pandas
from dicast.app.reports.stored_items import read_ratings
from tests import processes
from tests.e2e.cluster import ROOT, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

ITEMS = 12
LISTS = 6
PLANTED = ("--model", "fair:quality_noise=0", "--model", "hasty:quality_noise=0,quality_bias=6")
"""The hasty one prefers whichever text it reads first, whatever the texts are."""


def better(number: int) -> int:
    """Which text of a pair is planted as the better one: A, B, or neither."""
    return (1, -1, 0)[number % 3]


def a_job(**more: Any) -> dict[str, Any]:
    texts = {1: ("0.9", "0.1"), -1: ("0.1", "0.9"), 0: ("0.5", "0.5")}
    items = []
    for n in range(ITEMS):
        a, b = texts[better(n)]
        items.append({"id": f"p{n}", "text_a": f"One.\nQUALITY {a}", "text_b": f"Two.\nQUALITY {b}", "prompt": "Say."})
    return {
        "items": items,
        "agents": [{"name": "fair", "model": "fair"}, {"name": "hasty", "model": "hasty"}],
        "dimensions": [
            {"id": "clearer", "instructions": "Which is clearer?", "scale": "preference"},
            {"id": "truer", "instructions": "Which is truer?", "scale": {"preference": "strength"}},
        ],
        "batching": True,
        "panel": "mean",
        **more,
    }


def test_pairs_are_judged_in_both_orders_and_told_of_their_own_texts(cluster: Any) -> None:
    one = cluster(*PLANTED)
    job_id = one.submit(a_job())
    one.worker()
    report = one.report(job_id)
    assert (report["status"], report["units"], report["scored"]) == ("completed", ITEMS * 8, ITEMS * 8)
    assert report["calls"] == ITEMS * 4, "one call for both dimensions, each judge and order"
    assert report["orders"] == "both"

    opinions = one.opinions(job_id)
    rows = to_pandas(job_id, one.results)
    assert rows["swapped"].tolist() == [o["swapped"] for o in opinions] == [o["replicate"] == 1 for o in opinions]
    said = {(o["judge"], o["item_id"], o["swapped"]): (o["score"], o["label"]) for o in opinions
            if o["criterion_id"] == "clearer"}  # fmt: skip
    for n, swapped in product(range(ITEMS), (False, True)):
        assert said["fair", f"p{n}", swapped] == {1: (1, "A"), -1: (-1, "B"), 0: (0, "tie")}[better(n)]
        assert said["hasty", f"p{n}", swapped] == ((-1, "B") if swapped else (1, "A")), "the text that it reads first"

    panel = {(r["item_id"], r["criterion_id"]): r["score"] for r in _panel(one, job_id)}
    for n in range(ITEMS):
        assert panel[f"p{n}", "clearer"] == better(n) / 2, "what turns with the order is a tie, and half of the panel"


def test_a_cancelled_job_of_pairs_goes_on_where_it_was(cluster: Any) -> None:
    one = cluster(*PLANTED, "--latency", "0.1")
    job_id = one.submit(a_job(batching=False))
    one.worker(MAX_CONCURRENT_LLM_CALLS="3")
    until(lambda: one.done(job_id) > 12, "some units are done")
    one.app.ledger.cancel(job_id)
    first = one.report(job_id)
    assert 0 < first["scored"] < ITEMS * 8
    assert _panel(one, job_id)
    done = _dicast(one, "jobs", "resume", job_id)
    assert done.returncode == 0, done.stderr
    report = one.report(job_id)
    assert (report["status"], report["scored"]) == ("completed", ITEMS * 8)
    assert one.provider.stats()["calls"] == ITEMS * 8, "what was there was not asked again"
    seen = {(o["item_id"], o["judge"], o["criterion_id"], o["replicate"]) for o in one.opinions(job_id)}
    assert len(seen) == ITEMS * 8


def _panel(one: Any, job_id: str) -> Any:
    return pq.read_table(one.results / job_id / "panel.parquet").to_pylist()


@pytest.mark.parametrize("inline", [True, False])
def test_lists_are_ranked_by_their_pairs(cluster: Any, inline: bool) -> None:
    one = cluster(*PLANTED)
    lists = [
        {"id": f"q{n}", "candidates": [{"id": f"c{at}", "text": f"It is.\nQUALITY 0.{9 - 2 * at}"} for at in range(4)]}
        for n in range(LISTS)
    ]
    path = one.folder / "lists.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lists))
    orders = [{"item_id": f"q{n}", "clearer": "c0 > c1 > c2 > c3", "rater": "ada"} for n in range(LISTS)]
    orders.append({"item_id": "q0", "clearer": ["c0", ["c2", "c3"]], "rater": "ben"})
    rated = one.folder / "orders.jsonl"
    rated.write_text("".join(json.dumps(line) + "\n" for line in orders))
    judges = [{"name": "fair", "model": "fair"}]
    job_id = one.submit(a_job(
        items=lists if inline else str(path), agents=judges, pairs=5, batching=False, ratings=str(rated)
    ))  # fmt: skip
    one.worker()
    report = one.report(job_id)
    assert (report["units"], report["scored"]) == (LISTS * 5 * 2 * 2,) * 2
    assert report["keep"] == ["list", "candidate_a", "candidate_b"]
    for opinion in one.opinions(job_id):
        a, b = (opinion["metadata"][name] for name in ("candidate_a", "candidate_b"))
        i, j = sorted(int(name[1:]) + 1 for name in (a, b))
        assert opinion["item_id"] == f"{opinion['metadata']['list']}/{i}-{j}"
        assert opinion["score"] == 0 or (opinion["score"] > 0) == (a < b), "c0 is the best, c3 the worst"
    kept = [(r.item_id, r.score) for r in read_ratings(one.results / job_id) if r.rater == "ada"]
    of = {o["item_id"]: o["metadata"] for o in one.opinions(job_id)}
    assert len(kept) == len(of) == LISTS * 5
    assert all((score > 0) == (of[pair]["candidate_a"] < of[pair]["candidate_b"]) for pair, score in kept)
    assert _tau_of_fair(report) > 0.6, "1, but for the pairs that it calls a tie"

    later = one.folder / "later.csv"
    pair = next(iter(of))
    later.write_text(f"item_id,dimension,rater,score\nq1,clearer,cy,c0 > c1\n{pair},truer,cy,1\nq2,clearer,cy,\n")
    done = _dicast(one, "report", job_id, "--ratings", str(later), "--json")
    assert done.returncode == 0, done.stderr
    assert {(r.item_id, r.dimension) for r in read_ratings(one.results / job_id) if r.rater == "cy"} >= {
        (pair, "truer")
    }
    later.write_text("item_id,dimension,rater,score\nq1,clearer,cy,c0 > c9\n")
    done = _dicast(one, "report", job_id, "--ratings", str(later))
    assert (done.returncode, "'c9' is no candidate of the list, got 'c0 > c9'" in done.stderr) == (2, True), done.stderr


def _tau_of_fair(report: Any) -> float:
    (found,) = (of for of in report["statistics"]["dimensions"] if of["dimension"] == "clearer")
    (tau,) = (one["tau"]["value"] for one in found["preferences"]["rankings"] if one["name"] == "fair")
    return float(tau)


def _dicast(one: Any, *given: str) -> subprocess.CompletedProcess[str]:
    return processes.run(["dicast.app.cli.main", *given], one.environ, ROOT, timeout=60)
