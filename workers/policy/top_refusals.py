"""Single refusals at the very top, which mean that the cap has moved by one, or are noise.

The first sign of a cap that drifts down is one refusal of a call that used the last slot. Waiting for more evidence
would cost more refusals, so one slot is given up at once, and tried again soon. If it is accepted then, such refusals
count as noise for a while, and cost nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from dicast.workers.policy.calls import NEVER

RETRY_RTTS = 3.0
"""A slot that is accepted again within this time was not refused for its level."""


@dataclass(slots=True)
class TopRefusals:
    """The last refusal at the top: at `level` open calls, at the time `at`. `level` is None once the question is
    settled."""

    level: int | None = None
    at: float = NEVER
    noisy_until: float = NEVER

    def note_refusal(self, level: int, now: float) -> None:
        """Note that `level` was refused."""
        self.level, self.at = level, now

    def step_confirmed(self, limit: float, now: float, rtt_s: float, until: float) -> None:
        """Note that a step to `limit` was accepted. If that is soon after the refusal, such refusals are noise `until`
        then."""
        if self.level is None or limit <= self.level:
            return
        if now - self.at < RETRY_RTTS * rtt_s:
            self.noisy_until = until
        self.level = None
