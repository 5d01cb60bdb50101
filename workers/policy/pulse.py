"""The two time scales of a pool, measured: how fast refusals come back, and how long answers take."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from workers.policy.adaptive_config import AdaptiveConfig
from workers.policy.events import Done

LAST_REFUSALS = 8


@dataclass(slots=True)
class Pulse:
    """`feedback_s`: a call older than this that was not refused has been accepted. `rtt_s`: an answer's latency."""

    feedback_s: float
    rtt_s: float
    answered: bool = False
    refusal_latencies: deque[float] = field(default_factory=lambda: deque(maxlen=LAST_REFUSALS))

    def refused(self, config: AdaptiveConfig, event: Done) -> None:
        self.refusal_latencies.append(event.latency_s)
        while len(self.refusal_latencies) > LAST_REFUSALS:
            self.refusal_latencies.popleft()
        slowest = config.feedback_factor * max(self.refusal_latencies)
        self.feedback_s = min(config.feedback_max_s, max(config.feedback_min_s, slowest))

    def served(self, config: AdaptiveConfig, event: Done) -> None:
        """Take an answer's latency into the average; the first one is the average."""
        weight = config.rtt_weight if self.answered else 1.0
        self.rtt_s = max(1e-3, self.rtt_s + weight * (event.latency_s - self.rtt_s))
        self.answered = True
