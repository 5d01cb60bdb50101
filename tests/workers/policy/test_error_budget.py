"""A cap that follows an error budget, in virtual time."""

from __future__ import annotations

import pytest

from dicast.workers.policy.error_budget import SLICES, BudgetUse, ErrorBudget, burning, record, step
from dicast.workers.policy.governor import BUDGET, SLO, GovernorState, PoolGovernor
from dicast.workers.policy.profiles import FixedConfig, PoolConfig, profile
from tests.workers.policy.build import done

BUDGET_OF_AN_HOUR = ErrorBudget(target=0.99)
SHORT_S = 300.0


def play(use, start, seconds, failing, every=5.0, budget=BUDGET_OF_AN_HOUR):
    """Calls that end each `every` seconds, a share of which fail; returns the instant after them."""
    count, failed = int(seconds / every), 0
    for n in range(count):
        fails = failed < failing * (n + 1) - 1e-9
        failed += fails
        at = start + n * every
        record(budget, use, done(f"c{n}", at, at - 1.0, 503 if fails else 200))
    return start + seconds


def test_a_burn_rate_is_the_share_that_failed_over_the_share_that_may():
    use = BudgetUse()
    now = play(use, 0.0, 3600.0, 0.02)
    assert burning(BUDGET_OF_AN_HOUR, use, now - 1) == pytest.approx((2.0, 2.0), rel=0.2)


@pytest.mark.parametrize("failing, capped", [(0.10, False), (0.16, True), (1.0, True)])
def test_a_budget_that_burns_too_fast_halves_the_limit(failing, capped):
    use = BudgetUse()
    now = play(use, 0.0, 3600.0, failing)
    step(BUDGET_OF_AN_HOUR, use, now, limit=40, ceiling=100)
    assert use.cap == (20 if capped else None)


def test_a_moment_of_errors_after_a_good_hour_is_none_of_its_business():
    use = BudgetUse()
    now = play(use, 0.0, 3300.0, 0.0)
    now = play(use, now, 200.0, 1.0)
    step(BUDGET_OF_AN_HOUR, use, now, limit=40, ceiling=100)
    assert use.cap is None, "the long window is not burning: 6 % failed"


def test_trouble_that_is_over_is_not_acted_upon():
    use = BudgetUse()
    now = play(use, 0.0, 1800.0, 1.0)
    now = play(use, now, 301.0, 0.0)
    whole, lately = burning(BUDGET_OF_AN_HOUR, use, now)
    step(BUDGET_OF_AN_HOUR, use, now, limit=40, ceiling=100)
    assert (whole > 14.4, lately, use.cap) == (True, 0.0, None)


def test_it_goes_down_once_a_short_window_and_comes_back_when_the_errors_are_over():
    use, now, caps, limit = BudgetUse(), 0.0, [], 40
    for failing in (1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0):
        now = play(use, now, SHORT_S + 60.0, failing)
        for _ in range(3):  # asked as often as one likes
            step(BUDGET_OF_AN_HOUR, use, now, limit, ceiling=100)
        limit = 40 if use.cap is None else min(40, use.cap)
        caps.append(use.cap)
    assert caps == [20, 10, 5, 10, 20, 40, 80, None, None]


def test_few_calls_say_nothing_and_the_cap_never_goes_below_one():
    use = BudgetUse()
    now = play(use, 0.0, 19 * 5.0, 1.0)
    step(BUDGET_OF_AN_HOUR, use, now, limit=1, ceiling=100)
    assert use.cap is None
    now = play(use, now, 5.0, 1.0)
    step(BUDGET_OF_AN_HOUR, use, now, limit=1, ceiling=100)
    assert use.cap == 1


def test_what_is_remembered_is_bounded():
    use = BudgetUse()
    now = play(use, 0.0, 20 * 3600.0, 0.5, every=30.0)
    for _ in range(3):
        step(BUDGET_OF_AN_HOUR, use, now, 40, 100)
    assert len(use.slices) <= SLICES + 1


@pytest.mark.parametrize("name", ["default", "classic", "rules", "fixed"])
def test_the_governor_clamps_by_it_whatever_the_engine_says(name):
    config = PoolConfig(ceiling=40, limit=40, floor=10, engine=profile(name), error_budget=ErrorBudget(0.9, 600.0, 5.0))
    governor = PoolGovernor(config)
    governor.decide([], 0.0)
    for n in range(120):
        governor.decide([done(f"c{n}", n + 1.0, float(n), 400 if n % 3 else 503)], n + 1.0)
    assert governor.state.budget_use.cap is None, "a third fails: 3.3 times too fast"
    for n in range(120, 700):
        governor.decide([done(f"c{n}", n + 1.0, float(n), 503)], n + 1.0)
    parameters = governor.decide([], 701.0)
    assert parameters.limit == governor.state.budget_use.cap == 1, "below the floor, too"
    assert BUDGET in {change.reason for change in governor.state.history}
    again = PoolGovernor(config, GovernorState.from_json(governor.state.to_json()))
    assert again.decide([], 702.0).limit == 1, "the next leader goes on with it"
    again.set_slo_constraint(1)
    again.decide([], 703.0)
    assert again.state.clamp in (SLO, "", BUDGET)


def test_without_a_target_nothing_is_counted_and_a_cap_is_lifted():
    budget = ErrorBudget(0.9, 600.0, 5.0)
    governor = PoolGovernor(PoolConfig(ceiling=40, limit=40, engine=FixedConfig(), error_budget=budget))
    for n in range(100):
        governor.decide([done(f"c{n}", n + 1.0, float(n), 503)], n + 1.0)
    assert governor.decide([], 101.0).limit < 40 and governor.next_at() is not None
    without = PoolGovernor(PoolConfig(ceiling=40, limit=40, engine=FixedConfig()), governor.state)
    assert without.decide([done("x", 102.0, 101.0, 503)], 102.0).limit == 40
    assert without.state.budget_use.cap is None


@pytest.mark.parametrize("target", [0.0, 1.0, -1.0])
def test_a_target_that_cannot_be(target):
    with pytest.raises(ValueError, match="target of an error budget"):
        PoolConfig(ceiling=4, error_budget=ErrorBudget(target))
