"""Told budgets are believed as long as they agree with what is accepted.

A budget that holds calls back is put to the test: a few calls go beyond what it allows, first one, then two, four,
eight. Is one of them refused, the budget is real, and the next test waits four times as long. Are all accepted, it is
none: nobody enforces it, or its numbers are too low.
"""

from __future__ import annotations

from dataclasses import dataclass

from dicast.workers.policy.calls import NEVER, CallLog

ENOUGH, MOST_STEP = 15, 64
"""So many calls beyond what is allowed, all accepted, disprove a budget; and so many may go at once."""
RESTORE_AFTER = 2.0
"""So many refusals that a dropped budget would explain bring it back, twice as many each time that it is dropped."""
RECENT_S = 5.0
OUTWEIGHS = 4
"""One refusal outweighs fewer accepted calls."""
PATIENCE, MOST_STRIKES = 2.0, 4


@dataclass(slots=True)
class Test:
    """`calls` may go after the `first` one, `since` then, the last `step` of them beyond the budget; `passed` did so
    before.

    `refused` of them were. The first step was `began` then. A step of 0 only leads up to the budget's end.
    """

    first: int
    calls: int
    since: float
    step: int = 1
    passed: int = 0
    refused: int = 0
    began: float = 0.0

    def done_at(self, log: CallLog, feedback_s: float) -> float | None:
        """When all its calls count as accepted, if none is refused; None while not all of them have left."""
        last = log.nth_sent_at(self.first + self.calls)
        return None if last is None else last + feedback_s

    def left(self, number: int) -> int:
        """Calls that may go after the `number`th."""
        return max(0, self.first + self.calls - number)

    def fails(self) -> bool:
        """A call was refused: whether that outweighs those that were accepted."""
        self.refused += 1
        return self.refused * OUTWEIGHS > self.passed


@dataclass(slots=True)
class Trust:
    """`test` is on; the next one begins `not_before` then. `strikes` tests have confirmed the budget.

    `dropped_at` is when it was given up; None: it is believed. `revoked` counts how often.
    """

    test: Test | None = None
    not_before: float = NEVER
    strikes: int = 0
    dropped_at: float | None = None
    revoked: int = 0

    @property
    def believed(self) -> bool:
        return self.dropped_at is None

    def passed(self, test: Test) -> bool:
        """All of the test's calls were accepted: whether that is enough."""
        return test.passed + test.step >= ENOUGH

    def confirmed(self, now: float, pause_s: float) -> None:
        """A call beyond the budget was refused."""
        if self.test is None and now < self.not_before:
            return
        self.test = None
        self.not_before = now + pause_s * PATIENCE**self.strikes
        self.strikes = min(MOST_STRIKES, self.strikes + 1)

    def drop(self, now: float) -> None:
        self.test, self.dropped_at = None, now
        self.revoked = min(8, self.revoked + 1)

    def speaks_again(self, log: CallLog, now: float, feedback_s: float) -> bool:
        """Whether most of the latest calls were refused since a dropped budget is told to be empty: then it is one."""
        assert self.dropped_at is not None
        refused = accepted = 0
        for trial in log.since(max(self.dropped_at, now - RECENT_S)):
            refused += trial.refused
            accepted += not trial.refused and trial.sent_at < now - feedback_s
        return refused >= RESTORE_AFTER * 2.0**self.revoked and refused > accepted

    def restore(self) -> None:
        self.dropped_at, self.test, self.not_before, self.strikes = None, None, NEVER, 0
