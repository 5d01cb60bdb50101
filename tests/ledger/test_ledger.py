"""The ledger on a real server: whole or absent, one result a unit, one completion a job."""

import asyncio
import json
from dataclasses import replace

import pytest
from redis.exceptions import OutOfMemoryError

from app.domain.job import EvaluationJob
from app.domain.plan import lanes
from app.ledger.client import JobConflict, JobState, LedgerClient, UnknownJob
from app.ledger.keys import PageRef
from app.ledger.ledger import LOOK_SOON_MS, QUARANTINE_DEATHS, Ledger, Unheard
from app.ledger.records import Deferral, Due, Result, Token, Verdict, Written
from app.recording import Recorder
from app.spool import Spool
from workers.nodes import Node, Registry
from workers.store.connection import connect, connect_async
from workers.store.keys import Keys

KEYS = Keys("test")


def a_job(job_id="j", items=2, agents=1, dimensions=2, **more):
    return EvaluationJob.model_validate(
        {
            "id": job_id,
            "items": [{"id": f"i{n}", "text": f"text {n}"} for n in range(items)],
            "agents": [{"name": f"a{n}"} for n in range(agents)],
            "dimensions": [{"id": f"d{n}", "instructions": "how good?"} for n in range(dimensions)],
            **more,
        }
    )


class Bench:
    """A ledger with two living nodes, and a job whose first page is open."""

    def __init__(self, redis_url):
        self.redis = connect(redis_url)
        self.client = LedgerClient(self.redis, KEYS)
        self.registry = Registry(self.redis, KEYS)
        self.asyncs = connect_async(redis_url)
        self.nodes = [Node.here(f"w{n}@h", limit=5, slots=5) for n in range(2)]
        for node in self.nodes:
            self.registry.announce(node)
            self.redis.persist(KEYS.node(node.id))  # nobody renews it, however slow the machine is
        self.one, self.two = (Ledger(self.asyncs, KEYS, node.id, claim_ms=60_000, calls_max=9) for node in self.nodes)

    def submit(self, job, batched=False):
        plan = lanes([("p",)] * len(job.agents), len(job.dimensions), job.replicates, [batched] * len(job.agents))
        units = len(job.items) * len(job.agents) * len(job.dimensions) * job.replicates
        return self.client.submit(job, plan, units, {})

    async def started(self, job=None, batched=False, units=4, cursor="", sent=True):
        job = job or a_job()
        self.submit(job, batched)
        await self.one.start(job.id, 5)
        ref = PageRef(job.id, 0, 0)
        items = dict(enumerate(await self.one.items(job.id, range(len(job.items)))))
        assert await self.one.open_page(ref, 0, units, cursor, 1, items) == units
        if sent:
            await self.one.published(ref)
        return ref

    def kill(self, n):
        self.registry.bury(self.nodes[n])


@pytest.fixture
async def bench(redis_url):
    bench = Bench(redis_url)
    yield bench
    await bench.asyncs.aclose()


async def claim(ledger, ref, position, token=None, item=0):
    _, _, claims = await ledger.claim(ref, token or Token(position), [position], item)
    return claims[0]


async def record(ledger, ref, *claims, scored=True):
    return await ledger.record(
        ref, {"calls": 1}, [Result(c.position, c.fence, b'{"opinion":{}}', scored) for c in claims]
    )


# ---------------------------------------------------------------------------------------------------- submission
async def test_a_job_comes_back_as_it_was_submitted(bench):
    job = a_job(replicates=2, metadata={"k": [1, None]})
    assert bench.submit(job)
    found = await bench.one.job("j")
    assert found.spec.model_copy(update={"items": job.items}) == job
    assert await bench.one.items("j", range(2)) == job.items
    assert (found.units, found.lanes[0].replicates) == (8, 2)


async def test_the_same_job_again_is_the_same_job_and_another_is_refused(bench):
    assert bench.submit(a_job())
    assert not bench.submit(a_job())
    with pytest.raises(JobConflict, match="'j' was submitted before with other content"):
        bench.submit(a_job(items=3))
    assert [s.id for s in bench.client.jobs()] == ["j"]
    assert not bench.redis.keys("*staging*")


