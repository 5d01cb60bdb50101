"""What is noted of troubles, and of where nobody asks."""

from __future__ import annotations

from dicast.app.domain.opinion import ErrorKind
from dicast.app.domain.plan import STANDARD, Intervals, Stop
from dicast.app.ledger.keys import PageRef
from dicast.app.ledger.records import MessageId
from dicast.app.ledger.troubles import EXHAUSTED_S, REMEMBERED_S, RETENTION_S, StopStore, Troubles
from tests.ledger.bench import KEYS


async def clock(bench, now_ms):
    """The lease clock stands here, as if nobody worked."""
    await bench.asyncs.hset(KEYS.clock, "now", now_ms)


async def test_what_is_met_at_different_times_counts(bench):
    troubles = Troubles(bench.asyncs, KEYS)
    met = []
    for now_ms, why in [(0, "a"), (1, "a"), (STANDARD.try_every_ms - 1, "a"), (STANDARD.try_every_ms, "a"),
                        (2 * STANDARD.try_every_ms - 1, "a"), (2 * STANDARD.try_every_ms, "a"),
                        (2 * STANDARD.try_every_ms + 1, "b"), (2 * STANDARD.try_every_ms + 2, "a")]:  # fmt: skip
        await clock(bench, now_ms)
        met.append(await troubles.note("j", why))
    assert met == [1, 1, 1, 2, 2, 3, 1, 1]
    assert REMEMBERED_S - 60 < await bench.asyncs.ttl(troubles.keys.trouble("j")) <= REMEMBERED_S


async def test_a_pool_is_unseen_since_a_worker_told_of_it_last(bench):
    troubles = Troubles(bench.asyncs, KEYS)
    await clock(bench, 100_000)
    await troubles.announce_pools(["p", "q"])
    await clock(bench, 100_000 + STANDARD.pool_gone_ms)
    await troubles.announce_pools(["q"])
    await clock(bench, 105_000 + STANDARD.pool_gone_ms)
    assert await troubles.unannounced_ms(["p"]) == STANDARD.pool_gone_ms + 5000
    assert await troubles.unannounced_ms(["p", "q"]) == 5000
    assert await troubles.unannounced_ms(["never"]) == STANDARD.pool_seen_ms, "from now on it counts"
    await clock(bench, 106_000 + STANDARD.pool_gone_ms)
    assert await troubles.unannounced_ms(["never"]) == STANDARD.pool_seen_ms + 1000
    await clock(bench, 0)
    assert await troubles.unannounced_ms(["q"]) == 0


async def test_messages_that_cannot_be_sent_are_due_again_unless_they_were_claimed(bench):
    troubles, ref = Troubles(bench.asyncs, KEYS, Intervals(due_again_ms=500)), PageRef("j", "abc", 0, 1)
    await clock(bench, 1000)
    await bench.asyncs.zadd(troubles.keys.due, {f"{ref}|3": 1})
    await troubles.due_again([(ref, MessageId(3)), (ref, MessageId(4, batch=True))])
    await troubles.due_again([])
    assert await bench.asyncs.zrange(troubles.keys.due, 0, -1, withscores=True) == [(f"{ref}|3", 1500.0)]


async def test_a_page_says_which_units_it_has(bench):
    ref = await bench.started()
    troubles = Troubles(bench.asyncs, KEYS)
    assert await troubles.extent(ref) == range(4)
    await bench.asyncs.hset(troubles.keys.page(ref), mapping={"first": 6, "units": 3})
    assert await troubles.extent(ref) == range(6, 9)
    assert not await troubles.extent(ref._replace(page=7))


# ------------------------------------------------------------------------------------------------ where nobody asks
async def test_notes_of_where_a_job_asks_no_more(bench):
    await bench.started()
    job, store = await bench.one.job("j"), StopStore(bench.asyncs, KEYS)
    stop = Stop(pool="p", model="m", kind=ErrorKind.REJECTED, after=2, status_code=401, message="bad key")
    assert not await store.failed(job, "0.0.0", 0, "401", stop, units=2, items=2)
    assert not await store.failed(job, "0.0.1", 0, "401", stop, units=2, items=2)
    assert await store.stops(job) == {}
    assert await store.failed(job, "0.0.2", 1, "401", stop, units=2, items=2)
    assert await store.stops(job) == {"p|m": stop}
    await store.mark_answered(job, "p|other")
    assert await store.load(job) == ({"p|m": stop}, {"p|other"})
    key = bench.one.keys.asking("j", job.incarnation)
    assert RETENTION_S - 60 < await bench.asyncs.ttl(key) <= RETENTION_S
    await store.silence("j")
    assert not await bench.asyncs.hexists(KEYS.job_limits, "j")


async def test_an_account_without_money_is_tried_by_one_at_a_time(bench):
    store = StopStore(bench.asyncs, KEYS)
    assert not await store.exhausted("p")
    await store.exhaust("p", 60_000)
    assert await store.exhausted("p") and not await store.exhausted("q")
    assert not await store.may_recheck("p", 60_000), "not before the time that was named"
    assert 0 < await bench.asyncs.pttl(store._keys.rechecked("p")) <= 60_000
    await bench.asyncs.delete(store._keys.rechecked("p"))
    assert await store.may_recheck("p", 60_000)
    assert not await store.may_recheck("p", 60_000)
    assert 0 < await bench.asyncs.pttl(store._keys.rechecked("p")) <= 60_000
    assert EXHAUSTED_S - 60 < await bench.asyncs.ttl(store._keys.exhausted("p")) <= EXHAUSTED_S
    await store.restored("p")
    assert not await store.exhausted("p")


async def test_a_clock_that_was_never_written_stands_at_0(bench):
    troubles = Troubles(bench.asyncs, KEYS)
    await bench.asyncs.delete(KEYS.clock)
    assert await troubles.note("j", "a") == 1
    assert await bench.asyncs.hget(troubles.keys.trouble("j"), "at") == "0"
