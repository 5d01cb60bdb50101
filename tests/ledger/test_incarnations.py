"""An id that is used again: what an earlier job of it has left is none of the later one's."""

import pytest

from dicast.app.ledger.keys import PageRef
from dicast.app.ledger.records import Due, JobState, MessageId, UnitResult, WriteVerdict
from dicast.app.pipeline.record import JobCache, Recorder, Spool, _spool_entry
from tests.ledger.bench import a_job, claim, record


def flush(bench):
    """The store is emptied; its nodes come back."""
    bench.redis.flushdb()
    for node in bench.nodes:
        bench.registry.announce(node)


async def twice(bench):
    """A page of a job that a flush has ended, and the same page of another job of its id."""
    old = await bench.started()
    flush(bench)
    return old, await bench.started(a_job(dimensions=4), units=8)


async def test_the_same_job_again_is_another_incarnation_and_resumed_the_same(bench):
    old, new = await twice(bench)
    assert old.incarnation != new.incarnation
    assert bench.submit(a_job(dimensions=4)) is False
    assert bench.incarnation("j") == new.incarnation
    bench.client.cancel("j")
    bench.redis.hset(bench.one.keys.page(new), "left", 0)
    assert await bench.one.close_page(new, 1) == (True, False)
    assert await bench.one.complete("j", new.incarnation, b"{}", 60)
    bench.client.resume("j")
    assert bench.incarnation("j") == new.incarnation


async def test_a_message_of_an_earlier_job_finds_no_page(bench):
    old, new = await twice(bench)
    assert await bench.one.claim(old, MessageId(0), [0], 0) == (None, None, [])
    assert (await claim(bench.one, new, 0)).calls == 1


async def test_an_answer_that_an_earlier_job_has_left_on_disk_is_none_of_this_ones(bench, tmp_path):
    old = await bench.started()
    paid = await claim(bench.one, old, 0)
    entry = _spool_entry(old, {"calls": 1}, [UnitResult(0, paid.fence + 10**12, b"{}", True)])
    flush(bench)
    new = await bench.started(a_job(dimensions=4), units=8)
    ref, recorded = await Recorder(bench.two, Spool(tmp_path, "ns", "n")).store_spooled(entry)
    assert (ref, recorded.written, recorded.news) == (old, [WriteVerdict.GONE], False)
    counters = bench.client.status("j").counters
    assert (counters["done"], counters["calls"], counters["stale"]) == (0, 0, 0)  # its books are its own
    assert bench.redis.hget(bench.one.keys.page(new), "left") == "8"


async def test_planners_and_reports_of_an_earlier_job_change_nothing(bench):
    old = await bench.started(cursor='{"position": 4}')
    flush(bench)
    bench.submit(a_job())
    await bench.one.start("j", 5)
    assert await bench.one.open_page(old, 0, 4, "", 1, {}) == -1
    new = await bench.one.job("j")
    assert await bench.one.open_page(PageRef("j", new.incarnation, 0, 0), 0, 4, "", 1, {}) == 4
    bench.redis.hset(bench.one.keys.job("j"), mapping={"state": "finishing", "outcome": "completed"})
    assert not await bench.one.complete("j", old.incarnation, b'{"of": "the old"}', 60)
    assert bench.client.status("j").state is JobState.FINISHING


async def test_what_an_earlier_job_had_open_is_gone_when_its_record_alone_was_lost(bench):
    """As after DEL by hand, or an eviction: its pages would be counted as the new job's, which then never ends."""
    old = await bench.started()
    await bench.one.assign(old, {MessageId(0): "p"})
    await bench.one.defer(old, {}, [], [Due(MessageId(1), 0)])
    bench.redis.delete(bench.one.keys.job("j"))
    new = await bench.started()
    assert await bench.one.open_pages() == [new]
    assert bench.redis.smembers(bench.one.keys.pages("j")) == {f"0|{new.incarnation}.0"}
    assert bench.redis.hgetall(bench.one.keys.base.assigned) == {}
    assert await bench.one.take_due() == []
    assert not [key for key in bench.redis.scan_iter() if old.incarnation in key]
    for position in range(4):
        await record(bench.one, new, await claim(bench.one, new, position, item=position // 2))
    assert await bench.one.close_page(new, 1) == (True, False)


async def test_an_id_past_its_retention_is_not_judged_by_what_is_remembered_of_it(bench):
    cache = JobCache(bench.one)
    old = await bench.started(a_job(dimensions=2))
    assert len((await cache.get("j", old.incarnation)).spec.dimensions) == 2
    bench.redis.delete(*bench.redis.scan_iter("*job:j*"))
    new = await bench.started(a_job(dimensions=4), units=8)
    assert len((await cache.get("j", new.incarnation)).spec.dimensions) == 4


async def test_names_of_units_and_chords_are_no_jobs_ids(bench):
    """`x.0.0` is an id that a job may have, and was the name of the chord of the first page of `x`."""
    ref = await bench.started()
    for name in (ref.name, f"{ref.name}.0"):
        with pytest.raises(ValueError, match="may hold only"):
            a_job(name)


async def test_a_job_of_a_version_without_incarnations_gets_one(bench):
    bench.submit(a_job())
    bench.redis.hdel(bench.one.keys.job("j"), "incarnation")
    first = await bench.one.job("j")
    assert first.incarnation == (await bench.two.job("j")).incarnation == bench.incarnation("j")


async def test_a_job_with_twenty_thousand_units_waiting_is_cancelled(bench):
    ref = await bench.started()
    bench.redis.zadd(bench.one.keys.due, {f"{ref}|{n}": 2**50 for n in range(20_000)})
    assert bench.client.cancel("j") == (JobState.RUNNING, False)
    now = bench.redis.hget(bench.one.keys.base.clock, "now")
    assert bench.redis.zcount(bench.one.keys.due, 0, int(now) + 1000) == 20_000
