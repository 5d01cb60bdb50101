"""The two measured time scales of a pool: how fast refusals come back, and how long answers take."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from dicast.workers.policy.adaptive_config import AdaptiveConfig
from dicast.workers.policy.events import Done

LAST_REFUSALS = 8
WAY_MOST_S = 0.1
QUICKER_WEIGHT, SLOWER_WEIGHT = 0.2, 0.02
"""Weights that keep `quick_s` near the quickest tenth of the answers."""


@dataclass(slots=True)
class Timescales:
    """The time scales. A call older than `feedback_s` that was not refused has been accepted. `rtt_s` is the average
    latency of answers, `quick_s` that of the quickest ones."""

    feedback_s: float
    rtt_s: float
    quick_s: float
    answered: bool = False
    refusal_latencies: deque[float] = field(default_factory=lambda: deque(maxlen=LAST_REFUSALS))

    @property
    def way_s(self) -> float:
        """How long a call is under way to the provider, at most: half of the time in which a refusal comes back."""
        return min(WAY_MOST_S, 0.5 * min(self.refusal_latencies, default=0.0))

    def record_refusal(self, config: AdaptiveConfig, event: Done) -> None:
        self.refusal_latencies.append(event.latency_s)
        while len(self.refusal_latencies) > LAST_REFUSALS:
            self.refusal_latencies.popleft()
        self._bound(config)

    def record_answer(self, config: AdaptiveConfig, event: Done) -> None:
        """Add an answer's latency to the average; the first one becomes the average."""
        weight = config.rtt_weight if self.answered else 1.0
        self.rtt_s = max(1e-3, self.rtt_s + weight * (event.latency_s - self.rtt_s))
        if not self.answered:
            self.quick_s = event.latency_s
        quicker = event.latency_s < self.quick_s
        self.quick_s += (QUICKER_WEIGHT if quicker else SLOWER_WEIGHT) * (event.latency_s - self.quick_s)
        self.answered = True
        self._bound(config)

    def _bound(self, config: AdaptiveConfig) -> None:
        """Update `feedback_s`. A refusal costs no inference, so it comes back sooner than the quickest answers."""
        sooner = max(config.feedback_least_s, config.quick_factor * self.quick_s)
        if self.refusal_latencies:
            slowest = config.feedback_factor * max(self.refusal_latencies)
            self.feedback_s = min(config.feedback_max_s, max(min(config.feedback_min_s, sooner), slowest))
        else:
            self.feedback_s = min(config.feedback_first_s, sooner)
