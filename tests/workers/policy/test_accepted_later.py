"""Levels that were refused and later accepted."""

from __future__ import annotations

import pytest

from dicast.workers.policy.adaptive_state import AcceptedLater


def after_a_refusal(level: int = 80, at: float = 100.0) -> AcceptedLater:
    accepted_later = AcceptedLater()
    accepted_later.note_refusal(level, at)
    return accepted_later


@pytest.mark.parametrize("now, below", [(100.0, 80), (103.9, 80), (104.0, None), (200.0, None)])
def test_a_level_is_looked_back_at_for_two_round_trips(now, below):
    assert after_a_refusal().below(now, rtt_s=2.0) == below
    assert AcceptedLater().below(now, rtt_s=2.0) is None


@pytest.mark.parametrize("limit, now, disproved", [
    (90.0, 110.0, True),
    (89.8, 110.0, False),  # not clearly above: 80 is 0.89 of it
    (90.0, 119.9, True),
    (90.0, 120.0, False),  # forgotten
])  # fmt: skip
def test_a_level_is_disproved_by_a_limit_clearly_above_it_while_it_is_remembered(limit, now, disproved):
    accepted_later = after_a_refusal()
    accepted_later.confirmed(limit, now, rtt_s=2.0, memory_rtts=10.0)
    assert (accepted_later.level is None, accepted_later.count) == (disproved, int(disproved))


@pytest.mark.parametrize("between_s, proven", [(19.9, True), (20.0, False), (500.0, False)])
def test_the_second_time_within_the_memory_proves_that_no_level_is_bounded(between_s, proven):
    accepted_later, now = after_a_refusal(), 101.0
    assert not accepted_later.confirmed(100.0, now, rtt_s=2.0, memory_rtts=10.0)
    assert not accepted_later.confirmed(100.0, now, rtt_s=2.0, memory_rtts=10.0), "it is known"
    now += between_s
    accepted_later.note_refusal(80, now)
    assert accepted_later.confirmed(100.0, now, rtt_s=2.0, memory_rtts=10.0) is proven
    assert accepted_later.count_acceptance(now, rtt_s=2.0, memory_rtts=10.0)
    assert accepted_later.count == 2 + proven