async def test_nothing_is_there_before_all_is(bench):
    """A submitter that dies after any number of its commands leaves no job, and only keys that expire."""
    job = a_job(items=500)
    bench.client._submit = lambda **_: (_ for _ in ()).throw(KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        bench.submit(job)
    with pytest.raises(UnknownJob):
        bench.client.status("j")
    left = [k for k in bench.redis.keys("*") if not any(word in k for word in ("node", "clock", "epoch"))]
    assert left
    assert all(bench.redis.ttl(k) > 0 for k in left)


async def test_a_job_starts_once_and_keeps_its_limit(bench):
    bench.submit(a_job())
    assert await bench.one.start("j", 5) == (JobState.RUNNING, True)
    assert await bench.two.start("j", 9) == (JobState.RUNNING, False)
    assert bench.client.status("j").limit == 5


async def test_of_two_planners_one_opens_the_page(bench):
    ref = await bench.started(cursor='{"position": 4}')
    assert await bench.two.open_page(ref, 0, 4, "", 1, {}) == -1
    assert bench.client.status("j").counters["published"] == 4


async def test_an_attempt_to_open_a_page_may_be_repeated(bench):
    """Its answer was lost: told that another planner had won, nobody would publish the page."""
    ref = await bench.started(cursor='{"position": 4}')
    following = ref._replace(page=1)
    for _ in range(2):
        assert await bench.one.open_page(following, 4, 2, "", 1, {}, None, "mine") == 6
    assert await bench.two.open_page(following, 4, 2, "", 1, {}, None, "yours") == -1
    assert bench.client.status("j").counters["published"] == 6


# ---------------------------------------------------------------------------------------------------- claims
async def test_a_unit_has_one_owner_while_that_lives(bench):
    ref = await bench.started()
    mine = await claim(bench.one, ref, 0)
    assert (mine.verdict, mine.calls) == (Verdict.RUN, 1)
    assert (await claim(bench.two, ref, 0)).verdict is Verdict.OWNED
    bench.kill(0)
    heir = await claim(bench.two, ref, 0)
    assert (heir.verdict, heir.calls) == (Verdict.RUN, 2)
    assert heir.fence > mine.fence
    assert bench.client.status("j").counters["possible_double_charges"] == 1


async def test_a_node_that_is_not_heard_claims_nothing(bench):
    """After a cut its beacon is gone for a moment, and others would take at once what it claims."""
    ref = await bench.started()
    bench.registry.silence(bench.nodes[0])
    with pytest.raises(Unheard):
        await claim(bench.one, ref, 0)
    bench.registry.announce(bench.nodes[0])
    assert (await claim(bench.one, ref, 0)).calls == 1


async def test_a_late_result_of_a_lost_claim_is_refused_and_counted(bench):
    ref = await bench.started()
    old = await claim(bench.one, ref, 0)
    bench.kill(0)
    new = await claim(bench.two, ref, 0)
    assert (await record(bench.one, ref, old)).written == [Written.STALE]
    assert (await record(bench.two, ref, new)).written == [Written.NEW]
    assert (await record(bench.one, ref, old)).written == [Written.AGAIN]
    counters = bench.client.status("j").counters
    assert (counters["done"], counters["stale"]) == (1, 1)


async def test_a_unit_that_kills_its_workers_is_quarantined(bench):
    ref = await bench.started()
    for _ in range(QUARANTINE_DEATHS):
        doomed = Node.here("x@h", limit=1, slots=1)
        bench.registry.announce(doomed)
        assert (
            await claim(Ledger(bench.asyncs, KEYS, doomed.id, claim_ms=60_000, calls_max=9), ref, 0)
        ).verdict is Verdict.RUN
        bench.registry.bury(doomed)
    last = await claim(bench.one, ref, 0)
    assert (last.verdict, last.calls) == (Verdict.POISON, QUARANTINE_DEATHS)
    assert (await record(bench.one, ref, last, scored=False)).written == [Written.NEW]


async def test_done_units_are_not_called_again(bench):
    ref = await bench.started()
    await record(bench.one, ref, await claim(bench.one, ref, 0))
    assert (await claim(bench.two, ref, 0)).verdict is Verdict.DONE


# ---------------------------------------------------------------------------------------------------- waiting
async def test_a_deferred_unit_waits_and_then_comes_once(bench):
    ref = await bench.started()
    first = await claim(bench.one, ref, 0)
    deferral = Deferral(0, first.fence, attempts=1, requeues=2)
    assert await bench.one.defer(ref, {"retries": 1}, [deferral], [Due(Token(0), 60_000)]) == [Written.DEFERRED]
    assert (await claim(bench.two, ref, 0)).verdict is Verdict.WAITING  # an early copy of its message
    assert await bench.one.take_due() == []
    bench.redis.zadd(bench.one.keys.due, {f"{ref}|0": 0})
    assert await bench.one.take_due() == [(ref, Token(0))]
    assert await bench.one.take_due() == []
    again = await claim(bench.two, ref, 0)
    assert (again.verdict, again.attempts, again.requeues) == (Verdict.RUN, 1, 2)
    assert bench.redis.zcard(bench.one.keys.due) == 0


async def test_a_due_unit_whose_publisher_died_comes_again(bench):
    ref = await bench.started()
    first = await claim(bench.one, ref, 0)
    await bench.one.defer(ref, {}, [Deferral(0, first.fence, 1, 0)], [Due(Token(0), 0)])
    assert len(await bench.one.take_due()) == 1
    bench.redis.zadd(bench.one.keys.due, {f"{ref}|0": 0})  # the minute is over and nobody claimed it
    assert len(await bench.two.take_due()) == 1


async def test_a_stale_claim_cannot_defer(bench):
    ref = await bench.started()
    old = await claim(bench.one, ref, 0)
    bench.kill(0)
    await claim(bench.two, ref, 0)
    written = await bench.one.defer(ref, {}, [Deferral(0, old.fence, 1, 0)], [Due(Token(0), 0)])
    assert written == [Written.STALE]
    assert await bench.one.take_due() == []


# ---------------------------------------------------------------------------------------------------- the end
async def test_the_last_result_ends_the_page_and_closing_it_ends_the_job(bench):
    ref = await bench.started()
    left = [(await record(bench.one, ref, await claim(bench.one, ref, p, item=p // 2))).left for p in range(4)]
    assert left == [3, 2, 1, 0]
    assert await bench.one.close_page(ref, 1) == (True, False)
    assert bench.client.status("j").state is JobState.FINISHING
    assert await bench.one.close_page(ref, 1) == (True, False)  # a copy of the message finds the same
    assert await bench.one.claim_finish("j")
    assert not await bench.two.claim_finish("j")
    assert await bench.one.complete("j", b'{"ok": 1}', 60)
    assert not await bench.two.complete("j", b'{"ok": 2}', 60)
    status = bench.client.status("j")
    assert (status.state, status.report) == (JobState.COMPLETED, {"ok": 1})
    assert await bench.two.unannounced() == ["j"]
    await bench.two.announced("j")
    assert await bench.two.unannounced() == []


async def test_a_page_with_another_to_come_asks_for_planning_once(bench):
    ref = await bench.started(cursor='{"position": 4}')
    claims = [await claim(bench.one, ref, p, item=p // 2) for p in range(4)]
    plans = [(await record(bench.one, ref, c)).plan for c in claims]
    assert plans == [False, False, True, False]  # low water is one open unit
    await bench.one.planned("j", 0)
    assert await bench.one.close_page(ref, 1) == (False, True)


async def test_a_page_whose_chord_lost_a_member_is_gathered_by_its_last_result(bench):
    ref = await bench.started()
    claims = [await claim(bench.one, ref, p, item=p // 2) for p in range(4)]
    await claim(bench.two, ref, 3, item=1)  # a copy finds it owned and ends uncounted
    gathers = [(await record(bench.one, ref, c)).gather for c in claims]
    assert gathers == [False, False, False, True]


async def test_cancel_lets_no_unit_run_and_ends_when_all_are_closed(bench):
    ref = await bench.started(cursor='{"position": 4}')
    running = await claim(bench.one, ref, 0)
    waiting = await claim(bench.one, ref, 1)
    await bench.one.defer(ref, {}, [Deferral(1, waiting.fence, 1, 0)], [Due(Token(1), 60_000)])
    assert bench.client.cancel("j") == (JobState.RUNNING, False)
    assert bench.client.cancel("j") == (JobState.CANCELLING, False)
    assert await bench.one.take_due() == [(ref, Token(1))]
    rest = [await claim(bench.two, ref, p, item=p // 2) for p in (1, 2, 3)]
    assert {c.verdict for c in rest} == {Verdict.CANCELLED}
    assert {c.calls for c in rest} == {0, 1}
    assert (await record(bench.one, ref, running)).written == [Written.NEW]  # an open call counts
    await record(bench.two, ref, *rest, scored=False)
    assert await bench.one.close_page(ref, 1) == (True, False)
    assert bench.client.status("j").state is JobState.FINISHING


async def test_a_job_cancelled_before_it_starts_only_needs_its_report(bench):
    bench.submit(a_job())
    assert bench.client.cancel("j") == (JobState.SUBMITTED, True)
    assert await bench.one.complete("j", b"{}", 60)
    assert bench.client.status("j").state is JobState.CANCELLED


# ---------------------------------------------------------------------------------------------------- the sweeper
async def test_lost_units_are_found_only_when_nothing_moves(bench):
    ref = await bench.started()
    await record(bench.one, ref, await claim(bench.one, ref, 0))
    await claim(bench.two, ref, 1)
    find = lambda empty: bench.one.find_lost(ref, 1, queue_empty=empty)  # noqa: E731
    assert await find(True) == 0  # the first look only remembers
    assert await find(False) == 0  # messages wait in the broker, and unit 1 is in living hands
    assert await find(True) == 2  # units 2 and 3 were never claimed and nothing waits
    bench.kill(1)
    assert await find(True) == 1  # unit 1's owner died
    assert {t.position for _, t in await bench.one.take_due()} == {1, 2, 3}
    for p in (1, 2, 3):
        await record(bench.one, ref, await claim(bench.one, ref, p, item=p // 2))
    assert await find(True) is None


async def test_lost_messages_are_found_though_others_wait(bench):
    """A busy queue is never empty; but what is first in it is of a page that was opened later."""
    ref = await bench.started(cursor='{"position": 4}')
    later = ref._replace(page=1)

    def put(page):
        header = {"dicast": {"job": page.job, "unit": f"0.{page.page}.0"}}
        bench.redis.rpush("provider.p", json.dumps({"body": "", "headers": header}))

    find = lambda: bench.one.find_lost(ref, 1, queue_empty=False, queues=["provider.p", "provider.q"])  # noqa: E731
    await bench.one.open_page(later, 4, 2, "", 1, {})
    bench.redis.hincrby(bench.one.keys.page(later), "opened_ms", 1)
    assert await find() == 0  # the first look only remembers
    put(ref)
    assert await find() == 0
    put(later)
    bench.redis.rpush("provider.q", "no message")
    assert await find() == 0
    bench.redis.delete("provider.q")
    assert await find() == 4
    await bench.one.take_due()
    bench.redis.delete(bench.one.keys.due)
    bench.redis.hset(bench.one.keys.page(ref), "again_ms", 2**50)
    assert await find() == 0  # what is on its way again is given time


async def test_a_page_whose_planner_died_is_sent_again_at_once(bench):
    ref = await bench.started(sent=False)
    assert await bench.two.find_lost(ref, 1, queue_empty=False) == 0  # its planner lives, and may still be sending
    bench.kill(0)
    assert await bench.two.find_lost(ref, 1, queue_empty=False) == 4
    assert {t.position for _, t in await bench.two.take_due()} == {0, 1, 2, 3}


async def test_a_page_that_was_sent_does_not_depend_on_its_planner(bench):
    ref = await bench.started()
    bench.kill(0)
    assert await bench.two.find_lost(ref, 1, queue_empty=False) == 0
    await bench.two.look_soon()
    assert [m async for m in bench.two.overdue(bench.two.keys.watch, 1000)] == []
    assert bench.redis.zscore(bench.two.keys.watch, str(ref)) <= await bench.two.now_ms() + LOOK_SOON_MS


async def test_an_untouched_batch_is_sent_again_whole(bench):
    ref = await bench.started(batched=True)
    await bench.one.claim(ref, Token(2, batch=True), [2, 3], 1)
    bench.kill(0)
    for _ in range(2):
        found = await bench.two.find_lost(ref, 2, queue_empty=True)
    assert found == 3
    assert {str(t) for _, t in await bench.two.take_due()} == {"b0", "2", "3"}


async def test_many_workers_on_one_page_give_each_unit_one_result(bench):
    """20 claimants with copies of every message: 40 units, 40 results, one of them sees the page's end."""
    ref = await bench.started(a_job(items=20), units=40)
    ends = []

    async def worker(n):
        node = Node.here(f"x{n}@h", limit=1, slots=1)
        bench.registry.announce(node)
        ledger = Ledger(bench.asyncs, KEYS, node.id, claim_ms=60_000, calls_max=9)
        for position in range(40):
            mine = await claim(ledger, ref, position, item=position // 2)
            if mine.verdict is Verdict.RUN:
                ends.append((await record(ledger, ref, mine)).left)

    await asyncio.gather(*(worker(n) for n in range(20)))
    assert sorted(ends) == list(range(40))
    assert bench.client.status("j").done == 40


async def test_only_one_living_node_leads(bench):
    assert await bench.one.lead(60_000)
    assert not await bench.two.lead(60_000)
    assert replace(bench.nodes[0]).id in await bench.asyncs.get(KEYS.beat)


# ---------------------------------------------------------------------------------------------------- assignments
async def assigned(bench):
    return {pool: int(n) for pool, n in (await bench.asyncs.hgetall(KEYS.assigned)).items()}


async def test_a_message_counts_for_its_pool_until_it_is_claimed(bench):
    ref = await bench.started()
    await bench.one.assign(ref, {Token(0): "p", Token(1): "p", Token(2): "q", Token(3): "q"})
    assert await assigned(bench) == {"p": 2, "q": 2}
    await bench.one.assign(ref, {Token(1): "q"})  # chosen anew
    await bench.one.assign(ref, {Token(1): "q"})
    assert await assigned(bench) == {"p": 1, "q": 3}
    await claim(bench.one, ref, 0)
    await claim(bench.two, ref, 0)  # a copy
    assert await assigned(bench) == {"q": 3}


async def test_a_message_that_comes_too_early_is_still_assigned(bench):
    ref = await bench.started()
    first = await claim(bench.one, ref, 0)
    await bench.one.defer(ref, {}, [Deferral(0, first.fence, 1, 0)], [Due(Token(0), 60_000)])
    await bench.one.assign(ref, {Token(0): "p"})
    assert (await claim(bench.two, ref, 0)).verdict is Verdict.WAITING
    assert await assigned(bench) == {"p": 1}


async def test_what_was_never_claimed_leaves_with_its_page(bench):
    ref = await bench.started()
    await bench.one.assign(ref, {Token(0, batch=True): "p", Token(2, batch=True): "q"})
    for position in range(4):  # by messages of their own
        await record(bench.one, ref, await claim(bench.one, ref, position, item=position // 2))
    assert await assigned(bench) == {"p": 1, "q": 1}
    await bench.one.close_page(ref, 1)
    await bench.one.close_page(ref, 1)
    assert await assigned(bench) == {}
    await bench.one.assign(ref, {Token(0): "p"})  # there is no such page any more
    assert await assigned(bench) == {}
    assert not [key async for key in bench.asyncs.scan_iter(match="*assignments*")]


# ---------------------------------------------------------------------------------------------- a store that forgets
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
    assert written == [Written.STALE] * 3
    assert bench.client.status("j").counters["stale"] == 3
    assert {t.position for _, t in await bench.two.take_due()} == {1, 2}  # nobody has claimed them anew
    late = await bench.one.defer(again, {}, [Deferral(0, old[0].fence, 1, 0)], [])
    assert late == [Written.STALE]
    assert (await record(bench.two, again, new)).written == [Written.NEW]


async def test_a_claim_that_an_older_copy_does_not_have_counts_unless_there_is_a_newer_one(bench):
    ref = await bench.started()
    page = bench.one.keys.page(ref)
    await claim(bench.one, ref, 0)
    copy = bench.redis.dump(page)
    bench.kill(0)
    mine = await claim(bench.two, ref, 0)
    untouched = await claim(bench.two, ref, 1)  # the copy does not know of any claim of this one
    bench.redis.restore(page, 0, copy, replace=True)
    assert (await record(bench.two, ref, mine, untouched)).written == [Written.NEW, Written.NEW]


async def test_what_the_store_took_and_lost_is_told_again_and_counted_once(bench, tmp_path):
    recorder = Recorder(bench.two, Spool(tmp_path, "ns", "n"))
    ref = await bench.started()
    kept, lost = await claim(bench.two, ref, 0), await claim(bench.two, ref, 1)
    counters = {"calls": 1}
    await recorder.store(ref, counters, [Result(0, kept.fence, b"{}", True)])
    copies = {key: bench.redis.dump(key) for key in (bench.one.keys.page(ref), bench.one.keys.job("j"))}
    await recorder.store(ref, counters, [Result(1, lost.fence, b"{}", True)])
    for key, copy in copies.items():
        bench.redis.restore(key, 0, copy, replace=True)
    told = [(found.written, found.left) async for _, found in recorder.recall()]
    assert told == [([Written.NEW], 2)]
    assert [found async for found in recorder.recall()] == []
    status = bench.client.status("j")
    assert (status.counters["calls"], status.counters["scored"], status.counters["stale"]) == (2, 2, 0)


async def test_a_claim_that_an_older_copy_has_nothing_of_counts_in_its_epoch(bench):
    ref = await bench.started()
    page = bench.one.keys.page(ref)
    copy = bench.redis.dump(page)
    mine = await claim(bench.one, ref, 0)
    bench.redis.restore(page, 0, copy, replace=True)
    assert (await record(bench.one, ref, mine)).written == [Written.NEW]


async def test_a_claim_whose_end_an_older_copy_has_lost_is_given_up(bench):
    """Its result was answered, and its message is gone: nothing but its owner can tell that nobody works on it."""
    ref = await bench.started()
    lost, kept, again = [await claim(bench.one, ref, p, item=p // 2) for p in range(3)]
    theirs = await claim(bench.two, ref, 3, item=1)
    page = bench.one.keys.page(ref)
    copy = bench.redis.dump(page)
    await record(bench.one, ref, lost)
    bench.redis.restore(page, 0, copy, replace=True)
    held = await bench.one.held(ref)
    assert held == {0: lost.fence, 1: kept.fence, 2: again.fence}
    await record(bench.one, ref, kept)  # while the owner looks, one ends and another is claimed anew
    newer = await claim(bench.one, ref, 2, item=1)
    assert await bench.one.disown(ref, held) == 1
    assert [t.position for _, t in await bench.one.take_due()] == [0]
    heir = await claim(bench.two, ref, 0)
    assert (heir.verdict, heir.calls) == (Verdict.RUN, 2)
    assert bench.client.status("j").counters["possible_double_charges"] == 2  # of unit 0 and of unit 2
    for ledger, one in ((bench.two, heir), (bench.one, newer), (bench.two, theirs)):
        assert (await record(ledger, ref, one)).written == [Written.NEW]


async def test_a_job_that_pays_at_most_once_does_not_call_again_what_the_store_has_lost(bench):
    ref = await bench.started(a_job(spend="at_most_once"))
    mine = await claim(bench.one, ref, 0)
    assert await bench.one.disown(ref, {0: mine.fence}) == 1
    assert (await claim(bench.one, ref, 0)).verdict is Verdict.UNKNOWN


async def test_a_forgotten_job_is_on_record_as_lost_until_it_is_submitted_again(bench):
    bench.submit(a_job())
    (facts,) = await bench.one.facts(["j"])
    assert not await bench.one.mourn("j", facts, 60)  # it is there
    bench.redis.flushdb()
    assert await bench.one.facts(["j"]) == [None]
    assert [await ledger.mourn("j", facts, 60) for ledger in (bench.one, bench.two)] == [True, False]
    status = bench.client.status("j")
    assert (status.state, status.project, status.units) == (JobState.LOST, "default", 4)
    assert status.state.ended
    assert await bench.one.job("j") is None
    assert bench.submit(a_job())
    assert bench.client.status("j").state is JobState.SUBMITTED
    assert bench.redis.ttl(bench.one.keys.job("j")) == -1


# ---------------------------------------------------------------------------------------------------- paid calls
async def test_a_unit_is_paid_for_so_often_and_not_once_more(bench):
    ref = await bench.started()
    for n in range(9):
        mine = await claim(bench.one, ref, 0)
        assert (mine.verdict, mine.calls) == (Verdict.RUN, n + 1)
        await bench.one.defer(ref, {}, [Deferral(0, mine.fence, 0, 0)], [])
    spent = await claim(bench.one, ref, 0)
    assert spent.verdict is Verdict.SPENT
    assert (await record(bench.one, ref, spent, scored=False)).written == [Written.NEW]


async def test_a_claim_without_a_call_costs_nothing(bench):
    ref = await bench.started()
    for _ in range(20):
        mine = await claim(bench.one, ref, 0)
        assert mine.calls == 1
        await bench.one.defer(ref, {}, [Deferral(0, mine.fence, 0, 0, unpaid=1)], [])
    assert bench.client.status("j").counters["possible_double_charges"] == 0


@pytest.mark.parametrize(("spend", "want"), [("at_least_once", Verdict.RUN), ("at_most_once", Verdict.UNKNOWN)])
async def test_after_a_death_during_a_call_the_job_decides(bench, spend, want):
    ref = await bench.started(a_job(spend=spend))
    doomed, given_up = await claim(bench.one, ref, 0), await claim(bench.one, ref, 1)
    await bench.one.defer(ref, {}, [Deferral(1, given_up.fence, 1, 0)], [])  # its outcome is known: a refusal
    bench.kill(0)
    again = await claim(bench.two, ref, 0)
    assert again.verdict is want
    assert (await claim(bench.two, ref, 1)).verdict is Verdict.RUN
    assert bench.client.status("j").counters["possible_double_charges"] == (want is Verdict.RUN)
    assert (await record(bench.one, ref, doomed)).written == [Written.STALE]


async def test_a_batch_is_one_call_that_may_be_charged_twice(bench):
    ref = await bench.started(batched=True)
    await bench.one.claim(ref, Token(0, batch=True), [0, 1], 0)
    bench.kill(0)
    _, _, claims = await bench.two.claim(ref, Token(0, batch=True), [0, 1], 0)
    assert {c.verdict for c in claims} == {Verdict.RUN}
    assert bench.client.status("j").counters["possible_double_charges"] == 1


# ---------------------------------------------------------------------------------------------------- room
async def test_a_thousand_finished_jobs_leave_nothing_behind(bench):
    """Past their retention, not even their names: the last one's completion has them forgotten."""

    async def finish(job_id, retention_s):
        job = a_job(job_id, items=1, dimensions=1)
        bench.submit(job)
        await bench.one.start(job_id, 5)
        ref = PageRef(job_id, 0, 0)
        await bench.one.open_page(ref, 0, 1, "", 1, dict(enumerate(await bench.one.items(job_id, range(1)))))
        await record(bench.one, ref, await claim(bench.one, ref, 0))
        assert await bench.one.close_page(ref, 1) == (True, False)
        assert await bench.one.complete(job_id, b"{}", retention_s)
        await bench.one.announced(job_id)

    await finish("first", 1)
    bench.redis.delete(bench.one.keys.job("first"))
    names = bench.one.keys.jobs

    def keys():
        return {k for k in bench.redis.keys("*") if k != names and ":node:" not in k}  # beacons end by themselves

    baseline = keys()
    for n in range(0, 1000, 50):
        await asyncio.gather(*(finish(f"j{m}", 60) for m in range(n, n + 50)))
    assert len(keys()) == len(baseline) + 1000  # a record each
    assert all(bench.redis.ttl(bench.one.keys.job(f"j{n}")) > 0 for n in range(1000))
    for n in range(1000):
        bench.redis.delete(bench.one.keys.job(f"j{n}"))  # as their retention would
    for n in range(130):
        await finish(f"late{n}", 60)
        bench.redis.delete(bench.one.keys.job(f"late{n}"))
    assert keys() == baseline
    assert bench.redis.zcard(names) <= 10


async def test_a_full_store_takes_results_and_nothing_new(bench):
    """Not a half-taken step either: what is refused has changed nothing."""
    ref = await bench.started()
    first, second = await claim(bench.one, ref, 0), await claim(bench.one, ref, 1)
    used = bench.redis.info("memory")["used_memory"]
    bench.redis.config_set("maxmemory", used // 2)
    try:
        with pytest.raises(OutOfMemoryError):
            bench.submit(a_job("other"))
        before = bench.redis.dump(bench.one.keys.page(ref))
        with pytest.raises(OutOfMemoryError):
            await claim(bench.two, ref, 2, item=1)
        assert bench.redis.dump(bench.one.keys.page(ref)) == before
        assert (await record(bench.one, ref, first)).written == [Written.NEW]
        assert await bench.one.defer(ref, {}, [Deferral(1, second.fence, 1, 0)], []) == [Written.DEFERRED]
        bench.registry.announce(bench.nodes[0])
    finally:
        bench.redis.config_set("maxmemory", 0)
    assert (await claim(bench.two, ref, 2, item=1)).verdict is Verdict.RUN
    assert not bench.redis.exists(bench.one.keys.job("other"))


async def test_a_store_that_has_forgotten_its_scripts_is_told_them_again(bench):
    ref = await bench.started()
    for position in (0, 1):
        bench.redis.script_flush()
        mine = await claim(bench.one, ref, position)
        bench.redis.script_flush()
        assert (await record(bench.one, ref, mine)).written == [Written.NEW]


# ---------------------------------------------------------------------------------------------------- safeguards
async def test_a_message_that_is_due_stays_due_until_its_claim(bench):
    """Whoever takes it may die before it is sent."""
    ref = await bench.started()
    mine = await claim(bench.one, ref, 0)
    await bench.one.defer(ref, {}, [Deferral(0, mine.fence, 0, 0)], [Due(Token(0), 0)])
    assert await bench.one.take_due() == [(ref, Token(0))]
    assert await bench.two.take_due() == []
    assert bench.redis.zrange(bench.one.keys.due, 0, -1) == [f"{ref}|0"]
    assert (await claim(bench.two, ref, 0)).verdict is Verdict.RUN
    assert bench.redis.zcard(bench.one.keys.due) == 0


async def test_a_cancelled_job_has_no_limit_left_to_be_granted_by(bench):
    await bench.started()
    assert bench.redis.hgetall(KEYS.job_limits) == {"j": "5"}
    bench.client.cancel("j")
    assert bench.redis.hgetall(KEYS.job_limits) == {}


async def test_a_claim_that_outlives_the_longest_call_ends_though_its_node_lives(bench):
    ref = await bench.started()
    mine = await claim(bench.one, ref, 0)
    impatient = Ledger(bench.asyncs, KEYS, bench.nodes[1].id, claim_ms=0, calls_max=9)
    heir = await claim(impatient, ref, 0)
    assert (heir.verdict, heir.fence) == (Verdict.RUN, mine.fence + 1)
