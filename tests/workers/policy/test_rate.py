"""The learned rate: what refusals teach about calls per second."""

from __future__ import annotations

from tests.workers.policy.build import done, sent
from workers.policy.calls import CallLog
from workers.policy.rate import LearnedRate


def refused(rate: LearnedRate, log: CallLog, at: float, count: int) -> None:
    for number in range(count):
        sent_at = at + 0.01 * number
        call = f"r{at}-{number}"
        log.sent(sent(call, sent_at))
        trial = log.answered(done(call, sent_at + 0.1, sent_at, 429))
        rate.refused(trial, log, sent_at + 0.1, rtt_s=4.0, interval_max_rtts=7.0)


def test_a_rate_counted_per_second_does_not_fall_by_what_is_refused_in_the_full_second() -> None:
    rate, log = LearnedRate.counted(10.0, now=100.2), CallLog()
    refused(rate, log, 100.3, 8)
    assert rate.per_s == 10.0
    refused(rate, log, 101.4, 8)
    assert rate.per_s < 10.0


def test_a_rate_counted_per_second_is_raised_gently_and_given_no_credit() -> None:
    rate, log = LearnedRate.counted(10.0, now=0.0), CallLog()
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
    rate, log, now = LearnedRate.counted(10.0, now=0.0), CallLog(), 0.0
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
