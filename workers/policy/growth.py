"""How the limit on open calls grows: slow start, climbing back, and careful steps beyond what is known.

A step is *pending* until the new limit was filled three times and a feedback delay passed without a refusal; only
then comes the next one. Three paces (the window's congestion control, Jacobson 1988, with silence for the
acknowledgement):

* slow start: times `slow_start_factor`, up to `good` if a good level is remembered;
* below `good`, the level that was fine a while ago: plus 5 %, at least 1, each feedback delay;
* beyond: after a hold, +1, +2, +4 ... as long as steps are confirmed. A refused step is undone exactly and the hold
  doubles, so that a stable cap costs one refusal a hold.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dicast.workers.policy.calls import NEVER

FILLS = 3
"""How often a new limit must be filled to be confirmed."""
MOST_ON_WAY = 4.0
LARGE_STEP = 4.0
SETTLED_ROW = 3
"""A level that was refused this often in a row, and no other one, is considered stable."""
SLOW_START_PART = 0.9
"""Slow start ends when this part of the ceiling is confirmed: calls beyond the true capacity would all be refused
before the first refusal arrives."""


@dataclass(slots=True)
class Growth:
    """The growth of the limit.

    `limit` is the wanted limit, `before` the one before the last step, `good` a level known to be accepted. `refused`
    is the lowest level at which a step of one call was refused, `row` times in a row (0: none).

    The limit was filled `fills` times of `needed` since it last moved, the last counted time at `filled_at`. `resumed`
    says that work has come back after a pause and has not filled the limit yet.
    """

    limit: float
    slow_start: bool = True
    pending: bool = True
    before: float = 0.0
    grew_at: float = NEVER
    full_since: float | None = None
    fills: int = 0
    needed: int = FILLS
    filled_at: float = NEVER
    increment: float = 1.0
    hold_rtts: float = 1.0
    good: float = 0.0
    cut_at: float = NEVER
    gentle: bool = False
    slow_start_until: float = NEVER
    resumed: bool = False
    refused: float = 0.0
    row: int = 0

    @property
    def step(self) -> float:
        """The number of calls that the pending step has added."""
        return max(0.0, self.limit - self.before) if self.pending else 0.0

    @property
    def large_step(self) -> bool:
        """Whether the pending step is so large that it may be refused for its haste alone."""
        return self.step >= LARGE_STEP

    @property
    def cautious(self) -> bool:
        """Whether bursts are forbidden: while a step of more than one call is tried, and after a cut until the limit is
        filled again; but not if work has come back after a pause."""
        return not (self.slow_start or self.resumed) and (self.step >= 2.0 or self.full_since is None)

    @property
    def settled(self) -> bool:
        """Whether the limit has been stable for long."""
        return self.row >= SETTLED_ROW

    def filled(self, at: float) -> None:
        """Note that a call was sent that used the last slot."""
        self.resumed = False
        if self.full_since is None:
            self.full_since = at
        if self.fills < min(self.needed, max(1, int(self.limit))):
            self.fills, self.filled_at = self.fills + 1, at

    def confirmed_at(self, feedback_s: float) -> float | None:
        """Return when the pending step counts as accepted, if nothing is refused until then; None before it is
        filled."""
        if self.fills < min(self.needed, max(1, int(self.limit))):
            return None
        if self.slow_start:
            return max(self.filled_at, self.grew_at + feedback_s)
        return self.filled_at + feedback_s

    @property
    def _was_refused(self) -> bool:
        return 0.0 < self.refused <= self.limit < self.refused + 1.0

    def confirm(self, hold_min_rtts: float, ceiling: float) -> None:
        """Note that the pending step was accepted; slow start ends near the ceiling."""
        self.pending = False
        if self.limit >= self.refused:
            self.refused, self.row = 0.0, 0
        if not self.slow_start and self.limit > self.good:
            self.hold_rtts, self.good = max(hold_min_rtts, self.hold_rtts / 2.0), self.limit
        if self.slow_start and self.limit >= SLOW_START_PART * ceiling:
            self.slow_start, self.slow_start_until = False, self.filled_at

    def next_step_at(self, feedback_s: float, rtt_s: float) -> float | None:
        """Return when the next step is due; None if the limit was not filled since it last moved."""
        if self.full_since is None:
            return None
        if self.slow_start:
            return self.full_since
        if self.limit < self.good or self.increment > 1.0:
            return self.full_since + feedback_s
        return self.full_since + max(feedback_s, self.hold_rtts * rtt_s)

    def grow(self, now: float, ceiling: float, slow_start_factor: float, hold_min_rtts: float, on_way: float) -> None:
        """Take the next step; about `on_way` calls are under way to the provider at any instant.

        One call too many passes when another one ends while it is under way. So a level that was refused before has to
        be filled more often to count as accepted.
        """
        before = self.limit
        if self.slow_start:
            most = ceiling if self.good >= ceiling else max(self.limit, SLOW_START_PART * ceiling)
            new = min(most, self.limit * slow_start_factor)
            if self.good and new >= self.good:
                new, self.slow_start, self.hold_rtts = self.good, False, hold_min_rtts
        elif self.limit < self.good:
            new = min(self.good, self.limit + max(1.0, 0.05 * self.limit))
        else:
            new = self.limit + self.increment
            self.increment = min(2.0 * self.increment, max(1.0, 0.3 * self.limit))
        self._move(min(ceiling, new))
        self.before, self.grew_at, self.pending = before, now, True
        if self._was_refused:
            self.needed = math.ceil(FILLS * math.exp(min(on_way, MOST_ON_WAY)))

    def undo(self, now: float, hold_min_rtts: float, hold_max_rtts: float) -> None:
        """Undo the pending step, and wait longer before the next one."""
        self.good = self.before
        if self.large_step and not self.gentle:
            self.retry_gently()
        else:
            if self.step < 2.0:
                self.row = self.row + 1 if self._was_refused else 1
                self.refused = self.limit
                self.double_hold(hold_min_rtts, hold_max_rtts)
            self.gentle = False
        self.cut(now, self.before)

    def retry_gently(self) -> None:
        """Try the step again at once, spread over several feedback delays: it may have been refused for its haste
        only."""
        self.gentle, self.hold_rtts = True, 0.0

    def cut(self, now: float, limit: float) -> None:
        """Lower the limit. Refusals of calls sent before now belong to the old limit."""
        if self.slow_start:
            self.slow_start_until = now
        self._move(limit)
        self.slow_start, self.increment, self.cut_at = False, 1.0, now

    def lower(self, limit: float) -> None:
        """Lower the limit without starting a new settle window."""
        self._move(float(limit))
        self.increment, self.refused = 1.0, limit + 1.0

    def uncut(self, now: float, limit: float) -> None:
        """Undo a cut that was wrong; `limit` is known to be good."""
        self._move(limit)
        self.good, self.increment, self.cut_at = max(self.good, limit), 1.0, now

    def forget_step(self) -> None:
        """Forget the pending step, because the limit is not the bound: whether it was filled says nothing."""
        self.full_since, self.pending = None, False

    def lift(self, limit: float) -> None:
        """Raise the limit, because something else than the number of open calls is the bound."""
        if self.limit < limit:
            self._move(limit)
            self.slow_start, self.good = False, max(self.good, limit)

    def retake(self, now: float, hold_min_rtts: float) -> None:
        """Go on growing from here, in slow start if that was interrupted: what stopped the growth was noise."""
        if self.slow_start_until > NEVER and not self.good:
            self.restart(now, self.limit, 0.0, hold_min_rtts)
        else:
            self._move(self.limit)
            self.hold_rtts = hold_min_rtts

    def go_on(self, start: float, until: float) -> None:
        """Resume slow start from here, or from `start` if that is more, up to `until`: levels above were never
        tried."""
        self._move(max(self.limit, start))
        self.slow_start, self.pending, self.good = True, True, until

    def double_hold(self, hold_min_rtts: float, hold_max_rtts: float) -> None:
        self.hold_rtts = min(hold_max_rtts, max(hold_min_rtts, 2.0 * self.hold_rtts))

    def restart(self, now: float, limit: float, good: float, hold_min_rtts: float) -> None:
        """Begin slow start at `limit`, back to `good` (after an outage)."""
        self._move(limit)
        self.before, self.good, self.hold_rtts, self.pending = 0.0, good, hold_min_rtts, True
        self.slow_start, self.increment, self.cut_at, self.grew_at = True, 1.0, now, now

    def _move(self, limit: float) -> None:
        self.limit, self.full_since, self.pending, self.resumed = limit, None, False, False
        self.fills, self.needed = 0, FILLS
