"""Caps: what is paid, reserved or unheard is never more than a cap, and nearly all of a cap can be used."""

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dicast.app.domain.cost import JobMoney
from dicast.app.domain.price import Place, Price, TokenRates, cap_fields
from dicast.app.ledger.records import ClaimVerdict, Deferral, Due, JobState, MessageId, UnitResult
from dicast.app.operator.jobs import NoSuchCap, resume
from tests.ledger.bench import KEYS, a_job, claim

PRICE = Price(TokenRates(2, 3, 2, 2))
IN, OUT = 100, 10


def caps_of(cap):
    return a_job(**cap), cap_fields(cap.get("max_cost"), cap.get("max_tokens"), cap.get("max_calls"))


async def started(bench, **cap):
    job, fields = caps_of(cap)
    places = orjson.dumps([[Place("p", "m", PRICE).as_dict()]]).decode()
    return await bench.started(job, extra={**fields, "places": places})


async def claim_one(ledger, ref, position, attempt=""):
    token = MessageId(position)
    needs = f"{IN},{OUT},2,3"
    _, _, claims = await ledger.claim(ref, token, [position], position // 2, attempt, needs=needs)
    return claims[0]


async def pay(ledger, ref, held, spent=150, tokens=60):
    counters = {"calls": 1, "tokens_in": tokens, "spent": spent}
    await ledger.record(ref, counters, [UnitResult(held.position, held.fence, b'{"opinion":{}}', True)])


def standing(bench):
    return JobMoney.from_record(bench.redis.hgetall(bench.one.keys.job("j")), [])


async def test_what_a_call_may_take_is_reserved_until_its_end_is_told(bench):
    ref = await started(bench, max_cost="0.000000000500")
    held = await claim_one(bench.one, ref, 0)
    reserved = 2 * held.input_tokens + 3 * OUT
    assert held.verdict is ClaimVerdict.RUN and held.input_tokens >= IN
    assert standing(bench).reserved == reserved
    await pay(bench.one, ref, held)
    await pay(bench.one, ref, held)
    assert (standing(bench).reserved, standing(bench).spent) == (0, 150)


async def test_a_claim_that_is_repeated_reserves_once(bench):
    ref = await started(bench, max_calls=1)
    first = await claim_one(bench.one, ref, 0, "again")
    again = await claim_one(bench.one, ref, 0, "again")
    assert (again.verdict, again.fence, again.input_tokens) == (first.verdict, first.fence, first.input_tokens)
    assert bench.redis.hget(bench.one.keys.job("j"), "reserved_calls") == "1"


@pytest.mark.parametrize("cap", [{"max_calls": 1}, {"max_tokens": 200}, {"max_cost": "0.000000000400"}])
async def test_what_does_not_fit_waits_for_open_calls_and_then_the_job_is_capped(bench, cap):
    ref = await started(bench, **cap)
    held = await claim_one(bench.one, ref, 0)
    assert (await claim_one(bench.two, ref, 1)).verdict is ClaimVerdict.SHORT
    await pay(bench.one, ref, held)
    bench.redis.zadd(KEYS.at("due"), {f"{ref}|1": 0})
    await bench.two.take_due()
    second = await claim_one(bench.two, ref, 1)
    assert second.verdict is ClaimVerdict.CAPPED
    assert await bench.one.capped("j") == next(iter(cap))
    assert (await claim_one(bench.two, ref, 2)).verdict is ClaimVerdict.CAPPED


async def test_what_flows_back_can_be_used(bench):
    ref = await started(bench, max_cost="0.000000000520")
    held = await claim_one(bench.one, ref, 0)
    assert (await claim_one(bench.two, ref, 1)).verdict is ClaimVerdict.SHORT
    await pay(bench.one, ref, held, spent=20, tokens=10)
    await bench.two.take_due()
    bench.redis.hdel(bench.one.keys.page(ref), "w:1")
    assert (await claim_one(bench.two, ref, 1)).verdict is ClaimVerdict.RUN


async def test_a_call_without_a_charge_gives_all_back(bench):
    ref = await started(bench, max_calls=1)
    held = await claim_one(bench.one, ref, 0)
    await bench.one.defer(ref, {}, [Deferral(0, held.fence, 0, 0, unpaid=1)], [Due(MessageId(0), 0)])
    assert standing(bench).reserved == 0
    assert (await claim_one(bench.two, ref, 1)).verdict is ClaimVerdict.RUN


async def test_a_dead_workers_reservation_stays_and_its_late_answer_settles_it(bench):
    ref = await started(bench, max_cost="0.000000001")
    dead = await claim_one(bench.one, ref, 0)
    bench.kill(0)
    heir = await claim_one(bench.two, ref, 0)
    assert heir.verdict is ClaimVerdict.RUN
    assert standing(bench).unheard == standing(bench).reserved == 2 * dead.input_tokens + 3 * OUT
    await pay(bench.two, ref, heir, spent=70)
    assert standing(bench).unheard > 0 == standing(bench).reserved
    await pay(bench.one, ref, dead, spent=50)
    assert (standing(bench).unheard, standing(bench).spent) == (0, 120)


async def test_a_dead_workers_reservation_counts_as_spent(bench):
    ref = await started(bench, max_calls=1)
    await claim_one(bench.one, ref, 0)
    bench.kill(0)
    assert (await claim_one(bench.two, ref, 0)).verdict is ClaimVerdict.CAPPED


async def test_more_is_reserved_where_that_was_too_little(bench):
    ref = await started(bench, max_cost="0.00001")
    held = await claim_one(bench.one, ref, 0)
    more = Due(MessageId(0), 0, input_tokens=1000)
    await bench.one.defer(ref, {}, [Deferral(0, held.fence, 0, 0, unpaid=1)], [more])
    await bench.one.take_due()
    assert (await claim_one(bench.one, ref, 0)).input_tokens == 1000


async def test_a_capped_job_is_planned_no_more_and_goes_on_with_a_higher_cap(bench):
    ref = await started(bench, max_calls=1)
    job = await bench.one.job("j")
    await pay(bench.one, ref, await claim_one(bench.one, ref, 0))
    assert (await claim_one(bench.one, ref, 1)).verdict is ClaimVerdict.CAPPED
    assert await bench.one.answer(job, b"", "a") == (True, False)
    assert await bench.one.open_page(ref._replace(page=1), 4, 4, "", 1, {}) == -1
    bench.redis.hset(bench.one.keys.job("j"), "state", "completed")
    assert bench.client.resume("j", {"max_calls": "2"}) is JobState.COMPLETED
    assert await bench.one.capped("j") is None and standing(bench).max_calls == 2


async def test_jobs_without_caps_reserve_nothing(bench):
    ref = await bench.started()
    held = await claim(bench.one, ref, 0)
    assert (held.verdict, held.input_tokens) == (ClaimVerdict.RUN, -1)
    assert not [name for name in bench.redis.hkeys(bench.one.keys.job("j")) if name.startswith(("v:", "reserved"))]


def test_a_resumed_job_gets_no_cap_that_it_did_not_have(bench):
    bench.submit(a_job(max_calls=3))
    dicast = type("D", (), {"existing_ledger": bench.client})
    with pytest.raises(NoSuchCap, match="without max_tokens"):
        resume(dicast, "j", max_tokens=5)
    with pytest.raises(NoSuchCap, match="max_cost"):
        resume(dicast, "j", max_cost="-1")


@settings(max_examples=50, deadline=None)
@given(st.decimals("0.000000000001", "9007", places=12))
def test_a_cap_is_stored_exactly(cap):
    job = a_job(max_cost=str(cap))
    assert int(cap_fields(job.max_cost, None, None)["max_cost"]) == cap * 10**12


@pytest.mark.parametrize("cap", [0, -1, "x", "NaN", "Infinity", 9008, True, "0.0000000000001"])
def test_a_wrong_cap_is_refused(cap):
    with pytest.raises(ValueError, match="max_cost"):
        a_job(max_cost=cap)
