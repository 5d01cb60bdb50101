"""Levels that were refused and later accepted: the sign that something else than the number open is bounded."""

from __future__ import annotations

from dataclasses import dataclass

from dicast.workers.policy.calls import NEVER

CLEARLY = 0.89
"""A refused level below this part of an accepted limit is disproved."""
HASTE_RTTS = 3.0
"""Accepted so soon after the refusal when asked for gently: it was refused for the haste."""
HASTE_MEMORY_RTTS = 5.0


@dataclass(slots=True)
class Reversals:
    """`level` was refused at `at`. `hasty_at` is when it was last found that haste, not the level, was refused."""

    level: int | None = None
    at: float = NEVER
    hasty_at: float = NEVER
    count: int = 0
    last_at: float = NEVER

    def refused(self, level: int, now: float) -> None:
        self.level, self.at = level, now

    def below(self, now: float, rtt_s: float) -> int | None:
        """The level refused within the last two round trips: a verdict clearly under it means that it fell again."""
        return self.level if now - self.at < 2.0 * rtt_s else None

    def confirmed(self, limit: float, *, gently: bool, now: float, rtt_s: float, memory_rtts: float) -> bool:
        """`limit` was accepted; True if that disproves the remembered level for the second time."""
        if self.level is None or now - self.at >= memory_rtts * rtt_s or self.level >= CLEARLY * limit:
            return False
        if gently and now - self.at < HASTE_RTTS * rtt_s:
            self.hasty_at = now
        self.level = None
        return self.again(now, rtt_s, memory_rtts)

    def again(self, now: float, rtt_s: float, memory_rtts: float) -> bool:
        """Count a reversal; True for the second within the memory."""
        self.count = self.count + 1 if now - self.last_at < memory_rtts * rtt_s else 1
        self.last_at = now
        return self.count >= 2

    def was_haste(self, now: float, rtt_s: float) -> bool:
        return now < self.hasty_at + HASTE_MEMORY_RTTS * rtt_s
