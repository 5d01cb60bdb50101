from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dicast.app.domain.opinion import RATE_LIMITS, TERMINAL, ErrorKind, FailureKind, error_kind
from dicast.app.domain.retry import JITTER_MAX_S, GiveUp, Retry, RetryPolicy, decide, given_up_late, more_room

POLICY = RetryPolicy()


def after(
    failure: FailureKind,
    *,
    policy: RetryPolicy = POLICY,
    attempts: int = 0,
    requeues: int = 0,
    retry_after_s: float | None = None,
    jitter: float = 0.0,
) -> Retry | GiveUp:
    return decide(policy, failure, attempts=attempts, requeues=requeues, retry_after_s=retry_after_s, jitter=jitter)


ORDINARY = sorted(set(FailureKind) - RATE_LIMITS - TERMINAL - {FailureKind.REFUSED})


@pytest.mark.parametrize("failure", ORDINARY)
@pytest.mark.parametrize(
    "attempts, jitter, want",
    [(0, 0.0, 1.0), (0, 0.5, 1.5), (1, 0.25, 2.25), (2, 0.0, None), (7, 0.0, None)],
)
def test_ordinary_failures_spend_attempts(
    failure: FailureKind, attempts: int, jitter: float, want: float | None
) -> None:
    got = after(failure, attempts=attempts, requeues=4, jitter=jitter)
    if want is None:
        assert got == GiveUp(error_kind(failure), "Evaluation failed after 3 retries", attempts + 1)
    else:
        assert got == Retry(want, "attempt")


@pytest.mark.parametrize("failure", sorted(RATE_LIMITS))
@pytest.mark.parametrize(
    "requeues, retry_after_s, jitter, want_s",
    [
        (0, None, 0.0, 1.0),
        (4, None, 0.5, 16.5),
        (0, 7.0, 0.25, 7.25),
        (3, 7.0, 0.25, 8.25),  # the backoff is the longer
        (0, 1e9, 0.5, 300.5),
        (0, math.inf, 0.0, 300.0),
        (0, -5.0, 0.0, 1.0),
        (0, math.nan, 0.0, 1.0),
    ],
)
def test_rate_limits_spend_the_requeue_budget(
    failure: FailureKind, requeues: int, retry_after_s: float | None, jitter: float, want_s: float
) -> None:
    got = after(failure, attempts=2, requeues=requeues, retry_after_s=retry_after_s, jitter=jitter)
    assert got == Retry(want_s, "requeue")


@pytest.mark.parametrize("failure", sorted(FailureKind))
def test_what_may_have_been_paid_is_not_called_again(failure: FailureKind) -> None:
    got = decide(POLICY, failure, attempts=0, requeues=0, retry_after_s=None, jitter=0.0, at_most_once=True)
    if failure in RATE_LIMITS | {FailureKind.SERVER}:
        assert isinstance(got, Retry)
        return
    assert isinstance(got, GiveUp)
    uncertain = failure in {FailureKind.TIMEOUT, FailureKind.CONNECTION, FailureKind.INTERNAL}
    assert got.kind is (ErrorKind.OUTCOME_UNKNOWN if uncertain else error_kind(failure))
    assert "retries" not in got.argument


def test_a_spent_requeue_budget_ends_the_unit_and_spends_no_attempt() -> None:
    ended = after(FailureKind.RATE_LIMITED, attempts=1, requeues=5, retry_after_s=1.0, jitter=0.1)
    assert ended == GiveUp(ErrorKind.RATE_LIMITED, "Evaluation failed: rate-limited, after 7 calls", 1)


@pytest.mark.parametrize("failure", sorted(TERMINAL))
def test_terminal_failures_are_not_retried(failure: FailureKind) -> None:
    ended = after(failure, retry_after_s=5.0, jitter=0.1)
    assert isinstance(ended, GiveUp)
    assert ended.attempts == 1
    assert "retries" not in ended.argument


def test_server_failures_respect_retry_after_too() -> None:
    assert after(FailureKind.SERVER, retry_after_s=20.0, jitter=0.5) == Retry(20.5, "attempt")


