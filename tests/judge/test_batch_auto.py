"""Units of the road `auto`: by batches as long as these end before `finish_by`, and online where they might not.

`AUTO_SEEDS=200 pytest tests/judge/test_batch_auto.py -o log_cli=true -o log_cli_level=INFO` simulates 200 jobs on a
real ledger, in virtual time.
"""

from __future__ import annotations

import logging
import os
from random import Random
from typing import Any

import orjson
import pytest

from dicast.app.domain.deadlines import LOOK_S, ONLINE_MARGIN, Bounds
from dicast.app.domain.opinion import FailureKind
from dicast.app.domain.plan import Intervals
from dicast.app.ledger.batches import LaneRef
from dicast.app.ledger.keys import PageRef
from dicast.app.pipeline.plan import PageMessages
from dicast.app.providers.batches import BatchState
from tests.judge.desk import Scripted
from tests.judge.shelf import Clock, Paced, Road, TimedShelf, not_created
from tests.judge.test_batch_road import opened
from tests.ledger.bench import KEYS, a_job

logger = logging.getLogger(__name__)

SEEDS = int(os.environ.get("AUTO_SEEDS", "8"))
UNITS = 12
CALL_S, AT_ONCE = 2.0, 3
ONLINE_S = UNITS / AT_ONCE * CALL_S
PROMISED_S, CANCELLING_S = 3600.0, 100.0
RESERVE_S = ONLINE_MARGIN * ONLINE_S + CANCELLING_S + LOOK_S
INTERVALS = Intervals(batch_turnaround_s=PROMISED_S, batch_cancelling_s=CANCELLING_S)


class World:
    """One job on a real ledger, its provider and one worker, in virtual time: from one event to the next."""

    def __init__(self, bench: Any, worker: Any, shelf: TimedShelf, pace: Paced) -> None:
        self.bench, self.worker, self.shelf, self.clock, self.pace = bench, worker, shelf, shelf.clock, pace
        self.road = Road(bench, worker, shelf, shelf.clock, pace=pace, intervals=INTERVALS)
        self.online = 0

    async def begin(self, left_s: float | None, units: int = UNITS) -> PageRef:
        bounds = Bounds(finish_in_ms=None if left_s is None else round(1000 * left_s))
        ref = await opened(self.bench, a_job(items=units, dimensions=1), units=units, road="auto", bounds=bounds)
        job = await self.worker.jobs.get(ref.job, ref.incarnation)
        lane = job.lanes[0]
        tokens = (await self.road.store.free_messages(LaneRef(ref.job, ref.incarnation, 0), lane))[ref]
        await self.road.batches.page(job, PageMessages(ref, lane, tokens, {}))
        return ref

    async def later(self, seconds: float) -> None:
        self.clock.at += seconds
        await self.bench.asyncs.hincrby(KEYS.clock, "now", round(1000 * seconds))

    async def until_done(self, units: int = UNITS, most: int = 3000) -> float:
        """Let events come until all units have ended; return how long it took."""
        began = self.clock()
        for _ in range(most):
            if self.bench.client.status("j").done == units:
                return self.clock() - began
            await self._due_messages()
            while await self.road.batches.step_once():
                pass
            if self.road.messages.units:
                await self._call_online()
            else:
                await self.later(await self._until_next())
        raise AssertionError("it goes on and on")

    async def _due_messages(self) -> None:
        """As `DueMessages` does in a worker."""
        for ref, token in await self.bench.one.take_due():
            job = await self.worker.jobs.get(ref.job, ref.incarnation)
            if await self.bench.one.by_batches(job, ref.lane):
                lane = LaneRef(ref.job, ref.incarnation, ref.lane)
                await self.road.store.schedule(lane, INTERVALS.batch_forms_ms)
            else:
                self.road.messages.units.append((ref, token))

    async def _call_online(self) -> None:
        """As many calls as may be open together, until they end."""
        units = self.road.messages.units
        for ref, token in [units.popleft() for _ in range(min(self.pace.limit, len(units)))]:
            await self.worker.do(ref, str(token))
            self.online += 1
        await self.later(self.pace.call_s)

    async def _until_next(self) -> float:
        now_ms = await self.bench.one.now_ms()
        keys = self.road.store.keys
        firsts = [await self.bench.asyncs.zrange(zset, 0, 0, withscores=True) for zset in (keys.batches, keys.due)]
        instants = [float(score) for first in firsts for _, score in first]
        assert instants, "nothing is due, and units are left"
        return max(0.001, (min(instants) - now_ms) / 1000)

    @property
    def counters(self) -> dict[str, int]:
        found: dict[str, int] = self.bench.client.status("j").counters
        return found


def world(bench: Any, desk: Any, takes_s: float, **more: Any) -> World:
    shelf = TimedShelf(Clock(), lambda: takes_s, lambda: more.get("cancelling_s", 0.0))
    return World(bench, desk(Scripted()), shelf, Paced(AT_ONCE, CALL_S))


async def test_a_job_without_a_deadline_goes_by_batches(bench: Any, desk: Any) -> None:
    w = world(bench, desk, 80_000.0)
    await w.begin(None)
    await w.until_done()
    assert (w.counters["scored"], w.counters["moved_online"], w.online) == (UNITS, 0, 0)
    assert sorted(w.shelf.paid.values()) == [1] * UNITS


