"""Why a call failed, and what is recorded when a unit ends without a score.

`FailureKind` is what a provider's adapter, or the caller's own deadline, reports about a single call. `ErrorKind`
(app/domain/opinion.py) is the coarser kind that is recorded for the unit.
"""

from __future__ import annotations

from enum import StrEnum

from dicast.app.domain.opinion import ErrorKind


class FailureKind(StrEnum):
    """The reason why one call returned no usable answer."""

    RATE_LIMITED = "rate_limited"  # 429: this account's limit
    OVERLOADED = "overloaded"  # 529: the provider is overloaded for everybody
    QUOTA_EXHAUSTED = "quota_exhausted"  # 429 insufficient_quota, spend cap: terminal
    SERVER = "server"  # 408, 5xx but 529
    CONNECTION = "connection"  # refused, reset, cut in the middle
    TIMEOUT = "timeout"  # the SDK's own deadline, or the caller's total one
    REJECTED = "rejected"  # 400, 401, 403, 404, 413, 422, redirects: terminal
    MALFORMED = "malformed"  # a 200 that is no answer: HTML, too large, no content, bad JSON, no opinion
    INTERNAL = "internal"  # a fault of this program


RATE_LIMITS = frozenset({FailureKind.RATE_LIMITED, FailureKind.OVERLOADED})
"""Failures that are the pool's fault and not the unit's: they spend the requeue budget instead of an attempt."""

TERMINAL = frozenset({FailureKind.QUOTA_EXHAUSTED, FailureKind.REJECTED})
"""Failures after which another call cannot help."""

UNCERTAIN = frozenset({FailureKind.TIMEOUT, FailureKind.CONNECTION, FailureKind.INTERNAL})
"""Failures after which the provider may have answered, and charged for it. An error status is taken as not charged."""

_RECORDED_AS = {
    FailureKind.RATE_LIMITED: ErrorKind.RATE_LIMITED,
    FailureKind.OVERLOADED: ErrorKind.RATE_LIMITED,
    FailureKind.QUOTA_EXHAUSTED: ErrorKind.QUOTA_EXHAUSTED,
    FailureKind.SERVER: ErrorKind.PROVIDER,
    FailureKind.CONNECTION: ErrorKind.PROVIDER,
    FailureKind.TIMEOUT: ErrorKind.TIMEOUT,
    FailureKind.REJECTED: ErrorKind.REJECTED,
    FailureKind.MALFORMED: ErrorKind.MALFORMED,
    FailureKind.INTERNAL: ErrorKind.INTERNAL,
}


def error_kind(failure: FailureKind) -> ErrorKind:
    """Return the kind of error recorded for a unit whose last call failed with `failure`."""
    return _RECORDED_AS[failure]
