"""A counter's recent past, thinned out."""

from __future__ import annotations

from dataclasses import dataclass, field

MOST_POINTS = 120
AT_ONCE_S = 0.01
"""After a pause, the counter begins to grow this long before the next point."""


@dataclass(slots=True)
class Meter:
    """Points (instant, count) in the order of time, some of the past ones left out."""

    points: list[tuple[float, float]] = field(default_factory=list)

    def note(self, at: float, total: float, apart_s: float) -> None:
        """Note that the counter stood at `total`. A point within `apart_s` of the last one is left out; the oldest are
        dropped.

        The counter may fall a little, when a counted call turns out not to count; if it falls far, it was reset.
        """
        if self.points and total < 0.5 * self.points[-1][1]:
            self.points = []
        if self.points and (at < self.points[-1][0] + apart_s or total < self.points[-1][1]):
            return
        if self.points and at > self.points[-1][0] + 2.0 * apart_s:
            self.points.append((at - AT_ONCE_S, self.points[-1][1]))
        self.points.append((at, total))
        if len(self.points) > MOST_POINTS:
            del self.points[: len(self.points) - MOST_POINTS]

    def thin(self) -> None:
        """Make room by keeping only every second point of the older half."""
        if len(self.points) >= MOST_POINTS:
            half = MOST_POINTS // 2
            self.points = self.points[:half:2] + self.points[half:]

    def at(self, instant: float) -> float | None:
        """Return what the counter stood at, interpolated between two points; None before the first one."""
        if not self.points or instant < self.points[0][0]:
            return None
        before = self.points[0]
        for point in self.points:
            if point[0] > instant:
                part = (instant - before[0]) / (point[0] - before[0])
                return before[1] + part * (point[1] - before[1])
            before = point
        return before[1]

    def between(self, start: float, end: float) -> float:
        """Return by how much the counter grew; growth before the first point is unknown and does not count."""
        first, last = self.at(start), self.at(end)
        if last is None:
            return 0.0
        return last - (self.points[0][1] if first is None else first)
