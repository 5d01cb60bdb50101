"""A cap that follows an error budget: fewer calls while the provider's errors use it up too fast.

The objective is a share of calls that are served (`target`); what may fail besides is the error budget. Its *burn rate*
is the share of failed calls over the share that may fail: at 1 the budget lasts just as long as its period. Following
Google's Site Reliability Workbook (Beyer et al., 2018), chapter 5, "Alerting on SLOs", the multiwindow method, it burns
too fast when the rate is at least `burn_rate` over the window, and still is over the last twelfth of it: the long one
keeps a moment's trouble from mattering, the short one ends the measure soon after its cause. The defaults are the
book's first alert: 14.4 over one hour and five minutes.

Rules, at most one change in each short window, or its effect would not be seen:

1. Burning too fast -> the cap is half of the limit.
2. Capped, and over the short window the budget burns slower than it lasts (below 1) -> the cap doubles, and is lifted
   where it reaches the ceiling.

A call counts as failed if it was refused (429, 529), answered by 5xx or 408, or not at all; other 4xx are the caller's
fault. Few calls say nothing: at least `LEAST` must have ended in the window, and `LEAST_SHORT` in the short one.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from dicast.workers.policy.calls import NEVER, Done

SLICES = 60
SHORT_PART = 12
"""The short window is a twelfth of the long one, as in the book."""
LEAST, LEAST_SHORT = 20, 5


@dataclass(frozen=True, slots=True)
class ErrorBudget:
    """The objective. `target` is the share of calls to be served, above 0 and below 1; `window_s` is the long
    window."""

    target: float
    window_s: float = 3600.0
    burn_rate: float = 14.4

    @property
    def short_s(self) -> float:
        return self.window_s / SHORT_PART


@dataclass(slots=True)
class Slice:
    """The calls that ended within one of the window's `SLICES` parts; `number` counts these parts from time 0."""

    number: int
    ended: int = 0
    failed: int = 0


@dataclass(slots=True)
class BudgetUse:
    """The use of one pool's error budget; holds at most `SLICES` + 1 slices."""

    slices: deque[Slice] = field(default_factory=deque)
    cap: int | None = None
    moved_at: float = NEVER


def record(budget: ErrorBudget, use: BudgetUse, done: Done) -> None:
    """Count one call's end."""
    number = int(done.at // (budget.window_s / SLICES))
    if not use.slices or use.slices[-1].number < number:
        use.slices.append(Slice(number))
    use.slices[-1].ended += 1
    use.slices[-1].failed += done.was_refused or done.failed


def burning(budget: ErrorBudget, use: BudgetUse, now: float) -> tuple[float, float]:
    """Return the burn rates over the window and over its last twelfth; 0 if too few calls have ended."""
    return (
        _burn_rate(budget, use, now, budget.window_s, LEAST),
        _burn_rate(budget, use, now, budget.short_s, LEAST_SHORT),
    )


def step(budget: ErrorBudget, use: BudgetUse, now: float, limit: int, ceiling: int) -> None:
    """Apply the rules; `limit` is the one in force."""
    oldest = int(now // (budget.window_s / SLICES)) - SLICES
    while use.slices and use.slices[0].number < oldest:
        use.slices.popleft()
    if now < use.moved_at + budget.short_s:
        return
    whole, lately = burning(budget, use, now)
    if whole >= budget.burn_rate and lately >= budget.burn_rate:
        use.cap, use.moved_at = max(1, limit // 2), now
    elif use.cap is not None and lately < 1.0:
        use.cap, use.moved_at = (2 * use.cap if 2 * use.cap < ceiling else None), now


def next_at(budget: ErrorBudget, use: BudgetUse) -> float | None:
    """Return when time alone may move the cap."""
    return use.moved_at + budget.short_s if use.cap is not None else None


def _burn_rate(budget: ErrorBudget, use: BudgetUse, now: float, window_s: float, least: int) -> float:
    since = int((now - window_s) // (budget.window_s / SLICES))
    inside = [s for s in use.slices if s.number > since]
    ended = sum(s.ended for s in inside)
    if ended < least:
        return 0.0
    return sum(s.failed for s in inside) / ended / (1.0 - budget.target)