@pytest.mark.parametrize("spare_s, by_batch", [(-10.0, False), (10.0, True)])
async def test_what_was_promised_decides_where_no_batch_was_seen(
    bench: Any, desk: Any, spare_s: float, by_batch: bool
) -> None:
    w = world(bench, desk, 50.0)
    await w.begin(PROMISED_S + RESERVE_S + spare_s)
    took_s = await w.until_done()
    assert (w.counters["scored"], w.counters["moved_online"]) == (UNITS, 0)
    assert (w.online, len(w.shelf.batches)) == ((0, 1) if by_batch else (UNITS, 0))
    changes = bench.client.went_online("j")
    assert bool(changes) is not by_batch
    if not by_batch:
        assert "were left until finish_by; a batch may take 3,600 s, and online calls 8 s" in changes[0].reason
        assert took_s == pytest.approx(ONLINE_S, abs=1.0)


async def test_what_was_seen_of_the_pool_and_model_decides(bench: Any, desk: Any) -> None:
    """Twice what the slowest of the last batches took."""
    w = world(bench, desk, 50.0)
    await w.begin(None)
    await w.until_done()
    assert [round(s) for s in await w.road.store.turnarounds("p|asked-model")] == [50]
    bench.redis.flushdb()
    for node in bench.nodes:
        bench.registry.announce(node)
        bench.redis.persist(KEYS.node(node.id))
    await bench.asyncs.hset(w.road.store.keys.batch_limits, "|p|asked-model", '{"@a": 40.0, "@b": 50.0}')
    second = world(bench, desk, 50.0)
    await second.begin(100.0 + RESERVE_S + 10.0)
    await second.until_done()
    assert (second.online, second.counters["scored"]) == (0, UNITS)


async def test_units_in_a_batch_that_is_late_are_moved_online_and_none_is_paid_twice(bench: Any, desk: Any) -> None:
    w = world(bench, desk, 9000.0, cancelling_s=90.0)
    left_s = PROMISED_S + RESERVE_S + 10.0
    await w.begin(left_s)
    took_s = await w.until_done()
    made = sum(w.shelf.paid.values())
    assert 0 < made < UNITS and set(w.shelf.paid.values()) == {1}, "what it had done counts"
    assert w.online == UNITS - made == w.counters["moved_online"]
    assert (w.counters["scored"], w.counters["calls"], w.counters["possible_double_charges"]) == (UNITS, UNITS, 0)
    assert took_s < left_s
    assert w.shelf.batches["batch_0"].status.state is BatchState.CANCELLED
    assert len(bench.client.went_online("j")) == 1


async def test_what_fails_in_a_batch_goes_online_where_no_second_batch_fits(bench: Any, desk: Any) -> None:
    w = world(bench, desk, 3000.0)
    w.shelf.unanswered = {1, 4}
    await w.begin(PROMISED_S + RESERVE_S + 10.0)
    await w.until_done()
    assert (w.counters["scored"], w.online, len(w.shelf.batches)) == (UNITS, 2, 1)
    assert w.counters["moved_online"] == 0, "their batch had ended by itself"


async def test_a_batch_that_is_not_sent_before_it_is_too_late_is_given_up(bench: Any, desk: Any) -> None:
    w = world(bench, desk, 50.0)

    async def refused(requests: Any, identity: str) -> Any:
        async for _ in requests:
            pass
        raise not_created(FailureKind.RATE_LIMIT, uncertain=False)

    w.shelf.create = refused  # type: ignore[method-assign]
    left_s = PROMISED_S + RESERVE_S + 10.0
    await w.begin(left_s)
    assert await w.until_done() < left_s
    assert (w.counters["scored"], w.online, w.counters["moved_online"]) == (UNITS, UNITS, UNITS)


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_no_job_is_late_where_online_calls_could_have_made_it(bench: Any, desk: Any, seed: int) -> None:
    chance = Random(seed)
    units, at_once, call_s = chance.randint(1, 12), chance.randint(1, 5), chance.choice([0.5, 2.0, 20.0])
    typical_s = chance.choice([60.0, 600.0, 3600.0])
    clock = Clock()
    shelf = TimedShelf(
        clock,
        lambda: typical_s * chance.lognormvariate(0.0, 1.0) * (chance.random() < 0.8 or 30),
        lambda: chance.uniform(0.0, CANCELLING_S),
    )
    shelf.unanswered = {n for n in range(units) if chance.random() < 0.1}
    w = World(bench, desk(Scripted()), shelf, Paced(at_once, call_s))
    seen = {f"@{n}": typical_s * chance.lognormvariate(0.0, 1.0) for n in range(chance.randint(0, 4))}
    await bench.asyncs.hset(w.road.store.keys.batch_limits, "|p|asked-model", orjson.dumps(seen).decode())
    online_s = -(-units // at_once) * call_s
    left_s = online_s + chance.choice([1.0, 30.0, 300.0, 3000.0, 10_000.0]) * chance.uniform(0.5, 1.5)
    await w.begin(left_s, units)
    took_s = await w.until_done(units)
    moved, batches = w.counters["moved_online"], len(shelf.batches)
    logger.info(
        "seed %d: %.0f of %.0f s, %d batches, %d online, %d moved", seed, took_s, left_s, batches, w.online, moved
    )
    assert (w.counters["scored"], w.counters["failed"]) == (units, 0), f"{took_s} of {left_s} s"
    assert took_s <= left_s
    assert set(shelf.paid.values()) <= {1}, "no question is paid twice"
    asked = {shelf.body(request) for request in w.worker.provider.asked}
    assert not asked & shelf.paid.keys(), "what a batch was paid for is not asked online"
