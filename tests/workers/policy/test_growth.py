"""Growth: a refused level costs one refusal each time that it is tried."""

from __future__ import annotations

import pytest

from dicast.workers.policy.adaptive_state import FILLS, SETTLED_ROW, Growth

HOLD_MIN, HOLD_MAX, FEEDBACK_S = 1.0, 7.0, 0.5


def steady(limit: float) -> Growth:
    """Known to be good, slow start long over, and full."""
    growth = Growth(limit, slow_start=False, pending=False, good=limit)
    growth.filled(0.0)
    return growth


def stepped(growth: Growth, now: float, on_way: float = 0.0) -> None:
    growth.grow(now, 100.0, 1.5, HOLD_MIN, on_way)


def refused(growth: Growth, now: float) -> None:
    stepped(growth, now)
    growth.undo(now + 0.1, HOLD_MIN, HOLD_MAX)
    growth.filled(now + 0.2)


def capped(limit: float) -> Growth:
    """One call more was refused twice."""
    growth = steady(limit)
    refused(growth, 1.0)
    refused(growth, 2.0)
    return growth


def fills_needed(growth: Growth) -> int:
    for number in range(200):
        growth.filled(10.0)
        if growth.confirmed_at(FEEDBACK_S) is not None:
            return number + 1
    raise AssertionError


@pytest.mark.parametrize(("on_way", "fills"), [(0.0, FILLS), (0.8, 7), (1.5, 14), (3.0, 21), (30.0, 21)])
def test_the_more_calls_are_under_way_the_oftener_a_refused_level_has_to_be_filled(on_way: float, fills: int) -> None:
    growth = steady(20.0)
    refused(growth, 1.0)
    stepped(growth, 2.0, on_way)
    assert fills_needed(growth) == fills


def test_a_level_refused_at_the_top_has_to_be_filled_as_often() -> None:
    growth = steady(21.0)
    growth.lower(0.5, 20.0)
    growth.filled(1.0)
    stepped(growth, 2.0, 3.0)
    assert fills_needed(growth) == 21


def test_a_level_that_was_never_refused_is_confirmed_at_once() -> None:
    growth = steady(20.0)
    stepped(growth, 2.0, 3.0)
    assert fills_needed(growth) == FILLS


def test_a_level_is_settled_when_nothing_else_was_refused_for_long() -> None:
    growth = steady(20.0)
    for number in range(SETTLED_ROW):
        assert not growth.settled
        refused(growth, 50.0 * number)
    assert growth.settled
    growth.cut(500.0, 10.0)
    growth.good = 10.0
    growth.filled(500.1)
    refused(growth, 510.0)
    assert not growth.settled


def test_a_level_that_is_accepted_after_all_is_forgotten() -> None:
    growth = steady(20.0)
    for number in range(SETTLED_ROW):
        refused(growth, 50.0 * number)
    stepped(growth, 300.0)
    growth.confirm(HOLD_MIN, 100.0)
    assert not growth.settled
    growth.filled(301.0)
    stepped(growth, 302.0, 3.0)
    assert fills_needed(growth) == FILLS


@pytest.mark.parametrize("interrupted", [True, False])
def test_an_undone_cut_that_ended_slow_start_lets_it_go_on(interrupted: bool) -> None:
    growth = Growth(40.0, slow_start=interrupted, answered=30.0)
    growth.cut(10.0, 20.0)
    growth.good = 0.0
    growth.uncut(20.0, 40.0)
    assert (growth.limit, growth.slow_start, growth.cut_at) == (40.0, interrupted, 20.0)
    assert (growth.good, growth.answered) == ((0.0, 40.0) if interrupted else (40.0, 30.0))


@pytest.mark.parametrize(
    ("limit", "refused", "at_cap"), [(40.0, 0.0, False), (40.0, 44.0, True), (40.0, 45.0, False), (8.0, 9.0, True)]
)
def test_a_limit_is_at_a_cap_if_little_more_was_refused(limit: float, refused: float, at_cap: bool) -> None:
    assert Growth(limit, refused=refused).is_at_cap is at_cap


