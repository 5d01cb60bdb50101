from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.provider.account import Behaviour, Limits, TokenBucket


def test_a_bucket_starts_full_and_refills_continuously():
    bucket = TokenBucket(60, burst_s=5, quantum_s=0, now=100.0)
    for _ in range(5):
        assert bucket.wait_s(1, 100.0) == 0
        bucket.take(1, 100.0)
    assert bucket.wait_s(1, 100.0) == pytest.approx(1.0)
    assert bucket.wait_s(1, 100.4) == pytest.approx(0.6)
    assert bucket.wait_s(1, 101.0) == 0
    assert bucket.level(1000.0) == (60, 5.0, 0.0)


def test_a_quantum_bounds_each_window():
    """60,000 a minute may be enforced as 1,000 a second: here 120 a minute as two a second."""
    bucket = TokenBucket(120, burst_s=60, quantum_s=1, now=0.0)
    bucket.take(1, 10.1)
    bucket.take(1, 10.2)
    assert bucket.wait_s(1, 10.3) == pytest.approx(0.7)
    assert bucket.wait_s(1, 11.0) == 0


def test_more_than_the_depth_needs_a_full_bucket():
    bucket = TokenBucket(60, burst_s=60, quantum_s=0, now=0.0)
    assert bucket.wait_s(1000, 0.0) == 0
    bucket.take(1000, 0.0)
    assert bucket.wait_s(1, 0.0) == pytest.approx(941)


def test_refused_calls_push_the_next_acceptance_away_but_not_for_ever():
    bucket = TokenBucket(60, burst_s=60, quantum_s=0, now=0.0)
    bucket.take(60, 0.0)
    for _ in range(1000):
        bucket.burn(1, 0.0)
    assert bucket.wait_s(1, 0.0) == pytest.approx(7.0)


@given(
    st.integers(1, 600),
    st.floats(1, 60),
    st.lists(st.tuples(st.floats(0, 5), st.integers(1, 20)), max_size=60),
)
def test_no_window_ever_holds_more_than_depth_and_refill(per_min, burst_s, arrivals):
    bucket = TokenBucket(per_min, burst_s, 0, 0.0)
    depth = per_min / 60 * burst_s
    now, taken = 0.0, []
    for gap, amount in arrivals:
        now += gap
        if amount <= depth and bucket.wait_s(amount, now) == 0:
            bucket.take(amount, now)
            taken.append((now, amount))
    for i, (start, _) in enumerate(taken):
        for end, _ in taken[i:]:
            spent = sum(amount for at, amount in taken if start <= at <= end)
            assert spent <= depth + per_min / 60 * (end - start) + 1e-6


@given(st.integers(1, 10_000), st.floats(0.1, 60), st.floats(0, 100))
def test_the_wait_that_is_told_suffices(per_min, burst_s, later):
    bucket = TokenBucket(per_min, burst_s, 0, 0.0)
    bucket.take(per_min, 0.0)
    wait_s = bucket.wait_s(1, later)
    assert bucket.wait_s(1, later + wait_s + 1e-6) == pytest.approx(0, abs=1e-6)


def test_reasons_come_in_order_and_refusals_charge_nothing():
    limits = Limits(Behaviour(rpm=60, tpm=6000, burst=1.0), 0.0)
    assert limits.admit(100, 0.0) is None
    refusal = limits.admit(1, 0.0)
    assert refusal is not None
    assert refusal.reason == "rpm"
    assert limits.tokens is not None
    assert limits.tokens.level(0.0).remaining == 0
    refusal = limits.admit(100, 1.0)
    assert refusal is None


def test_acceleration_is_limited():
    limits = Limits(Behaviour(ramp=2.0), 0.0)
    accepted = sum(limits.admit(1, 1.0) is None for _ in range(100))
    assert accepted == 15
    accepted = sum(limits.admit(1, 12.0) is None for _ in range(100))
    assert accepted == 2 * 15 + 15
    accepted = sum(limits.admit(1, 100.0) is None for _ in range(100))
    assert accepted == 15


def test_output_is_charged_by_use():
    limits = Limits(Behaviour(output_tpm=600, burst=1.0), 0.0)
    assert limits.output is not None
    assert limits.admit(1, 0.0) is None
    limits.output.take(30, 0.0)
    refusal = limits.admit(1, 0.0)
    assert refusal is not None
    assert refusal.reason == "output_tpm"
    assert limits.admit(1, 2.2) is None
