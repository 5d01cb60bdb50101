"""Decides what follows a failed call: another call after a wait, or the end of the unit.

Rules, in the order of the code:

1. Terminal failures (quota exhausted, rejected, filtered) end the unit: asking again cannot help.
2. Where nothing may be paid twice, so do answers that are no opinion, and failures after which nobody knows whether the
   provider charges (`UNCERTAIN`).
3. A call that tried a pool which is down spends nothing: what it found out is the pool's fault.
4. Rate limits (429, 529) are the pool's fault, too: they spend the requeue budget and no attempt.
5. A model whose hidden reasoning has taken all of `max_tokens` is asked once more, with more room, and one that has
   refused to answer once more, too. The same again ends the unit.
6. Everything else spends an attempt; the unit ends when all attempts are spent.

The wait is `min(initial * 2^(n-1) + jitter, max)` for the n-th failure of its sort, and never shorter than what the
provider asked for by Retry-After (cut to `retry_after_max_s`, then jittered). Nobody holds a slot or a lease meanwhile:
the caller stores `delay_s` as a deadline.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from dicast.app.domain.opinion import NO_OPINION, RATE_LIMITS, TERMINAL, UNCERTAIN, ErrorKind, FailureKind, error_kind

JITTER_MAX_S = 0.5

_NOT_RETRIED = {
    ErrorKind.QUOTA_EXHAUSTED: "Evaluation failed: the account's quota is exhausted",
    ErrorKind.REJECTED: "Evaluation failed: the provider rejected the request",
    ErrorKind.OUT_OF_TOKENS: "Evaluation failed: the model's reasoning took all of max_tokens, with more room, too",
    ErrorKind.REFUSED: "Evaluation failed: the model refused to answer",
    ErrorKind.FILTERED: "Evaluation failed: a content filter stopped the question or its answer",
    ErrorKind.DEADLINE: "Evaluation ended at its deadline",
    ErrorKind.OUTCOME_UNKNOWN: "Evaluation ended, outcome unknown: a call may have been paid for",
}


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The operator's bounds, frozen when a job starts. Durations are seconds."""

    initial_s: float = 1.0
    max_s: float = 60.0
    max_attempts: int = 3
    requeue_budget: int = 5
    retry_after_max_s: float = 300.0


@dataclass(frozen=True, slots=True)
class Retry:
    """Call again `delay_s` from now; the counter named by `spends` goes up by one."""

    delay_s: float
    spends: Literal["attempt", "requeue", "nothing"]


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The unit ends without a score. `attempts` counts the calls that spent one, the last included."""

    kind: ErrorKind
    argument: str
    attempts: int


def decide(
    policy: RetryPolicy,
    failure: FailureKind,
    *,
    attempts: int,
    requeues: int,
    retry_after_s: float | None,
    jitter: float,
    at_most_once: bool = False,
    pool_down: bool = False,
    had_more_room: bool = False,
) -> Retry | GiveUp:
    """Return what follows a call that failed with `failure`.

    `attempts` and `requeues` are those spent before this call. `retry_after_s` may be anything a header can hold: NaN
    counts as absent, negative as now, infinity as the most allowed. `jitter` is the caller's random number, drawn once,
    in [0, `JITTER_MAX_S`] seconds. `at_most_once`: what may have been paid for is not called again. `pool_down`: the
    call only tried whether the pool is up again. `had_more_room`: the call had more than the judge's `max_tokens`.
    """
    if not 0 <= jitter <= JITTER_MAX_S:
        raise ValueError(f"jitter must be within 0..{JITTER_MAX_S}, got {jitter}")
    kind = error_kind(failure)
    if failure in TERMINAL:
        return GiveUp(kind, _NOT_RETRIED[kind], attempts + 1)
    if at_most_once and failure in UNCERTAIN:
        unknown = ErrorKind.OUTCOME_UNKNOWN
        return GiveUp(unknown, _NOT_RETRIED[unknown], attempts + 1)
    if at_most_once and failure in NO_OPINION:
        return GiveUp(kind, "Evaluation failed: the answer is no opinion", attempts + 1)
    if pool_down:
        return Retry(_delay_s(policy, 1, retry_after_s, jitter), "nothing")
    if failure in RATE_LIMITS:
        if requeues >= policy.requeue_budget:
            return GiveUp(kind, f"Evaluation failed: rate-limited, after {attempts + requeues + 1} calls", attempts)
        return Retry(_delay_s(policy, requeues + 1, retry_after_s, jitter), "requeue")
    if (failure is FailureKind.OUT_OF_TOKENS and had_more_room) or (failure is FailureKind.REFUSED and attempts):
        return GiveUp(kind, _NOT_RETRIED[kind], attempts + 1)
    if attempts + 1 >= policy.max_attempts:
        return GiveUp(kind, f"Evaluation failed after {policy.max_attempts} retries", attempts + 1)
    return Retry(_delay_s(policy, attempts + 1, retry_after_s, jitter), "attempt")


MOST_ROOM = 32_768
"""The most tokens of output that a call gets beyond its judge's own `max_tokens`: what most models that reason may
write."""


def more_room(max_tokens: int) -> int:
    """Return the tokens of output for a call whose model has reasoned until `max_tokens` were spent."""
    return max(max_tokens, min(max(4 * max_tokens, 8192), MOST_ROOM))


def given_up_late(retry: Retry, attempts: int) -> GiveUp:
    """Return the end of a unit whose next call would come after its deadline; `attempts` are those spent before this
    call."""
    argument = _NOT_RETRIED[ErrorKind.DEADLINE]
    return GiveUp(ErrorKind.DEADLINE, argument, attempts + int(retry.spends == "attempt"))


def _delay_s(policy: RetryPolicy, n: int, retry_after_s: float | None, jitter: float) -> float:
    backoff_s = min(policy.initial_s * 2.0 ** (n - 1) + jitter, policy.max_s)
    if retry_after_s is None or math.isnan(retry_after_s):
        return backoff_s
    return max(backoff_s, min(max(retry_after_s, 0.0), policy.retry_after_max_s) + jitter)
