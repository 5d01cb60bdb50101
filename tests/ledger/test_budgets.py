"""Budgets: what is spent, reserved or unknown is never more than one, over all jobs and whatever is lost."""

from datetime import UTC, datetime, timedelta

import orjson
import pytest

from dicast.app.domain.cost import (
    MoneyBudget,
    PurseStanding,
    budgets_of,
    period_fields,
    purse_fields,
    reset_ms,
    standing_fields,
)
from dicast.app.domain.price import Place, Price, TokenRates, amount_of
from dicast.app.ledger.client import HERE
from dicast.app.ledger.records import ClaimVerdict, Deferral, Due, JobState, MessageId, UnitResult
from dicast.workers.store.scripts import script_text
from tests.ledger.bench import KEYS, a_job

PLACE = Place("p", "m", Price(TokenRates(2, 3, 2, 2)))
IN, OUT = 100, 10
DAY_MS = 86_400_000
NOON = int(datetime(2026, 12, 31, 12, tzinfo=UTC).timestamp() * 1000)


def a_budget(kind="project", name="red", **most):
    return MoneyBudget(kind, name, "USD", most)


async def started(bench, job_id="j", **cap):
    job, places = a_job(job_id, project="red", **cap), [[PLACE]]
    extra = {"places": orjson.dumps([[PLACE.as_dict()]]).decode(), **purse_fields("red", places)}
    return await bench.started(job, extra=extra)


