"""A budget's arithmetic: when it is full again, what of its refill is ours, how fast it may be spent."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dicast.workers.policy.calls import Cost
from dicast.workers.policy.headers import BudgetUnit
from dicast.workers.policy.parameters import Bucket, amount, configured_bucket

BUCKET = Bucket("b", BudgetUnit.REQUESTS, "", capacity=100.0, refill_per_s=10.0, reserve=0.25, surplus_gain=1.5)


@pytest.mark.parametrize("full_at, every_s, now, last, following", [
    (0.0, 0.0, 50.0, 0.0, 0.0),  # it refills continuously
    (0.0, 10.0, 50.0, 0.0, 0.0),
    (60.0, 0.0, 50.0, 0.0, 60.0),
    (60.0, 0.0, 60.0, 60.0, 0.0),  # once
    (60.0, 0.0, 99.0, 60.0, 0.0),
    (60.0, 10.0, 59.9, 0.0, 60.0),
    (60.0, 10.0, 60.0, 60.0, 70.0),
    (60.0, 10.0, 69.9, 60.0, 70.0),
    (60.0, 10.0, 70.0, 70.0, 80.0),
    (60.0, 10.0, 95.0, 90.0, 100.0),
    (0.5, 0.5, 1.2, 1.0, 1.5),
])  # fmt: skip
def test_a_window_is_full_again_at_its_time_and_each_period_after_it(full_at, every_s, now, last, following):
    bucket = replace(BUCKET, full_at=full_at, full_every_s=every_s)
    assert (bucket.last_full_at(now), bucket.next_full_at(now)) == (last, following)


@pytest.mark.parametrize("drain, ours", [(0.0, 10.0), (4.0, 6.0), (9.5, 0.5), (9.9, 0.5), (50.0, 0.5)])
def test_others_never_take_all_of_the_refill(drain, ours):
    assert replace(BUCKET, drain_per_s=drain).net_refill_per_s == pytest.approx(ours)


@pytest.mark.parametrize("level, gain", [
    (-10.0, 0.1), (0.0, 0.1), (2.5, 0.1), (5.0, 0.2), (12.5, 0.5), (24.0, 0.96),  # slower than the refill
    (25.0, 1.0),
    (35.0, 1.25), (45.0, 1.5), (100.0, 1.5),  # up to the surplus gain
])  # fmt: skip
def test_a_paced_budget_settles_at_its_reserve(level, gain):
    assert BUCKET.pace(level) == pytest.approx(gain * BUCKET.net_refill_per_s)


@pytest.mark.parametrize("unit, taken", [
    (BudgetUnit.REQUESTS, 1.0), (BudgetUnit.INPUT_TOKENS, 70.0), (BudgetUnit.OUTPUT_TOKENS, 30.0),
    (BudgetUnit.TOKENS, 100.0)
])  # fmt: skip
def test_a_call_takes_of_a_budget_what_that_counts(unit, taken):
    assert amount(unit, Cost(1.0, 70.0, 30.0)) == taken


@pytest.mark.parametrize("unit, per_min, capacity, refill_per_min", [
    (BudgetUnit.REQUESTS, 60.0, 1.0, 60.0),  # one call, and the first is free of the refill
    (BudgetUnit.REQUESTS, 6000.0, 10.0, 5991.0),
    (BudgetUnit.REQUESTS, 0.001, 1.0, 0.06),  # never quite nothing
    (BudgetUnit.TOKENS, 60_000.0, 3000.0, 57_000.0),
    (BudgetUnit.OUTPUT_TOKENS, 10.0, 1.0, 9.0),
])  # fmt: skip
def test_an_operators_budget_holds_in_every_minute(unit, per_min, capacity, refill_per_min):
    bucket = configured_bucket(unit, per_min)
    assert bucket == Bucket(f"configured_{unit}", unit, "", capacity, pytest.approx(refill_per_min / 60.0))
