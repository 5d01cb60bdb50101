"""How a budget refills, inferred from its snapshots.

The same three header names serve a bucket that refills continuously, a window that gives everything back at its end,
and a log that gives back each call one window after it was made. They differ in how the reported reset moves:

* spending moves a bucket's reset away, since reset is the time until it is full;
* a window's reset comes nearer with the clock, whatever is spent;

and in how `remaining` moves: a bucket gives back all the time, a window nothing and then all, a log what was spent one
period ago.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

NICE_PERIODS_S = (1.0, 10.0, 60.0, 300.0, 900.0, 3600.0, 18000.0, 86400.0, 604800.0, 2592000.0)
"""Periods that a provider would choose."""
USUAL_PERIOD_S = 60.0
SURE, MOST = 2.0, 6.0
"""The evidence from which on something counts as known, and the most that is kept."""
JITTER_S = 0.15
"""By how much the time that calls are under way may vary."""
MOST_BLUR = 0.45
"""Likely periods differ by a factor of three or more, so an estimate with a smaller error identifies one."""
ENOUGH_BACK = 20.0
"""The number of calls that have to come back before a log can be recognised: a few always arrive out of order."""


class BudgetKind(StrEnum):
    UNKNOWN = "unknown"
    BUCKET = "bucket"
    WINDOW = "window"
    LOG = "log"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot: what was left when a call sent `at` arrived, our counter `spent` then, and the reported reset as an
    instant."""

    at: float
    remaining: float
    spent: float
    reset_at: float | None = None
    grain_s: float = 0.0

    @property
    def blur_s(self) -> float:
        """By how much two resets of the same window may differ."""
        return self.grain_s + JITTER_S


@dataclass(slots=True)
class Nature:
    """The evidence on how a budget refills. `leaning` above 0 speaks for a bucket, below 0 for a window; `sliding`
    above 0 speaks for a log.

    `slid` says that it is a log. `period_s` is reported by the provider (`told`), or inferred; 0 if it is unknown.
    `guess_s` is a period seen once. `came_back` is what came back of late, `due_back` what would have come back in a
    log.
    """

    leaning: float = 0.0
    sliding: float = 0.0
    slid: bool = False
    period_s: float = 0.0
    told: bool = False
    guess_s: float = 0.0
    came_back: float = 0.0
    due_back: float = 0.0

    @property
    def kind(self) -> BudgetKind:
        if self.leaning >= SURE:
            return BudgetKind.BUCKET
        if self.slid:
            return BudgetKind.LOG
        return BudgetKind.WINDOW if self.leaning <= -SURE else BudgetKind.UNKNOWN

    @property
    def lasts_s(self) -> float:
        """The period, or the usual one if it is unknown."""
        return self.period_s or USUAL_PERIOD_S

    def period_is(self, seconds: float, within: float) -> bool:
        """Return whether `seconds` match the reported period within a part, or twice in a row the same likely period,
        which is no coincidence."""
        if self.told:
            return abs(seconds / self.period_s - 1.0) <= within
        nice = next((p for p in NICE_PERIODS_S if abs(seconds / p - 1.0) <= within), 0.0)
        repeated, self.guess_s = nice > 0.0 and nice == self.guess_s, nice
        if repeated:
            self.period_s = nice
        return repeated

    def lasts_longer(self, seconds: float) -> None:
        """Note that a window's end is so far off, so that its period is no shorter."""
        if not self.told and self.kind in (BudgetKind.WINDOW, BudgetKind.UNKNOWN) and seconds > 1.1 * self.lasts_s:
            self.period_s = next((p for p in NICE_PERIODS_S if p >= 0.95 * seconds), NICE_PERIODS_S[-1])

    def period_is_less(self, seconds: float) -> None:
        """Note that two windows began so far apart, so that the period is no longer."""
        nice = next((p for p in NICE_PERIODS_S if abs(seconds / p - 1.0) <= 0.15), 0.0)
        if nice and not self.told and nice < self.lasts_s:
            self.period_s = nice

    def jumped(self) -> None:
        """Note that everything came back at once, which no bucket and no log does."""
        self.leaning = max(-MOST, self.leaning - 1.0)
        self._slide(-1.0)
        self.came_back = self.due_back = 0.0

    def found_sliding(self) -> None:
        """Note that more was accepted than a window had left, and no more than a log gave back."""
        self._slide(SURE - self.sliding)

    def _slide(self, votes: float) -> None:
        """Add votes for a log. A log stays one until most speaks against it, since its returns are counted only
        roughly."""
        self.sliding = max(-MOST, min(MOST, self.sliding + votes))
        self.slid = self.sliding >= SURE or (self.slid and self.sliding > -SURE)

    def compare(self, old: Snapshot, new: Snapshot, limit: float, cost: float) -> None:
        """Learn from two snapshots of one window; a call takes about `cost`."""
        votes = self._votes_of_reset(old, new, limit, cost) + self._votes_of_level(old, new, limit, cost)
        self.leaning = max(-MOST, min(MOST, self.leaning + votes))

    def _votes_of_reset(self, old: Snapshot, new: Snapshot, limit: float, cost: float) -> float:
        """Return the votes of the reset.

        Rules, first match wins: less is left and the reset is further off, in proportion -> bucket; the reset came
        nearer by the time that passed, and nothing came back -> window; else no vote.
        """
        if old.reset_at is None or new.reset_at is None or new.reset_at <= new.at or self.slid:
            return 0.0
        elapsed, fell, blur_s = new.at - old.at, old.remaining - new.remaining, new.blur_s
        away = (new.reset_at - new.at) - (old.reset_at - old.at)
        if fell >= 5.0 * cost and away > 2.0 * blur_s:
            within = blur_s / away + 2.0 * cost / fell + 0.03
            return 2.0 if within < MOST_BLUR and self.period_is(limit * away / fell, within) else 0.0
        if elapsed > 2.0 * blur_s and abs(away + elapsed) <= blur_s and fell >= -cost:
            came_back = new.spent - old.spent - fell
            return -2.0 if came_back < 0.3 * limit * elapsed / self.lasts_s + cost else 0.0
        return 0.0

    def _votes_of_level(self, old: Snapshot, new: Snapshot, limit: float, cost: float) -> float:
        """Return the votes of what came back, compared with a bucket's refill; none if the budget is full, or was
        empty."""
        elapsed = new.at - old.at
        refill = limit * elapsed / self.lasts_s
        if refill < 3.0 * cost or new.remaining >= 0.95 * limit or new.remaining < cost:
            return 0.0
        part = (new.spent - old.spent + new.remaining - old.remaining) / refill
        weight = 1.0 if self.period_s else 0.5
        return weight if 0.6 <= part <= 2.0 else -weight if part <= 0.25 else 0.0

    def slides(self, came_back: float, due_back: float, cost: float) -> None:
        """Compare what came back with what was spent one period ago: a log gives back exactly that."""
        self.came_back += came_back
        self.due_back += due_back
        if self.due_back < ENOUGH_BACK * cost:
            return
        like = abs(self.came_back - self.due_back) <= 0.35 * self.due_back + 2.0 * cost
        self._slide(1.0 if like else -1.0)
        self.came_back = self.due_back = 0.0
