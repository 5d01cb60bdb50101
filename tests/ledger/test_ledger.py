"""The ledger on a real server: whole or absent, one result a unit, one completion a job."""

import asyncio
import json
from dataclasses import replace

import pytest
from redis.exceptions import OutOfMemoryError

from dicast.app.domain.plan import STANDARD
from dicast.app.ledger.client import JobConflict, UnknownJob
from dicast.app.ledger.keys import PageRef
from dicast.app.ledger.ledger import Ledger
from dicast.app.ledger.records import ClaimVerdict, Deferral, Due, JobState, MessageId, WriteVerdict
from dicast.workers.nodes.registry import Node
from tests.ledger.bench import KEYS, a_job, claim, record


# ----------------------------------------------------------------------------------------------------------- submission
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
    assert await bench.one.start("j", 5) == (JobState.RUNNING, True, False)
    assert await bench.two.start("j", 9) == (JobState.RUNNING, False, False)
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


# -------------------------------------------------------------------------------------------------------------- the end
async def test_the_last_result_ends_the_page_and_closing_it_ends_the_job(bench):
    ref = await bench.started()
    left = [(await record(bench.one, ref, await claim(bench.one, ref, p, item=p // 2))).remaining for p in range(4)]
    assert left == [3, 2, 1, 0]
    assert await bench.one.close_page(ref, 1) == (True, False)
    assert bench.client.status("j").state is JobState.FINISHING
    assert await bench.one.close_page(ref, 1) == (True, False)  # a copy of the message finds the same
    assert await bench.one.claim_finish("j")
    assert not await bench.two.claim_finish("j")
    assert await bench.one.complete("j", bench.incarnation("j"), b'{"ok": 1}', 60)
    assert not await bench.two.complete("j", bench.incarnation("j"), b'{"ok": 2}', 60)
    status = bench.client.status("j")
    assert (status.state, status.report) == (JobState.COMPLETED, {"ok": 1})
    assert await bench.two.unannounced() == ["j"]
    await bench.two.announced("j")
    assert await bench.two.unannounced() == []


async def test_a_page_whose_results_the_store_has_lost_is_not_closed(bench):
    """They were read from a server that knew more than the one that has taken over meanwhile."""
    ref = await bench.started()
    claims = [await claim(bench.one, ref, p, item=p // 2) for p in range(4)]
    await record(bench.one, ref, *claims[:3])
    assert await bench.one.close_page(ref, 1) == (False, False)
    assert await bench.one.open_pages() == [ref]
    last = await record(bench.one, ref, claims[3])
    assert (last.remaining, last.gather) == (0, True)
    assert await bench.one.close_page(ref, 1) == (True, False)
    assert bench.client.status("j").counters["done"] == 4


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
    await bench.one.defer(ref, {}, [Deferral(1, waiting.fence, 1, 0)], [Due(MessageId(1), 60_000)])
    assert bench.client.cancel("j") == (JobState.RUNNING, False)
    assert bench.client.cancel("j") == (JobState.CANCELLING, False)
    assert await bench.one.take_due() == [(ref, MessageId(1))]
    rest = [await claim(bench.two, ref, p, item=p // 2) for p in (1, 2, 3)]
    assert {c.verdict for c in rest} == {ClaimVerdict.CANCELLED}
    assert {c.calls for c in rest} == {0, 1}
    assert (await record(bench.one, ref, running)).written == [WriteVerdict.NEW]  # an open call counts
    await record(bench.two, ref, *rest, scored=False)
    assert await bench.one.close_page(ref, 1) == (True, False)
    assert bench.client.status("j").state is JobState.FINISHING


async def test_a_job_cancelled_before_it_starts_only_needs_its_report(bench):
    bench.submit(a_job())
    assert bench.client.cancel("j") == (JobState.SUBMITTED, True)
    assert await bench.one.complete("j", bench.incarnation("j"), b"{}", 60)
    assert bench.client.status("j").state is JobState.CANCELLED


# ---------------------------------------------------------------------------------------------------------- the sweeper
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
        header = {"job": page.job, "page": page.place}
        bench.redis.rpush("provider.p", json.dumps({"body": "", "headers": {"dicast": header}}))

    find = lambda: bench.one.find_lost(ref, 1, queue_empty=False, queues=["provider.p", "provider.q"])  # noqa: E731
    await bench.one.open_page(later, 4, 2, "", 1, {})
    bench.redis.hincrby(bench.one.keys.page(later), "opened_ms", 1)
    assert await find() == 0  # the first look only remembers
    put(ref)
    assert await find() == 0
    put(later)
    for odd in (
        "no message",
        "[]",
        '{"headers": 5}',
        '{"headers": {"dicast": {"job": 1}}}',
        '{"headers": {"dicast": []}}',
    ):
        bench.redis.rpush("provider.q", odd)
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
    assert bench.redis.zscore(bench.two.keys.watch, str(ref)) <= await bench.two.now_ms() + STANDARD.look_soon_ms


async def test_an_untouched_batch_is_sent_again_whole(bench):
    ref = await bench.started(batched=True)
    await bench.one.claim(ref, MessageId(2, batch=True), [2, 3], 1)
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
        node = Node.for_this_process(f"x{n}@h", limit=1, slots=1)
        bench.registry.announce(node)
        ledger = Ledger(bench.asyncs, KEYS, node.id, claim_ms=60_000, calls_max=9)
        for position in range(40):
            mine = await claim(ledger, ref, position, item=position // 2)
            if mine.verdict is ClaimVerdict.RUN:
                ends.append((await record(ledger, ref, mine)).remaining)

    await asyncio.gather(*(worker(n) for n in range(20)))
    assert sorted(ends) == list(range(40))
    assert bench.client.status("j").done == 40


async def test_only_one_living_node_leads(bench):
    assert await bench.one.lead(60_000)
    assert not await bench.two.lead(60_000)
    assert replace(bench.nodes[0]).id in await bench.asyncs.get(KEYS.beat)


# ----------------------------------------------------------------------------------------------------------------- room
async def test_a_thousand_finished_jobs_leave_nothing_behind(bench):
    """No key is left that does not end by itself, and when those have ended there are as many as before."""

    async def finish(job_id):
        job = a_job(job_id, items=1, dimensions=1)
        bench.submit(job)
        await bench.one.start(job_id, 5)
        ref = PageRef(job_id, bench.incarnation(job_id), 0, 0)
        await bench.one.open_page(ref, 0, 1, "", 1, dict(enumerate(await bench.one.items(job_id, range(1)))))
        await bench.one.published(ref)
        await record(bench.one, ref, await claim(bench.one, ref, 0))
        assert await bench.one.close_page(ref, 1) == (True, False)
        assert await bench.one.complete(job_id, ref.incarnation, b"{}", 86_400)
        await bench.one.announced(job_id)

    def let_time_pass():
        """Every key that ends by itself has ended."""
        mortal = [key for key in bench.redis.scan_iter(count=1000) if bench.redis.ttl(key) >= 0]
        bench.redis.delete(*mortal)
        return mortal

    await finish("first")
    let_time_pass()
    baseline = bench.redis.dbsize()
    for n in range(0, 1000, 50):
        await asyncio.gather(*(finish(f"j{m}") for m in range(n, n + 50)))
    assert bench.redis.dbsize() == baseline + 1000  # a record each
    assert sorted(let_time_pass()) == sorted(bench.one.keys.job(f"j{n}") for n in range(1000))
    assert bench.redis.dbsize() == baseline
    names = bench.redis.zcard(bench.one.keys.jobs)
    for n in range(names // 9 + 1):  # each end forgets ten names of jobs that are gone
        await finish(f"late{n}")
    let_time_pass()
    await finish("last")
    assert bench.redis.zcard(bench.one.keys.jobs) < names / 5
    let_time_pass()
    assert bench.redis.dbsize() == baseline


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
        assert (await record(bench.one, ref, first)).written == [WriteVerdict.NEW]
        assert await bench.one.defer(ref, {}, [Deferral(1, second.fence, 1, 0)], []) == [WriteVerdict.DEFERRED]
        bench.registry.announce(bench.nodes[0])
    finally:
        bench.redis.config_set("maxmemory", 0)
    assert (await claim(bench.two, ref, 2, item=1)).verdict is ClaimVerdict.RUN
    assert not bench.redis.exists(bench.one.keys.job("other"))


async def test_a_store_that_has_forgotten_its_scripts_is_told_them_again(bench):
    ref = await bench.started()
    for position in (0, 1):
        bench.redis.script_flush()
        mine = await claim(bench.one, ref, position)
        bench.redis.script_flush()
        assert (await record(bench.one, ref, mine)).written == [WriteVerdict.NEW]


# ----------------------------------------------------------------------------------------------------------- safeguards
async def test_a_message_that_is_due_stays_due_until_its_claim(bench):
    """Whoever takes it may die before it is sent."""
    ref = await bench.started()
    mine = await claim(bench.one, ref, 0)
    await bench.one.defer(ref, {}, [Deferral(0, mine.fence, 0, 0)], [Due(MessageId(0), 0)])
    assert await bench.one.take_due() == [(ref, MessageId(0))]
    assert await bench.two.take_due() == []
    assert bench.redis.zrange(bench.one.keys.due, 0, -1) == [f"{ref}|0"]
    assert (await claim(bench.two, ref, 0)).verdict is ClaimVerdict.RUN
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
    assert (heir.verdict, heir.fence) == (ClaimVerdict.RUN, mine.fence + 1)
