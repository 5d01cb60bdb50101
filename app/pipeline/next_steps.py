"""What follows from one message's work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dicast.app.domain.opinion import ErrorKind
from dicast.app.ledger.records import MessageId, Recorded, Written


@dataclass(frozen=True, slots=True)
class NextSteps:
    """What the task has to do next. `counts` is False while the unit has no end: its chord must not count it. `told`
    says to people what became of the unit. `retry`: the same message comes again at its time. `errors` are the kinds of
    the errors that its units ended with."""

    counts: bool
    follow_ups: Sequence[MessageId] = ()
    plan: bool = False
    gather: bool = False
    told: str = "nothing to do"
    retry: bool = False
    errors: Sequence[ErrorKind] = ()

    @classmethod
    def after(cls, recorded: Recorded | None, *, counts: bool = True) -> NextSteps:
        """What the ledger says of a write; None if there was none."""
        if recorded is None:
            return cls(counts)
        # Whoever has the newer claim counts for the chord.
        counts = counts and not {Written.STALE, Written.GONE}.issuperset(recorded.written)
        return cls(counts, plan=recorded.plan, gather=recorded.gather)


TASK_END = "task_end"
"""Under this name a request passes its `TaskEnd` to its task."""


@dataclass(slots=True)
class TaskEnd:
    """Where a unit's task leaves for its request what became of it; `steps` is None until then."""

    steps: NextSteps | None = None
