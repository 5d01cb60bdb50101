"""What a message may ask to be planned."""

from types import SimpleNamespace

import pytest

from dicast.app.pipeline.lanes import Lanes
from tests.ledger.bench import Bench


@pytest.mark.parametrize("lane", [-1, 2, 99, "0", None, 0.0, [0]])
async def test_a_lane_that_a_job_has_not_is_not_planned_and_is_no_trouble_of_the_job(lane):
    """-1 is Python's last lane: it was planned a second time, and the job had twice as many opinions as units."""

    async def job(_):
        return SimpleNamespace(id="j", incarnation="n", lanes=["a", "b"])

    lanes = Lanes(SimpleNamespace(job=job), None, None, None, None)
    with pytest.raises(LookupError, match="has no lane"):
        await lanes.plan("j", "n", lane)


class HandedOn:
    """What planning leaves to other workers."""

    def __init__(self):
        self.lanes = []

    def serves(self, _):
        return False

    async def rejection_reason(self, *_):
        return ""

    def hand_on(self, job, lane):
        self.lanes.append((job.id, lane))


@pytest.mark.parametrize("then, goes_on", [("nothing", True), ("cancelled", False), ("planned to its end", False)])
async def test_planning_goes_round_among_workers_only_while_there_is_any(redis_url, then, goes_on):
    """Each round put the sweeper off, so that a cancelled job of a pool that nobody knows was never looked after."""
    bench, handed_on = Bench(redis_url), HandedOn()
    try:
        ref = await bench.started(cursor="" if then == "planned to its end" else "{}")
        if then == "cancelled":
            bench.client.cancel("j")
        before = bench.redis.zscore(bench.one.keys.unfinished, "j")
        await bench.asyncs.hset(bench.one.keys.base.clock, "now", int(before) + 1)
        await Lanes(bench.one, None, None, handed_on, None).plan("j", ref.incarnation, 0)
        assert (handed_on.lanes == [("j", 0)]) is goes_on
        assert (bench.redis.zscore(bench.one.keys.unfinished, "j") > before) is goes_on, "it is looked after in time"
    finally:
        await bench.asyncs.aclose()
        bench.redis.close()
