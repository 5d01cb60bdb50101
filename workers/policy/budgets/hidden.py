"""A window that only refusals reveal: the `Retry-After` of many of them points to one instant.

If a cap on open calls refuses, every refusal names an instant of its own, such as a second from now. If a window is
used up, all refusals name its end. So a few refusals that agree reveal a window: no more calls will be accepted before
its end, and what was accepted since it began is its size. This is tested with single calls. A size that was learned too
small (the window was half over, or others used it) grows by what is accepted beyond it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from dicast.workers.policy.budgets import doubt
from dicast.workers.policy.budgets.budget import FEW, Budget
from dicast.workers.policy.budgets.meter import Meter
from dicast.workers.policy.budgets.nature import MOST, NICE_PERIODS_S, USUAL_PERIOD_S
from dicast.workers.policy.calls import NEVER, CallLog, LoggedCall
from dicast.workers.policy.headers import BudgetUnit

NAME = "retry-after"
LEAST_S = 2.0
"""The shortest wait that may name a window's end; caps ask for shorter ones."""
AGREE_S = 0.4
MOST_HINTS = 40
LEAST_HINTS = 2
DOUBT_S = 60.0


@dataclass(slots=True)
class Hint:
    """A refusal's hint: a call sent `at` was refused, and its `Retry-After` named `until`, in steps of `grain_s`."""

    at: float
    until: float
    grain_s: float


