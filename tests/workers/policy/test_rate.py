"""The learned rate: what refusals teach about calls per second."""

from __future__ import annotations

import pytest

from dicast.workers.policy.calls import CallLog
from dicast.workers.policy.rate import LAST_LIMITS, MARGIN_DOWN, MARGIN_MOST, MARGIN_UNKEPT, LearnedRate
from tests.workers.policy.build import done, sent


def refused(rate: LearnedRate, log: CallLog, at: float, count: int) -> None:
    for number in range(count):
        sent_at = at + 0.01 * number
        call = f"r{at}-{number}"
        log.sent(sent(call, sent_at))
        trial = log.record_outcome(done(call, sent_at + 0.1, sent_at, 429))
        rate.on_refused(trial, log, sent_at + 0.1, rtt_s=4.0, interval_max_rtts=7.0)


def test_a_rate_counted_per_second_does_not_fall_by_what_is_refused_in_the_full_second() -> None:
    rate, log = LearnedRate.advertised(10.0, 1.0, now=100.2), CallLog()
    refused(rate, log, 100.3, 8)
    assert rate.per_s == 10.0
    refused(rate, log, 101.4, 8)
    assert rate.per_s < 10.0


def test_a_rate_counted_per_second_is_raised_gently_and_given_no_credit() -> None:
    rate, log = LearnedRate.advertised(10.0, 1.0, now=0.0), CallLog()
    now = 0.0
    while rate.raised_from is None:
        now += 0.1
        log.sent(sent(f"c{now}", now))
        rate.advance(log, now, rtt_s=4.0, feedback_s=0.5)
        assert now < 60.0
    assert 10.0 < rate.per_s <= 10.2
    assert rate.credit == 0.0


def test_a_span_longer_than_the_log_is_not_taken_for_a_slow_one() -> None:
    rate, log = LearnedRate.starting(10.0, anchor=0.0, now=0.0), CallLog()
    for number in range(1000):
        log.sent(sent(f"c{number}", 0.1 * number))
    log.forget(60.0)
    refused(rate, log, 100.0, 1)
    assert 9.5 < rate.per_s <= 10.1


def test_a_refusal_of_a_call_sent_before_the_last_of_several_raises_undoes_them_all() -> None:
    rate, log, now = LearnedRate.advertised(10.0, 1.0, now=0.0), CallLog(), 0.0
    raises = []
    while len(raises) < 3:
        now += 0.05
        log.sent(sent(f"c{now}", now))
        before = rate.per_s
        rate.advance(log, now, rtt_s=1.0, feedback_s=0.5)
        if rate.per_s > before:
            raises.append(now)
        assert now < 60.0
    refused(rate, log, (raises[1] + raises[2]) / 2.0, 1)
    assert rate.per_s == 10.0


def test_more_than_a_second_holds_goes_through_so_it_is_not_counted_per_second() -> None:
    rate, now = LearnedRate.advertised(25.0, 1.0, now=0.0), 1.0
    while not rate.refuted:
        now += 1.0 / 27.0
        rate.on_sent(now)
        assert now < 30.0


def test_full_seconds_are_not_more_than_was_told() -> None:
    rate = LearnedRate.advertised(25.0, 1.0, now=0.0)
    for second in range(1, 60):
        start = 0.4 * (second % 2)
        for number in range(25):
            rate.on_sent(second + start + 0.6 * number / 25.0)
            assert not rate.refuted


def refused_early(rate: LearnedRate, every: int, calls: int = 1200) -> list[tuple[bool, bool]]:
    """Of each refused call, one in `every`, sent at 28 a second where 40 are reported: is it chance, and is the bound
    another one."""
    log, early = CallLog(), []
    for number in range(calls):
        at = 2.0 + number / 28.0
        log.sent(sent(f"c{number}", at))
        rate.on_sent(at)
        if number >= 40 and number % every == 0:
            trial = log.record_outcome(done(f"c{number}", at + 0.1, at, 429))
            early.append((rate.by_chance(trial, log), rate.is_early(trial, log)))
    return early


def test_refusals_in_seconds_that_are_not_full_show_that_it_is_not_counted_per_second() -> None:
    assert refused_early(LearnedRate.advertised(40.0, 1.0, now=0.0), 10)[:4] == [*[(True, False)] * 3, (False, True)]


