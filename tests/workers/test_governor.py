"""The governor on a real store: decisions by compare-and-set, over any change of leader,
by an operator's overrides."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import replace
from types import SimpleNamespace

import orjson
import pytest

from dicast.workers.admission.governor import Governor
from dicast.workers.admission.governor_store import Decision
from dicast.workers.admission.leases import LeaseStore, LeaseVerdict, Returned, Want
from dicast.workers.admission.overrides import OverrideError, Overrides
from dicast.workers.admission.pool_state import PoolStates, findings
from dicast.workers.nodes.registry import Node, Registry
from dicast.workers.policy.calls import CallOutcome, Cost
from dicast.workers.policy.rules import RulesStatus
from dicast.workers.store.connection import connect, connect_async
from dicast.workers.store.keys import Keys

KEYS = Keys("test")
START_MS = 1_700_000_000_000


@pytest.fixture
async def client(redis_url):
    client = connect_async(redis_url)
    await client.hset(KEYS.job_limits, "j", 60)
    await client.hset(KEYS.epoch, "number", 1)  # a store that is in use already
    yield client
    await client.aclose()


def governor(client, **overrides):
    return Governor(client, KEYS, lambda pool: Overrides(**overrides))


class Traffic:
    """Callers of one pool, and a provider with a cap of its own, in virtual time."""

    def __init__(self, client, cap=1000, latency_ms=500, refusal_ms=20, knee=1000):
        self.leases = LeaseStore(client, KEYS)
        self.cap, self.latency_ms, self.refusal_ms, self.knee = cap, latency_ms, refusal_ms, knee
        self.now_ms = START_MS
        self.open: dict[str, tuple[int, int]] = {}
        self.serial = itertools.count()
        self.statuses: list[int] = []
        self.asked = 0

    async def step(self, by_ms=25, wanted=4, decide=None):
        self.now_ms += by_ms
        ended = [lease for lease, (at, _) in self.open.items() if at <= self.now_ms]
        back = []
        for lease in ended:
            _, status = self.open.pop(lease)
            self.statuses.append(status)
            back.append(Returned(lease, CallOutcome(status, Cost(1.0, 300.0, 100.0), reporter=lease)))
        wants = [Want(f"l{next(self.serial)}", "j", "p", "m", 300.0, 100.0) for _ in range(wanted)]
        answer = await self.leases.admit(
            pool="p", node="n", ttl_ms=60_000, give_back=back, wants=wants, now_ms=self.now_ms
        )
        for want, verdict in zip(wants, answer.verdicts, strict=True):
            if verdict is LeaseVerdict.GRANTED:
                served = sum(status == 200 for _, status in self.open.values())
                latency_ms = round(self.latency_ms * max(1.0, (len(self.open) + 1) / self.knee))
                takes, status = (latency_ms, 200) if served < self.cap else (self.refusal_ms, 429)
                self.open[want.lease] = (self.now_ms + takes, status)
        if answer.decide and decide is not None:
            self.asked += 1
            await decide(self.now_ms)
        return answer

    async def run(self, seconds, decide):
        for _ in range(int(seconds * 40)):
            await self.step(decide=decide)


async def test_nothing_is_granted_before_the_first_decision(client):
    traffic = Traffic(client)
    answer = await traffic.step()
    assert (answer.reason, answer.decide) == ("no_parameters", True)
    assert traffic.open == {}
    assert await governor(client, limit=3).tick("p", traffic.now_ms)
    answer = await traffic.step(by_ms=2000)
    assert 0 < len(traffic.open) <= 3
    assert answer.limit == 3


async def test_a_hidden_cap_is_found_and_kept(client):
    """The store asks for decisions as the traffic goes; nobody is told of the cap of 20."""
    traffic, decider = Traffic(client, cap=20), governor(client)
    await traffic.run(20, lambda now: decider.tick("p", now))
    assert traffic.asked > 50
    refused = traffic.statuses.count(429) / len(traffic.statuses)
    served = traffic.statuses.count(200) / (20 * 20 / 0.5)
    assert refused < 0.05, f"refused {refused:.1%}"
    assert served > 0.75, f"served {served:.1%} of the capacity"
    (state,) = await PoolStates(client, KEYS).all()
    assert 17 <= state.limit <= 24
    assert state.rate_limited == traffic.statuses.count(429)
    assert state.changes[0]["to"] == state.limit


@pytest.mark.parametrize("target_s, said", [(None, "only wait for each other"), (0.8, "the latency target of 0.8 s")])
async def test_what_was_learned_of_the_latency_is_told(client, target_s, said):
    """A server of eight calls at full speed, which refuses nothing."""
    traffic = Traffic(client, knee=8)
    decider = governor(client, limit=8, ceiling=60, latency_target_s=target_s)
    await decider.tick("p", traffic.now_ms)
    (state,) = await PoolStates(client, KEYS).all()
    assert state.knee is None
    for _ in range(120):
        await traffic.run(1, lambda now: decider.tick("p", now))
        (state,) = await PoolStates(client, KEYS).all()
        if state.knee is not None and state.knee.level is not None and len(state.knee.curve) >= 2:
            break
    assert said in state.knee.summary and state.knee.target_s == target_s
    assert state.limit <= state.knee.level < 40
    opened = [point.open for point in state.knee.curve]
    assert opened == sorted(opened) and 2 <= len(opened) <= 16
    many = state.knee.curve[-1]
    assert many.latency_s == pytest.approx(0.5 * many.open / 8, rel=0.3)
    assert many.per_s == pytest.approx(16.0, rel=0.3)


async def test_decisions_survive_a_change_of_leader_at_every_turn(client):
    """Two governors take turns; neither is told of the other, and the limit is found all the same."""
    traffic = Traffic(client, cap=20)
    leaders = itertools.cycle([governor(client), governor(client)])
    await traffic.run(20, lambda now: next(leaders).tick("p", now))
    (state,) = await PoolStates(client, KEYS).all()
    assert 17 <= state.limit <= 24
    assert traffic.statuses.count(429) < 0.05 * len(traffic.statuses)


async def test_of_decisions_made_at_once_one_is_in_force_and_a_stale_leader_is_refused(client):
    decider = governor(client)
    await decider.tick("p", START_MS)
    store = decider.store
    brief = await store.read("p", now_ms=START_MS)
    decision = Decision(brief.parameters, None, None, brief.cursor)
    await decider.tick("p", START_MS + 1000)  # meanwhile another one decides
    assert not await store.commit("p", brief.version, decision)
    versions = [(await store.read("p", now_ms=START_MS)).version]
    many = [governor(client) for _ in range(8)]
    results = await asyncio.gather(*(one.tick("p", START_MS + 2000) for one in many))
    versions.append((await store.read("p", now_ms=START_MS)).version)
    assert versions[1] - versions[0] == sum(results)


@pytest.mark.parametrize("refused", [0, 1, 2])
async def test_refusals_that_a_decision_does_not_know_of_take_its_step_back(client, refused):
    """They come between what the governor reads and what it commits."""
    traffic, decider = Traffic(client), governor(client)
    commit, steps = decider.store.commit, []

    async def refuse_and_commit(pool, version, decision):
        is_step = decision.parameters.limit_if_refused < decision.parameters.limit
        if is_step and len(traffic.open) > refused and not steps:
            steps.append(decision.parameters)
            for lease in itertools.islice(reversed(traffic.open), refused):
                traffic.open[lease] = (traffic.now_ms, 429)
            await traffic.step(by_ms=0, wanted=0)
        return await commit(pool, version, decision)

    decider.store.commit = refuse_and_commit
    while not steps:
        await traffic.step(decide=lambda now: decider.tick("p", now))
    (step,) = steps
    assert traffic.statuses.count(429) == refused
    assert (await traffic.step(by_ms=1)).limit == (step.limit_if_refused if refused else step.limit)
    await decider.tick("p", traffic.now_ms)
    (state,) = await PoolStates(client, KEYS).all()
    assert (await traffic.step(by_ms=1)).limit == state.limit


async def test_events_enter_exactly_one_decision(client):
    traffic, one, other = Traffic(client), governor(client), governor(client)
    await one.tick("p", START_MS)
    for turn in range(60):
        await traffic.step(by_ms=200)
        if turn % 3 == 2:
            await (one if turn % 2 else other).tick("p", traffic.now_ms)
    await other.tick("p", traffic.now_ms + 5000)
    brief = await other.store.read("p", now_ms=traffic.now_ms)
    assert brief.events == []
    seen = orjson.loads(brief.state.policy)["engine"]["log"]["sent_total"]
    assert seen == int(await client.hget(KEYS.counters("p"), "granted")) > 100


async def test_a_state_that_cannot_be_read_starts_anew(client, caplog):
    await governor(client, limit=7).tick("p", START_MS)
    await client.hset(KEYS.governor("p"), "state", '{"limit_wished": 7, "cap": 60, "ceiling": 14, "policy": {"x": 1}}')
    assert await governor(client, limit=7).tick("p", START_MS + 1000)
    (state,) = await PoolStates(client, KEYS).all()
    assert state.limit == 7
    assert "begins anew" in caplog.text


async def test_without_decisions_the_limit_falls_to_the_floor(client):
    traffic = Traffic(client)
    await governor(client, limit=9, floor=2).tick("p", traffic.now_ms)
    assert (await traffic.step()).limit == 9
    traffic.now_ms += 120_000
    answer = await traffic.step()
    assert (answer.limit, answer.decide) == (2, True)


@pytest.mark.parametrize(
    "configured, live, cap, want",
    [
        ({}, {}, 60, (12, 60)),
        ({}, {}, 4, (4, 4)),
        ({"limit": 8}, {}, 60, (8, 16)),
        ({"limit": 8}, {}, 12, (8, 12)),
        ({"limit": 8}, {}, 5, (5, 5)),
        ({"limit": 8, "ceiling": 9}, {}, 60, (8, 9)),
        ({"limit": 8}, {"limit": 3}, 60, (3, 6)),
        ({"limit": 8}, {"ceiling": 30, "limit": 20}, 60, (20, 30)),
        ({"limit": 8}, {"adaptive": False}, 60, (8, 16)),
        ({}, {"profile": "fixed", "limit": 5}, 60, (5, 10)),
        ({"limit": 8}, {"profile": "rules"}, 60, (8, 16)),
    ],
)
async def test_limits_follow_configuration_wishes_and_the_running_jobs(client, configured, live, cap, want):
    await client.hset(KEYS.job_limits, "j", cap)
    decider = governor(client, **configured)
    await decider.tick("p")
    if live:
        await decider.set("p", **live)
    (state,) = await PoolStates(client, KEYS).all()
    assert (state.limit, state.ceiling) == want


async def test_a_pool_starts_by_the_ceiling_of_its_first_job_though_decided_on_before(client):
    await client.delete(KEYS.job_limits)
    decider = governor(client)
    await decider.tick("p", START_MS)
    await client.hset(KEYS.job_limits, "j", 100)
    await decider.tick("p", START_MS + 1000)
    (state,) = await PoolStates(client, KEYS).all()
    assert (state.limit, state.ceiling) == (20, 100)
    await Traffic(client).step(by_ms=2000, decide=lambda now: decider.tick("p", now))
    await client.hset(KEYS.job_limits, "j", 200)
    await decider.tick("p", START_MS + 4000)
    (state,) = await PoolStates(client, KEYS).all()
    assert (state.limit, state.ceiling) == (20, 200)


async def test_a_wish_is_for_one_pool_and_can_be_taken_back(client):
    decider = governor(client, limit=8)
    await decider.tick_all(["p", "q"])
    await decider.set("p", limit=3)
    assert {s.pool: s.limit for s in await PoolStates(client, KEYS).all()} == {"p": 3, "q": 8}
    await decider.set("p", limit=None)
    assert {s.pool: s.limit for s in await PoolStates(client, KEYS).all()} == {"p": 8, "q": 8}
    changes = (await PoolStates(client, KEYS).all())[0].changes
    assert [(c["from"], c["to"], c["reason"]) for c in changes[:2]] == [
        (3, 8, "set by the operator"), (8, 3, "set by the operator"),
    ]  # fmt: skip


async def test_a_pool_is_known_by_its_own_name_whatever_characters_it_has(client):
    decider, names = governor(client), ["p", "p:a.b", "p%3A"]
    for _ in range(3):
        await decider.tick_all(names)
    assert await decider.store.pools() == sorted(names)


async def test_wishes_set_at_once_are_all_kept(client):
    """Operators who change different overrides at the same instant; each reads before any other has written."""
    read = asyncio.Barrier(5)
    names = ["limit", "ceiling", "floor", "rpm", "tpm"]

    async def operator(name, value):
        decider, first = governor(client), True
        hget = decider.store._redis.hget

        async def hget_together(*args):
            nonlocal first
            found = await hget(*args)
            if first:
                first = False
                await read.wait()
            return found

        decider.store._redis = SimpleNamespace(hget=hget_together)
        await decider.store.revise_override("p", lambda live: {**live, name: value})

    await asyncio.gather(*(operator(name, n + 1) for n, name in enumerate(names)))
    assert (await governor(client).store.read("p", now_ms=START_MS)).override == dict(
        zip(names, range(1, 6), strict=True)
    )


async def test_a_change_of_wishes_that_lost_the_race_is_checked_again(client):
    """`limit` 9 was fine when it was read; meanwhile the ceiling became 5."""
    decider, asked = governor(client), 0

    def change(live):
        nonlocal asked
        asked += 1
        return {**live, "limit": 9}

    class Rival:
        async def hget(self, *args):
            found = await client.hget(*args)
            if not asked:
                await client.hset(KEYS.overrides, "p", '{"ceiling": 5}')
            return found

    decider.store._redis = Rival()
    with pytest.raises(OverrideError, match=r"limit must be <= ceiling \(5\), got 9"):
        await decider.revise("p", change)
    assert (asked, await client.hgetall(KEYS.overrides)) == (2, {"p": '{"ceiling": 5}'})


def test_the_thresholds_of_the_rules_are_an_operators():
    engine = Overrides().with_live({"profile": "rules", "error_high": 0.5, "error_low": 0.1}).config(10).engine
    assert (engine.error_high, engine.error_low) == (0.5, 0.1)
    engine = Overrides().with_live({"profile": "rules"}).config(10).engine
    assert (engine.error_high, engine.error_low) == (0.2, 0.05)


def test_a_latency_target_is_the_default_engines_alone():
    configured = Overrides(latency_target_s=2.0)
    assert configured.config(10).engine.latency_target_s == 2.0
    assert configured.with_live({"latency_target_s": 1}).config(10).engine.latency_target_s == 1
    assert configured.with_live({"latency_target_s": None}).config(10).engine == Overrides().config(10).engine
    for live in ({"profile": "classic"}, {"adaptive": False}):
        engine = configured.with_live(live).config(10).engine
        assert engine == Overrides().with_live(live).config(10).engine


@pytest.mark.parametrize(
    "override, message",
    [
        ({"limit": 0}, "limit must be a whole number >= 1, got 0"),
        ({"limit": True}, "limit must be"),
        ({"limt": 3}, "there is no override 'limt'"),
        ({"profile": "best"}, "profile must be one of default"),
        ({"limit": 9, "ceiling": 5}, r"limit must be <= ceiling \(5\), got 9"),
        ({"settle_s": 3.0}, "settle_s is for profile 'classic'"),
        ({"latency_target_s": 0.0}, "latency_target_s must be a number >= 0.01 and <= 3600, got 0.0"),
        ({"latency_target_s": 4000}, "latency_target_s must be a number >= 0.01 and <= 3600, got 4000"),
        ({"profile": "classic", "latency_target_s": 2.0}, "latency_target_s is for profile 'default', not for 'c"),
        ({"profile": "rules", "break_s": 3.0}, "has no breaker"),
        ({"weights": {"a": 0}}, "weights must be numbers above 0"),
        ({"pacing_s": float("nan")}, "pacing_s must be"),
        ({"error_high": 0.3}, "error_high is for profile 'rules'"),
        ({"profile": "rules", "error_high": 1.5}, "error_high must be a number >= 0 and <= 1"),
        ({"profile": "rules", "error_low": 0.2}, r"error_low must be < error_high \(0.2\), got 0.2"),
    ],
)
async def test_a_wish_that_cannot_be_changes_nothing(client, override, message):
    decider = governor(client)
    with pytest.raises(OverrideError, match=message):
        await decider.set("p", **override)
    assert await client.hgetall(KEYS.overrides) == {}


async def test_the_nodes_cpu_moves_a_pool_of_profile_rules(client, redis_url, caplog):
    """Two living nodes, one of them busy: their mean is what counts; a node that tells nothing counts for nothing."""
    decider = governor(client, limit=16, ceiling=16, profile="rules", cpu_high=150.0)
    with connect(redis_url) as store:
        registry = Registry(store, KEYS)
        for cpu, tells in ((40.0, True), (360.0, True), (0.0, False)):
            node = Node.for_this_process("w@h", limit=1, slots=1)
            registry.announce(node, RulesStatus(5, 5, 0.0, cpu, "start", 0) if tells else None)
        assert sorted(status.cpu_percent for _, status in registry.statuses()) == [40.0, 360.0]
    for second in range(0, 140, 5):
        await decider.tick("p", START_MS + second * 1000)
    (state,) = await PoolStates(client, KEYS).all()
    assert state.limit < 8
    assert [c["reason"] for c in state.changes] == ["CPU 200 %"] * len(state.changes) != []
    assert {r.levelname for r in caplog.records if getattr(r, "event", "") == "limit_changed"} == {"WARNING"}


async def test_the_slo_cap_binds_every_pool_and_is_lifted(client, caplog):
    decider = governor(client, limit=8)
    await decider.tick_all(["p", "q"])
    caplog.set_level("INFO")
    await decider.set_slo(2)
    assert [(r.levelname, r.reason) for r in caplog.records if hasattr(r, "pool")] == [("WARNING", "slo")] * 2
    assert [s.limit for s in await PoolStates(client, KEYS).all()] == [2, 2]
    with pytest.raises(ValueError, match="SLO constraint must be >= 1, got 0"):
        await decider.set_slo(0)
    await decider.set_slo(None)
    assert [s.limit for s in await PoolStates(client, KEYS).all()] == [8, 8]


async def test_requests_per_minute_are_never_exceeded(client):
    traffic, decider = Traffic(client), governor(client, rpm=120)
    starts = []
    for _ in range(600):
        await traffic.step(by_ms=200, wanted=2, decide=lambda now: decider.tick("p", now))
        granted = int(float(await client.hget(KEYS.counters("p"), "granted") or 0))
        starts.append((traffic.now_ms, granted))
    ahead = dict(starts)
    assert all(ahead[at] - granted <= 120 for (at, _), (_, granted) in zip(starts[300:], starts, strict=False))
    assert starts[-1][1] > 190


async def test_what_operators_see(client):
    traffic, decider = Traffic(client, cap=0), governor(client, limit=4)
    await decider.tick("p", traffic.now_ms)
    await traffic.run(8, lambda now: decider.tick("p", now))
    (state,) = await PoolStates(client, KEYS).all()
    assert state.breaker in ("open", "half_open")
    assert state.rate_limited > 0
    assert state.refused["breaker"] > 0
    assert state.waiting == ["p"] or state.projects == {}  # the view's clock is the store's, years after the test's
    assert any("circuit breaker" in finding for finding in findings(replace(state, breaker_for_s=2.0)))
