"""Builds the results of units that end without a score, after their last call or without any call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dicast.app import logs
from dicast.app.domain.item import Item
from dicast.app.domain.opinion import ErrorKind, Opinion
from dicast.app.domain.plan import Lane
from dicast.app.domain.retry import GiveUp
from dicast.app.domain.stop import Stop
from dicast.app.ledger.records import Claim, ClaimVerdict, JobRecord, UnitResult
from dicast.app.pipeline.call import Call, kept_metadata, payload, unscored
from dicast.app.providers.base import ProviderFailure

UNCLAIMABLE = {
    ClaimVerdict.CANCELLED: (ErrorKind.CANCELLED, "the job was cancelled"),
    ClaimVerdict.REVOKED: (ErrorKind.CANCELLED, "it was revoked"),
    ClaimVerdict.POISON: (ErrorKind.LOST, "the workers that tried it died"),
    ClaimVerdict.SPENT: (ErrorKind.LOST, "all calls that may be paid for it were made, and none brought a result"),
    ClaimVerdict.EXPIRED: (ErrorKind.DEADLINE, "its deadline has passed"),
    ClaimVerdict.UNKNOWN: (ErrorKind.OUTCOME_UNKNOWN, "its worker died during a call that may have been paid for"),
}
"""The error that is recorded for a unit whose claim gets this answer; no call is made for it."""
REQUESTED_ENDS = frozenset({ClaimVerdict.CANCELLED, ClaimVerdict.REVOKED, ClaimVerdict.EXPIRED})
"""Answers that follow from a request of a user or an operator; such a unit does not count as lost."""


def given_up_results(
    call: Call, failure: ProviderFailure, decision: GiveUp, took_s: float, *, was_made: bool, model: str
) -> list[UnitResult]:
    """Return the errors of all units of a call that is not tried again, and log each. `was_made` tells whether the call
    was made at all."""
    call.summarize(f"error: {decision.kind}: {failure.message}")
    call.latency_s = took_s
    results = []
    for claim, dimension in zip(call.claims, call.dimensions, strict=True):
        elapsed_s = claim.elapsed_ms / 1000 + took_s
        call.log(
            logs.failed, dimension=dimension.id, status_code=failure.status_code,
            elapsed_s=round(elapsed_s, 3), kind=failure.kind, reason=failure.message,
        )  # fmt: skip
        results.append(call.error_result(
            claim, dimension, decision.kind, failure.message, decision.argument, attempts=decision.attempts,
            calls=claim.calls if was_made else claim.calls - 1, elapsed_s=elapsed_s,
            status_code=failure.status_code, model=model,
        ))  # fmt: skip
    return results


def stopped_results(call: Call, stop: Stop) -> list[UnitResult]:
    """Return the errors of all units of a call that is not made because its job has stopped asking this model."""
    call.summarize(f"error: {stop.kind}: {stop.reason}")
    results = []
    for claim, dimension in zip(call.claims, call.dimensions, strict=True):
        elapsed_s = claim.elapsed_ms / 1000
        call.log(
            logs.failed, dimension=dimension.id, status_code=stop.status_code,
            elapsed_s=elapsed_s, kind=stop.kind, reason=stop.reason,
        )  # fmt: skip
        results.append(call.error_result(
            claim, dimension, attempts=claim.attempts, calls=claim.calls - 1, elapsed_s=elapsed_s, **_stop_fields(stop)
        ))  # fmt: skip
    return results


def stopped_payload(job: JobRecord, lane: Lane, position: int, item: Item, stop: Stop) -> bytes:
    """Return the result of a unit that is not published because its job has stopped asking this model."""
    unit = lane.unit(position)
    return unscored(
        job, job.spec.agents[unit.agent], job.spec.dimensions[unit.dimension], item, unit.replicate,
        attempts=0, calls=0, elapsed_s=0.0, pool=stop.pool, **_stop_fields(stop),
    )  # fmt: skip


def no_opinions_payload(job: JobRecord, lane: Lane, position: int, item: Item) -> bytes:
    """Return the result of a chief's unit that is not published because no other judge has an opinion."""
    unit = lane.unit(position)
    return unscored(
        job, job.spec.agents[unit.agent], job.spec.dimensions[unit.dimension], item, unit.replicate,
        kind=ErrorKind.NOT_ASKED, message="not asked: no other judge has an opinion",
        argument="Not evaluated: no other judge has an opinion", attempts=0, calls=0, elapsed_s=0.0, status_code=None,
        model="",
    )  # fmt: skip


def not_needed_payload(job: JobRecord, lane: Lane, position: int, item: Item) -> bytes:
    """Return the result of a unit that is not published because the earlier judges have settled the outcome. It is no
    error, just an opinion without a score."""
    unit = lane.unit(position)
    opinion = Opinion(
        judge=job.spec.agents[unit.agent].name,
        criterion_id=job.spec.dimensions[unit.dimension].id,
        item_id=item.id,
        replicate=unit.replicate,
        swapped=job.spec.is_swapped(unit.replicate),
        score=None,
        not_needed=True,
        probe=item.probe,
        argument="Not asked: the judges before had settled it",
        model="",
        attempts=0,
        metadata=kept_metadata(job, item),
    )
    return payload(opinion, None)


def _stop_fields(stop: Stop) -> dict[str, Any]:
    return {
        "kind": stop.kind,
        "message": f"not asked: {stop.reason}",
        "argument": f"Not evaluated: {stop.reason}",
        "status_code": stop.status_code,
        "model": stop.model,
    }


def unclaimable_results(
    call: Call, lane: Lane, claims: Sequence[Claim], model: str, trouble: str = ""
) -> list[UnitResult]:
    """Return the errors of units whose claim was answered by one of `UNCLAIMABLE`, such as cancelled ones or those
    whose workers died. `trouble` says what delayed units that have expired, if that is known."""
    results = []
    for claim in claims:
        dimension = call.job.spec.dimensions[lane.unit(claim.position).dimension]
        kind, message = UNCLAIMABLE[claim.verdict]
        if trouble and kind is ErrorKind.DEADLINE:
            message = f"{message}; {trouble}"
        call.summarize(f"error: {kind}: {message}")
        elapsed_s = claim.elapsed_ms / 1000
        call.log(logs.failed, dimension=dimension.id, status_code=None, elapsed_s=elapsed_s, reason=message)
        results.append(call.error_result(
            claim, dimension, kind, message, f"Not evaluated: {message}", attempts=claim.attempts, calls=claim.calls,
            elapsed_s=elapsed_s, status_code=None, model=model,
        ))  # fmt: skip
    return results