def test_a_rate_whose_full_seconds_were_refused_is_shared_when_calls_are_refused_earlier() -> None:
    """It was taken for a number of open calls, and half of what the neighbour left was used."""
    rate, log = LearnedRate.advertised(40.0, 1.0, now=0.0), CallLog()
    for number in range(3 * 43):
        at = 2.0 + number // 43 + 0.02 * (number % 43)
        log.sent(sent(f"c{number}", at))
        if number % 43 >= 40:
            rate.by_chance(log.record_outcome(done(f"c{number}", at + 0.1, at, 429)), log)
    assert rate.full >= 3
    for number in range(200):
        at = 10.0 + number / 28.0
        log.sent(sent(f"d{number}", at))
        if number >= 40 and number % 10 == 0:
            trial = log.record_outcome(done(f"d{number}", at + 0.1, at, 429))
            chance = rate.by_chance(trial, log)
            assert not rate.is_early(trial, log)
    assert not chance, "the rate is measured anew"


def test_a_rate_that_returns_to_the_reported_one_saves_nothing_by_that() -> None:
    rate, log = LearnedRate.advertised(10.0, 1.0, now=0.0), CallLog()
    rate.run_at(5.0, 1.0)
    now = 1.0
    while rate.raised_from is None:
        now += 0.2
        log.sent(sent(f"c{now}", now))
        rate.advance(log, now, 1.0, 0.2)
        assert now < 60.0
    assert rate.per_s > 1.1 * 5.0
    assert not rate.keeps


def test_a_few_refusals_in_seconds_that_are_not_full_come_by_chance() -> None:
    assert set(refused_early(LearnedRate.advertised(40.0, 1.0, now=0.0), 100)) == {(True, False)}


def test_of_a_rate_that_nobody_reports_no_refusal_is_known_to_come_by_chance() -> None:
    assert set(refused_early(LearnedRate.starting(40.0, anchor=0.0, now=0.0), 100)) == {(False, False)}


def followed(*limits: float, first: float = 696.0) -> LearnedRate:
    """A rate of which the limit was `first`, 11.6 calls a second, after these were reported."""
    rate = LearnedRate.advertised(11.6, 0.985, now=0.0, budget="requests:", limit=first)
    for number, limit in enumerate(limits):
        rate.follow(limit, 0.985, float(number))
    return rate


@pytest.mark.parametrize(
    ("limits", "counted_per_s"),
    [
        ([696.0], 11.0),
        ([348.0], 11.0),
        ([348.0, 348.0], 5.0),
        ([*[348.0] * 2, *[696.0] * (LAST_LIMITS - 2)], 5.0),
        ([*[348.0] * 2, *[696.0] * (LAST_LIMITS - 1)], 11.0),
        ([*[696.0] * 50, 1.0, *[696.0] * 50], 11.0),
        ([348.0, 696.0] * 50, 5.0),
        ([1e12, 0.0, -1.0], 11.0),
    ],
)
def test_a_reported_rate_follows_the_second_lowest_of_the_last_limits(
    limits: list[float], counted_per_s: float
) -> None:
    rate = followed(*limits)
    assert (rate.counted_per_s, rate.per_s) == (counted_per_s, pytest.approx(0.985 * counted_per_s))
    assert len(rate.limits) <= LAST_LIMITS


def test_what_was_sent_under_a_former_limit_does_not_refute_the_present_one() -> None:
    rate = followed()
    rate.excess, rate.raised_before = 90.0, 12.0
    rate.follow(348.0, 0.985, 2.0)
    rate.follow(348.0, 0.985, 2.1)
    assert rate.counted_per_s == 5.0 and not rate.refuted


def test_a_rate_that_nobody_reports_follows_no_limit() -> None:
    rate = LearnedRate.starting(20.0, anchor=0.0, now=0.0)
    for _ in range(3):
        rate.follow(600.0, 1.0, 1.0)
        rate.follow(60.0, 1.0, 2.0)
    assert rate.per_s == 20.0


def measured(rate: LearnedRate, accepted: int, span_s: float) -> float:
    """The rate after one refusal, so many seconds and accepted calls after the log's first call."""
    log = CallLog()
    for number, at in enumerate([0.0, *(span_s * (number + 0.5) / accepted for number in range(accepted))]):
        log.sent(sent(f"c{number}", at))
        log.record_outcome(done(f"c{number}", at + 0.1, at))
    refused(rate, log, span_s, 1)
    return rate.per_s