def test_the_argument_names_the_configured_number() -> None:
    policy = RetryPolicy(max_attempts=7)
    ended = after(FailureKind.TIMEOUT, policy=policy, attempts=6)
    assert isinstance(ended, GiveUp) and ended.argument == "Evaluation failed after 7 retries"


@pytest.mark.parametrize("at_most_once", [False, True])
@pytest.mark.parametrize("failure", sorted(FailureKind))
def test_every_error_has_an_argument(failure: FailureKind, at_most_once: bool) -> None:
    ended = decide(
        POLICY, failure, attempts=99, requeues=99, retry_after_s=None, jitter=0.0, at_most_once=at_most_once
    )  # fmt: skip
    assert isinstance(ended, GiveUp) and ended.argument.startswith("Evaluation ")


@pytest.mark.parametrize("jitter", [-0.01, 0.51, math.nan])
def test_jitter_outside_its_range_is_refused(jitter: float) -> None:
    with pytest.raises(ValueError, match="jitter"):
        after(FailureKind.SERVER, jitter=jitter)


@given(
    initial=st.floats(0, 3600),
    maximum=st.floats(0, 86_400),
    failure=st.sampled_from(FailureKind),
    attempts=st.integers(0, 99),
    requeues=st.integers(0, 1000),
    retry_after=st.none() | st.floats(),
    jitter=st.floats(0, JITTER_MAX_S),
)
def test_waits_are_bounded_and_follow_the_formula(
    initial: float,
    maximum: float,
    failure: FailureKind,
    attempts: int,
    requeues: int,
    retry_after: float | None,
    jitter: float,
) -> None:
    policy = RetryPolicy(initial, maximum, 100, 1000, 300.0)
    match after(failure, policy=policy, attempts=attempts, requeues=requeues, retry_after_s=retry_after, jitter=jitter):
        case Retry(delay_s, spends):
            assert spends == ("requeue" if failure in RATE_LIMITS else "attempt")
            n = requeues if failure in RATE_LIMITS else attempts
            backoff = min(initial * 2.0**n + jitter, maximum)
            assert delay_s >= backoff or math.isclose(delay_s, backoff)
            assert delay_s <= max(maximum, policy.retry_after_max_s + jitter)
            if retry_after is not None and 0 <= retry_after <= policy.retry_after_max_s:
                assert delay_s >= retry_after
        case GiveUp(kind, _, spent):
            assert kind is error_kind(failure)
            assert spent in (attempts, attempts + 1)


@given(st.sampled_from(FailureKind), st.lists(st.sampled_from(FailureKind), max_size=40))
def test_every_unit_ends(first: FailureKind, later: list[FailureKind]) -> None:
    """No history of failures is longer than attempts plus requeues."""
    attempts = requeues = calls = 0
    for failure in [first, *later, *[FailureKind.RATE_LIMITED] * 6, *[FailureKind.SERVER] * 3]:
        calls += 1
        decision = after(failure, attempts=attempts, requeues=requeues)
        if isinstance(decision, GiveUp):
            break
        attempts += decision.spends == "attempt"
        requeues += decision.spends == "requeue"
    else:
        pytest.fail("the unit never ended")
    assert calls <= POLICY.max_attempts + POLICY.requeue_budget


def test_the_waits_before_attempts_double_up_to_the_most() -> None:
    policy = RetryPolicy(initial_s=2.0, max_s=12.0, max_attempts=9)
    waits = [after(FailureKind.SERVER, policy=policy, attempts=n, jitter=0.25) for n in range(5)]
    assert waits == [Retry(s, "attempt") for s in (2.25, 4.25, 8.25, 12.0, 12.0)]


@pytest.mark.parametrize("retry_after_s, want_s", [(-5.0, 0.25), (0.0, 0.25), (0.5, 0.75), (1e9, 300.25), (None, 0.0)])
def test_what_the_provider_asks_for_is_jittered_even_where_no_wait_is_set(
    retry_after_s: float | None, want_s: float
) -> None:
    policy = RetryPolicy(initial_s=0.0, max_s=0.0)
    assert after(FailureKind.SERVER, policy=policy, retry_after_s=retry_after_s, jitter=0.25) == Retry(
        want_s, "attempt"
    )


