"""Latency as a sign of queueing, read without survivor bias and with a test for being wrong.

Calls are grouped into cohorts by the order of *sending*; a cohort's median is known once half of it is back, however
slow the rest is. If the median doubles over the least seen lately, the limit is cut towards it. Little's law then
judges the cut: where calls were queueing, limit / latency (the throughput) stays; if it falls by more than a fifth,
the model itself became slower, the cut is undone and the new latency is the base.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from dicast.workers.policy.events import Done

MOST_COHORTS = 50
LEAST_IN_COHORT = 12
"""The fewest accepted calls of a cohort that counts: the median of a few is chance."""
LEAST_COHORTS = 3
"""The fewest medians that make a base: one lucky cohort is not enough."""
BASE_GROWTH = 1.001
"""Growth of the base per cohort, so that one measured at a lucky time is forgotten slowly."""


@dataclass(slots=True)
class Cohort:
    first: float
    end: float | None = None
    size: int = 0
    latencies: list[float] = field(default_factory=list)


@dataclass(slots=True)
class CutTrial:
    """A cut under test: limits before and after, when, and the last median before it."""

    before: float
    after: float
    at: float
    median_before: float | None = None


@dataclass(slots=True)
class LatencyWatch:
    """Watches the latency. `hot` says that it rises, so that the limit must not grow. `base` is the least average of
    medians, and `medians` counts them since the start."""

    cohorts: deque[Cohort] = field(default_factory=deque)
    short: float | None = None
    base: float | None = None
    medians: int = 0
    trial: CutTrial | None = None
    hot: bool = False

    def forget(self) -> None:
        """Drop all cohorts: after an outage, earlier latencies are not comparable."""
        self.cohorts.clear()
        self.short = self.trial = None
        self.hot = False

    def sent(self, at: float, limit: float) -> None:
        if not self.cohorts or self.cohorts[-1].end is not None:
            if len(self.cohorts) > MOST_COHORTS:
                self.cohorts.popleft()
            self.cohorts.append(Cohort(at))
        cohort = self.cohorts[-1]
        cohort.size += 1
        if cohort.size >= max(20.0, limit / 2.0):
            cohort.end = at

    def observe(self, event: Done, *, limit: float, rtt_s: float, tolerance: float) -> float | None:
        """Take in one outcome; returns a new limit if the latency calls for one, else None.

        A value above `limit` undoes the cut under test; one below is a cut.
        """
        median = self._median(event.sent_at, event.latency_s, event.ok)
        if median is None:
            return None
        value, first, end = median
        if self.trial is not None:
            trial = self.trial
            if end <= trial.at:
                trial.median_before = value
                return None
            if first < trial.at + 1.5 * rtt_s:
                return None
            self.trial = None
            self.short = value
            if trial.after / value < 0.8 * trial.before / (trial.median_before or value):
                self.base = value
                return trial.before
        self.short = value if self.short is None else self.short + 0.4 * (value - self.short)
        self.medians += 1
        if self.medians < LEAST_COHORTS:
            return None
        self.base = self.short if self.base is None else min(self.base * BASE_GROWTH, self.short)
        self.hot = self.short > 0.9 * tolerance * self.base
        if self.short > tolerance * self.base and event.open_before > 0.7 * limit and limit > 1.0:
            after = max(1.0, limit * max(0.5, 1.2 * self.base / self.short))
            self.trial = CutTrial(limit, after, event.at)
            return after
        return None

    def _median(self, sent_at: float, latency_s: float, ok: bool) -> tuple[float, float, float] | None:
        """Count the outcome in its cohort; returns (median, first, end) once the median is known."""
        for cohort in self.cohorts:
            if cohort.end is None or sent_at <= cohort.end:
                break
        else:
            return None
        if sent_at < cohort.first:
            return None
        if ok:
            cohort.latencies.append(latency_s)
        else:
            cohort.size -= 1
        if cohort.end is None:
            return None
        if cohort.size < LEAST_IN_COHORT:
            self.cohorts.remove(cohort)
            return None
        if not ok or 2 * len(cohort.latencies) <= cohort.size:
            return None
        self.cohorts.remove(cohort)
        return sorted(cohort.latencies)[cohort.size // 2], cohort.first, cohort.end
