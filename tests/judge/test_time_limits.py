"""Jobs and units that wait no longer: pools that are down, deadlines."""

from __future__ import annotations

import asyncio

import pytest

from dicast.app.domain.deadlines import Bounds
from dicast.app.domain.opinion import FailureKind
from dicast.app.domain.panel import Agent, Deployment
from dicast.app.domain.plan import lanes
from dicast.app.ledger.keys import PageRef
from dicast.app.ledger.records import Deferral, Due, MessageId
from dicast.app.pipeline.time_limits import TimeLimits
from dicast.app.providers.base import ProviderFailure
from dicast.workers.admission.pool_state import Outage, PoolCondition
from tests.judge.desk import Scripted, failing, good
from tests.ledger.bench import KEYS, a_job

NOW_S = 1_800_000_000.0


class World:
    """A judge, what it is told of pools, and a clock that a test moves."""

    def __init__(self, bench, desk):
        self.bench, self.desk, self.down, self.sent = bench, desk(Scripted(good)), {}, []
        ledger = bench.one
        self.patience = TimeLimits(ledger, self.desk.asking, self.desk.judge, self, self, self.desk.pools)
        self.now_s = NOW_S

    async def read(self, pools):
        return {pool: PoolCondition(self.now_s, self.down.get(pool), 0.0) for pool in pools}

    async def gather(self, ref):
        self.sent.append(("gather", ref.page))

    async def plan(self, job, incarnation, lane):
        self.sent.append(("plan", lane))

    async def start(self, job=None, *, pools=None, pages=1, **bounds):
        """A job with one open page a lane."""
        bench, job = self.bench, job or a_job()
        plan = lanes(pools or [("p",)] * len(job.agents), len(job.dimensions), 1, [False] * len(job.agents))
        units = len(job.items) * len(job.agents) * len(job.dimensions)
        bench.client.submit(job, plan, units, {})
        await self.at(0)
        await bench.one.start(job.id, 5, 0, Bounds(**bounds))
        refs, items = [], dict(enumerate(await bench.one.items(job.id, range(len(job.items)))))
        for number, lane in enumerate(plan):
            refs.append(PageRef(job.id, bench.incarnation(job.id), number, 0))
            mine = len(job.items) * lane.units_per_item
            assert await bench.one.open_page(refs[-1], 0, mine, "", 1, items) == mine
            await bench.one.published(refs[-1])
        return refs

    async def at(self, s):
        """The store's clocks stand at so many seconds after the start: wall clocks of tests are far behind."""
        self.now_s = NOW_S + s
        wall_ms = 10**15
        await self.bench.asyncs.hset(KEYS.clock, mapping={"wall": wall_ms, "now": round(self.now_s * 1000)})

    async def look(self, s=None):
        if s is not None:
            await self.at(s)
        self.desk.asking._jobs.clear()  # what a process knows is a quarter of a second old at most
        await self.patience.check("j")

    def fails(self, pool, since, at):
        self.down[pool] = Outage(NOW_S + since, NOW_S + at, 9, 8, 503, "status 503: down")

    async def errors(self, ref):
        return {p: result.get("error") for p, result in (await self.desk.results(ref)).items()}


@pytest.fixture
def world(bench, desk):
    return World(bench, desk)


# ------------------------------------------------------------------------------------------------------ max_pool_down
async def test_a_job_gives_a_pool_up_that_has_been_down_for_too_long(world, bench):
    (ref,) = await world.start(pool_down_ms=20_000)
    world.fails("p", since=0, at=19)
    await world.look(19.9)
    assert await world.errors(ref) == {} and world.sent == []
    await world.look(20)
    errors = await world.errors(ref)
    assert {error["kind"] for error in errors.values()} == {"pool_down"} and len(errors) == 4
    said = "not asked: pool 'p' has been down for 20 s (last error: status 503: down)"
    assert {(error["message"], error["status_code"], error["calls"]) for error in errors.values()} == {(said, 503, 0)}
    assert world.sent == [("gather", 0), ("plan", 0)]
    job = await world.desk.job(ref)
    (stop,) = (await world.desk.asking.stops(job)).values()
    assert stop.reason == "pool 'p' has been down for 20 s (last error: status 503: down)"
    assert not bench.redis.hexists(KEYS.job_limits, "j"), "what is queued passes the gates"


