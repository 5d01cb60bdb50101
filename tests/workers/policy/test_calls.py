"""The log of calls: what was sent, refused, and served at each instant."""

from __future__ import annotations

import pytest

from dicast.workers.policy.calls import MOST_TRIALS, NEVER, CallLog
from tests.workers.policy.build import done, sent


def log_of(calls: int = 6, refused: tuple[int, ...] = ()) -> CallLog:
    """A call a second from instant 0 on, each with as many others open as its number; refused half a second later."""
    log = CallLog()
    for number in range(calls):
        log.sent(sent(f"c{number}", float(number), number))
    for number in refused:
        log.record_outcome(done(f"c{number}", number + 0.5, float(number), 429))
    return log


def test_calls_sent_later_are_told_latest_first():
    log = log_of()
    assert [trial.call for trial in log.since(2.0)] == ["c5", "c4", "c3"]
    assert [trial.call for trial in log.since(NEVER)] == ["c5", "c4", "c3", "c2", "c1", "c0"]
    assert log.last() is log.trials[-1] and CallLog().last() is None
    assert (log.began_at, CallLog().began_at) == (0.0, NEVER)


def test_calls_between_two_instants_are_counted_with_the_later_one():
    log = log_of(refused=(2, 3))
    assert (log.sent_between(1.0, 4.0), log.accepted_between(1.0, 4.0)) == (3, 1)
    assert (log.sent_between(1.0, 3.9), log.accepted_between(0.0, 2.0)) == (2, 1)
    assert log.accepted_per_s(0.0, 5.0) == 3 / 5.0
    assert log.accepted_per_s(4.7, 5.0) == 1 / 0.5, "no rate is told of less than half a second"


@pytest.mark.parametrize("number, at", [(1, 0.0), (4, 3.0), (6, 5.0), (7, None), (0, 0.0)])
def test_a_call_is_found_by_its_number(number, at):
    assert log_of().nth_sent_at(number) == at


def test_of_a_call_long_forgotten_the_oldest_known_stands():
    log = log_of()
    log.forget(3.0)
    assert [trial.call for trial in log.trials] == ["c3", "c4", "c5"]
    assert (log.nth_sent_at(2), log.nth_sent_at(4), log.nth_sent_at(5)) == (3.0, 3.0, 4.0)
    assert CallLog().nth_sent_at(0) is None


def test_the_log_is_bounded():
    log = log_of(MOST_TRIALS + 5)
    log.forget(NEVER)
    assert (len(log.trials), log.trials[0].call, log.sent_total) == (MOST_TRIALS, "c5", MOST_TRIALS + 5)


def test_refusals_are_forgotten_with_their_calls():
    log = log_of(refused=(1, 3))
    assert log.last_refused_at(-7.0) == 3.0
    log.forget(3.0)
    assert [trial.call for trial in log.refusals] == ["c3"]
    log.forget(3.1)
    assert (list(log.refusals), log.last_refused_at(-7.0)) == ([], -7.0)


def test_a_call_whose_sending_was_not_seen_is_taken_from_its_outcome_at_its_place():
    log = log_of()
    trial = log.record_outcome(done("new", 9.0, 2.5, 429, open_before=8))
    assert [t.sent_at for t in log.trials] == [0.0, 1.0, 2.0, 2.5, 3.0, 4.0, 5.0]
    assert (trial.number, trial.open_before, trial.refused_at, log.sent_total) == (7, 8, 9.0, 7)
    log.record_outcome(done("late", 9.0, 4.5))
    assert [t.sent_at for t in log.trials] == [0.0, 1.0, 2.0, 2.5, 3.0, 4.0, 4.5, 5.0]
    assert log.record_outcome(done("last", 9.0, 8.0)).was_refused is False
    assert log.trials[-1].call == "last"


def test_the_second_call_may_have_been_sent_first():
    log = CallLog()
    log.record_outcome(done("a", 9.0, 2.0))
    log.record_outcome(done("b", 9.0, 1.0))
    assert [trial.call for trial in log.trials] == ["b", "a"]


def test_an_answer_is_no_refusal():
    log = log_of()
    assert not log.record_outcome(done("c1", 1.5, 1.0)).was_refused
    assert list(log.refusals) == []


def test_only_refusals_sent_since_are_explained():
    log = log_of(refused=(1, 2, 3))
    log.explain(2.0)
    assert [trial.explained for trial in log.trials] == [False, False, True, True, False, False]


def test_the_provider_serves_what_is_open_less_what_it_had_refused():
    log = CallLog()
    for number in range(4):
        log.sent(sent(f"c{number}", 0.1 * number, 10 + number))
    log.record_outcome(done("c0", 0.15, 0.0, 429))  # its refusal was back when c2 left
    log.record_outcome(done("c2", 0.90, 0.2, 429))
    assert [log.open_at_provider(trial) for trial in log.trials] == [10, 10, 12, 12]


def test_a_log_that_was_stored_goes_on():
    log = log_of(refused=(2,))
    again = CallLog(log.trials, sent_total=log.sent_total)
    assert [trial.call for trial in again.refusals] == ["c2"]
    assert again.record_outcome(done("c3", 3.5, 3.0, 429)).number == 4
    assert again.sent_total == 6
