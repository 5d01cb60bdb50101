"""Reported budgets are trusted as long as they agree with what is accepted.

A budget that holds calls back is tested: a few calls go beyond what it allows, first one, then two, four, eight. If one
of them is refused, the budget is real, and the next test waits longer. If all are accepted, the budget is dropped: it
is not enforced, or its numbers are too low.
"""

from __future__ import annotations

from dataclasses import dataclass

from dicast.workers.policy.calls import NEVER, CallLog

ENOUGH, MOST_STEP = 15, 64
"""The number of calls beyond what is allowed that disprove a budget if all are accepted, and the most sent at once."""
RESTORE_AFTER = 2.0
"""The number of refusals explained by a dropped budget that restore it; it doubles each time the budget is dropped."""
RECENT_S = 5.0
OUTWEIGHS = 4
"""One refusal outweighs fewer accepted calls than this."""
PATIENCE, MOST_STRIKES = 2.0, 4


@dataclass(slots=True)
class Test:
    """A test of a budget: since `since`, `calls` may be sent after the `first`, the last `step` of them beyond the
    budget.

    `passed` calls were accepted beyond it in earlier steps, `refused` were refused. The first step began at `began`. A
    step of 0 only uses up what is left of the budget.
    """

    first: int
    calls: int
    since: float
    step: int = 1
    passed: int = 0
    refused: int = 0
    began: float = 0.0

    def done_at(self, log: CallLog, feedback_s: float) -> float | None:
        """Return when all its calls count as accepted, if none is refused; None until all of them are sent."""
        last = log.nth_sent_at(self.first + self.calls)
        return None if last is None else last + feedback_s

    def calls_left(self, number: int) -> int:
        """Return how many calls may be sent after the `number`th."""
        return max(0, self.first + self.calls - number)

    def fails(self) -> bool:
        """Count a refused call; returns whether the refusals outweigh the accepted calls."""
        self.refused += 1
        return self.refused * OUTWEIGHS > self.passed


@dataclass(slots=True)
class Trust:
    """The trust in a budget. `test` is the running test; the next one begins `not_before` then. `strikes` tests have
    confirmed the budget.

    `dropped_at` is when the budget was dropped, None if it is trusted. `revoked` counts how often it was dropped.
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
        """Return whether a test of which all calls were accepted is enough to disprove the budget."""
        return test.passed + test.step >= ENOUGH

    def confirmed(self, now: float, pause_s: float) -> None:
        """Note that a call beyond the budget was refused."""
        if self.test is None and now < self.not_before:
            return
        self.test = None
        self.not_before = now + pause_s * PATIENCE**self.strikes
        self.strikes = min(MOST_STRIKES, self.strikes + 1)

    def drop(self, now: float) -> None:
        self.test, self.dropped_at = None, now
        self.revoked = min(8, self.revoked + 1)

    def is_enforced_again(self, log: CallLog, now: float, feedback_s: float) -> bool:
        """Return whether most of the latest calls were refused while a dropped budget is reported to be empty, so that
        it should be restored."""
        assert self.dropped_at is not None
        refusals = accepted = 0
        for trial in log.since(max(self.dropped_at, now - RECENT_S)):
            refusals += trial.was_refused
            accepted += not trial.was_refused and trial.sent_at < now - feedback_s
        return refusals >= RESTORE_AFTER * 2.0**self.revoked and refusals > accepted

    def restore(self) -> None:
        self.dropped_at, self.test, self.not_before, self.strikes = None, None, NEVER, 0
