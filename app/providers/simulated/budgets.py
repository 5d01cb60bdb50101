"""Budgets of every kind that providers and gateways enforce, or only report.

A *bucket* refills all the time; a *window* forgets everything at its end, on the clock; a *log* forgets each request
one period after it was made. Pure: `now` is seconds on any steady clock; when it was 0, the wall clock said `unix_s`.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

KINDS, UNITS = ("bucket", "window", "log"), ("requests", "tokens")
_SPEC = re.compile(rf"({'|'.join(KINDS)}):(\d+)/(\d+(?:\.\d+)?)(?::({'|'.join(UNITS)}))?(:shown)?", re.ASCII)
_ROUNDING = 1e-9


class ReportedBudget(NamedTuple):
    """`limit` requests or tokens in `period_s`; one that is not `enforced` is only reported."""

    kind: str
    limit: int
    period_s: float
    unit: str = "requests"
    enforced: bool = True


class State(NamedTuple):
    """A budget as headers report it. `reset_s`: until a bucket is full, a window ends, or a log's oldest entry
    leaves."""

    budget: ReportedBudget
    remaining: int
    reset_s: float


def parse_budgets(text: str) -> tuple[ReportedBudget, ...]:
    """Parse budgets, joined by `+`. `window:4800/60` is 4,800 requests in each minute of the clock;
    `bucket:100000/60:tokens:shown` is a bucket of tokens that is reported and not enforced. Raises ValueError."""
    budgets = []
    for part in text.split("+"):
        match = _SPEC.fullmatch(part)
        if not match or not int(match[2]) or not float(match[3]):
            raise ValueError(f"a budget looks like window:4800/60 or bucket:100000/60:tokens:shown, got {part!r}")
        budgets.append(ReportedBudget(match[1], int(match[2]), float(match[3]), match[4] or UNITS[0], not match[5]))
    return tuple(budgets)


class Account:
    """What has been spent of one budget."""

    def __init__(self, budget: ReportedBudget, now: float, unix_s: float) -> None:
        self.budget, self._unix_s = budget, unix_s
        self._used, self._at, self._window = 0.0, now, self._window_of(now)
        self._entries: deque[tuple[float, float]] = deque()

    def wait_s(self, amount: float, now: float) -> float:
        """Return 0 if `amount` may be spent now, else the time until it may. An amount above the limit waits until all
        of the budget is there."""
        self._advance(now)
        short = min(amount, self.budget.limit) - (self.budget.limit - self._used)
        if not self.budget.enforced or short <= _ROUNDING:
            return 0.0
        if self.budget.kind == "bucket":
            return short * self.budget.period_s / self.budget.limit
        return max(0.001, self._reset_s(now))

    def take(self, amount: float, now: float) -> None:
        self._advance(now)
        self._used += amount
        if self.budget.kind == "log":
            self._entries.append((now, amount))

    def state(self, now: float) -> State:
        self._advance(now)
        return State(self.budget, max(0, math.floor(self.budget.limit - self._used + _ROUNDING)), self._reset_s(now))

    def _reset_s(self, now: float) -> float:
        period_s = self.budget.period_s
        if self.budget.kind == "bucket":
            return max(0.0, self._used) * period_s / self.budget.limit
        if self.budget.kind == "window":
            return (self._window + 1) * period_s - (self._unix_s + now)
        return self._entries[0][0] + period_s - now if self._entries else 0.0

    def _window_of(self, now: float) -> int:
        return math.floor((self._unix_s + now) / self.budget.period_s)

    def _advance(self, now: float) -> None:
        if self.budget.kind == "bucket":
            refilled = max(0.0, now - self._at) * self.budget.limit / self.budget.period_s
            self._used, self._at = max(0.0, self._used - refilled), max(now, self._at)
        elif self.budget.kind == "window":
            if (window := self._window_of(now)) > self._window:
                self._window, self._used = window, 0.0
        else:
            while self._entries and self._entries[0][0] <= now - self.budget.period_s:
                self._used -= self._entries.popleft()[1]


def amount_of(budget: ReportedBudget, tokens: int) -> int:
    """Return what one request of `tokens` takes from the budget."""
    return 1 if budget.unit == UNITS[0] else tokens


def longest_wait(accounts: Sequence[Account], tokens: int, now: float) -> tuple[float, str]:
    """Return how long a request has to wait for all budgets, and the unit of the last one; (0, "") if it need not."""
    waits = [(account.wait_s(amount_of(account.budget, tokens), now), account.budget.unit) for account in accounts]
    return max(waits, default=(0.0, "")) if any(wait for wait, _ in waits) else (0.0, "")
