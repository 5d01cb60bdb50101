"""Latency as a sign of queueing."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from dicast.workers.policy.adaptive_state import LatencyWatch
from tests.workers.policy.build import done

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
            limit = watch.observe(event, limit=LIMIT, rtt_s=latency, tolerance=2.0)
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


def cohort(watch: LatencyWatch, at: float, latencies: list[float], size: int = 20, rtt_s: float = 1.0) -> list[float]:
    """`size` calls sent a hundredth of a second apart, of which these come back; what each asks for."""
    instants = [at + 0.01 * number for number in range(size)]
    for instant in instants:
        watch.sent(instant, LIMIT)
    events = [done("x", sent_at + s, sent_at, open_before=39) for sent_at, s in zip(instants, latencies, strict=False)]
    answers = [watch.observe(event, limit=LIMIT, rtt_s=rtt_s, tolerance=2.0) for event in events]
    return [limit for limit in answers if limit is not None]


def warm(watch: LatencyWatch) -> None:
    for at in (0.0, 10.0, 20.0):
        cohort(watch, at, [1.0] * 20)


def test_a_median_is_known_once_half_of_a_cohort_is_back(watch: LatencyWatch) -> None:
    cohort(watch, 0.0, [1.0] * 10)
    assert watch.short is None
    cohort(watch, 10.0, [1.0, 2.0, 2.0, 2.0, 3.0, 3.0, 4.0, 4.0, 5.0, 6.0, 7.0])
    assert watch.short == pytest.approx(7.0), "half of them took less, whatever the others take"


def test_the_average_of_medians_moves_by_two_fifths(watch: LatencyWatch) -> None:
    warm(watch)
    cohort(watch, 30.0, [1.5] * 20)
    assert watch.short == pytest.approx(1.2)
    assert watch.base == pytest.approx(1.0 * 1.001)
    assert not watch.hot
    cohort(watch, 40.0, [3.0] * 20)
    assert watch.short == pytest.approx(1.92) and watch.hot


@pytest.mark.parametrize("latency, want", [(3.4, []), (3.6, [pytest.approx(LIMIT * 1.2 * 1.001 / 2.04)])])
def test_the_limit_is_cut_towards_a_latency_above_twice_the_least(
    watch: LatencyWatch, latency: float, want: list[float]
) -> None:
    warm(watch)
    assert cohort(watch, 30.0, [latency] * 20) == want


def test_a_cut_takes_half_at_the_most(watch: LatencyWatch) -> None:
    warm(watch)
    assert cohort(watch, 30.0, [90.0] * 20) == [LIMIT / 2.0]


@pytest.mark.parametrize("open_before, cut", [(28, False), (29, True)])
def test_only_a_limit_in_use_is_cut(watch: LatencyWatch, open_before: int, cut: bool) -> None:
    warm(watch)
    for number in range(20):
        watch.sent(30.0 + 0.01 * number, LIMIT)
    asked = None
    for number in range(20):
        event = done("x", 39.0 + 0.01 * number, 30.0 + 0.01 * number, open_before=open_before)
        asked = watch.observe(event, limit=LIMIT, rtt_s=1.0, tolerance=2.0) or asked
    assert (asked is not None) is cut


@pytest.mark.parametrize("after_cut, asked", [(5.6, LIMIT / 2.0), (6.4, LIMIT)])
def test_a_cut_is_undone_where_the_throughput_fell_by_more_than_a_fifth(
    watch: LatencyWatch, after_cut: float, asked: float
) -> None:
    """From 40 calls in 10 s to 20 in 5.6 s is no such fall, and still slow; to 20 in 6.4 s it is."""
    warm(watch)
    cohort(watch, 30.0, [10.0] * 20)
    cohort(watch, 39.0, [10.0] * 20)  # sent before the cut
    assert cohort(watch, 41.2, [99.0] * 20) == [], "sent too soon after it"
    assert watch.trial is not None and watch.trial.after == 20.0
    assert cohort(watch, 60.0, [after_cut] * 20) == [asked]
    assert (watch.trial is None) is (asked == LIMIT)
    assert watch.short == pytest.approx(after_cut), "what was before compares no more"


@pytest.mark.parametrize("refused, known", [(8, True), (9, False)])
def test_the_median_of_a_few_is_chance(watch: LatencyWatch, refused: int, known: bool) -> None:
    feed(watch, itertools.count(0.0, 1.0), 1.0, 1, refused=refused)
    assert (watch.short is not None) is known


def test_after_an_outage_nothing_of_before_compares(watch: LatencyWatch) -> None:
    warm(watch)
    cohort(watch, 30.0, [10.0] * 20)
    watch.forget()
    assert (len(watch.cohorts), watch.short, watch.trial, watch.hot) == (0, None, None, False)
    assert watch.base is not None


@pytest.mark.parametrize("limit, want", [(1.0, None), (1.5, 1.0), (40.0, 20.0)])
def test_one_call_is_left(watch: LatencyWatch, limit: float, want: float | None) -> None:
    warm(watch)
    instants = [30.0 + 0.01 * number for number in range(20)]
    for at in instants:
        watch.sent(at, limit)
    events = [done("x", at + 9.0, at, open_before=39) for at in instants]
    asked = [watch.observe(event, limit=limit, rtt_s=1.0, tolerance=2.0) for event in events]
    assert next((answer for answer in asked if answer is not None), None) == want