@dataclass(slots=True)
class HiddenWindow:
    """The hidden window of one pool, and the evidence for it.

    `accepted` counts the calls accepted so far. The newest answered call is the `number`th, sent at `sent_at` for
    `model`, whose counter stood at `spent`.

    `budget` is the window, if there is one. The present window began at `opened_at`, after `opened` calls; the last
    call that found it used up was sent at `refused_at`. It is `sized` once a whole window has begun. Until
    `doubted_until` no window is assumed, because the last one was disproved.
    """

    hints: list[Hint] = field(default_factory=list)
    accepted: Meter = field(default_factory=Meter)
    total: float = 0.0
    refused: int = 0
    number: int = 0
    sent_at: float = NEVER
    model: str = ""
    spent: float = 0.0
    budget: Budget | None = None
    sized: bool = False
    opened_at: float = NEVER
    opened: float = 0.0
    refused_at: float = NEVER
    doubted_until: float = NEVER
    doubts: int = 0

    def note(self, trial: LoggedCall, was_refused: bool, model: str, spent: float) -> None:
        """Count an answered call; our own counter for its model stood at `spent` when it was sent."""
        self.refused += was_refused
        before, newest = self.total, trial.number > self.number
        if newest:
            self.number, self.sent_at, self.model, self.spent = trial.number, trial.sent_at, model, spent
        self.total = float(self.number - self.refused)
        if self.budget is not None and newest:
            self._follow(self.budget, before)
        self.accepted.thin()
        self.accepted.note(trial.sent_at, self.total, 0.0 if len(self.accepted.points) < 2 else 0.25)

    def _follow(self, budget: Budget, before: float) -> None:
        """Update what is left of the window: its size less what was accepted since it began, after `before` calls."""
        opening = budget.last_opening(self.sent_at)
        if not opening:
            return
        if opening > self.opened_at:
            self.opened_at, self.opened = opening, before
        budget.level = max(0.0, budget.limit - (self.total - self.opened))
        budget.dated_at, budget.number, budget.spent = self.sent_at, self.number, self.spent
        budget.edition += 1

    def hint(self, trial: LoggedCall, now: float, retry_after_s: float | None, grain_s: float) -> Hint | None:
        """Take in a refusal's `Retry-After`, if it may name the end of a window."""
        if retry_after_s is None or retry_after_s < LEAST_S:
            return None
        hint = Hint(trial.sent_at, now + retry_after_s, grain_s)
        self.hints = [*self.hints, hint][-MOST_HINTS:]
        return hint

    def explains(self, hint: Hint | None, now: float) -> bool:
        """Return whether the known window explains the refusal."""
        return self.budget is not None and hint is not None and self._same(hint, self.budget.ends_at)

    def _same(self, hint: Hint, ends_at: float) -> bool:
        return abs(hint.until - ends_at) <= hint.grain_s + AGREE_S

    def learn(self, refusals: Iterable[LoggedCall], log: CallLog, now: float) -> bool:
        """Return whether a window, known or new, explains these refusals."""
        trials = list(refusals)
        if not trials or now < self.doubted_until:
            return False
        first, last = min(t.sent_at for t in trials), max(t.sent_at for t in trials)
        hints = [hint for hint in self.hints if first <= hint.at <= last]
        if len(hints) < max(LEAST_HINTS, 0.6 * min(len(trials), MOST_HINTS)):
            return False
        until = min(hint.until for hint in hints)
        if not all(self._same(hint, until) for hint in hints) or until <= now:
            return False
        after = [trial for trial in log.since(first) if not trial.was_refused]
        if len(after) > len(trials):
            return False
        self._ends(until, first, hints[-1].grain_s, now)
        return True

    def _ends(self, until: float, first: float, grain_s: float, now: float) -> None:
        """Note a window that ends at `until`; the first call that it refused was sent at `first`."""
        budget = self.budget
        if budget is None:
            budget = self.budget = Budget(NAME, BudgetUnit.REQUESTS, self.model)
            budget.nature.leaning = -MOST
            lasts_s = USUAL_PERIOD_S
            if until - first > lasts_s:
                lasts_s = next((p for p in NICE_PERIODS_S if p >= until - first - grain_s), NICE_PERIODS_S[-1])
            budget.nature.period_s, budget.rolls = lasts_s, 1
        elif until - budget.ends_at < 0.9 * budget.nature.lasts_s:
            budget.nature.period_is_less(until - budget.ends_at)
        size = max(1.0, self.accepted.between(until - budget.nature.lasts_s, first))
        budget.limit = size if size < budget.limit - FEW else max(size, budget.limit)
        budget.capacity = budget.limit
        budget.ends_at, budget.late_s, budget.level = until, 0.0, 0.0
        budget.dated_at, budget.number, budget.spent = self.sent_at, self.number, self.spent
        budget.edition, self.refused_at = budget.edition + 1, self.sent_at

    def empty(self, hint: Hint, trial: LoggedCall, spent: float, log: CallLog, now: float) -> None:
        """Note that the known window refused a call: it is used up, whatever seemed to be left."""
        budget = self.budget
        assert budget is not None
        self._resize(budget, trial, budget.remaining(now, log))
        budget.ends_at = min(budget.ends_at, hint.until)
        self._emptied(budget, trial, spent)
        doubt.confirmed(budget, now, None)

    def begins_anew(self, hint: Hint, trial: LoggedCall, spent: float, log: CallLog, now: float) -> bool:
        """Return whether a refusal names the end of a window after the known one; if so, follow that window."""
        budget = self.budget
        if budget is None or hint.until <= budget.ends_at + hint.grain_s + AGREE_S or now < budget.opens_at:
            return False
        lasts_s = budget.nature.lasts_s
        over = (hint.until - budget.ends_at) % lasts_s
        if min(over, lasts_s - over) > hint.grain_s + AGREE_S:
            return False
        if self._is_longer(budget, hint, trial):
            budget.nature.period_s = hint.until - budget.ends_at
        else:
            self._resize(budget, trial, budget.remaining(now, log))
        budget.ends_at = hint.until
        self._emptied(budget, trial, spent)
        doubt.confirmed(budget, now, None)
        return True

    def _is_longer(self, budget: Budget, hint: Hint, trial: LoggedCall) -> bool:
        """Return whether windows are longer than assumed and last from the known end to the one named now: it is
        further off than one window, or a window would have begun in which nothing was accepted."""
        lasts_s, blur_s = budget.nature.lasts_s, hint.grain_s + AGREE_S
        if hint.until - budget.ends_at < 1.5 * lasts_s:
            return False
        in_vain = self.opened_at > budget.opens_at + blur_s and self.total - self.opened < FEW
        return hint.until - trial.sent_at > lasts_s + blur_s or in_vain

    def _resize(self, budget: Budget, trial: LoggedCall, remaining: float) -> None:
        """Set the window's size to the calls that were accepted in it until it was used up."""
        if self.opened_at > NEVER and budget.last_opening(trial.sent_at) == self.opened_at:
            budget.limit = max(1.0, self.total - self.opened)
        elif remaining > FEW * budget.cost:
            budget.limit = max(1.0, budget.limit - remaining)
        budget.capacity = budget.limit

    def _emptied(self, budget: Budget, trial: LoggedCall, spent: float) -> None:
        self.refused_at = max(self.refused_at, trial.sent_at)
        if trial.number >= budget.number:
            budget.level, budget.dated_at, budget.number, budget.spent = 0.0, trial.sent_at, trial.number, spent

    def advance(self, now: float, log: CallLog, feedback_s: float) -> str:
        """Go on with the test; returns a sentence about its result, '' if there is none."""
        budget = self.budget
        if budget is None:
            return ""
        if not self.sized and now >= budget.opens_at:
            self.sized, budget.trust.not_before = True, NEVER
        test = budget.trust.test
        in_refused = self.refused_at > budget.last_opening(now)
        before = 0 if test is None else test.passed
        doubt.advance(budget, now, log, feedback_s)
        after = budget.trust.test
        if after is None or after.passed <= before:
            return ""
        if in_refused:
            self.budget, self.hints, self.sized = None, [], False
            self.doubted_until = now + DOUBT_S * 2.0**self.doubts
            self.doubts = min(6, self.doubts + 1)
            return "calls were accepted before the end that Retry-After named"
        budget.limit += after.passed - before
        budget.capacity = budget.limit
        return ""