async def claim_one(ledger, ref, position, *budgets):
    needs = f"{IN},{OUT},2,3" + "".join(budget.needs for budget in budgets)
    _, _, claims = await ledger.claim(ref, MessageId(position), [position], position // 2, needs=needs)
    return claims[0]


async def pay(ledger, ref, held, spent=150, **more):
    counters = {"calls": 1, "tokens_in": 60, "spent": spent, "b:0.0.9:spent": spent, **more}
    await ledger.record(ref, counters, [UnitResult(held.position, held.fence, b'{"opinion":{}}', True)])


def purse(bench, budget, now_ms=None):
    key = bench.one.keys.purse(budget.purse)
    now_ms = now_ms or bench.redis.time()[0] * 1000
    texts = bench.redis.hmget(key, standing_fields(now_ms))
    return PurseStanding.from_fields(budget.purse, now_ms, texts)


def sums(bench, budget, period="day"):
    standing = purse(bench, budget)
    return standing.purses[period].spent, standing.reserved, standing.purses[period].unknown


def at(ledger, now_ms):
    """Have the ledger's scripts take this for the store's clock."""
    for name in ("claim", "record", "defer"):
        script = ledger._redis.register_script(script_text(HERE / f"{name}.lua"))
        ledger._scripts[name] = lambda keys, args, script=script: script(keys=keys, args=[now_ms, *args[1:]])


async def again(bench, ref, position):
    bench.redis.zadd(KEYS.at("due"), {f"{ref}|{position}": 0})
    await bench.two.take_due()
    bench.redis.hdel(bench.one.keys.page(ref), f"w:{position}")


async def test_a_call_is_reserved_in_its_purses_and_settled_there(bench):
    ref, red, pool = await started(bench), a_budget(day=1000), a_budget("pool", "p", total=2000)
    held = await claim_one(bench.one, ref, 0, red, pool)
    reserved = 2 * held.input_tokens + 3 * OUT
    assert held.verdict is ClaimVerdict.RUN
    for budget in (red, pool):
        assert [sums(bench, budget, period) for period in ("day", "month", "total")] == [(0, reserved, 0)] * 3
    await pay(bench.one, ref, held)
    await pay(bench.one, ref, held)
    for budget in (red, pool):
        assert [sums(bench, budget, period) for period in ("day", "month", "total")] == [(150, 0, 0)] * 3
    assert bench.redis.smembers(bench.one.keys.purses) == {red.purse, pool.purse}


async def test_what_jobs_without_a_budget_cost_counts_too(bench):
    ref, red = await started(bench), a_budget(day=500)
    held = (await bench.one.claim(ref, MessageId(0), [0], 0))[2][0]
    await pay(bench.one, ref, held, 450)
    assert sums(bench, red) == (450, 0, 0)
    assert (await claim_one(bench.one, ref, 1, red)).verdict is ClaimVerdict.BUDGET


async def test_two_jobs_share_a_budget_and_what_flows_back_is_used(bench):
    first, second, red = await started(bench), await started(bench, "k"), a_budget(day=500)
    held = await claim_one(bench.one, first, 0, red)
    assert (await claim_one(bench.two, second, 0, red)).verdict is ClaimVerdict.SHORT
    await pay(bench.one, first, held, 20)
    await again(bench, second, 0)
    assert (await claim_one(bench.two, second, 0, red)).verdict is ClaimVerdict.RUN


async def test_short_texts_are_not_preferred(bench):
    ref, red = await started(bench), a_budget(day=2000)
    held = await claim_one(bench.one, ref, 0, red)
    large = f"1000,{OUT},2,3" + red.needs
    _, _, claims = await bench.one.claim(ref, MessageId(1), [1], 0, needs=large)
    assert claims[0].verdict is ClaimVerdict.SHORT
    assert (await claim_one(bench.two, ref, 2, red)).verdict is ClaimVerdict.SHORT  # would fit, and comes later
    await pay(bench.one, ref, held, 0)
    assert sums(bench, red) == (0, 0, 0)


async def test_a_job_waits_for_the_next_day_and_says_for_what(bench):
    ref, red = await started(bench), a_budget(day=500)
    await pay(bench.one, ref, await claim_one(bench.one, ref, 0, red), 450)
    assert (await claim_one(bench.two, ref, 1, red)).verdict is ClaimVerdict.BUDGET
    assert await bench.one.capped("j") is None
    due = bench.redis.zscore(KEYS.at("due"), f"{ref}|1") - int(bench.redis.hget(KEYS.clock, "now"))
    assert 0 < due <= 60_500
    reason = await bench.one.budget_reason([red])
    assert reason.startswith("waits: budget of project red for today; spent 0.00000000045")
    assert "resets at" in reason and reason.endswith("00:00 UTC")
    assert await bench.one.budget_reason([a_budget(day=5000)]) is None


@pytest.mark.parametrize("period, later_ms", [("day", DAY_MS // 2), ("month", DAY_MS // 2)])
async def test_a_budget_begins_anew(bench, period, later_ms):
    ref, red = await started(bench), a_budget(**{period: 500})
    at(bench.one, NOON)
    held = await claim_one(bench.one, ref, 0, red)
    at(bench.one, NOON + later_ms)
    await pay(bench.one, ref, held, 450)
    assert purse(bench, red, NOON).purses[period].spent == 450  # where it was claimed, whenever it ends
    at(bench.one, NOON + later_ms - 1)
    assert (await claim_one(bench.one, ref, 1, red)).verdict is ClaimVerdict.BUDGET
    at(bench.one, NOON + later_ms)
    await again(bench, ref, 1)
    assert (await claim_one(bench.one, ref, 1, red)).verdict is ClaimVerdict.RUN


async def test_a_total_budget_ends_the_job_once_nothing_flows_back(bench):
    ref, red = await started(bench), a_budget(total=500)
    held = await claim_one(bench.one, ref, 0, red)
    assert (await claim_one(bench.two, ref, 1, red)).verdict is ClaimVerdict.SHORT
    await pay(bench.one, ref, held, 450)
    await again(bench, ref, 1)
    assert (await claim_one(bench.two, ref, 1, red)).verdict is ClaimVerdict.CAPPED
    assert await bench.one.capped("j") == "budget project:red:USD"


async def test_a_lost_workers_reservation_stays_unknown_until_its_answer_comes(bench):
    ref, red = await started(bench), a_budget(day=5000)
    dead = await claim_one(bench.one, ref, 0, red)
    size = 2 * dead.input_tokens + 3 * OUT
    bench.kill(0)
    heir = await claim_one(bench.two, ref, 0, red)
    assert sums(bench, red) == (0, size, size)
    await pay(bench.two, ref, heir, 70)
    assert sums(bench, red) == (70, 0, size)
    await pay(bench.one, ref, dead, 50)
    assert sums(bench, red) == (120, 0, 0)


async def test_what_is_open_when_its_job_ends_stays_unknown(bench):
    ref, red = await started(bench), a_budget(total=5000)
    held = await claim_one(bench.one, ref, 0, red)
    size = 2 * held.input_tokens + 3 * OUT
    bench.redis.hset(bench.one.keys.job("j"), mapping={"state": "finishing", "outcome": "cancelled"})
    assert await bench.one.complete("j", ref.incarnation, b"{}", 60)
    assert sums(bench, red, "total") == (0, 0, size)
    assert bench.client.resume("j") is JobState.CANCELLED
    assert sums(bench, red, "total") == (0, 0, size)


async def test_what_was_not_charged_flows_back_and_what_may_be_is_unknown(bench):
    ref, red = await started(bench), a_budget(day=5000)
    held = await claim_one(bench.one, ref, 0, red)
    await bench.one.defer(ref, {}, [Deferral(0, held.fence, 0, 0, unpaid=1)], [Due(MessageId(0), 0)])
    assert sums(bench, red) == (0, 0, 0)
    held = await claim_one(bench.one, ref, 1, red)
    cut = {"unknown": 300, "b:0.0.9:unknown": 300}
    await bench.one.defer(ref, cut, [Deferral(1, held.fence, 0, 0)], [Due(MessageId(1), 0)])
    assert sums(bench, red) == (0, 0, 300)


async def test_sums_that_are_not_exact_are_kept_below_the_budget(bench):
    most = 10_000 * 10**12
    ref, red = await started(bench), a_budget(day=most)
    await pay(bench.one, ref, await claim_one(bench.one, ref, 0, red), most - 10**9)
    assert (await claim_one(bench.one, ref, 1, red)).verdict is ClaimVerdict.BUDGET


def test_months_are_those_of_the_calendar(bench):
    days = [*range(0, 60_000, 31), *range(20_500, 21_300)]
    script = (
        "#!lua\n" + script_text(HERE / "purses.lua") + "local found = {}\nfor i, day in ipairs(ARGV) do found[i] = "
    )
    found = bench.redis.eval(script + "month_of(tonumber(day)) end return found", 0, *days)
    loop = "local found = {} for i, day in ipairs(ARGV) do found[i] = month_of(tonumber(day)) end return found"
    found = bench.redis.eval(f"#!lua\n{script_text(HERE / 'purses.lua')}{loop}", 0, *days)
    dates = [datetime(1970, 1, 1, tzinfo=UTC) + timedelta(days=day) for day in days]
    assert found == [12 * date.year + date.month - 1 for date in dates]
    assert [f"m:{month}" for month in found] == [period_fields(day * DAY_MS)[1] for day in days]


@pytest.mark.parametrize("period, end", [("day", (2027, 1, 1)), ("month", (2027, 1, 1)), ("total", None)])
def test_when_a_budget_begins_anew(period, end):
    expected = end and int(datetime(*end, tzinfo=UTC).timestamp() * 1000)
    assert reset_ms(period, NOON) == expected


def test_a_budget_needs_prices_in_its_currency():
    tables = type("T", (), {"budgets": lambda self, *_: iter([("project", "red", {"day": "1.5", "currency": "EUR"})])})
    (budget,) = budgets_of(tables(), "red", "p")
    assert amount_of(budget.most["day"]) * 2 == 3
    assert "in EUR" in budget.objection(PLACE)
    assert "nobody has told" in budget.objection(Place("p", "m"))
    assert a_budget(day=1).objection(PLACE) is None
