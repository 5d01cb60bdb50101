"""A store that was flushed, or is an older copy of itself."""

from dicast.app.ledger.records import ClaimVerdict, Deferral, JobState, UnitResult, WriteVerdict
from dicast.app.pipeline.record import Recorder, Spool
from tests.ledger.bench import a_job, claim, record


async def test_a_claim_of_before_a_flush_writes_nothing_after_it(bench):
    """The same job again, after a flush: what an old claim brings is refused, though its number was the newest then."""
    ref = await bench.started()
    old = [await claim(bench.one, ref, p, item=p // 2) for p in (0, 1, 2)]
    bench.redis.flushdb()
    for node in bench.nodes:
        bench.registry.announce(node)
    again = await bench.started()
    new = await claim(bench.two, again, 0)
    assert new.fence > old[0].fence
    written = (await record(bench.one, again, *old)).written
    assert written == [WriteVerdict.STALE] * 3
    assert bench.client.status("j").counters["stale"] == 3
    assert {t.position for _, t in await bench.two.take_due()} == {1, 2}  # nobody has claimed them anew
    late = await bench.one.defer(again, {}, [Deferral(0, old[0].fence, 1, 0)], [])
    assert late == [WriteVerdict.STALE]
    assert (await record(bench.two, again, new)).written == [WriteVerdict.NEW]


async def test_a_claim_that_an_older_copy_does_not_have_counts_unless_there_is_a_newer_one(bench):
    ref = await bench.started()
    page = bench.one.keys.page(ref)
    await claim(bench.one, ref, 0)
    copy = bench.redis.dump(page)
    bench.kill(0)
    mine = await claim(bench.two, ref, 0)
    untouched = await claim(bench.two, ref, 1)  # the copy does not know of any claim of this one
    bench.redis.restore(page, 0, copy, replace=True)
    assert (await record(bench.two, ref, mine, untouched)).written == [WriteVerdict.NEW, WriteVerdict.NEW]


async def test_what_the_store_took_and_lost_is_told_again_and_counted_once(bench, tmp_path):
    recorder = Recorder(bench.two, Spool(tmp_path, "ns", "n"))
    ref = await bench.started()
    kept, lost = await claim(bench.two, ref, 0), await claim(bench.two, ref, 1)
    counters = {"calls": 1}
    await recorder.store(ref, counters, [UnitResult(0, kept.fence, b"{}", True)])
    copies = {key: bench.redis.dump(key) for key in (bench.one.keys.page(ref), bench.one.keys.job("j"))}
    await recorder.store(ref, counters, [UnitResult(1, lost.fence, b"{}", True)])
    for key, copy in copies.items():
        bench.redis.restore(key, 0, copy, replace=True)
    told = [(found.written, found.remaining) async for _, found in recorder.recall()]
    assert told == [([WriteVerdict.NEW], 2)]
    assert [found async for found in recorder.recall()] == []
    status = bench.client.status("j")
    assert (status.counters["calls"], status.counters["scored"], status.counters["stale"]) == (2, 2, 0)


async def test_a_claim_that_an_older_copy_has_nothing_of_counts_in_its_epoch(bench):
    ref = await bench.started()
    page = bench.one.keys.page(ref)
    copy = bench.redis.dump(page)
    mine = await claim(bench.one, ref, 0)
    bench.redis.restore(page, 0, copy, replace=True)
    assert (await record(bench.one, ref, mine)).written == [WriteVerdict.NEW]


async def test_a_claim_whose_end_an_older_copy_has_lost_is_given_up(bench):
    """Its result was answered, and its message is gone: nothing but its owner can tell that nobody works on it."""
    ref = await bench.started()
    lost, kept, again = [await claim(bench.one, ref, p, item=p // 2) for p in range(3)]
    theirs = await claim(bench.two, ref, 3, item=1)
    page = bench.one.keys.page(ref)
    copy = bench.redis.dump(page)
    await record(bench.one, ref, lost)
    bench.redis.restore(page, 0, copy, replace=True)
    held = await bench.one.list_claims(ref)
    assert held == {0: lost.fence, 1: kept.fence, 2: again.fence}
    await record(bench.one, ref, kept)  # while the owner looks, one ends and another is claimed anew
    newer = await claim(bench.one, ref, 2, item=1)
    assert await bench.one.release_claims(ref, held) == 1
    assert [t.position for _, t in await bench.one.take_due()] == [0]
    heir = await claim(bench.two, ref, 0)
    assert (heir.verdict, heir.calls) == (ClaimVerdict.RUN, 2)
    assert bench.client.status("j").counters["possible_double_charges"] == 2  # of unit 0 and of unit 2
    for ledger, one in ((bench.two, heir), (bench.one, newer), (bench.two, theirs)):
        assert (await record(ledger, ref, one)).written == [WriteVerdict.NEW]


async def test_a_job_that_pays_at_most_once_does_not_call_again_what_the_store_has_lost(bench):
    ref = await bench.started(a_job(spend="at_most_once"))
    mine = await claim(bench.one, ref, 0)
    assert await bench.one.release_claims(ref, {0: mine.fence}) == 1
    assert (await claim(bench.one, ref, 0)).verdict is ClaimVerdict.UNKNOWN


async def test_a_forgotten_job_is_on_record_as_lost_until_it_is_submitted_again(bench):
    bench.submit(a_job())
    (facts,) = await bench.one.facts(["j"])
    assert not await bench.one.mark_lost("j", facts, 60)  # it is there
    bench.redis.flushdb()
    assert await bench.one.facts(["j"]) == [None]
    assert [await ledger.mark_lost("j", facts, 60) for ledger in (bench.one, bench.two)] == [True, False]
    status = bench.client.status("j")
    assert (status.state, status.project, status.units) == (JobState.LOST, "default", 4)
    assert status.state.ended
    assert await bench.one.job("j") is None
    assert bench.submit(a_job())
    assert bench.client.status("j").state is JobState.SUBMITTED
    assert bench.redis.ttl(bench.one.keys.job("j")) == -1
