"""What the default engine remembers: plain data of bounded size, stored as JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from dicast.workers.policy.accepted_later import AcceptedLater
from dicast.workers.policy.adaptive_config import AdaptiveConfig
from dicast.workers.policy.breaker import Breaker
from dicast.workers.policy.budgets.told import ReportedBudgets
from dicast.workers.policy.calls import NEVER, CallLog
from dicast.workers.policy.failures import Failures
from dicast.workers.policy.growth import Growth
from dicast.workers.policy.latency import LatencyWatch
from dicast.workers.policy.noise import Noise
from dicast.workers.policy.rate import LearnedRate
from dicast.workers.policy.timescales import Timescales
from dicast.workers.policy.top_refusals import TopRefusals


@dataclass(slots=True)
class SingleCalls:
    """The phase after a collapse, in which one unresolved call is sent at a time.

    `level` open calls were refused at the collapse, `highest` were open when a single call was refused last.
    `slow_start` says that the pool was starting, so that no level is known to be good.
    """

    level: int
    slow_start: bool
    highest: int = 0


@dataclass(slots=True)
class AdaptiveState:
    """The whole state of the default engine.

    `judging_since` is when grants were held to diagnose the episode of refusals that began at `episode`. `ceiling` is
    that of the last decision.
    """

    growth: Growth
    timescales: Timescales
    log: CallLog = field(default_factory=CallLog)
    judging_since: float | None = None
    episode: float = 0.0
    single_calls: SingleCalls | None = None
    top_refusals: TopRefusals = field(default_factory=TopRefusals)
    accepted_later: AcceptedLater = field(default_factory=AcceptedLater)
    rate: LearnedRate | None = None
    noise: Noise = field(default_factory=Noise)
    not_a_rate_until: float = NEVER
    overloaded_at: float = NEVER
    told: ReportedBudgets = field(default_factory=ReportedBudgets)
    latency: LatencyWatch = field(default_factory=LatencyWatch)
    breaker: Breaker = field(default_factory=Breaker)
    failures: Failures = field(default_factory=Failures)
    limit_at_trip: float = 0.0
    ceiling: int = 0
    reason: str = "start"
    kind: Literal["adaptive"] = "adaptive"

    @classmethod
    def starting_at(cls, config: AdaptiveConfig, limit: float) -> AdaptiveState:
        return cls(
            Growth(float(limit)), Timescales(config.feedback_first_s, config.rtt_first_s, config.feedback_first_s)
        )

    def ceiling_is(self, ceiling: int, first: float) -> None:
        """Take in the ceiling, under which a new pool begins with the limit `first`.

        If only the former ceiling kept the limit from rising, and no level above it was ever refused, slow start goes
        on.
        """
        if 0 < self.ceiling < ceiling and self.growth.limit >= self.ceiling and self.accepted_later.level is None:
            self.growth.go_on(first, float(ceiling))
        self.ceiling = ceiling
