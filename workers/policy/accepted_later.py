"""Levels that were refused and later accepted: a sign that the provider does not bound the number of open calls."""

from __future__ import annotations

from dataclasses import dataclass

from dicast.workers.policy.calls import NEVER

CLEARLY = 0.89
"""A refused level is disproved if it is below this part of an accepted limit."""


@dataclass(slots=True)
class AcceptedLater:
    """The last refused `level` and when it was refused (`at`). `count` refused levels in a row were accepted later, the
    last at `last_at`."""

    level: int | None = None
    at: float = NEVER
    count: int = 0
    last_at: float = NEVER

    def note_refusal(self, level: int, now: float) -> None:
        self.level, self.at = level, now

    def below(self, now: float, rtt_s: float) -> int | None:
        """Return the level refused within the last two round trips; a diagnosis clearly below it means that it fell
        again."""
        return self.level if now - self.at < 2.0 * rtt_s else None

    def confirmed(self, limit: float, now: float, rtt_s: float, memory_rtts: float) -> bool:
        """Note that `limit` was accepted; returns whether that disproves a remembered level for the second time."""
        if self.level is None or now - self.at >= memory_rtts * rtt_s or self.level >= CLEARLY * limit:
            return False
        self.level = None
        return self.count_acceptance(now, rtt_s, memory_rtts)

    def count_acceptance(self, now: float, rtt_s: float, memory_rtts: float) -> bool:
        """Count a disproved level; returns whether it is the second within the memory."""
        self.count = self.count + 1 if now - self.last_at < memory_rtts * rtt_s else 1
        self.last_at = now
        return self.count >= 2
