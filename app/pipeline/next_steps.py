"""What a task has to do after one message's work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dicast.app.domain.opinion import ErrorKind
from dicast.app.ledger.records import MessageId, Recorded, WriteVerdict


@dataclass(frozen=True, slots=True)
class NextSteps:
    """What the task has to do next.

    `counts` is False while the unit has not ended: the chord must not count it yet. `summary` is the outcome, for
    people. With `retry` the same message comes again at its time. `errors` are the kinds of errors with which the units
    ended.
    """

    counts: bool
    follow_ups: Sequence[MessageId] = ()
    plan: bool = False
    gather: bool = False
    summary: str = "nothing to do"
    retry: bool = False
    errors: Sequence[ErrorKind] = ()

    @classmethod
    def after(cls, recorded: Recorded | None, *, counts: bool = True) -> NextSteps:
        """Return the steps that follow from the ledger's answer to a write; None means that nothing was written."""
        if recorded is None:
            return cls(counts)
        # The chord counts the task with the newest claim only.
        counts = counts and not {WriteVerdict.STALE, WriteVerdict.GONE}.issuperset(recorded.written)
        return cls(counts, plan=recorded.plan, gather=recorded.gather)


TASK_END = "task_end"
"""The name under which a request passes its `TaskEnd` to its task."""


@dataclass(slots=True)
class TaskEnd:
    """Carries the outcome of a unit's task to its request. `steps` is None until the task has ended."""

    steps: NextSteps | None = None
