"""Claims: one owner a unit, one call a claim, and who pays for what."""

import pytest

from dicast.app.ledger.ledger import POISON_DEATHS, Ledger, Unheard
from dicast.app.ledger.records import ClaimVerdict, Deferral, Due, MessageId, WriteVerdict
from dicast.workers.nodes.registry import Node
from tests.ledger.bench import KEYS, a_job, claim, record


# --------------------------------------------------------------------------------------------------------------- claims
async def test_a_unit_has_one_owner_while_that_lives(bench):
    ref = await bench.started()
    mine = await claim(bench.one, ref, 0)
    assert (mine.verdict, mine.calls) == (ClaimVerdict.RUN, 1)
    assert (await claim(bench.two, ref, 0)).verdict is ClaimVerdict.OWNED
    bench.kill(0)
    heir = await claim(bench.two, ref, 0)
    assert (heir.verdict, heir.calls) == (ClaimVerdict.RUN, 2)
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


@pytest.mark.parametrize("position", [-1, 4, 10**12])
async def test_what_the_page_does_not_hold_cannot_be_claimed(bench, position):
    ref = await bench.started()
    before = bench.redis.hgetall(bench.one.keys.page(ref))
    assert await bench.one.claim(ref, MessageId(0), [0, position], 0) == (None, None, [])
    assert bench.redis.hgetall(bench.one.keys.page(ref)) == before


async def test_a_late_result_of_a_lost_claim_is_refused_and_counted(bench):
    ref = await bench.started()
    old = await claim(bench.one, ref, 0)
    bench.kill(0)
    new = await claim(bench.two, ref, 0)
    assert (await record(bench.one, ref, old)).written == [WriteVerdict.STALE]
    assert (await record(bench.two, ref, new)).written == [WriteVerdict.NEW]
    assert (await record(bench.one, ref, old)).written == [WriteVerdict.AGAIN]
    counters = bench.client.status("j").counters
    assert (counters["done"], counters["stale"]) == (1, 1)


async def test_a_unit_that_kills_its_workers_is_quarantined(bench):
    ref = await bench.started()
    for _ in range(POISON_DEATHS):
        doomed = Node.for_this_process("x@h", limit=1, slots=1)
        bench.registry.announce(doomed)
        assert (
            await claim(Ledger(bench.asyncs, KEYS, doomed.id, claim_ms=60_000, calls_max=9), ref, 0)
        ).verdict is ClaimVerdict.RUN
        bench.registry.deregister(doomed)
    last = await claim(bench.one, ref, 0)
    assert (last.verdict, last.calls) == (ClaimVerdict.POISON, POISON_DEATHS)
    assert (await record(bench.one, ref, last, scored=False)).written == [WriteVerdict.NEW]


async def test_done_units_are_not_called_again(bench):
    ref = await bench.started()
    await record(bench.one, ref, await claim(bench.one, ref, 0))
    assert (await claim(bench.two, ref, 0)).verdict is ClaimVerdict.DONE


# -------------------------------------------------------------------------------------------------------------- waiting
async def test_a_deferred_unit_waits_and_then_comes_once(bench):
    ref = await bench.started()
    first = await claim(bench.one, ref, 0)
    deferral = Deferral(0, first.fence, attempts=1, requeues=2)
    assert await bench.one.defer(ref, {"retries": 1}, [deferral], [Due(MessageId(0), 60_000)]) == [
        WriteVerdict.DEFERRED
    ]
    assert (await claim(bench.two, ref, 0)).verdict is ClaimVerdict.WAITING  # an early copy of its message
    assert await bench.one.take_due() == []
    bench.redis.zadd(bench.one.keys.due, {f"{ref}|0": 0})
    assert await bench.one.take_due() == [(ref, MessageId(0))]
    assert await bench.one.take_due() == []
    again = await claim(bench.two, ref, 0)
    assert (again.verdict, again.attempts, again.requeues) == (ClaimVerdict.RUN, 1, 2)
    assert bench.redis.zcard(bench.one.keys.due) == 0


async def test_a_due_unit_whose_publisher_died_comes_again(bench):
    ref = await bench.started()
    first = await claim(bench.one, ref, 0)
    await bench.one.defer(ref, {}, [Deferral(0, first.fence, 1, 0)], [Due(MessageId(0), 0)])
    assert len(await bench.one.take_due()) == 1
    bench.redis.zadd(bench.one.keys.due, {f"{ref}|0": 0})  # the minute is over and nobody claimed it
    assert len(await bench.two.take_due()) == 1


async def test_a_stale_claim_cannot_defer(bench):
    ref = await bench.started()
    old = await claim(bench.one, ref, 0)
    bench.kill(0)
    await claim(bench.two, ref, 0)
    written = await bench.one.defer(ref, {}, [Deferral(0, old.fence, 1, 0)], [Due(MessageId(0), 0)])
    assert written == [WriteVerdict.STALE]
    assert await bench.one.take_due() == []


# ---------------------------------------------------------------------------------------------------------- assignments
async def assigned(bench):
    return {pool: int(n) for pool, n in (await bench.asyncs.hgetall(KEYS.assigned)).items()}


async def test_a_message_counts_for_its_pool_until_it_is_claimed(bench):
    ref = await bench.started()
    await bench.one.assign(ref, {MessageId(0): "p", MessageId(1): "p", MessageId(2): "q", MessageId(3): "p"})
    assert await assigned(bench) == {"p": 3, "q": 1}
    await bench.one.assign(ref, {MessageId(1): "q"})  # chosen anew
    await bench.one.assign(ref, {MessageId(1): "q"})
    assert await assigned(bench) == {"p": 2, "q": 2}
    await claim(bench.one, ref, 0)
    await claim(bench.two, ref, 0)  # a copy
    assert await assigned(bench) == {"p": 1, "q": 2}


