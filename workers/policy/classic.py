"""The *classic* engine: additive increase by timer, multiplicative decrease with a settle window.

Rules when a call is refused, first match wins:

1. half open: a refusal of the probe opens the breaker anew for twice as long, others only count;
2. open: counts only;
3. at the floor: there is nothing left to give up -> the breaker opens;
4. within `settle_s` of the last change: counts only, nothing moves;
5. else the limit is divided by `burst_factor` if `burst_reporters` distinct reporters were refused within
   `burst_window_s`, else by `factor`; and the `trip_decreases`th decrease within `trip_window_s` opens the breaker.

A call that is served with a `Retry-After` says that the next would not be: nothing is granted until then
(`retry_after_max_s` at most).

The limit grows by one each `grow_every_s` without a decrease; a probe that is answered closes the breaker at limit 1.
Calls are spaced by a jittered gap. Increase and decrease after Chiu and Jain (1989); the constants are an agent
runner's, whose calls last minutes: with calls of seconds they leave nearly all capacity unused.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from dicast.workers.policy import breaker as breakers
from dicast.workers.policy.breaker import Breaker, BreakerConfig
from dicast.workers.policy.calls import Done, Sent
from dicast.workers.policy.engines import Directives

MOST_REPORTS = 1000


@dataclass(frozen=True, slots=True)
class ClassicConfig:
    """The constants. Durations are in seconds; `gap_jitter` is the half-width of the gap's random part, as a share."""

    grow_every_s: float = 300.0
    settle_s: float = 120.0
    factor: int = 2
    burst_factor: int = 4
    burst_reporters: int = 3
    burst_window_s: float = 30.0
    trip_decreases: int = 3
    trip_window_s: float = 600.0
    breaker: BreakerConfig = field(default_factory=lambda: BreakerConfig(break_s=300.0, break_max_s=3600.0))
    limit_after_break: int = 1
    gap_s: float = 3.0
    gap_jitter: float = 0.5
    retry_after_max_s: float = 300.0


@dataclass(frozen=True, slots=True)
class ClassicState:
    """The engine's state. `grown_at` is None before the first tick. `reports` are the refusals in the burst window, as
    (instant, reporter); `decreases` are the instants of decreases."""

    limit: int
    settle_until: float = 0.0
    grown_at: float | None = None
    reports: tuple[tuple[float, str], ...] = ()
    decreases: tuple[float, ...] = ()
    breaker: Breaker = field(default_factory=Breaker)
    hold_until: float = 0.0
    reason: str = "the limit that a pool begins with"
    kind: Literal["classic"] = "classic"


def on_tick(config: ClassicConfig, state: ClassicState, now: float, ceiling: int) -> ClassicState:
    """Let time pass: apply the breaker's deadlines, and grow by one for each `grow_every_s` since the last change."""
    grown_at = now if state.grown_at is None else state.grown_at
    state = replace(state, grown_at=grown_at, breaker=breakers.tick(config.breaker, state.breaker, now))
    if not state.breaker.closed:
        return state
    since = max(state.settle_until, grown_at)
    steps = int((now - since) // config.grow_every_s)
    if steps <= 0:
        return state
    return replace(
        state,
        limit=max(state.limit, min(ceiling, state.limit + steps)),
        settle_until=now + config.settle_s,
        reason="raised, as nothing was refused",
    )


def on_refused(config: ClassicConfig, state: ClassicState, reporter: str, now: float, floor: int) -> ClassicState:
    """Apply rules 1 to 5 above to the refusal of a call other than the probe."""
    recent = [(at, who) for at, who in state.reports if at >= now - config.burst_window_s]
    reports = (*recent, (now, reporter))[-MOST_REPORTS:]
    state = replace(state, reports=reports)
    if not state.breaker.closed:
        return state
    if state.limit <= floor:
        return replace(
            state,
            breaker=breakers.trip(config.breaker, state.breaker, now),
            reason="refused although the limit cannot fall further",
        )
    if now < state.settle_until:
        return state
    burst = len({who for _, who in reports}) >= config.burst_reporters
    decreases = (*(at for at in state.decreases if at >= now - config.trip_window_s), now)
    state = replace(
        state,
        limit=max(floor, state.limit // (config.burst_factor if burst else config.factor)),
        settle_until=now + config.settle_s,
        decreases=decreases,
        reason="many calls were refused at once" if burst else "a call was refused",
    )
    if len(decreases) >= config.trip_decreases:
        return replace(
            state,
            breaker=breakers.trip(config.breaker, state.breaker, now),
            reason="lowered too often in a row: calls are held back",
        )
    return state


def on_probe(config: ClassicConfig, state: ClassicState, call: str, was_refused: bool, now: float) -> ClassicState:
    """Take in the probe's answer: any but a refusal closes the breaker at `limit_after_break`."""
    breaker = breakers.probe_answered(config.breaker, state.breaker, call, not was_refused, now)
    if breaker == state.breaker:
        return state
    if not breaker.closed:
        return replace(state, breaker=breaker, reason="a trial call was refused")
    return replace(
        state,
        breaker=breaker,
        limit=config.limit_after_break,
        grown_at=now,
        settle_until=0.0,
        reason="a trial call was answered: calls go on",
    )


class Classic:
    """The engine: routes a pool's events to the rules above."""

    def __init__(self, config: ClassicConfig, state: ClassicState, floor: int, ceiling: int) -> None:
        self.config, self.state, self.floor, self.ceiling = config, state, floor, ceiling

    @property
    def limit(self) -> float:
        return float(self.state.limit)

    @property
    def breaker(self) -> Breaker:
        return self.state.breaker

    def sent(self, event: Sent) -> None:
        if event.probe:
            self.state = replace(self.state, breaker=breakers.probe_sent(self.state.breaker, event.call, event.at))

    def done(self, event: Done) -> None:
        if event.probe and event.call == self.state.breaker.probe:
            self.state = on_probe(self.config, self.state, event.call, event.was_refused, event.at)
        elif event.ok and event.readings.retry_after_s:
            wait_s = min(event.readings.retry_after_s, self.config.retry_after_max_s)
            self.state = replace(self.state, hold_until=max(self.state.hold_until, event.at + wait_s))
        elif event.was_refused:
            self.state = on_refused(self.config, self.state, event.reporter, event.at, self.floor)

    def advance(self, now: float) -> None:
        self.state = on_tick(self.config, self.state, now, self.ceiling)

    def next_at(self) -> float | None:
        if not self.state.breaker.closed:
            return self.state.breaker.until
        if self.state.limit >= self.ceiling:
            return None
        grown_at = 0.0 if self.state.grown_at is None else self.state.grown_at
        return max(self.state.settle_until, grown_at) + self.config.grow_every_s

    def directives(self) -> Directives:
        return Directives(
            limit_if_refused=self.limit,
            hold_until=self.state.hold_until,
            pace_s=self.config.gap_s,
            pace_jitter=self.config.gap_jitter,
        )