def test_refusals_at_the_top_put_the_next_step_off_by_another_hold_at_most() -> None:
    """Calls that are refused by chance would put it off for ever."""
    growth, rtt_s = steady(8.0), 2.0
    refused(growth, 10.0)
    growth.hold_rtts = 30.0
    for second in range(20, 100, 20):
        growth.lower(second, 7.0)
        growth.filled(second + 0.5)
        stepped(growth, second + 1.0)
        growth.filled(second + 1.5)
        growth.confirm(HOLD_MIN, 100.0)
        assert growth.limit == 8.0
        assert growth.next_step_at(FEEDBACK_S, rtt_s) == min(second + 30.0 * rtt_s, 10.2 + 60.0 * rtt_s)


def test_after_idle_time_the_next_step_waits_until_the_limit_was_filled() -> None:
    growth = steady(8.0)
    refused(growth, 10.0)
    growth.full_since = None
    assert growth.next_step_at(FEEDBACK_S, 2.0) is None
    growth.filled(400.0)
    assert growth.next_step_at(FEEDBACK_S, 2.0) == 400.0 + FEEDBACK_S


@pytest.mark.parametrize(("limit", "hold_rtts"), [(13.0, HOLD_MIN), (15.0, 8.0)])
def test_holds_are_short_again_where_the_cap_has_fallen(limit: float, hold_rtts: float) -> None:
    growth = steady(20.0)
    growth.hold_rtts = 4.0
    growth.hold_after_cut(limit, HOLD_MIN, 100.0)
    assert growth.hold_rtts == hold_rtts


@pytest.mark.parametrize(("times", "hold_rtts"), [(SETTLED_ROW - 1, 32.0), (SETTLED_ROW, HOLD_MIN)])
def test_holds_are_short_again_where_a_settled_level_is_accepted(times: int, hold_rtts: float) -> None:
    growth = steady(20.0)
    for number in range(times):
        refused(growth, 10.0 * number)
    growth.hold_rtts = 64.0
    stepped(growth, 100.0)
    growth.filled(101.0)
    growth.confirm(HOLD_MIN, 100.0)
    assert growth.hold_rtts == hold_rtts


def filled_and_confirmed(growth: Growth, now: float) -> None:
    for _ in range(30):
        growth.filled(now)
    growth.confirm(HOLD_MIN, 100.0)


def test_the_cap_that_a_neighbour_took_a_part_of_is_reached_exactly_when_he_is_gone() -> None:
    growth = capped(60.0)
    growth.cut(20.0, 48.0)
    growth.good, growth.increment = 48.0, 16.0
    levels = []
    for now in (30.0, 40.0):
        filled_and_confirmed(growth, now)
        stepped(growth, now + 1.0)
        levels.append(growth.limit)
    assert levels == [60.0, 61.0], "not 64, of which four calls would be refused"


def test_a_former_cap_that_is_near_is_climbed_to_at_once_and_a_far_one_in_small_steps() -> None:
    growth = capped(24.0)
    growth.cut(2.5, 18.0)
    growth.good = 60.0
    growth.filled(3.0)
    stepped(growth, 4.0)
    assert growth.limit == 24.0
    growth.cut(5.0, 10.0)
    growth.filled(6.0)
    stepped(growth, 7.0)
    assert growth.limit == 11.0


def test_the_last_caps_are_remembered_once_each() -> None:
    growth = steady(60.0)
    for now, limit in enumerate((60.0, 40.0, 60.5, 30.0, 20.0, 10.0)):
        growth.cut(10.0 * now, limit)
        growth.good = limit
        growth.filled(10.0 * now + 1.0)
        refused(growth, 10.0 * now + 2.0)
        refused(growth, 10.0 * now + 4.0)
    assert growth.caps == [60.5, 30.0, 20.0, 10.0]


@pytest.mark.parametrize(("is_told", "rtts"), [(False, 1.0), (True, 2.0)])
def test_below_a_far_higher_former_cap_holds_are_short_until_ten_refusals(is_told: bool, rtts: float) -> None:
    growth = capped(60.0)
    growth.cut(3.0, 24.0)
    growth.good = 24.0
    waits = []
    for number in range(12):
        now = 10.0 + 100.0 * number
        growth.filled(now)
        waits.append((growth.next_step_at(FEEDBACK_S, 3.0, is_told=is_told) or 0.0) - now)
        refused(growth, now + 50.0)
        growth.full_since = growth.held_since = None
    assert max(waits[1:10]) == 3.0 * rtts
    assert waits[11] == 3.0 * HOLD_MAX
