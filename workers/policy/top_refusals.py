"""Single refusals at the very top: has the cap moved by one, or is it noise?

A cap that drifts down shows itself by one refusal of a call that used the last slot. Waiting for more would cost
more, so one slot is given up at once, and soon tried again. Is it accepted, then such refusals are noise for a while,
and cost nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from dicast.workers.policy.calls import NEVER

RETRY_RTTS = 3.0
"""A slot accepted again so soon was not refused for the level."""


@dataclass(slots=True)
class TopRefusals:
    """`level` open calls were refused at `at`, and nothing has settled it yet; None: no open question."""

    level: int | None = None
    at: float = NEVER
    noisy_until: float = NEVER

    def refused(self, level: int, now: float) -> None:
        """`level` was refused."""
        self.level, self.at = level, now

    def step_confirmed(self, limit: float, now: float, rtt_s: float, until: float) -> None:
        """A step to `limit` was accepted; soon after the refusal that makes it noise `until` then."""
        if self.level is None or limit <= self.level:
            return
        if now - self.at < RETRY_RTTS * rtt_s:
            self.noisy_until = until
        self.level = None
