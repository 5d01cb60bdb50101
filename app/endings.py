"""How units end without a score: after their last call, or without any."""

from __future__ import annotations

from collections.abc import Sequence

from app import logs
from app.calls import Call
from app.domain.opinion import ErrorKind
from app.domain.plan import Lane
from app.domain.retry import GiveUp
from app.ledger.records import Claim, Result
from app.ledger.records import Verdict as Claimed
from app.providers.base import ProviderFailure

CLOSED = {
    Claimed.CANCELLED: (ErrorKind.CANCELLED, "the job was cancelled"),
    Claimed.POISON: (ErrorKind.LOST, "the workers that tried it died"),
    Claimed.SPENT: (ErrorKind.LOST, "all calls that may be paid for it were made, and none brought a result"),
    Claimed.UNKNOWN: (ErrorKind.OUTCOME_UNKNOWN, "its worker died during a call that may have been paid for"),
}
"""What is recorded of units that get no call."""


def given_up(
    call: Call, failure: ProviderFailure, decision: GiveUp, took_s: float, *, made: bool, model: str
) -> list[Result]:
    """The errors of all units of a call that failed for good; `made`: it was really made. Each is told to the log."""
    call.tell(f"error: {decision.kind}: {failure.message}")
    call.latency_s = took_s
    results = []
    for claim, dimension in zip(call.claims, call.dimensions, strict=True):
        elapsed_s = claim.elapsed_ms / 1000 + took_s
        call.log(
            logs.failed, dimension=dimension.id, status_code=failure.status_code,
            elapsed_s=round(elapsed_s, 3), kind=failure.kind, reason=failure.message,
        )  # fmt: skip
        results.append(call.failed(
            claim, dimension, decision.kind, failure.message, decision.argument, attempts=decision.attempts,
            calls=claim.calls if made else claim.calls - 1, elapsed_s=elapsed_s,
            status_code=failure.status_code, model=model,
        ))  # fmt: skip
    return results


def closed(call: Call, lane: Lane, claims: Sequence[Claim], model: str) -> list[Result]:
    """The errors of units that get no call: their job was cancelled, or too many workers died of them, or the like."""
    results = []
    for claim in claims:
        dimension = call.job.spec.dimensions[lane.unit(claim.position).dimension]
        kind, message = CLOSED[claim.verdict]
        call.tell(f"error: {kind}: {message}")
        elapsed_s = claim.elapsed_ms / 1000
        call.log(logs.failed, dimension=dimension.id, status_code=None, elapsed_s=round(elapsed_s, 3), reason=message)
        results.append(call.failed(
            claim, dimension, kind, message, f"Not evaluated: {message}", attempts=claim.attempts, calls=claim.calls,
            elapsed_s=elapsed_s, status_code=None, model=model,
        ))  # fmt: skip
    return results
