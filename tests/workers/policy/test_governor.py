"""The facade: clamps last, garbage counted, state that survives JSON and a change of profile."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dicast.workers.policy.adaptive_state import AdaptiveState
from dicast.workers.policy.calls import Done, Event
from dicast.workers.policy.engines import Directives
from dicast.workers.policy.governor import MOST_CHANGES, ChangeCause, GovernorState, PoolGovernor
from dicast.workers.policy.headers import Readings
from dicast.workers.policy.parameters import BreakerPhase, FairMode, Parameters
from dicast.workers.policy.profiles import PROFILES, PoolConfig, UnknownProfile, profile
from tests.workers.policy.build import done, sent

STATUSES = st.sampled_from([200, 200, 200, 200, 204, 429, 429, 529, 500, 503, 0, 400])
STEPS = st.lists(
    st.tuples(st.sampled_from(["send", "send", "answer", "wait"]), STATUSES, st.floats(0.0, 8.0)), max_size=120
)


def play(governor: PoolGovernor, steps: list[tuple[str, int, float]]) -> list[Parameters]:
    """Feed a history that could be: calls are answered once, later than they were sent. Refusals never raise."""
    now, number = 0.0, 0
    open_calls: list[tuple[str, float, int]] = []
    heard: list[Parameters] = []
    parameters = governor.decide([], now)
    for what, status, elapsed in steps:
        now += elapsed
        event: Event | None = None
        if what == "send":
            event = sent(f"c{number}", now, len(open_calls), parameters.limit)
            open_calls.append((f"c{number}", now, len(open_calls)))
            number += 1
        elif what == "answer" and open_calls:
            call, sent_at, before = open_calls.pop(0)
            event = done(call, now, sent_at, status, open_before=before, reporter=call)
        before = governor.decide([], now)
        parameters = governor.decide([] if event is None else [event], now)
        if isinstance(event, Done) and event.was_refused:
            assert parameters.limit <= before.limit
        heard.append(parameters)
    return heard


@settings(deadline=None, max_examples=150)
@given(
    STEPS,
    st.sampled_from(sorted(PROFILES)),
    st.integers(1, 4),
    st.integers(4, 40),
    st.one_of(st.none(), st.integers(1, 5)),
)
def test_clamps_come_last_and_refusals_never_raise_the_limit(
    steps: list[tuple[str, int, float]], name: str, floor: int, ceiling: int, slo: int | None
) -> None:
    governor = PoolGovernor(PoolConfig(ceiling=ceiling, floor=floor, engine=profile(name)))
    governor.set_slo_constraint(slo)
    for parameters in play(governor, steps):
        assert 1 <= parameters.limit <= (ceiling if slo is None else min(ceiling, slo))
        assert parameters.limit >= (floor if slo is None else min(floor, slo))
        assert 1 <= parameters.limit_if_refused <= parameters.limit
        assert math.isfinite(parameters.pace_s)


@settings(deadline=None, max_examples=60)
@given(STEPS, STEPS, st.sampled_from(sorted(PROFILES)))
def test_the_state_survives_json(
    first: list[tuple[str, int, float]], second: list[tuple[str, int, float]], name: str
) -> None:
    config = PoolConfig(ceiling=40, engine=profile(name))
    kept = PoolGovernor(config)
    play(kept, first)
    stored = kept.state.to_json()
    json.loads(stored)
    resumed = PoolGovernor(config, GovernorState.from_json(stored))
    assert resumed.state.to_json() == stored
    events = [sent("later", kept.state.now + 1.0), done("later", kept.state.now + 2.0, kept.state.now + 1.0, 429)]
    now = kept.state.now + 3.0
    assert resumed.decide(events, now) == kept.decide(events, now)


@pytest.mark.parametrize(
    "garbage",
    [
        done("x", math.nan, 0.0),
        done("x", 1.0, 2.0),
        done("x", math.inf, 0.0),
        done("x", 1.0, 0.0, open_before=-1),
        done("x", 1.0, 0.0, -5),
        done("x", 1e9, 0.0),
        sent("x", math.nan),
        sent("x", 1.0, -3),
    ],
)
def test_garbage_is_counted_and_ignored(garbage: Event) -> None:
    governor = PoolGovernor(PoolConfig(ceiling=40))
    before = governor.decide([], 1.0)
    after = governor.decide([garbage], 1.0)
    assert governor.state.garbage == 1
    assert (after.limit, after.buckets, after.feedback_s) == (before.limit, before.buckets, before.feedback_s)


def test_time_never_runs_backwards() -> None:
    governor = PoolGovernor(PoolConfig(ceiling=40))
    governor.decide([], 100.0)
    assert governor.decide([], 50.0).decided_at == 100.0


def test_the_fixed_profile_never_moves() -> None:
    governor = PoolGovernor(PoolConfig(ceiling=40, limit=7, engine=profile("fixed")))
    for second in range(1, 50):
        at = float(second)
        events = [sent(f"c{second}", at), done(f"c{second}", at, at, 429)]
        assert governor.decide(events, at).limit == 7


def test_another_profile_takes_over_the_limit_and_nothing_else() -> None:
    adaptive = PoolGovernor(PoolConfig(ceiling=40, limit=20))
    state = GovernorState.from_json(adaptive.state.to_json())
    assert PoolGovernor(PoolConfig(ceiling=40, engine=profile("classic")), state).decide([], 1.0).limit == 20


def test_a_lowered_ceiling_takes_effect_at_once() -> None:
    state = PoolGovernor(PoolConfig(ceiling=40, limit=30)).state
    assert PoolGovernor(PoolConfig(ceiling=10), state).decide([], 1.0).limit == 10


def test_the_history_is_bounded_and_tells_reasons() -> None:
    engine = profile("classic", settle_s=0.0, grow_every_s=0.5)
    governor = PoolGovernor(PoolConfig(ceiling=1000, limit=500, engine=engine))
    for second in range(1, 200):
        governor.decide([], float(second))
    assert len(governor.state.history) == MOST_CHANGES
    assert governor.state.history[-1].reason == "raised, as nothing was refused"


def test_configured_budgets_are_kept_in_every_minute() -> None:
    parameters = PoolGovernor(PoolConfig(ceiling=40, requests_per_min=60.0, tokens_per_min=60_000.0)).decide([], 0.0)
    for bucket, per_min in zip(parameters.buckets, (60.0, 60_000.0), strict=True):
        free = 1.0 if per_min == 60.0 else 0.0
        assert bucket.capacity + 60.0 * bucket.refill_per_s == pytest.approx(per_min + free)


def test_unknown_profiles_and_senseless_wishes_are_refused() -> None:
    with pytest.raises(UnknownProfile, match="profile must be one of default, classic, rules, fixed, got 'fast'"):
        profile("fast")
    with pytest.raises(TypeError):
        profile("classic", speed=1)
    with pytest.raises(ValueError, match="ceiling must be >= 1, got 0"):
        PoolConfig(ceiling=0)
    with pytest.raises(ValueError, match=r"floor must be <= ceiling \(3\), got 4"):
        PoolConfig(ceiling=3, floor=4)


def test_a_state_of_the_version_before_is_taken_up_without_its_budgets() -> None:
    config = PoolConfig(ceiling=40)
    governor = PoolGovernor(config)
    play(governor, [("send", 200, 0.1), ("answer", 200, 1.0)] * 30)
    stored = json.loads(governor.state.to_json())
    del stored["engine"]["told"]
    stored["engine"]["budgets"] = {"known": {"requests:": {"unit": "requests", "refill_per_s": 10.0}}}
    resumed = PoolGovernor(config, GovernorState.from_json(json.dumps(stored)))
    assert resumed.state.limit == governor.state.limit
    assert resumed.decide([], governor.state.now + 1.0).buckets == ()


def test_what_is_found_out_of_a_told_budget_is_a_line_of_the_history() -> None:
    governor = PoolGovernor(PoolConfig(ceiling=40))
    assert isinstance(governor.state.engine, AdaptiveState)
    governor.state.engine.told.news.append("b dropped: 1 per 60 s is reported, but calls beyond it are accepted")
    governor.decide([], 1.0)
    change = governor.state.history[-1]
    assert change.before == change.after
    assert "dropped" in change.reason


@pytest.mark.parametrize("name", ["fixed", "rules"])
def test_a_wish_that_a_smaller_ceiling_clamped_is_fulfilled_when_it_rises(name: str) -> None:
    engine = profile(name)
    governor = PoolGovernor(PoolConfig(ceiling=5, limit=5, engine=engine))
    assert governor.decide([], 1.0).limit == 5
    governor = PoolGovernor(PoolConfig(ceiling=60, limit=20, engine=engine), governor.state)
    assert governor.decide([], 2.0).limit == 20


def test_a_limit_that_was_frozen_stays_where_it_was() -> None:
    found = PoolGovernor(PoolConfig(ceiling=60, limit=20))
    found.decide([], 1.0)
    found.state.limit = 13
    frozen = PoolGovernor(PoolConfig(ceiling=60, limit=20, engine=profile("fixed")), found.state)
    assert frozen.decide([], 2.0).limit == 13
    again = PoolGovernor(PoolConfig(ceiling=80, limit=20, engine=profile("fixed")), frozen.state)
    assert again.decide([], 3.0).limit == 13


def test_clamps_are_named() -> None:
    governor = PoolGovernor(PoolConfig(ceiling=20, engine=profile("fixed")))
    governor.decide([], 1.0)
    governor.set_slo_constraint(5)
    governor.decide([], 2.0)
    governor.set_slo_constraint(None)
    governor.decide([], 3.0)
    governor = PoolGovernor(PoolConfig(ceiling=8, engine=profile("fixed")), governor.state)
    governor.config = PoolConfig(ceiling=6, engine=profile("fixed"))
    governor.decide([], 4.0)
    assert [change.reason for change in governor.state.history][:2] == ["slo", "slo lifted"]
    assert governor.state.history[-1].reason == "ceiling"
    causes = [change.cause for change in governor.state.history]
    assert (causes[:2], causes[-1]) == ([ChangeCause.SLO, ChangeCause.ENGINE], ChangeCause.CEILING)


def test_the_first_change_after_a_break_is_known_by_its_cause() -> None:
    governor = PoolGovernor(PoolConfig(ceiling=40, engine=profile("default")))
    governor.decide([], 0.0)
    now, number = 0.0, 0
    while governor.breaker.closed:
        now, number = now + 1.0, number + 1
        governor.decide([done(f"c{number}", now, now - 1.0, 503)], now)
    broken_at = len(governor.state.history)
    now += 400.0
    governor.decide([], now)
    governor = PoolGovernor(governor.config, GovernorState.from_json(governor.state.to_json()))
    governor.decide(
        [sent("probe", now + 1.0, 0, 1, probe=True), done("probe", now + 2.0, now + 1.0, probe=True)], now + 2.0
    )
    for second in range(3, 60):
        number += 1
        governor.decide([done(f"c{number}", now + second, now + second - 1.0)], now + second)
    causes = [change.cause for change in list(governor.state.history)[broken_at:]]
    assert governor.breaker.closed and causes.count(ChangeCause.RECOVERED) == 1, causes


@pytest.mark.parametrize("quickest_s", [0.3, 1.0, 5.0])
def test_a_raised_ceiling_is_reached_by_a_warm_pool_within_two_seconds(quickest_s: float) -> None:
    """Answers take up to 0.4 s longer than the quickest."""
    governor, now, raised_at = PoolGovernor(PoolConfig(ceiling=5)), 0.0, 0.0
    open_calls: list[tuple[float, str, float, int]] = []
    parameters = governor.decide([], now)
    for number in range(8000):
        now += 0.005
        events: list[Event] = []
        if open_calls and now >= min(open_calls)[0]:
            _, call, sent_at, before = open_calls.pop(open_calls.index(min(open_calls)))
            events.append(done(call, now, sent_at, open_before=before))
        elif len(open_calls) < parameters.limit:
            before = len(open_calls)
            events.append(sent(f"c{number}", now, before, parameters.limit, held_by="limit"))
            open_calls.append((now + quickest_s + 0.1 * (number % 5), f"c{number}", now, before))
        if not raised_at and now > 15.0:
            raised_at, governor = now, PoolGovernor(PoolConfig(ceiling=20), governor.state)
        parameters = governor.decide(events, now)
        if parameters.limit == 20:
            break
    assert parameters.limit == 20
    assert now < raised_at + 2.0


def test_a_decision_says_all_that_the_operator_wishes() -> None:
    config = PoolConfig(
        ceiling=40, floor=3, limit=12, requests_per_min=600.0, tokens_per_min=60_000.0, stale_after_s=45.0,
        stale_limit=2, probe_s=33.0, fair=FairMode.STRICT, weights={"a": 2.0}, engine=profile("fixed"),
    )  # fmt: skip
    governor = PoolGovernor(config)
    said = governor.decide([], 7.0)
    assert (said.version, said.decided_at, said.limit, said.limit_if_refused) == (1, 7.0, 12, 12)
    assert (said.stale_after_s, said.stale_limit, said.probe_s) == (45.0, 2, 33.0)
    assert (said.fair, said.weights) == (FairMode.STRICT, {"a": 2.0})
    assert [bucket.name for bucket in said.buckets] == ["configured_requests", "configured_tokens"]
    restrains_nothing = Directives(limit_if_refused=12.0)
    for name in (
        "counts_after",
        "stop_after",
        "feedback_s",
        "hold_until",
        "single_call_s",
        "pace_s",
        "burst_s",
        "token_scale",
    ):
        assert getattr(said, name) == getattr(restrains_nothing, name)
    assert governor.decide([], 8.0).version == 2
    assert PoolGovernor(replace(config, stale_limit=None)).decide([], 0.0).stale_limit == 3


@pytest.mark.parametrize(
    ("slo", "limit", "clamp"), [(None, 20, ""), (5, 5, "slo"), (1, 1, "slo"), (20, 20, ""), (99, 20, "")]
)
def test_a_cap_on_the_limit_is_hard_and_lifted_at_once(slo: int | None, limit: int, clamp: str) -> None:
    governor = PoolGovernor(PoolConfig(ceiling=40, floor=4, limit=20, engine=profile("fixed")))
    governor.set_slo_constraint(slo)
    said = governor.decide([], 1.0)
    assert (said.limit, said.limit_if_refused, governor.state.clamp) == (limit, limit, clamp)
    governor.set_slo_constraint(None)
    assert governor.decide([], 2.0).limit == 20
    moved = [(change.at, change.before, change.after, change.reason) for change in governor.state.history]
    assert moved == ([(1.0, 20, limit, "slo"), (2.0, limit, 20, "slo lifted")] if clamp else [])


@pytest.mark.parametrize(("after_s", "lost"), [(6.9, False), (7.0, True)])
def test_a_probe_is_lost_when_the_operator_says(after_s: float, lost: bool) -> None:
    governor = PoolGovernor(PoolConfig(ceiling=10, limit=1, probe_s=7.0, engine=profile("classic")))
    said = governor.decide([sent("a", 0.0), done("a", 1.0, 0.0, 429)], 1.0)
    assert (said.breaker, said.breaker_until, said.break_number) == (BreakerPhase.OPEN, 301.0, 1)
    governor.decide([sent("probe", 301.0, probe=True)], 301.0)
    assert governor.decide([], 301.0 + after_s).breaker is (BreakerPhase.OPEN if lost else BreakerPhase.HALF_OPEN)


@pytest.mark.parametrize(
    ("weight", "taken"), [(0.5, True), (1e9, True), (0.0, False), (-1.0, False), (math.inf, False)]
)
def test_weights_are_positive_numbers(weight: float, taken: bool) -> None:
    if taken:
        assert PoolConfig(ceiling=10, weights={"a": weight}).weights == {"a": weight}
    else:
        with pytest.raises(ValueError, match="weight of 'a' must be > 0"):
            PoolConfig(ceiling=10, weights={"a": weight})


def test_what_comes_after_garbage_is_taken_in() -> None:
    governor = PoolGovernor(PoolConfig(ceiling=40))
    governor.decide([sent("a", 1.0, -1), sent("b", 2.0), sent("c", 99.0), sent("d", 3.0)], 3.0)
    assert governor.state.garbage == 2
    assert isinstance(governor.state.engine, AdaptiveState) and governor.state.engine.log.sent_total == 2


@pytest.mark.parametrize("override", ["ceiling", "floor", "limit", "stale_limit", "requests_per_min", "tokens_per_min"])
def test_a_wish_for_nothing_is_refused_by_its_name(override: str) -> None:
    with pytest.raises(ValueError, match=f"{override} must be >=? [01], got 0"):
        PoolConfig(**{"ceiling": 10, override: 0})
    assert getattr(PoolConfig(**{"ceiling": 10, override: 1}), override) == 1


def test_a_history_that_was_stored_stays_bounded() -> None:
    governor = PoolGovernor(PoolConfig(ceiling=40, limit=20, engine=profile("fixed")))
    again = PoolGovernor(governor.config, GovernorState.from_json(governor.state.to_json()))
    for number in range(MOST_CHANGES + 5):
        again.set_slo_constraint(1 + number % 2)
        again.decide([], float(number))
    assert len(again.state.history) == MOST_CHANGES


@pytest.mark.parametrize(("ahead_s", "believed"), [(5.0, True), (5.1, False)])
def test_an_event_far_ahead_of_the_decision_is_garbage(ahead_s: float, believed: bool) -> None:
    governor = PoolGovernor(PoolConfig(ceiling=40))
    governor.decide([sent("a", 100.0 + ahead_s)], 100.0)
    assert governor.state.garbage == int(not believed)
    assert governor.state.now == 100.0 + (ahead_s if believed else 0.0)
    governor.decide([], 50.0)
    assert governor.state.now >= 100.0


def test_a_constraint_below_one_is_refused() -> None:
    other = PoolGovernor(PoolConfig(ceiling=10, engine=profile("fixed")))
    other.set_cpu(55.0)
    with pytest.raises(ValueError, match="got 0"):
        other.set_slo_constraint(0)


@pytest.mark.parametrize(
    "name, status, retry_after_s, pause_s",
    [
        ("default", 200, 7.0, 7.0),
        ("rules", 200, 7.0, 7.0),
        ("default", 200, 3600.0, 60.0),  # a gateway that always says so must not stop the pool
        ("default", 429, 7.0, None),  # it delays the unit
        ("default", 200, 0.0, None),
        ("fixed", 200, 7.0, None),
    ],
)
def test_an_answer_that_asks_for_a_pause_is_heeded(
    name: str, status: int, retry_after_s: float, pause_s: float | None
) -> None:
    config = PoolConfig(ceiling=20, limit=10, engine=profile(name))
    governor = PoolGovernor(config)
    governor.decide([], 0.0)
    limit = governor.decide([sent("a", 1.0, 0, 10)], 1.0).limit
    said = governor.decide([replace(done("a", 2.0, 1.0, status), readings=Readings((), retry_after_s, 1.0))], 2.0)
    assert (said.hold_until > 6.0) == (pause_s is not None)
    if pause_s is not None:
        assert said.hold_until == 2.0 + pause_s
        assert said.limit >= limit, "no refusal"
        later = PoolGovernor(config, GovernorState.from_json(governor.state.to_json()))
        assert later.decide([], 3.0).hold_until == said.hold_until, "it survives a change of leader"
