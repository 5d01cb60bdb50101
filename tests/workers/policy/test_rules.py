"""The rules engine, rule by rule; the clamps hold whatever fired."""

from __future__ import annotations

import pytest

from dicast.workers.policy.rules import LimitCause, Rules, RulesConfig, RulesState, error_rate, record, step

CONFIG = RulesConfig()


def state(limit: int = 10, configured: int = 10, ok: int = 0, errors: int = 0, **changes: object) -> RulesState:
    made = RulesState(configured, limit, started_at=0.0, **changes)  # type: ignore[arg-type]
    for index in range(ok + errors):
        record(made, index >= ok, 1000.0)
    return made


@pytest.mark.parametrize(
    ("ok", "errors", "want"),
    [(79, 21, 9), (80, 20, 10), (0, 1, 9), (100, 0, 10), (0, 0, 10)],
)
def test_above_a_fifth_of_errors_one_less(ok: int, errors: int, want: int) -> None:
    made = state(ok=ok, errors=errors)
    step(CONFIG, made, 1000.0)
    assert made.limit == want


def test_one_more_after_two_minutes_below_a_twentieth() -> None:
    made = state(limit=6, ok=100, errors=4)
    limits = []
    for now in range(1000, 1250, 5):
        step(CONFIG, made, float(now))
        limits.append(made.limit)
    assert limits == [6] * 24 + [7] * 24 + [8] * 2


def test_a_middling_rate_ends_the_row() -> None:
    made = state(limit=6, ok=100)
    step(CONFIG, made, 1000.0)
    for _ in range(10):
        record(made, True, 1060.0)
    step(CONFIG, made, 1060.0)
    made.seconds.clear()
    step(CONFIG, made, 1119.0)
    step(CONFIG, made, 1125.0)
    assert made.limit == 6


def test_outcomes_leave_the_window_after_ten_minutes() -> None:
    made = state(errors=5)
    assert error_rate(CONFIG, made, 1600.0) == (1.0, 5)
    assert error_rate(CONFIG, made, 1601.0) == (0.0, 0)


def test_cpu_halves_remembers_and_restores() -> None:
    made = state(limit=10, cpu_percent=350.0)
    limits = []
    for now in (100.0, 125.0, 130.0, 135.0, 140.0):
        step(CONFIG, made, now)
        limits.append(made.limit)
    made.cpu_percent = 100.0
    step(CONFIG, made, 145.0)
    assert limits == [10, 5, 2, 1, 1]
    assert made.limit == 10


def test_the_floor_holds_except_for_cpu_and_the_slo_cap() -> None:
    made = state(limit=5, errors=10)
    for now in range(1000, 1100, 5):
        step(CONFIG, made, float(now))
    assert made.limit == 5
    made.slo = 3
    step(CONFIG, made, 1100.0)
    assert made.limit == 3


@pytest.mark.parametrize("cap", [1, 3, 7])
def test_the_slo_cap_holds_under_any_rule(cap: int) -> None:
    engine = Rules(CONFIG, state(limit=10, errors=3, ok=7))
    engine.set_slo_constraint(cap)
    for now in range(1000, 1400, 5):
        engine.advance(float(now))
        assert 1 <= engine.limit <= cap


def test_a_senseless_slo_cap_is_refused() -> None:
    with pytest.raises(ValueError, match="SLO constraint must be >= 1, got 0"):
        Rules(CONFIG, state()).set_slo_constraint(0)


def test_status_tells_the_last_reason_and_changes_nothing() -> None:
    engine = Rules(CONFIG, state(errors=3))
    engine.advance(1000.0)
    status = engine.status(1000.0)
    assert (status.configured, status.current, status.error_rate, status.window_size) == (10, 9, 1.0, 3)
    assert "error rate 100%" in status.reason
    assert engine.status(1000.0) == status


@pytest.mark.parametrize("percent", [float("nan"), -1.0, float("inf")])
def test_a_senseless_cpu_load_is_ignored(percent: float) -> None:
    engine = Rules(CONFIG, state(cpu_percent=50.0))
    engine.set_cpu(percent)
    assert engine.state.cpu_percent == 50.0


def test_time_begins_with_the_first_step() -> None:
    """A node that starts busy is left alone for the grace."""
    made = RulesState(10, 10)
    made.cpu_percent = 350.0
    limits = []
    for now in (5000.0, 5120.0, 5120.1):
        step(CONFIG, made, now)
        limits.append(made.limit)
    assert limits == [10, 10, 5]


@pytest.mark.parametrize(
    ("percent", "taken"), [(0.0, True), (1e6, True), (-0.1, False), (1.1e6, False), (float("nan"), False)]
)
def test_a_senseless_load_is_ignored(percent: float, taken: bool) -> None:
    engine = Rules(CONFIG, state(cpu_percent=7.0))
    engine.set_cpu(percent)
    assert engine.state.cpu_percent == (percent if taken else 7.0)


def test_rules_are_applied_every_few_seconds() -> None:
    engine = Rules(CONFIG, state(ok=0, errors=9))
    engine.advance(1000.0)
    assert (engine.next_at(), engine.limit) == (1005.0, 9.0)
    engine.advance(1004.9)
    assert engine.limit == 9.0
    engine.advance(1005.0)
    assert (engine.next_at(), engine.limit) == (1010.0, 8.0)
    assert engine.directives().limit_if_refused == 8.0


@pytest.mark.parametrize(("limit", "configured", "want"), [(10, 20, 20), (7, 20, 7), (10, 4, 4), (7, 4, 4), (7, 10, 7)])
def test_a_limit_at_the_configured_one_follows_it(limit: int, configured: int, want: int) -> None:
    made = state(limit=limit)
    made.configure(configured)
    assert (made.configured, made.limit) == (configured, want)
    assert made.reason == ("configured" if limit == 10 else "start")


@pytest.mark.parametrize(("cap", "limit", "reason"), [(3, 3, "SLO cap 3"), (10, 10, "start"), (50, 10, "start")])
def test_a_cap_is_told_where_it_takes_something(cap: int, limit: int, reason: str) -> None:
    engine = Rules(CONFIG, state())
    engine.set_slo_constraint(cap)
    assert (engine.limit, engine.state.reason) == (limit, reason)
    assert engine.status(1000.0).cause == (LimitCause.SLO_CAP if cap == 3 else LimitCause.START)


@pytest.mark.parametrize(("limit", "configured", "errors", "want", "reason"), [
    (2, 2, 9, 1, "error rate 100%"),
    (1, 1, 9, 1, "start"),
    (1, 10, 0, 5, "clamped"),
])  # fmt: skip
def test_the_floor_is_half_of_the_configured_limit(
    limit: int, configured: int, errors: int, want: int, reason: str
) -> None:
    made = state(limit, configured, errors=errors)
    step(CONFIG, made, 1000.0)
    assert (made.limit, made.reason) == (want, reason)


@pytest.mark.parametrize(("percent", "limit"), [(300.0, 10), (300.1, 2)])
def test_a_load_at_the_limit_has_recovered(percent: float, limit: int) -> None:
    made = state(limit=5, cpu_percent=percent, before_cpu=10)
    step(CONFIG, made, 1000.0)
    assert made.limit == limit
