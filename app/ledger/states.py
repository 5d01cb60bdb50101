"""The states of jobs in the ledger, and what became of a unit that was to be revoked."""

from __future__ import annotations

from enum import StrEnum


class JobState(StrEnum):
    SUBMITTED = "submitted"
    RUNNING = "running"
    CANCELLING = "cancelling"
    FINISHING = "finishing"
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    LOST = "lost"

    @property
    def ended(self) -> bool:
        return self in {JobState.COMPLETED, JobState.CANCELLED, JobState.LOST}


class UnitState(StrEnum):
    """What became of a unit that was to be revoked."""

    REVOKED = "revoked"
    OPEN = "open"
    ENDED = "ended"
    GONE = "gone"
    CANCELLED = "cancelled"