async def test_it_counts_from_the_jobs_start_and_only_if_somebody_has_tried_since(world):
    (ref,) = await world.start(pool_down_ms=20_000)
    world.fails("p", since=-3600, at=-1)
    await world.look(100)
    assert await world.errors(ref) == {}, "nobody knows"
    world.fails("p", since=-3600, at=15)
    await world.look(19)
    assert await world.errors(ref) == {}
    await world.look(20)
    assert len(await world.errors(ref)) == 4


async def test_a_pool_that_has_answered_is_waited_for_as_long_anew(world):
    (ref,) = await world.start(pool_down_ms=20_000)
    world.fails("p", since=30, at=45)
    await world.look(49)
    assert await world.errors(ref) == {}


async def test_units_that_wait_for_a_retry_end_at_once_and_calls_that_are_open_are_left(world, bench):
    (ref,) = await world.start(pool_down_ms=20_000)
    _, _, (claim,) = await bench.one.claim(ref, MessageId(0), [0], 0)
    await bench.two.claim(ref, MessageId(1), [1], 0)
    await bench.one.defer(ref, {}, [Deferral(0, claim.fence, 1, 0)], [Due(MessageId(0), 300_000)])
    world.fails("p", since=0, at=19)
    await world.look(20)
    assert set(await world.errors(ref)) == {0, 2, 3}
    bench.kill(1)
    await world.look(21)
    assert set(await world.errors(ref)) == {0, 1, 2, 3}, "its worker died over it"


async def test_other_lanes_of_the_job_go_on(world, bench):
    job = a_job(agents=2).model_copy(update={"agents": [Agent(name="a", pool="p"), Agent(name="b", pool="q")]})
    dead, well = await world.start(job, pools=[("p",), ("q",)], pool_down_ms=20_000)
    world.fails("p", since=0, at=19)
    await world.look(20)
    assert len(await world.errors(dead)) == 4 and await world.errors(well) == {}
    assert bench.redis.hexists(KEYS.job_limits, "j")


def two_places():
    places = [Deployment(pool="p"), Deployment(pool="q")]
    return a_job().model_copy(update={"agents": [Agent(name="a", deployments=places)]})


async def test_units_go_to_another_deployment(world, bench):
    (ref,) = await world.start(two_places(), pools=[("p", "q")], pool_down_ms=20_000)
    await bench.one.assign(ref, {MessageId(0): "p", MessageId(1): "q", MessageId(2): "p"})
    world.fails("p", since=0, at=19)
    await world.look(20)
    assert await world.errors(ref) == {}
    assert sorted(str(token) for _, token in await bench.one.take_due()) == ["0", "2"], "those that waited there"
    outcome = await world.desk.judge.judge(ref, MessageId(3), None, 0)
    assert not outcome.counts and outcome.summary.startswith("goes elsewhere: pool 'p' has been down for 20 s")


async def test_a_job_ends_when_all_its_deployments_are_down(world):
    (ref,) = await world.start(two_places(), pools=[("p", "q")], pool_down_ms=20_000)
    world.fails("p", since=0, at=19)
    world.fails("q", since=5, at=19)
    await world.look(20)
    assert await world.errors(ref) == {}
    await world.look(25)
    assert len(await world.errors(ref)) == 4


# ---------------------------------------------------------------------------------------------------------- deadlines
async def test_units_that_are_not_called_in_time_end(world, bench):
    (ref,) = await world.start(unit_ms=30_000)
    world.fails("p", since=3, at=28)
    await world.look(29)
    assert await world.errors(ref) == {}
    await world.look(30.2)
    errors = await world.errors(ref)
    assert {error["kind"] for error in errors.values()} == {"deadline"} and len(errors) == 4
    assert {error["calls"] for error in errors.values()} == {0}
    assert errors[0]["message"] == "its deadline has passed"
    assert bench.client.status("j").counters["lost"] == 0


async def test_a_message_that_comes_later_ends_its_unit_too(world):
    (ref,) = await world.start(unit_ms=30_000)
    await world.at(31)
    await world.desk.do(ref, 0)
    assert (await world.errors(ref))[0]["kind"] == "deadline" and world.desk.provider.asked == []


async def test_a_call_is_cut_at_its_units_deadline_and_no_evidence_against_the_pool(world):
    (ref,) = await world.start(unit_ms=30_000)
    await world.at(29.9)

    async def hang(_):
        await asyncio.get_running_loop().create_future()

    world.desk.provider.complete = hang
    await world.desk.do(ref, 0)
    error = (await world.errors(ref))[0]
    assert (error["kind"], error["attempts"], error["calls"]) == ("deadline", 1, 1)
    assert error["message"].startswith("cut at its deadline, after 0.")
    (lease,) = world.desk.leases
    assert lease.outcome is None


