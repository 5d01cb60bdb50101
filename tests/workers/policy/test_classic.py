"""The classic engine, step by step."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dicast.workers.policy.breaker import Breaker
from dicast.workers.policy.classic import Classic, ClassicConfig, ClassicState, on_refused, on_tick
from dicast.workers.policy.headers import Readings
from dicast.workers.policy.parameters import BreakerPhase
from tests.workers.policy.build import done, sent

CONFIG = ClassicConfig()


@pytest.mark.parametrize(
    ("limit", "reporters", "want"),
    [
        (8, ["a"], 4),
        (8, ["a", "b"], 4),
        (8, ["a", "b", "c"], 2),
        (8, ["a", "a", "a"], 4),
        (3, ["a", "b", "c"], 1),
        (7, ["a"], 3),
        (7, ["a", "b", "c"], 1),
    ],
)
def test_the_decrease_scales_with_distinct_reporters(limit: int, reporters: list[str], want: int) -> None:
    earlier = tuple((99.0, who) for who in reporters[:-1])
    state = on_refused(CONFIG, ClassicState(limit, reports=earlier), reporters[-1], 100.0, 1)
    assert state.limit == want


def test_reports_older_than_the_burst_window_do_not_count() -> None:
    old = ((60.0, "a"), (61.0, "b"))
    assert on_refused(CONFIG, ClassicState(8, reports=old), "c", 100.0, 1).limit == 4


def test_within_the_settle_window_events_are_counted_and_nothing_moves() -> None:
    state = on_refused(CONFIG, ClassicState(16), "a", 0.0, 1)
    for second in range(1, 120):
        state = on_refused(CONFIG, state, f"reporter {second}", float(second), 1)
    assert (state.limit, len(state.reports)) == (8, 31)
    assert on_refused(CONFIG, state, "b", 120.0, 1).limit == 2


def test_a_refusal_at_the_floor_opens_even_while_settling() -> None:
    state = on_refused(CONFIG, ClassicState(1, settle_until=1e9), "a", 10.0, 1)
    assert (state.breaker.phase, state.breaker.until) == (BreakerPhase.OPEN, 310.0)


def test_the_third_decrease_within_the_window_opens() -> None:
    state = ClassicState(64)
    for at, closed in ((0.0, True), (120.0, True), (240.0, False)):
        state = on_refused(CONFIG, state, "a", at, 1)
        assert state.breaker.closed is closed
    assert state.limit == 8


def test_decreases_far_apart_do_not_open() -> None:
    state = ClassicState(64)
    for at in (0.0, 301.0, 602.0):
        state = on_refused(CONFIG, state, "a", at, 1)
    assert state.breaker.closed


@pytest.mark.parametrize(
    ("now", "limit"), [(299.0, 8), (300.0, 9), (599.0, 9), (900.0, 11), (1e6, 16)]
)  # fmt: skip
def test_grows_by_one_each_period_up_to_the_ceiling(now: float, limit: int) -> None:
    assert on_tick(CONFIG, ClassicState(8, grown_at=0.0), now, 16).limit == limit


def test_time_begins_with_the_first_tick() -> None:
    state = on_tick(CONFIG, ClassicState(8), 1.7e9, 16)
    assert state.limit == 8
    assert on_tick(CONFIG, state, 1.7e9 + 300.0, 16).limit == 9


def test_growth_waits_for_the_end_of_the_settle_window() -> None:
    state = on_refused(CONFIG, ClassicState(8, grown_at=0.0), "a", 0.0, 1)
    assert on_tick(CONFIG, state, 419.0, 16).limit == 4
    assert on_tick(CONFIG, state, 420.0, 16).limit == 5


def test_growth_settles_like_any_change() -> None:
    state = on_tick(CONFIG, ClassicState(8, grown_at=0.0), 310.0, 16)
    assert [on_tick(CONFIG, state, now, 16).limit for now in (729.9, 730.0, 1030.0)] == [9, 10, 11]


def half_open(engine: Classic, now: float) -> None:
    engine.advance(now)
    engine.sent(sent("probe", now, probe=True))


def opened() -> Classic:
    state = on_refused(CONFIG, ClassicState(1), "a", 0.0, 1)
    engine = Classic(CONFIG, state, 1, 16)
    half_open(engine, 300.0)
    return engine


@pytest.mark.parametrize("status", [200, 500, 0])
def test_any_answer_but_a_refusal_closes_at_one(status: int) -> None:
    engine = opened()
    engine.done(done("probe", 301.0, 300.0, status, probe=True))
    assert (engine.breaker, engine.limit, engine.state.settle_until) == (Breaker(number=1), 1.0, 0.0)
    assert (engine.next_at(), engine.state.reason) == (601.0, "a trial call was answered: calls go on")


def test_a_refused_probe_doubles_the_break_up_to_the_cap() -> None:
    engine, now, breaks = opened(), 300.0, []
    for _ in range(5):
        engine.done(done("probe", now, now, 429, probe=True))
        breaks.append(engine.breaker.until - now)
        assert engine.state.reason == "a trial call was refused"
        now = engine.breaker.until
        half_open(engine, now)
    assert breaks == [600.0, 1200.0, 2400.0, 3600.0, 3600.0]


def test_while_half_open_other_refusals_only_count() -> None:
    engine = opened()
    before = engine.state
    engine.done(done("late", 302.0, 1.0, 429))
    assert replace(engine.state, reports=before.reports) == before


@pytest.mark.parametrize(
    ("status", "retry_after_s", "hold_until"),
    [(200, 7.0, 17.0), (200, 1e6, 310.0), (200, None, 0.0), (200, 0.0, 0.0), (503, 7.0, 0.0), (400, 7.0, 0.0)],
)
def test_a_served_call_that_says_when_to_come_again_holds_grants(
    status: int, retry_after_s: float | None, hold_until: float
) -> None:
    engine = Classic(CONFIG, ClassicState(8), 1, 16)
    engine.done(done("c", 10.0, 9.0, status, readings=Readings((), retry_after_s, 1.0, ())))
    assert engine.directives().hold_until == hold_until
    assert engine.limit == 8
    engine.done(done("d", 11.0, 9.5, 200, readings=Readings((), 1.0, 1.0, ())))
    assert engine.directives().hold_until == max(hold_until, 12.0), "the longest counts"


def test_calls_are_spaced_by_a_jittered_gap() -> None:
    told = Classic(CONFIG, ClassicState(8), 1, 16).directives()
    assert (told.pace_s, told.pace_jitter, told.burst_s) == (3.0, 0.5, 0.0)


@pytest.mark.parametrize(("state", "reporter", "reason"), [
    (ClassicState(8), "a", "a call was refused"),
    (ClassicState(8, reports=((99.0, "b"), (99.0, "c"))), "a", "many calls were refused at once"),
    (ClassicState(1), "a", "refused although the limit cannot fall further"),
    (ClassicState(8, decreases=(50.0, 60.0)), "a", "lowered too often in a row: calls are held back"),
])  # fmt: skip
def test_a_decrease_says_why(state: ClassicState, reporter: str, reason: str) -> None:
    assert on_refused(CONFIG, state, reporter, 100.0, 1).reason == reason


def test_a_late_refusal_of_an_earlier_probe_only_counts() -> None:
    engine = opened()
    before = engine.state
    engine.done(done("earlier", 302.0, 1.0, 429, probe=True, reporter="r"))
    assert engine.state == replace(before, reports=((302.0, "r"),))
    engine.done(done("probe", 303.0, 300.0, 429))  # the enforcer did not let it go as one
    assert engine.breaker == before.breaker


def test_the_next_decision_is_due_when_the_limit_may_grow_or_the_break_is_over() -> None:
    assert Classic(CONFIG, ClassicState(8, grown_at=50.0), 1, 16).next_at() == 350.0
    assert Classic(CONFIG, ClassicState(8, grown_at=50.0, settle_until=120.0), 1, 16).next_at() == 420.0
    assert Classic(CONFIG, ClassicState(8), 1, 16).next_at() == 300.0
    assert Classic(CONFIG, ClassicState(16), 1, 16).next_at() is None
    assert Classic(CONFIG, on_refused(CONFIG, ClassicState(1), "a", 10.0, 1), 1, 16).next_at() == 310.0


@given(st.lists(st.tuples(st.floats(0.0, 90.0), st.sampled_from("abcd")), max_size=60), st.integers(2, 64))
def test_at_most_one_decrease_a_settle_window(refusals: list[tuple[float, str]], limit: int) -> None:
    state, now, decreased_at = ClassicState(limit), 0.0, -1e9
    for wait_s, reporter in refusals:
        now += wait_s
        before = state.limit
        state = on_refused(CONFIG, state, reporter, now, 1)
        assert 1 <= state.limit <= before
        if state.limit < before:
            assert now - decreased_at >= CONFIG.settle_s
            decreased_at = now
