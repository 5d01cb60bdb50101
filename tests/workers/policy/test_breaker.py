"""The breaker: exactly one probe decides, break time doubles, a lost probe opens anew."""

from __future__ import annotations

import pytest

from dicast.workers.policy.breaker import Breaker, BreakerConfig, probe_answered, probe_sent, tick, trip
from dicast.workers.policy.parameters import BreakerPhase

CONFIG = BreakerConfig(break_s=5.0, break_max_s=15.0, probe_s=60.0)


def half_open(now: float = 5.0) -> Breaker:
    return probe_sent(tick(CONFIG, trip(CONFIG, Breaker(), 0.0), now), "probe", now)


def test_opens_for_the_break_and_becomes_half_open_when_it_is_over() -> None:
    opened = trip(CONFIG, Breaker(), 0.0)
    assert (opened.phase, opened.until, opened.number) == (BreakerPhase.OPEN, 5.0, 1)
    assert tick(CONFIG, opened, 4.9).phase is BreakerPhase.OPEN
    assert tick(CONFIG, opened, 5.0).phase is BreakerPhase.HALF_OPEN


def test_a_breaker_that_is_open_does_not_trip_again() -> None:
    opened = trip(CONFIG, Breaker(), 0.0)
    assert trip(CONFIG, opened, 3.0) == opened


def test_the_last_probe_counts() -> None:
    assert probe_sent(half_open(), "other", 6.0).probe == "other"


@pytest.mark.parametrize(
    ("call", "good", "phase"),
    [
        ("probe", True, BreakerPhase.CLOSED),
        ("probe", False, BreakerPhase.OPEN),
        ("other", True, BreakerPhase.HALF_OPEN),
        ("other", False, BreakerPhase.HALF_OPEN),
    ],
)
def test_the_probe_decides_and_no_other_call(call: str, good: bool, phase: BreakerPhase) -> None:
    assert probe_answered(CONFIG, half_open(), call, good, 6.0).phase is phase


def test_break_time_doubles_up_to_the_cap_and_starts_anew_after_recovery() -> None:
    breaker, now, breaks = trip(CONFIG, Breaker(), 0.0), 0.0, []
    for _ in range(4):
        breaks.append(breaker.until - now)
        now = breaker.until
        breaker = probe_sent(tick(CONFIG, breaker, now), "probe", now)
        breaker = probe_answered(CONFIG, breaker, "probe", False, now)
    assert breaks == [5.0, 10.0, 15.0, 15.0]
    closed = probe_answered(CONFIG, probe_sent(tick(CONFIG, breaker, 1e3), "p", 1e3), "p", True, 1e3)
    assert trip(CONFIG, closed, 2e3).until == 2005.0


def test_a_lost_probe_opens_anew_by_its_deadline() -> None:
    assert tick(CONFIG, half_open(5.0), 64.9).phase is BreakerPhase.HALF_OPEN
    lost = tick(CONFIG, half_open(5.0), 65.0)
    assert (lost.phase, lost.until, lost.number, lost.probe) == (BreakerPhase.OPEN, 75.0, 2, "")


def test_the_enforcer_may_know_before_us_that_a_break_is_over() -> None:
    opened = trip(CONFIG, Breaker(), 0.0)
    probed = probe_sent(opened, "probe", 5.0)
    assert (probed.phase, probed.probe, probed.probe_sent_at) == (BreakerPhase.HALF_OPEN, "probe", 5.0)
    assert probe_sent(Breaker(), "call", 5.0) == Breaker()