@pytest.mark.parametrize("failure", sorted(TERMINAL))
def test_a_terminal_failure_counts_the_attempts_before_it(failure: FailureKind) -> None:
    kind = error_kind(failure)
    want = {
        ErrorKind.QUOTA_EXHAUSTED: "Evaluation failed: the account's quota is exhausted",
        ErrorKind.REJECTED: "Evaluation failed: the provider rejected the request",
        ErrorKind.FILTERED: "Evaluation failed: a content filter stopped the question or its answer",
    }
    assert after(failure, attempts=1) == GiveUp(kind, want[kind], 2)


@pytest.mark.parametrize(
    "failure, want",
    [
        (FailureKind.MALFORMED, GiveUp(ErrorKind.MALFORMED, "Evaluation failed: the answer is no opinion", 2)),
        (
            FailureKind.TIMEOUT,
            GiveUp(ErrorKind.OUTCOME_UNKNOWN, "Evaluation ended, outcome unknown: a call may have been paid for", 2),
        ),
    ],
)
def test_what_may_have_been_paid_counts_the_attempts_before_it(failure: FailureKind, want: GiveUp) -> None:
    got = decide(POLICY, failure, attempts=1, requeues=0, retry_after_s=None, jitter=0.0, at_most_once=True)
    assert got == want


@pytest.mark.parametrize("failure", sorted(set(FailureKind) - TERMINAL))
@pytest.mark.parametrize("retry_after_s, want_s", [(None, 3.25), (2.0, 3.25), (7.0, 7.25)])
def test_a_call_that_only_tried_the_pool_spends_nothing_and_waits_as_the_first(
    failure: FailureKind, retry_after_s: float | None, want_s: float
) -> None:
    policy = RetryPolicy(initial_s=3.0, max_attempts=1, requeue_budget=0)
    got = decide(
        policy, failure, attempts=5, requeues=5, retry_after_s=retry_after_s, jitter=0.25, pool_down=True
    )  # fmt: skip
    assert got == Retry(want_s, "nothing")


@pytest.mark.parametrize("retry, attempts", [(Retry(9.0, "attempt"), 3), (Retry(9.0, "requeue"), 2)])
def test_a_unit_that_ends_at_its_deadline_counts_its_last_call_if_that_spent_an_attempt(
    retry: Retry, attempts: int
) -> None:
    want = GiveUp(ErrorKind.DEADLINE, "Evaluation ended at its deadline", attempts)
    assert given_up_late(retry, attempts=2) == want


def test_jitter_outside_its_range_is_named() -> None:
    with pytest.raises(ValueError, match=r"^jitter must be within 0\.\.0\.5, got 0\.7$"):
        after(FailureKind.SERVER, jitter=0.7)


@pytest.mark.parametrize("attempts, had_more_room, again", [(0, False, True), (1, False, True), (1, True, False)])
def test_reasoning_that_takes_all_tokens_gets_more_room_once(attempts: int, had_more_room: bool, again: bool) -> None:
    """Also where the attempt before failed for another reason."""
    decision = decide(
        RetryPolicy(max_attempts=5), FailureKind.OUT_OF_TOKENS, attempts=attempts, requeues=0, retry_after_s=None,
        jitter=0.0, had_more_room=had_more_room,
    )  # fmt: skip
    assert isinstance(decision, Retry) == again
    assert again or (decision.kind, decision.attempts) == (ErrorKind.OUT_OF_TOKENS, attempts + 1)


@pytest.mark.parametrize("tokens, room", [(60, 8192), (1024, 8192), (4000, 16_000), (9000, 32_768), (64_000, 64_000)])
def test_more_room_is_four_times_as_much_within_bounds(tokens: int, room: int) -> None:
    assert more_room(tokens) == room


def test_a_refusal_is_asked_about_once_more() -> None:
    policy = RetryPolicy(max_attempts=9)
    assert isinstance(after(FailureKind.REFUSED, policy=policy), Retry)
    assert after(FailureKind.REFUSED, policy=policy, attempts=1).kind is ErrorKind.REFUSED