async def test_a_message_that_comes_too_early_is_still_assigned(bench):
    ref = await bench.started()
    first = await claim(bench.one, ref, 0)
    await bench.one.defer(ref, {}, [Deferral(0, first.fence, 1, 0)], [Due(MessageId(0), 60_000)])
    await bench.one.assign(ref, {MessageId(0): "p"})
    assert (await claim(bench.two, ref, 0)).verdict is ClaimVerdict.WAITING
    assert await assigned(bench) == {"p": 1}


async def test_what_was_never_claimed_leaves_with_its_page(bench):
    ref = await bench.started()
    await bench.one.assign(ref, {MessageId(0, batch=True): "p", MessageId(2, batch=True): "q"})
    for position in range(4):  # by messages of their own
        await record(bench.one, ref, await claim(bench.one, ref, position, item=position // 2))
    assert await assigned(bench) == {"p": 1, "q": 1}
    await bench.one.close_page(ref, 1)
    await bench.one.close_page(ref, 1)
    assert await assigned(bench) == {}
    await bench.one.assign(ref, {MessageId(0): "p"})  # there is no such page any more
    assert await assigned(bench) == {}
    assert not [key async for key in bench.asyncs.scan_iter(match="*assignments*")]


# ----------------------------------------------------------------------------------------------------------- paid calls
async def test_a_unit_is_paid_for_so_often_and_not_once_more(bench):
    ref = await bench.started()
    for n in range(9):
        mine = await claim(bench.one, ref, 0)
        assert (mine.verdict, mine.calls) == (ClaimVerdict.RUN, n + 1)
        await bench.one.defer(ref, {}, [Deferral(0, mine.fence, 0, 0)], [])
    spent = await claim(bench.one, ref, 0)
    assert spent.verdict is ClaimVerdict.SPENT
    assert (await record(bench.one, ref, spent, scored=False)).written == [WriteVerdict.NEW]


async def test_a_claim_without_a_call_costs_nothing(bench):
    ref = await bench.started()
    for _ in range(20):
        mine = await claim(bench.one, ref, 0)
        assert mine.calls == 1
        await bench.one.defer(ref, {}, [Deferral(0, mine.fence, 0, 0, unpaid=1)], [])
    assert bench.client.status("j").counters["possible_double_charges"] == 0


@pytest.mark.parametrize(
    ("spend", "want"), [("at_least_once", ClaimVerdict.RUN), ("at_most_once", ClaimVerdict.UNKNOWN)]
)
async def test_after_a_death_during_a_call_the_job_decides(bench, spend, want):
    ref = await bench.started(a_job(spend=spend))
    doomed, given_up = await claim(bench.one, ref, 0), await claim(bench.one, ref, 1)
    await bench.one.defer(ref, {}, [Deferral(1, given_up.fence, 1, 0)], [])  # its outcome is known: a refusal
    bench.kill(0)
    again = await claim(bench.two, ref, 0)
    assert again.verdict is want
    assert (await claim(bench.two, ref, 1)).verdict is ClaimVerdict.RUN
    assert bench.client.status("j").counters["possible_double_charges"] == (want is ClaimVerdict.RUN)
    assert (await record(bench.one, ref, doomed)).written == [WriteVerdict.STALE]


async def test_a_batch_is_one_call_that_may_be_charged_twice(bench):
    ref = await bench.started(batched=True)
    await bench.one.claim(ref, MessageId(0, batch=True), [0, 1], 0)
    bench.kill(0)
    _, _, claims = await bench.two.claim(ref, MessageId(0, batch=True), [0, 1], 0)
    assert {c.verdict for c in claims} == {ClaimVerdict.RUN}
    assert bench.client.status("j").counters["possible_double_charges"] == 1


async def test_a_batch_of_six_thousand_dimensions_is_claimed_given_up_and_recorded(bench):
    """Lua's stack has room for some 8,000 arguments, and a unit has two fields."""
    count = 6000
    ref = await bench.started(a_job(items=1, dimensions=count), batched=True, units=count)
    token = MessageId(0, batch=True)
    _, _, claims = await bench.one.claim(ref, token, range(count), 0)
    deferrals = [Deferral(c.position, c.fence, 1, 0) for c in claims]
    assert set(await bench.one.defer(ref, {}, deferrals, [Due(token, 0)])) == {WriteVerdict.DEFERRED}
    await bench.one.take_due()
    _, _, claims = await bench.one.claim(ref, token, range(count), 0)
    recorded = await record(bench.one, ref, *claims)
    assert (recorded.remaining, set(recorded.written)) == (0, {WriteVerdict.NEW})
    assert len(await bench.one.take_page(ref)) == count


async def test_units_of_a_batch_whose_message_waits_for_its_time_are_not_lost(bench):
    """The batch's one message brings all of them."""
    ref = await bench.started(batched=True)
    token = MessageId(0, batch=True)
    _, _, claims = await bench.one.claim(ref, token, [0, 1], 0)
    deferrals = [Deferral(c.position, c.fence, c.attempts, c.requeues) for c in claims]
    await bench.one.defer(ref, {}, deferrals, [Due(token, 60_000)])
    before = await bench.asyncs.zrange(bench.one.keys.due, 0, -1)
    for _ in range(2):
        await bench.one.find_lost(ref, 2, queue_empty=False)
    assert before == await bench.asyncs.zrange(bench.one.keys.due, 0, -1) == [f"{ref}|{token}"]
