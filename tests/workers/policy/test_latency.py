"""Latency as a sign of queueing."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from tests.workers.policy.build import done
from workers.policy.latency import LatencyWatch

LIMIT = 40.0


@pytest.fixture
def watch() -> LatencyWatch:
    return LatencyWatch()


def feed(watch: LatencyWatch, clock: Iterator[float], latency: float, cohorts: int, refused: int = 0) -> list[float]:
    """Whole cohorts of 20 calls with one latency, `refused` of them refused; what it asks for."""
    asked = []
    for _ in range(cohorts):
        instants = [next(clock) for _ in range(20)]
        for at in instants:
            watch.sent(at, LIMIT)
        for number, at in enumerate(instants):
            status = 429 if number < refused else 200
            event = done("x", at + latency, at, status, open_before=39)
            limit = watch.answered(event, limit=LIMIT, rtt_s=latency, tolerance=2.0)
            if limit is not None:
                asked.append(limit)
    return asked


def test_doubled_latency_asks_for_less_and_undoes_the_cut_if_throughput_fell(watch: LatencyWatch) -> None:
    clock = itertools.count(0.0, 1.0)
    assert feed(watch, clock, 1.0, 6) == []
    (cut,) = feed(watch, clock, 3.0, 2)[:1]
    assert 0.5 * LIMIT <= cut < LIMIT
    assert feed(watch, clock, 3.0, 4)[:1] == [LIMIT]


def test_one_lucky_cohort_is_no_base(watch: LatencyWatch) -> None:
    clock = itertools.count(0.0, 1.0)
    assert feed(watch, clock, 0.4, 1) == []
    assert feed(watch, clock, 1.0, 10) == []
    assert not watch.hot


def test_a_cohort_of_which_most_was_refused_says_nothing(watch: LatencyWatch) -> None:
    clock = itertools.count(0.0, 1.0)
    feed(watch, clock, 1.0, 6)
    assert feed(watch, clock, 9.0, 3, refused=15) == []
    assert watch.short == pytest.approx(1.0)
