"""What is wrong with one page, job or message is that one's trouble, and the others are looked after."""

from types import SimpleNamespace

import pytest
from kombu.exceptions import OperationalError
from redis.exceptions import ConnectionError as StoreConnectionError

from dicast.app.domain.plan import STANDARD
from dicast.app.ledger.keys import PageRef
from dicast.app.ledger.records import MessageId, Recorded, WriteVerdict
from dicast.app.ledger.troubles import Troubles
from dicast.app.pipeline.housekeeping import Beat, DueMessages, StalledPages, Sweeper, UnattendedJobs
from dicast.app.pipeline.job_faults import JobFaults
from dicast.app.pipeline.missing_pools import MissingPools
from dicast.app.pipeline.recovery import DeadNodes, Recovery
from dicast.workers.store.connection import connect_async
from dicast.workers.store.keys import Keys
from dicast.workers.store.scripts import Epoch

PAGES = [PageRef(job, "n", 0, 0) for job in ("a", "odd", "b")]


class World:
    """What stands around the housekeeping parts: it tells what it was asked, and fails for what is in `faults`."""

    intervals = STANDARD

    def __init__(self, faults):
        self.faults, self.done, self.troubles, self.put_back = faults, [], [], []
        self.keys = SimpleNamespace(watch="watch", unfinished="unfinished", bounded="bounded")
        self.lanes = [SimpleNamespace(pools=("p",), stride=1, road="online", may_batch=False)]

    def _do(self, what, job):
        if (what, job) in self.faults:
            raise self.faults[what, job]
        self.done.append((what, job))

    async def led(self, _): ...

    async def overdue(self, zset, _):
        for ref in PAGES:
            yield str(ref) if zset == "watch" else ref.job

    async def unannounced(self):
        return [ref.job for ref in PAGES]

    async def announce(self, job):
        self._do("announce", job)

    async def find_lost(self, ref, *_, **__):
        self._do("page", ref.job)
        return 0

    async def queues_empty(self, _):
        return True

    async def progress(self, job):
        self._do("job", job)
        return {}

    async def take_due(self):
        return [(ref, MessageId(7)) for ref in PAGES]

    async def resend(self, _, ref, token):
        self._do("again", ref.job)

    async def job(self, job):
        return SimpleNamespace(id=job, incarnation="n", lanes=self.lanes)

    async def get(self, job, _):
        return await self.job(job)

    def serves(self, _):
        return True

    def served_pools(self, lane):
        return set(lane.pools)

    def queue(self, pool):
        return pool

    async def due_again(self, messages):
        self.put_back += [ref.job for ref, _ in messages]

    async def note(self, job, why):
        self.troubles.append((job, why))
        return 1

    def reap(self):
        return 0

    def beat(self):
        faults = JobFaults(self, None)
        pages, jobs = StalledPages(self, self, self, self), UnattendedJobs(self, self, None, None)
        return Beat(self, self, DeadNodes(self, self), Sweeper(self, pages, jobs, self, self, faults), None)

    def due(self):
        return DueMessages(self, self, self, self, JobFaults(self, None))

    async def check(self, job):
        self._do("patience", job)

    async def adopt(self):
        self._do("adopt", "")


def done(*what):
    return [(one, job) for one in what for job in ("a", "odd", "b")]


@pytest.mark.parametrize("what", ["page", "job", "patience", "announce"])
async def test_a_tick_goes_on_behind_what_is_odd(what, caplog):
    world = World({(what, "odd"): KeyError("provider.gone")})
    await world.beat().tick()
    wanted = [("adopt", ""), *done("page", "job", "patience", "announce")]
    assert world.done == [one for one in wanted if one != (what, "odd")]
    assert world.troubles == [("odd", "KeyError: 'provider.gone'")]
    assert [record.job for record in caplog.records if record.levelname == "ERROR"] == ["odd"]


async def test_a_disk_that_cannot_be_read_ends_no_tick():
    world = World({("adopt", ""): PermissionError("spool")})
    await world.beat().tick()
    assert world.done == done("page", "job", "patience", "announce")