@pytest.mark.parametrize("margin, wider", [(None, 0.015), (0.0, 0.01), (0.03, 0.03)])
def test_traffic_runs_slower_than_measured_by_the_margin_and_the_more_after_a_surprise(
    margin: float | None, wider: float
) -> None:
    """A refusal that nothing provoked widens the margin by a point, to three at most; it begins with half of one."""
    rate = LearnedRate.starting(10.0, anchor=0.0, now=0.0)
    rate.margin = rate.margin if margin is None else margin
    assert measured(rate, 180, 20.0) == pytest.approx(9.0 * (1.0 - wider))
    assert rate.margin == pytest.approx(wider)
    for _ in range(9):
        rate.since = rate.anchor = 0.0
        measured(rate, 180, 20.0)
    assert rate.margin == MARGIN_MOST


def test_where_nothing_is_kept_the_margin_is_small_and_fixed() -> None:
    rate = LearnedRate.starting(10.0, anchor=0.0, now=0.0)
    rate.keeps, rate.proven = False, True
    assert measured(rate, 180, 20.0) == pytest.approx(9.0 * (1.0 - MARGIN_UNKEPT))


def test_a_refusal_that_was_provoked_measures_up_and_lowers_the_margin() -> None:
    rate = LearnedRate.starting(10.0, anchor=0.0, now=0.0)
    rate.trying, rate.trying_since = 4.0, 1.0
    assert measured(rate, 240, 20.0) == pytest.approx(12.0 * (1.0 - 0.0025))
    assert rate.margin == pytest.approx(0.005 - MARGIN_DOWN)


@pytest.mark.parametrize("are_charged", [False, True])
def test_refused_calls_count_as_taken_from_the_bucket(are_charged: bool) -> None:
    """Twenty calls a second refill, of which refused calls take a sixth where they are charged."""
    log, span_s = CallLog(), 30.0
    for number in range(round(20.0 * span_s)):
        at = 0.05 * number + 0.025
        log.sent(sent(f"c{number}", at))
        was_refused = are_charged and number < 300 and number % 3 == 0
        log.record_outcome(done(f"c{number}", at + 0.1, at, 429 if was_refused else 200))
    rate = LearnedRate.starting(25.0, anchor=0.0, now=0.0)
    refused(rate, log, span_s, 1)
    assert rate.per_s == pytest.approx(20.0, rel=0.03)


def test_a_raise_within_the_second_is_judged_once_it_has_made_one_call_more() -> None:
    rate = LearnedRate.advertised(4.0, 1.0, now=0.0)
    rate.raised_from, rate.per_s, rate.tried_at = 4.0, 4.1, 100.0
    assert rate.next_at(rtt_s=2.0, feedback_s=0.5) == pytest.approx(110.0)
    rate.raised_from, rate.per_s = 40.0, 44.0
    assert rate.next_at(rtt_s=2.0, feedback_s=0.5) == pytest.approx(102.0)


@pytest.mark.parametrize(("calls", "interval_rtts"), [(18, 2.0), (19, 2.0), (17, 2.0), (24, 1.0)])
def test_one_call_more_or_less_does_not_make_a_slow_rate_unsteady(calls: int, interval_rtts: float) -> None:
    """It is tried less and less often while it is measured the same, and at once again when it has changed."""
    rate = LearnedRate.starting(1.5, anchor=0.0, now=0.0)
    rate.trying, rate.trying_since = 1.0, 1.0
    measured(rate, calls, 12.0)
    assert rate.interval_rtts == interval_rtts


@pytest.mark.parametrize(("calls", "interval_rtts"), [(400, 6.0), (416, 1.5), (384, 1.5), (450, 1.0), (350, 1.0)])
def test_what_chance_may_explain_makes_tries_more_frequent_but_not_at_once(calls: int, interval_rtts: float) -> None:
    """Calls differ in tokens, and a bucket of tokens is used up after a few calls more or less."""
    rate = LearnedRate.starting(20.0, anchor=0.0, now=0.0)
    rate.interval_rtts = 3.0
    rate.trying, rate.trying_since = 1.0, 1.0
    measured(rate, calls, 20.0)
    assert rate.interval_rtts == interval_rtts
