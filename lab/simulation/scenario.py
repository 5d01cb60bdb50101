"""What a simulated provider allows, and how that changes with time."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

Span = tuple[float, float]
"""From, until: seconds."""
MEAN_TOKENS = 2545.0
"""Mean tokens that a simulated call uses."""


class HeaderDialect(StrEnum):
    SILENT = ""
    OPENAI = "openai"
    ANTHROPIC = "anthropic"
    IETF = "ietf"
    UNIX_MS = "unix_ms"
    NO_RESET = "no_reset"


class Class(StrEnum):
    """How much the clients can know: limits that headers tell, hidden ones, and trouble; TOLD: headers of which it has
    to be found out what they mean, and whether they are true; LIVE: a short real run."""

    INFORMED = "informed"
    HIDDEN = "hidden"
    ADVERSE = "adverse"
    TOLD = "told"
    LIVE = "live"


@dataclass(frozen=True, slots=True)
class Overload:
    """A time in which the provider has `capacity` of its calls left, and fails `random_share` of all with a 529."""

    span: Span
    capacity: float
    random_share: float


@dataclass(frozen=True, slots=True)
class Scenario:
    """One provider. 0 or empty: it has no such limit.

    cap                 calls open at once, more are refused; `servers`: calls served at once, more are queued, up to
                        `queue` times as many
    knee                calls answered at full speed: with more open, each takes longer in proportion, and twice as long
                        beyond `thrash`; none is ever refused for it
    requests_per_min    as a bucket of `bucket_s` seconds, or, with `per_second`, counted in each second
    window_s            the requests of so many seconds are counted in windows that begin anew at once; 0: a bucket. So
                        many seconds of the first are over at the start (`window_over_s`)
    log                 they are counted in any `window_s`, call by call
    told_share          part of the good answers that have the headers; no other answer has them if it is less than 1
    untold              spans in which no answer has them
    enforced            False: the requests are only told, and nothing is refused for them
    start_part          part of a bucket that is left at the start
    accelerates         calls in 10 s at most so many times those of the 10 s before (plus 15)
    steps               (instant, factor) that scale all limits from then on; `drift`: (part, period) of a sine
    tenant              (span, part) of the account's budget that another client takes
    slow                (span, factor) of all latencies
    cut_after           (answers, factor): the cap is scaled once so many calls were answered
    refusal_cost        calls that a refused call takes from the bucket of requests
    crowding            part by which answers are slower when all of the cap is used
    network_s           from a client to the provider
    units               of work in all, of one project; 0: there is always more, of four projects
    marks               instants from which convergence is timed
    """

    name: str
    note: str
    kind: Class = Class.HIDDEN
    seconds: float = 1800.0
    ceiling: int = 100
    cap: int = 0
    servers: int = 0
    queue: float = 3.0
    knee: int = 0
    thrash: int = 0
    requests_per_min: float = 0.0
    tokens_per_min: float = 0.0
    per_second: bool = False
    bucket_s: float = 60.0
    window_s: float = 0.0
    window_over_s: float = 0.0
    log: bool = False
    enforced: bool = True
    start_part: float = 1.0
    accelerates: float = 0.0
    dialect: HeaderDialect = HeaderDialect.SILENT
    told_share: float = 1.0
    untold: tuple[Span, ...] = ()
    retry_after: bool = False
    latency_median_s: float = 4.0
    latency_sigma: float = 0.55
    latency_least_s: float = 0.8
    crowding: float = 0.3
    network_s: Span = (0.02, 0.08)
    steps: tuple[tuple[float, float], ...] = ()
    cut_after: tuple[int, float] | None = None
    drift: tuple[float, float] | None = None
    tenant: tuple[Span, float] | None = None
    overloads: tuple[Overload, ...] = ()
    outages: tuple[Span, ...] = ()
    slow: tuple[Span, float] | None = None
    error_share: float = 0.003
    noise_share: float = 0.0
    refusal_cost: float = 0.0
    refusal_latency_s: Span = (0.15, 0.45)
    units: int = 0
    marks: tuple[float, ...] = (0.0,)

    @property
    def rtt_s(self) -> float:
        """Mean latency of an answer without load."""
        return self.latency_median_s * math.exp(self.latency_sigma**2 / 2.0)

    def but(self, name: str, note: str, kind: Class | None = None, **changes: Any) -> Scenario:
        """Another scenario that differs in `changes`."""
        return replace(self, name=name, note=note, kind=kind or self.kind, **changes)

    def telling(self, dialect: HeaderDialect, kind: Class = Class.INFORMED) -> Scenario:
        """The same with headers."""
        return replace(self, dialect=dialect, retry_after=True, kind=kind)

    def scale(self, now: float) -> float:
        """Factor on all limits."""
        factor = 1.0
        for instant, value in self.steps:
            if now >= instant:
                factor = value
        if self.drift is not None:
            part, period = self.drift
            factor *= 1.0 + part * math.sin(2.0 * math.pi * now / period)
        return factor

    def ours(self, now: float) -> float:
        """Part of the account that other tenants leave."""
        return 1.0 - self.tenant[1] if self.tenant is not None and within(now, self.tenant[0]) else 1.0

    def is_told(self, now: float) -> bool:
        return not any(within(now, span) for span in self.untold)

    def overload(self, now: float) -> Overload | None:
        return next((o for o in self.overloads if within(now, o.span)), None)

    def is_down(self, now: float) -> bool:
        return any(within(now, span) for span in self.outages)

    def slowness(self, now: float) -> float:
        return self.slow[1] if self.slow is not None and within(now, self.slow[0]) else 1.0


def within(now: float, span: Span) -> bool:
    return span[0] <= now < span[1]