async def test_one_due_message_that_cannot_be_sent_keeps_no_other():
    world = World({("again", "odd"): KeyError("provider.gone")})
    await world.due().publish()
    assert (world.done, world.put_back) == ([("again", "a"), ("again", "b")], [])


@pytest.mark.parametrize("error", [OperationalError("away"), StoreConnectionError("away"), ConnectionResetError()])
async def test_what_is_due_while_the_broker_is_away_is_due_again_soon(error):
    """And not only a minute later, when it would be taken for lost."""
    world = World({("again", "odd"): error})
    with pytest.raises(type(error)):
        await world.due().publish()
    assert (world.put_back, world.troubles) == (["odd", "b"], [])


@pytest.fixture
async def troubles(redis_url):
    client = connect_async(redis_url)
    found = Troubles(client, Keys("t"))
    found.at = lambda ms: client.hset(found.keys.base.clock, "now", ms)
    await found.at(1_000_000)
    yield found
    await client.aclose()


async def test_tries_count_when_they_are_of_the_same_and_apart(troubles):
    async def note(ms, why):
        await troubles.at(1_000_000 + ms)
        return await troubles.note("j", why)

    assert [await note(ms, "gone") for ms in (0, 1, 9_999, 10_000, 20_000)] == [1, 1, 1, 2, 3]
    assert await note(40_000, "changed") == 1
    assert await note(50_000, "gone") == 1


async def test_a_pool_is_gone_when_nobody_has_told_of_it_for_two_minutes(troubles):
    lane, job = SimpleNamespace(pools=("new",)), SimpleNamespace(id="j")
    here, there = (MissingPools(troubles, None, None, known) for known in ({"old"}, {"old", "new"}))
    assert (here.serves(lane), there.serves(lane)) == (False, True)

    async def gone(at_s):
        await troubles.at(1_000_000 + 1000 * at_s)
        return await here.rejection_reason(job, lane)

    assert [await gone(s) for s in (0, 60, 104)] == ["", "", ""]
    await there.announce_pools()
    assert [await gone(s) for s in (110, 200, 223)] == ["", "", ""]
    assert await gone(224) == "the pool new is in no worker's configuration"


async def test_what_is_due_again_is_not_what_was_claimed_meanwhile(troubles):
    ref, client = PageRef("j", "n", 0, 0), troubles._redis
    await client.zadd(troubles.keys.due, {f"{ref}|7": 5})
    await troubles.due_again([(ref, MessageId(7)), (ref, MessageId(8))])
    assert await client.zrange(troubles.keys.due, 0, -1, withscores=True) == [(f"{ref}|7", 1_001_000.0)]


async def test_after_a_broken_connection_everything_is_looked_at_soon_once():
    epoch, world = Epoch(), World({})
    looks = 0

    async def look_soon():
        nonlocal looks
        looks += 1

    async def unfinished():
        return []

    world.look_soon, world.unfinished = look_soon, unfinished
    recovery = Recovery(world, SimpleNamespace(), SimpleNamespace(), world, SimpleNamespace(), epoch)
    for cuts, want in ((0, 0), (1, 1), (1, 1), (3, 2), (3, 2)):
        epoch.cuts = cuts
        await recovery.remember()
        assert looks == want


async def test_results_that_are_stored_again_are_told_of_though_the_store_goes_away_again(caplog):
    class Recorder:
        async def recall(self):
            yield PageRef("j", "n", 0, 0), Recorded(0, plan=False, gather=False, written=[WriteVerdict.NEW] * 2)
            raise StoreConnectionError("away again")

    world = World({})
    recovery = Recovery(world, SimpleNamespace(), Recorder(), world, SimpleNamespace(), Epoch())
    with pytest.raises(StoreConnectionError):
        await recovery._recall()
    assert [record.results for record in caplog.records if getattr(record, "event", "") == "recalled"] == [2]