async def test_no_retry_is_waited_for_that_would_come_too_late(world, desk):
    (ref,) = await world.start(unit_ms=30_000)
    await world.at(25)
    slow = ProviderFailure(FailureKind.SERVER, "status 503: later", status_code=503, retry_after_s=60.0)
    judge = desk(Scripted(failing(slow)))
    await judge.do(ref, 0)
    error = (await judge.results(ref))[0]["error"]
    assert (error["kind"], error["message"], error["attempts"]) == ("deadline", "status 503: later", 1)


@pytest.mark.parametrize("by", ["finish_in_ms", "finish_at_ms"])
async def test_a_job_that_must_finish_asks_no_more_from_then_on(world, bench, by):
    (ref,) = await world.start(**{by: 60_000 + (await bench.one.wall_ms() if by == "finish_at_ms" else 0)})
    await world.look(58)
    await bench.two.claim(ref, MessageId(0), [0], 0)
    assert await world.errors(ref) == {}
    await world.look(60.5)
    assert {error["kind"] for error in (await world.errors(ref)).values()} == {"deadline"}
    assert set(await world.errors(ref)) == {1, 2, 3}, "the open call is cut by whoever made it"
    assert ("plan", 0) in world.sent, "and what is not published yet is put on record"
    job = await world.desk.job(ref)
    (stop,) = (await world.desk.asking.stops(job)).values()
    assert stop.reason == "the job's finish_by has passed, 60 s after its start"


async def test_whoever_claims_is_told_how_long_it_may_take(world, bench):
    (ref,) = await world.start(unit_ms=30_000, finish_in_ms=40_000)
    await world.at(5)
    assert (await bench.one.claim(ref, MessageId(0), [0], 0))[2][0].left_ms == pytest.approx(25_000, abs=300)
    (free,) = await World(bench, lambda _: world.desk).start(a_job("other"), unit_ms=None)
    assert (await bench.one.claim(free, MessageId(0), [0], 0))[2][0].left_ms == -1


async def test_a_step_of_the_stores_clock_moves_no_deadline(world, bench):
    """Deadlines are instants of the lease clock: however far the wall clock is put ahead, it moves by 5 s at most."""
    (ref,) = await world.start(unit_ms=30_000, finish_in_ms=30_000)
    seconds, _ = await bench.asyncs.time()
    await bench.asyncs.hset(KEYS.clock, "wall", (seconds - 86_400) * 1000)  # a day passed at once
    await world.patience.check("j")
    assert await world.errors(ref) == {}
    assert (await bench.one.claim(ref, MessageId(0), [0], 0))[2][0].left_ms > 20_000


async def test_a_job_that_does_not_run_is_not_looked_at_any_more(world, bench):
    await world.start(unit_ms=30_000)
    bounded = bench.one.keys.bounded
    assert bench.redis.zrange(bounded, 0, -1) == ["j"]
    bench.client.cancel("j")
    await world.look(60)
    assert bench.redis.zrange(bounded, 0, -1) == []
    await world.patience.check("nobody")


@pytest.mark.parametrize("ms, again_ms", [(20_000, 1000), (60_000, 3000), (21_600_000, 30_000)])
async def test_it_is_looked_at_as_often_as_its_bounds_are_short(world, bench, ms, again_ms):
    await world.start(pool_down_ms=ms)
    await world.at(7)
    await world.look()
    at = bench.redis.zscore(bench.one.keys.bounded, "j")
    assert at == pytest.approx((NOW_S + 7) * 1000 + again_ms, abs=300)


async def test_a_call_that_had_half_of_its_time_is_evidence_though_it_was_cut(world, monkeypatch):
    (ref,) = await world.start(unit_ms=30_000)
    await world.at(29.5)
    monkeypatch.setattr(world.desk.pools, "call_timeout_s", lambda _: 0.9)

    async def hang(_):
        await asyncio.get_running_loop().create_future()

    world.desk.provider.complete = hang
    await world.desk.do(ref, 0)
    (lease,) = world.desk.leases
    assert lease.outcome is not None and lease.outcome.status == 0
    assert lease.outcome.error.startswith("cut at its deadline")
