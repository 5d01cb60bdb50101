"""The *rules* engine: error rate and CPU move the limit by rules in priority order, clamps last.

Each `every_s`, the first that changes the limit wins:

1. CPU above `cpu_high_percent` (after `cpu_grace_s` from the start): halve, and remember the limit before the first;
2. error rate above `error_high` in the last `window_s`: one less;
3. error rate below `error_low` for `sustain_s`: one more, up to the configured limit;
4. CPU recovered: back to the remembered limit.

Then, whatever fired: not below `max(1, configured // 2)` unless the CPU rule went there; and last the SLO cap, which
is a hard one. Refusals count as errors. Useful for a node's own width, where no provider's limit has to be found.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from dicast.workers.policy.breaker import Breaker
from dicast.workers.policy.calls import NEVER, Done, Sent
from dicast.workers.policy.engines import Directives


class LimitCause(StrEnum):
    """The rule that set the limit last. The values are labels of a metric."""

    START = "start"
    CONFIGURED = "configured"
    CPU_HIGH = "CPU"
    CPU_RECOVERED = "CPU recovered"
    ERRORS_HIGH = "error rate"
    ERRORS_LOW = "error rate for long"
    CLAMPED = "clamped"
    SLO_CAP = "SLO cap"


@dataclass(frozen=True, slots=True)
class RulesConfig:
    """Thresholds; shares are 0..1, CPU is percent of one core (a node of 4 cores tops at 400). `cpu_by` selects
    the reading: the last `sample`, or the machine's `load` over five minutes."""

    every_s: float = 5.0
    window_s: float = 600.0
    error_high: float = 0.20
    error_low: float = 0.05
    sustain_s: float = 120.0
    cpu_high_percent: float = 300.0
    cpu_grace_s: float = 120.0
    cpu_by: Literal["sample", "load"] = "sample"


@dataclass(slots=True)
class Second:
    """The outcomes of one second, added up, so that the window is bounded however many calls it holds."""

    at: int
    ended: int = 0
    errors: int = 0


@dataclass(slots=True)
class RulesState:
    """The engine's state. `before_cpu` is the limit to restore when the CPU recovers; `low_since` is the beginning of a
    sustained low error rate. `reason` puts `cause` into words, with the figure that it rests on."""

    configured: int
    limit: int
    seconds: deque[Second] = field(default_factory=deque)
    started_at: float | None = None
    stepped_at: float = NEVER
    low_since: float | None = None
    cpu_percent: float = 0.0
    before_cpu: int | None = None
    slo: int | None = None
    reason: str = "start"
    cause: LimitCause = LimitCause.START
    kind: Literal["rules"] = "rules"

    def configure(self, configured: int) -> None:
        """Follow another configured limit: a limit that stood at the old one moves with it."""
        if configured == self.configured:
            return
        if self.limit >= self.configured:
            self.limit = configured
            self.explain(LimitCause.CONFIGURED)
        self.configured, self.limit = configured, min(self.limit, configured)

    def explain(self, cause: LimitCause, error_rate: float = 0.0) -> None:
        """Note what has set the limit."""
        self.cause = cause
        match cause:
            case LimitCause.CPU_HIGH:
                self.reason = f"CPU {self.cpu_percent:.0f} %"
            case LimitCause.ERRORS_HIGH:
                self.reason = f"error rate {error_rate:.0%}"
            case LimitCause.ERRORS_LOW:
                self.reason = f"error rate {error_rate:.0%} for long"
            case LimitCause.SLO_CAP:
                self.reason = f"SLO cap {self.slo}"
            case _:
                self.reason = str(cause)


@dataclass(frozen=True, slots=True)
class RulesStatus:
    configured: int
    current: int
    error_rate: float
    cpu_percent: float
    reason: str
    window_size: int
    load_percent: float = 0.0
    """The machine's load over five minutes, percent of one core: 4.0 is 400. It includes what waits for a core."""
    cause: str = ""
    """The `LimitCause` that `reason` puts into words; '' from a node whose version does not report it."""


