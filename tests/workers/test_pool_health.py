"""How a call would fare, read from what the scripts left in a real store."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dicast.workers.admission.governor import Governor
from dicast.workers.admission.governor_store import Decision
from dicast.workers.admission.leases import LeaseStore, Returned, Want
from dicast.workers.admission.overrides import Overrides
from dicast.workers.admission.pool_state import SURELY_ALONE, PoolHealth, PoolHealthReader
from dicast.workers.policy.calls import CallOutcome
from dicast.workers.policy.parameters import BreakerPhase
from dicast.workers.store.connection import connect_async
from dicast.workers.store.keys import Keys

KEYS = Keys("test")


@pytest.fixture
async def client(redis_url):
    async with connect_async(redis_url) as client:
        await client.hset(KEYS.job_limits, "j", 60)
        await client.hset(KEYS.epoch, "number", 1)  # a store that is in use already
        yield client


async def ended(client, *statuses, model="m", still_open=0, units=None):
    """Calls that ended so, one after the other, and some that are open."""
    units = units or model
    leases = LeaseStore(client, KEYS)

    async def admit(give_back, wanted):
        return await leases.admit(pool="p", node="n", ttl_ms=60_000, give_back=give_back, wants=wanted)

    for n, status in enumerate(statuses):
        await admit([], [Want(f"{units}{n}", "j", "a", model)])
        await admit([Returned(f"{units}{n}", CallOutcome(status))], [])
    await admit([], [Want(f"open{n}", "j", "a", model) for n in range(still_open)])


async def test_a_pool_that_nobody_has_used(client):
    assert await PoolHealthReader(client, KEYS).read(["p"]) == {"p": PoolHealth(None, 0, 0, False, {})}


async def test_limit_open_assigned_and_health_by_model(client):
    await Governor(client, KEYS, lambda pool: Overrides(limit=9, adaptive=False)).tick("p")
    await ended(client, 200, 200, 200, 500, still_open=2)
    await ended(client, 429, 0, model="other")
    await client.hset(KEYS.assigned, "p", 3)
    found = await PoolHealthReader(client, KEYS).read(["p", "q", "p"])
    assert list(found) == ["p", "q"]
    health = found["p"]
    assert (health.limit, health.open, health.assigned, health.broken) == (9, 2, 3, False)
    assert health.health["m"].success_rate == pytest.approx(4 / 5, abs=0.01)
    assert health.health["other"].success_rate == pytest.approx(1 / 3, abs=0.01)
    assert health.health["other"].latency_s is None


@pytest.mark.parametrize(
    ("one", "other", "alone"),
    [
        ([200, 429] * 10, [200] * 20, True),
        ([200, 429] * 10, [200, 429] * 10, False),  # both are refused
        ([200, 429] * 10, [], False),  # there is no other model
        ([200, 429] * 10, [200], False),  # the other one is hardly used
        ([200] * 20, [200] * 20, False),
    ],
)
async def test_that_one_model_is_refused_alone_is_found(client, one, other, alone):
    await Governor(client, KEYS, lambda pool: Overrides(limit=9, adaptive=False)).tick("p")
    for n in range(0, 20, 4):
        await ended(client, *other[n : n + 4], model="other", units=f"other{n}.")
        await ended(client, *one[n : n + 4], model="one", units=f"one{n}.")
    health = (await PoolHealthReader(client, KEYS).read(["p"]))["p"].health
    assert (health["one"].alone >= SURELY_ALONE) is alone
    assert other == [] or health["other"].alone < SURELY_ALONE


async def test_the_mean_latency_is_that_of_good_calls_from_their_leases_on(client):
    await Governor(client, KEYS, lambda pool: Overrides(limit=9, adaptive=False)).tick("p")
    leases = LeaseStore(client, KEYS)

    async def call(status, seconds):
        begun = int(await client.hget(KEYS.clock, "now") or 0)
        at = {"pool": "p", "node": "n", "ttl_ms": 60_000}
        await leases.admit(**at, give_back=[], wants=[Want(f"{begun}", "j", "a", "m")], now_ms=begun)
        ended = [Returned(f"{begun}", CallOutcome(status))]
        await leases.admit(**at, give_back=ended, wants=[], now_ms=begun + int(1000 * seconds))

    for status, seconds in [(200, 2.0), (500, 4.5), (200, 4.0)]:
        await call(status, seconds)
    (health,) = (await PoolHealthReader(client, KEYS).read(["p"]))["p"].health.values()
    assert 3.0 < health.latency_s < 3.15, "the younger call counts more"
    await client.hset(KEYS.clock, "now", int(await client.hget(KEYS.clock, "now")) + 300_000)
    (later,) = (await PoolHealthReader(client, KEYS).read(["p"]))["p"].health.values()
    assert later.latency_s == pytest.approx(health.latency_s)


async def test_what_was_counted_before_latencies_were_does_not_pull_the_mean_down(client):
    await Governor(client, KEYS, lambda pool: Overrides(limit=9, adaptive=False)).tick("p")
    await ended(client, 200)
    await client.eval(
        "local state = cmsgpack.unpack(redis.call('HGET', KEYS[1], 'enforcement')) local health = state.health.m "
        "health.took, health.good, health.all = nil, 50, 50 "
        "redis.call('HSET', KEYS[1], 'enforcement', cmsgpack.pack(state))",
        1, KEYS.governor("p"),
    )  # fmt: skip
    leases, at = LeaseStore(client, KEYS), {"pool": "p", "node": "n", "ttl_ms": 60_000}
    begun = int(await client.hget(KEYS.clock, "now"))
    await leases.admit(**at, give_back=[], wants=[Want("x", "j", "a", "m")], now_ms=begun)
    await leases.admit(**at, give_back=[Returned("x", CallOutcome(200))], wants=[], now_ms=begun + 3000)
    (health,) = (await PoolHealthReader(client, KEYS).read(["p"]))["p"].health.values()
    assert health.latency_s == pytest.approx(3.0, abs=0.05)


@pytest.mark.parametrize(
    "phase, until_s, broken",
    [("open", 60.0, True), ("open", -1.0, False), ("half_open", -1.0, False), ("closed", 60.0, False)],
)
async def test_a_pool_whose_breaker_lets_nothing_pass_is_broken(client, phase, until_s, broken):
    """Not when its break is over: then it needs a call to show that it has recovered."""
    governor = Governor(client, KEYS, lambda pool: Overrides(limit=9))
    await governor.tick("p")
    brief = await governor.store.read("p")
    changed = replace(
        brief.parameters, version=brief.version + 1, breaker=BreakerPhase(phase), breaker_until=brief.now + until_s
    )
    assert await governor.store.commit("p", brief.version, Decision(changed, None, None, brief.cursor))
    assert (await PoolHealthReader(client, KEYS).read(["p"]))["p"].broken is broken
