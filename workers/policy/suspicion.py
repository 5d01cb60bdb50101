"""Single refusals at the very top: has the cap moved by one, or is it noise?

A cap that drifts down shows itself by one refusal of a call that used the last slot. Waiting for more would cost
more, so one slot is given up at once. Trying it again then tells which it was. Refused again: such refusals are
honest for a while, and cost one each. Accepted: they are noise for a while, and cost nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from dicast.workers.policy.calls import NEVER

RETRY_RTTS = 3.0
"""A slot accepted again so soon was not refused for the level."""
MOST_HONEST = 2
"""So many slots are given up untried; the next one is tried, lest noise wear the limit away."""


@dataclass(slots=True)
class Suspicion:
    """`level` open calls were refused at `at`, and nothing has settled it yet; None: no open question."""

    level: int | None = None
    at: float = NEVER
    noisy_until: float = NEVER
    honest_until: float = NEVER
    row: int = 0

    def arises(self, level: int, now: float) -> bool:
        """`level` was refused; True if the slot should be tried again soon, False if that may wait for a hold."""
        self.level, self.at = level, now
        self.row += 1
        if now < self.honest_until and self.row <= MOST_HONEST:
            return False
        self.row = 0
        return True

    def step_refused(self, limit: float, until: float) -> None:
        """A step to `limit` was refused; if that covers the suspect level, single refusals are honest `until` then."""
        if self.level is not None and limit >= self.level:
            self.level, self.honest_until = None, until

    def step_confirmed(self, limit: float, now: float, rtt_s: float, until: float) -> None:
        """A step to `limit` was accepted; soon after the suspicion arose that makes it noise `until` then."""
        if self.level is None or limit <= self.level:
            return
        if now - self.at < RETRY_RTTS * rtt_s:
            self.noisy_until = until
        self.level = None