def record(state: RulesState, error: bool, now: float) -> None:
    """Count one outcome."""
    if not state.seconds or state.seconds[-1].at < int(now):
        state.seconds.append(Second(int(now)))
    state.seconds[-1].ended += 1
    state.seconds[-1].errors += error


def error_rate(config: RulesConfig, state: RulesState, now: float) -> tuple[float, int]:
    """Return (errors over outcomes, outcomes) of the window; 0 if it is empty. The state is not changed."""
    inside = [s for s in state.seconds if s.at >= now - config.window_s]
    ended = sum(s.ended for s in inside)
    return (sum(s.errors for s in inside) / ended if ended else 0.0), ended


def step(config: RulesConfig, state: RulesState, now: float) -> None:
    """Apply the rules once."""
    if state.started_at is None:
        state.started_at = now
    while state.seconds and state.seconds[0].at < now - config.window_s:
        state.seconds.popleft()
    rate, _ = error_rate(config, state, now)
    before, cause = state.limit, None
    low_since, state.low_since = state.low_since, None
    if state.cpu_percent > config.cpu_high_percent and now > state.started_at + config.cpu_grace_s:
        state.before_cpu = max(state.before_cpu or 0, state.limit)
        state.limit, cause = max(1, state.limit // 2), LimitCause.CPU_HIGH
    elif rate > config.error_high and state.limit > 1:
        state.limit, cause = state.limit - 1, LimitCause.ERRORS_HIGH
    elif rate < config.error_low and low_since is None:
        state.low_since = now
    elif rate < config.error_low and low_since is not None:
        state.low_since = low_since
        if now - low_since >= config.sustain_s and state.limit < state.configured:
            state.limit, state.low_since, cause = state.limit + 1, now, LimitCause.ERRORS_LOW
    if cause is None and state.before_cpu is not None and state.cpu_percent <= config.cpu_high_percent:
        state.limit, state.before_cpu, cause = max(state.limit, state.before_cpu), None, LimitCause.CPU_RECOVERED
    _clamp(state)
    if state.limit != before:
        state.explain(cause or LimitCause.CLAMPED, rate)


def _clamp(state: RulesState) -> None:
    floor = max(1, state.configured // 2)
    if state.before_cpu is None:
        state.limit = max(state.limit, floor)
    state.limit = max(1, min(state.limit, state.configured))
    if state.slo is not None:
        state.limit = max(1, min(state.limit, state.slo))


class Rules:
    """The engine. `cpu_percent` and the SLO cap come from outside, between events."""

    breaker = Breaker()

    def __init__(self, config: RulesConfig, state: RulesState) -> None:
        self.config, self.state = config, state

    @property
    def limit(self) -> float:
        return float(self.state.limit)

    def set_cpu(self, percent: float) -> None:
        """The node's CPU load, percent of one core; ignored unless it is a sane number."""
        if 0.0 <= percent <= 1e6:
            self.state.cpu_percent = percent

    def set_slo_constraint(self, most: int | None) -> None:
        """Cap the limit from now on, below the floor too; None lifts the cap. Takes effect at once."""
        if most is not None and most < 1:
            raise ValueError(f"SLO constraint must be >= 1, got {most}")
        self.state.slo = most
        before = self.state.limit
        _clamp(self.state)
        if self.state.limit != before:
            self.state.explain(LimitCause.SLO_CAP)

    def status(self, now: float) -> RulesStatus:
        rate, size = error_rate(self.config, self.state, now)
        state = self.state
        return RulesStatus(
            state.configured, state.limit, rate, state.cpu_percent, state.reason, size, cause=state.cause
        )

    def sent(self, event: Sent) -> None:
        """Ignored: sending says nothing about errors."""

    def done(self, event: Done) -> None:
        record(self.state, not event.ok, event.at)

    def advance(self, now: float) -> None:
        if now >= self.state.stepped_at + self.config.every_s:
            self.state.stepped_at = now
            step(self.config, self.state, now)

    def next_at(self) -> float | None:
        return self.state.stepped_at + self.config.every_s

    def directives(self) -> Directives:
        return Directives(limit_if_refused=self.limit)
