"""Revokes jobs and units by their ids. The revocation is in the ledger, whoever asks for it, with or without a worker.

Celery keeps revoked ids in its workers and has them discard messages. Here a discarded message would be sent again for
ever, and a worker that starts later would not know the id. A revocation may be repeated.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from dicast.app.ledger.client import UnknownJob
from dicast.app.ledger.keys import PageRef
from dicast.app.ledger.records import MessageId
from dicast.app.ledger.states import JobState, UnitState
from dicast.app.pipeline.messages import CONTROL_QUEUE, FINISH_JOB

if TYPE_CHECKING:
    from dicast.app.application import Dicast

REVOKED = "revoked"
"""The message of Celery's `TaskRevokedError` for a caller that waits for a revoked job."""


class Revocation(NamedTuple):
    """The outcome for each id, in sentences for people. `jobs` and `units` may have open calls; `unknown` ids belong to
    no job or unit; `rejected` tells that one of the ids cannot be revoked."""

    lines: tuple[str, ...] = ()
    jobs: frozenset[str] = frozenset()
    units: frozenset[str] = frozenset()
    unknown: tuple[str, ...] = ()
    rejected: bool = False

    def plus(self, other: Revocation) -> Revocation:
        return Revocation(
            self.lines + other.lines, self.jobs | other.jobs, self.units | other.units, self.unknown + other.unknown,
            self.rejected or other.rejected,
        )  # fmt: skip


def revoke_ids(dicast: Dicast, ids: Iterable[str], *, cut: bool) -> Revocation:
    """Revoke jobs and units. `cut` tells that their open calls will be cut. Raises redis errors."""
    revocation = Revocation()
    for name in dict.fromkeys(map(str, ids)):
        try:
            ref, token = PageRef.of_name(name)
        except ValueError:
            revocation = revocation.plus(_job(dicast, name, cut=cut))
        else:
            revocation = revocation.plus(_unit(dicast, name, ref, token, cut=cut))
    return revocation


def _job(dicast: Dicast, name: str, *, cut: bool) -> Revocation:
    ledger = dicast.ledger
    try:
        job = ledger.job_of_task(name)
        before, finish = ledger.cancel(job, revoked=REVOKED)
        is_revoked = ledger.is_revoked(job)
    except UnknownJob:
        return Revocation(unknown=(name,))
    if finish:
        dicast.send_task(FINISH_JOB, args=(job,), queue=CONTROL_QUEUE)
    if is_revoked and not before.ended:
        # Callers that wait get their answer now; the report follows when the open calls have ended.
        dicast.backend.mark_as_revoked(name, REVOKED)
        calls = "are cut" if cut else "end and count"
        return Revocation((f"job {job} is revoked: open calls {calls}, no new ones are made",), jobs=frozenset({job}))
    if before is JobState.CANCELLING:
        return Revocation((f"job {job} was cancelled before",), jobs=frozenset({job}))
    return Revocation((f"job {job} has ended ({before}): nothing is left to revoke",))


def _unit(dicast: Dicast, name: str, ref: PageRef, token: str, *, cut: bool) -> Revocation:
    if not token:
        return Revocation(
            (f"{name} gathers a page, which cannot be revoked: revoke its job, {ref.job}",), rejected=True
        )
    try:
        states = set(dicast.ledger.revoke_unit(ref, MessageId.parse(token)))
    except UnknownJob:
        return Revocation((f"no job holds unit {name}: nothing is revoked",))
    if states & {UnitState.OPEN, UnitState.REVOKED}:
        call = "is cut" if cut else "ends and counts"
        open_call = f"its open call {call}, and none is made again" if UnitState.OPEN in states else "it gets no call"
        return Revocation((f"unit {name} is revoked: {open_call}",), units=frozenset({name}))
    if UnitState.CANCELLED in states:
        return Revocation((f"unit {name} ends with its job, which is cancelled",), units=frozenset({name}))
    where = "has ended" if UnitState.ENDED in states else "is not in work"
    return Revocation((f"unit {name} {where}: nothing is revoked",))
