"""What a quote counts: calls and bytes as they will be asked, and what the cache has."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dicast.app.application import Dicast, create_app
from dicast.app.domain.arrangement import arrangement_of
from dicast.app.domain.item import Item
from dicast.app.domain.quote import Quote, sums_of
from dicast.app.ledger.records import JobRecord
from dicast.app.operator import quotes
from dicast.app.operator.quotes import NoQuote, dearest, drawn_items, pilot_job, pilot_prefix, quote_of
from dicast.app.pipeline.kept_opinions import KeptOpinions
from dicast.app.pipeline.pools import ServedPools
from dicast.app.reports.opinion_cache import Entry, KeptOpinion, OpinionCache

POOLS = """
default = "sim"
[pools.sim]
provider = "simulated"
base_url = "http://127.0.0.1:9/v1"
model = "m"
price = { m = { input = 1, output = 4, batch = 0.5 }, dear = { input = 10, output = 40 } }
"""
ITEMS = [{"id": f"i{n}", "text": f"text {n}, " + "word " * n} for n in range(40)]
JOB: dict[str, Any] = {
    "items": ITEMS, "agents": [{"name": "a"}, {"name": "b"}],
    "dimensions": [{"id": "d", "instructions": "Good?"}, {"id": "e", "instructions": "Clear?"}],
}  # fmt: skip
Quoting = Callable[..., Quote]


@pytest.fixture
def dicast(tmp_path: Path) -> Dicast:
    (tmp_path / "pools.toml").write_text(POOLS)
    return create_app({
        "DICAST_POOLS_FILE": str(tmp_path / "pools.toml"), "DICAST_STATE_DIR": str(tmp_path / "state"),
        "DICAST_RESULTS_DIR": str(tmp_path / "results"),
    })  # fmt: skip


@pytest.fixture
def quoted(dicast: Dicast) -> Quoting:
    return lambda **more: quote_of(dicast, dicast.prepared({**JOB, **more}), pools=False)


def kept(dicast: Dicast, job: dict[str, Any], wanted: Callable[[Item, str, str], bool]) -> None:
    """The cache has opinions on these units of a job."""
    ready = dicast.prepared(job)
    record = JobRecord(ready.id, ready.job, ready.lanes, ready.units, 1, None, "test")
    with OpinionCache(dicast.settings.state_dir, most_bytes=10**9) as cache:
        keeping = KeptOpinions(cache, ServedPools(dicast))
        assert isinstance(ready.job.items, list)
        items = dict(enumerate(arrangement_of(ready.job).expanded(iter(ready.job.items))))
        for lane in ready.lanes:
            for position in range(len(items) * lane.units_per_item):
                unit = lane.unit(position)
                agent, dimension = ready.job.agents[unit.agent], ready.job.dimensions[unit.dimension]
                if wanted(items[unit.item], agent.name, dimension.id):
                    key = keeping.question(record, lane, position, items[unit.item], agent.choices[0])
                    opinion = KeptOpinion(judge=agent.name, model="m", score=1, argument="So.")
                    cache.add([Entry(key=str(key), kept_ms=1, opinion=opinion)])


@pytest.mark.parametrize(
    ("more", "calls"),
    [
        ({}, 160), ({"replicates": 3}, 480), ({"batching": True}, 80),
        ({"probes": [{"probe": "authority", "items": 10}]}, 160 + 80),
        ({"batching": True, "probes": [{"probe": "batching", "items": 10}]}, 80 + 40),
        ({"batching": True, "probes": [{"probe": "order", "items": 10}]}, 80 + 20),
    ],
)  # fmt: skip
def test_calls_are_exact(quoted: Quoting, dicast: Dicast, more: dict[str, Any], calls: int) -> None:
    quote = quoted(**more)
    assert (quote.calls_least, quote.calls, quote.calls_most, quote.ranges) == (calls, calls, calls, [])
    assert dicast.prepared({**JOB, **more}).calls == calls, "as the job itself counts them"
    assert sum(line.calls for line in quote.lines if line.kind == "judge") == calls


def test_pairs_of_lists_are_counted_in_both_orders(quoted: Quoting) -> None:
    lists = [{"id": f"l{n}", "candidates": [{"id": f"c{m}", "text": f"{n} {m}"} for m in range(4)]} for n in range(5)]
    preference = [{"id": "d", "instructions": "Which is better?", "scale": "preference"}]
    both = quoted(items=lists, pairs="all", dimensions=preference)
    assert both.calls_most == 5 * 6 * 2 * 2
    assert quoted(items=lists, pairs=3, dimensions=preference, orders="given").calls_most == 5 * 3 * 2


def test_an_escalating_panel_is_a_range_and_says_why(quoted: Quoting) -> None:
    agents = [{"name": name} for name in "abc"]
    quote = quoted(agents=agents, panel={"combine": "majority", "escalate": True})
    assert (quote.calls_least, quote.calls, quote.calls_most) == (160, 200, 240)
    assert quote.ranges == ["later judges are asked only where the first leave it open"]
    assert "160 to 240 calls, about 200" in quote.calls_sentence()


def test_a_question_and_a_cap_end_it_before(quoted: Quoting) -> None:
    asked = quoted(question={"dimension": "d", "mean_at_least": 3, "most_calls": 120})
    assert (asked.calls_least, asked.calls_most) == (100, 120) and "question" in asked.ranges[0]
    capped = quoted(max_calls=50)
    assert (capped.calls_least, capped.calls, capped.calls_most) == (50, 50, 50)


def test_inputs_are_known_from_the_texts(quoted: Quoting) -> None:
    longer = quoted(items=[{**item, "text": item["text"] + "x" * 100} for item in ITEMS])
    assert longer.bytes - quoted().bytes == 160 * 100
    batched = quoted(items=[{**item, "text": item["text"] + "x" * 100} for item in ITEMS], batching=True)
    assert batched.bytes - quoted(batching=True).bytes == 80 * 100, "a batch reads each text once"


def test_what_the_cache_has_is_subtracted(dicast: Dicast, quoted: Quoting) -> None:
    kept(dicast, JOB, lambda item, judge, dimension: judge == "a" and dimension == "d" and item.id < "i2")
    assert quoted().from_cache == 0, "a job that does not use the cache pays for all"
    quote = quoted(cache="use")
    count = sum(item["id"] < "i2" for item in ITEMS)
    assert (quote.from_cache, quote.units, quote.calls_most) == (count, 160 - count, 160 - count)
    lines = {line.name: line.calls for line in quote.lines if line.kind == "judge"}
    assert lines == {"a": 80 - count, "b": 80}
    assert quoted(cache="use", project="other").from_cache == 0
    unknown = {"agents": [{"name": "a", "model": "unknown"}], "cache": "only"}
    assert quoted(**unknown).unpriced == [], "no call is made, so none is unpriced"
    assert f"; {count} opinions from the cache" in quote.calls_sentence()


def test_questions_that_come_twice_may_be_paid_for_once(quoted: Quoting) -> None:
    alike = [{"id": f"i{n}", "text": f"text {n % 10}"} for n in range(40)]
    quote = quoted(items=alike, cache="use")
    assert (quote.calls_least, quote.calls_most) == (40, 160) and "comes twice" in quote.ranges[0]
    assert quoted(items=alike).ranges == [], "without the cache all are asked"


def test_a_batch_is_asked_unless_all_of_it_is_kept(dicast: Dicast, quoted: Quoting) -> None:
    batched = {**JOB, "batching": True}
    kept(dicast, batched, lambda item, judge, dimension: item.id == "i0" or (item.id == "i1" and dimension == "d"))
    quote = quoted(cache="use", batching=True)
    assert (quote.from_cache, quote.calls_most) == (6, 80 - 2)


def test_nothing_is_asked_of_a_whole_cache(dicast: Dicast, quoted: Quoting) -> None:
    kept(dicast, JOB, lambda *_: True)
    quote = quoted(cache="use")
    assert (quote.calls_most, quote.source, quote.units) == (0, "cache", 0)
    assert [total.expected for total in quote.sums] == [0] and quote.bytes == 0


def test_what_has_no_price_is_named_and_in_no_sum(quoted: Quoting) -> None:
    quote = quoted(agents=[{"name": "a"}, {"name": "b", "model": "unknown"}])
    assert quote.unpriced == ["sim/unknown"] and quote.money_sentence().endswith(
        "besides, the unpriced calls of sim/unknown"
    )
    assert quote.sums[0].expected == quoted(agents=[{"name": "a"}]).sums[0].expected
    assert quote.sums[0].batch is not None and quoted(agents=[{"name": "a", "model": "dear"}]).sums[0].batch is None


def test_a_road_has_its_own_price_and_no_minutes(dicast: Dicast, quoted: Quoting) -> None:
    (online,) = quoted().sums
    ready = dicast.prepared(JOB)
    requests = quotes.RequestSizes(ready)
    cells = [replace(cell, road="batch") for cell in quotes.cells_of(ready, requests)]
    (batch,) = sums_of(cells, [], random.Random(1))
    assert batch.expected == batch.batch == online.batch == online.expected / 2
    assert batch.online == online.online == online.expected


def test_auto_is_quoted_as_batches_unless_it_may_have_to_be_online(dicast: Dicast, quoted: Quoting) -> None:
    free, bound = quoted(road="auto"), quoted(road="auto", finish_by="6h")
    assert free.sums[0].expected == free.sums[0].batch
    assert bound.sums[0].expected == bound.sums[0].online == 2 * (bound.sums[0].batch or 0)
    assert not any("road: auto" in note for note in free.notes) and any("road: auto" in note for note in bound.notes)


def test_a_judge_at_several_places_is_quoted_at_the_dearest(dicast: Dicast) -> None:
    deployments = [{"pool": "sim"}, {"pool": "sim", "model": "dear"}]
    ready = dicast.prepared({**JOB, "agents": [{"name": "a", "deployments": deployments}]})
    assert dearest(ready.places[0]).model == "dear"
    ready = dicast.prepared({**JOB, "agents": [{"name": "a", "deployments": [*deployments, {"model": "unknown"}]}]})
    assert dearest(ready.places[0]).model == "unknown"


def test_a_pilot_is_a_sample_that_a_larger_one_holds(dicast: Dicast) -> None:
    ready = dicast.prepared({**JOB, "replicates": 5, "probes": ["verbosity"], "cache": "use", "groups": []})
    pilot, larger = pilot_job(ready), pilot_job(ready, 60)
    assert isinstance(pilot.items, list) and isinstance(larger.items, list)
    assert (len(pilot.items), len(larger.items)) == (7, 15), "four calls an item, in one round"
    assert {item.id for item in pilot.items} < {item.id for item in larger.items}
    assert (pilot.replicates, pilot.cache, pilot.probes, pilot.road) == (1, "use", [], "online")
    assert pilot.id == f"{pilot_prefix(ready)}7" and larger.id == f"{pilot_prefix(ready)}15"
    changed = dicast.prepared({**JOB, "dimensions": [{"id": "d", "instructions": "Else?"}, JOB["dimensions"][1]]})
    assert pilot_prefix(changed) != pilot_prefix(ready)
    assert dicast.prepared(pilot).calls == 28
    with pytest.raises(NoQuote, match="takes 4 calls: --pilot 4"):
        pilot_job(ready, 3)


def test_a_pilot_asks_what_the_job_asks(dicast: Dicast) -> None:
    """Its opinions are found by the job's own questions."""
    lists = [{"id": f"l{n}", "candidates": [{"id": f"c{m}", "text": f"{n} {m}"} for m in range(4)]} for n in range(5)]
    preference = [{"id": "d", "instructions": "Which is better?", "scale": "preference"}]
    job = {**JOB, "items": lists, "pairs": "all", "dimensions": preference, "cache": "use", "replicates": 2}
    pilot = pilot_job(dicast.prepared(job))
    kept(dicast, pilot.model_dump(exclude_unset=True), lambda *_: True)
    quote = quote_of(dicast, dicast.prepared(job), pools=False)
    assert (quote.from_cache, quote.calls_most) == (28, 5 * 6 * 2 * 2 * 2 - 28)


def test_pilots_are_drawn_without_regard_to_order(dicast: Dicast) -> None:
    ready, turned = (dicast.prepared({**JOB, "items": items}) for items in (ITEMS, ITEMS[::-1]))
    ids = [[item.id for item in drawn_items(each, 9)] for each in (ready, turned)]
    assert ids[0] == ids[1] and len(set(ids[0])) == 9
    places = sorted(int(name[1:]) for name in ids[0])
    assert max(later - before for before, later in itertools.pairwise(places)) > 1, "no run of the first items"


def test_a_job_of_too_many_cells_is_not_quoted_and_runs(dicast: Dicast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quotes, "MOST_CELLS", 3)
    with pytest.raises(NoQuote, match="more than 3 judges x dimensions"):
        quote_of(dicast, dicast.prepared(JOB), pools=False)
