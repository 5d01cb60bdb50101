"""What the simulated provider allows and how that changes: the catalogue of scenarios, and random ones.

The clients know nothing of it but the ceiling, which is two to three times the truth, as an operator would guess.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from workers.simulation.chance import seeded

Span = tuple[float, float]
"""From, until: seconds."""
MEAN_TOKENS = 2545.0
"""Mean tokens that a simulated call uses."""


class Dialect(StrEnum):
    SILENT = ""
    OPENAI = "openai"
    ANTHROPIC = "anthropic"


class Class(StrEnum):
    """How much the clients can know: limits that headers tell, hidden ones, and trouble."""

    INFORMED = "informed"
    HIDDEN = "hidden"
    ADVERSE = "adverse"


@dataclass(frozen=True, slots=True)
class Overload:
    """A time in which the provider has `capacity` of its calls left, and fails `random_share` of all with a 529."""

    span: Span
    capacity: float
    random_share: float


@dataclass(frozen=True, slots=True)
class Scenario:
    """One provider. 0 or empty: it has no such limit.

    cap                 calls open at once, more are refused; `servers`: calls served at once, more are queued
    requests_per_min    as a bucket of `bucket_s` seconds, or, with `per_second`, counted in each second
    accelerates         calls in 10 s at most so many times those of the 10 s before (plus 15)
    steps               (instant, factor) that scale all limits from then on; `drift`: (part, period) of a sine
    tenant              (span, part) of the account's budget that another client takes
    slow                (span, factor) of all latencies
    refusal_cost        calls that a refused call takes from the bucket of requests
    marks               instants from which convergence is timed
    """

    name: str
    note: str
    kind: Class = Class.HIDDEN
    seconds: float = 1800.0
    ceiling: int = 100
    cap: int = 0
    servers: int = 0
    requests_per_min: float = 0.0
    tokens_per_min: float = 0.0
    per_second: bool = False
    bucket_s: float = 60.0
    accelerates: float = 0.0
    dialect: Dialect = Dialect.SILENT
    retry_after: bool = False
    latency_median_s: float = 4.0
    latency_sigma: float = 0.55
    steps: tuple[tuple[float, float], ...] = ()
    drift: tuple[float, float] | None = None
    tenant: tuple[Span, float] | None = None
    overloads: tuple[Overload, ...] = ()
    outages: tuple[Span, ...] = ()
    slow: tuple[Span, float] | None = None
    error_share: float = 0.003
    noise_share: float = 0.0
    refusal_cost: float = 0.0
    refusal_latency_s: Span = (0.15, 0.45)
    marks: tuple[float, ...] = (0.0,)

    @property
    def rtt_s(self) -> float:
        """Mean latency of an answer without load."""
        return self.latency_median_s * math.exp(self.latency_sigma**2 / 2.0)

    def but(self, name: str, note: str, kind: Class | None = None, **changes: Any) -> Scenario:
        """Another scenario that differs in `changes`."""
        return replace(self, name=name, note=note, kind=kind or self.kind, **changes)

    def telling(self, dialect: Dialect, kind: Class = Class.INFORMED) -> Scenario:
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

    def overload(self, now: float) -> Overload | None:
        return next((o for o in self.overloads if within(now, o.span)), None)

    def is_down(self, now: float) -> bool:
        return any(within(now, span) for span in self.outages)

    def slowness(self, now: float) -> float:
        return self.slow[1] if self.slow is not None and within(now, self.slow[0]) else 1.0


def within(now: float, span: Span) -> bool:
    return span[0] <= now < span[1]


_DOWN_UP = ((600.0, 0.25), (1200.0, 1.0))
_MARKS = (0.0, 600.0, 1200.0)
_MIDDLE = (600.0, 1200.0)


def _catalogue() -> list[Scenario]:
    capped = Scenario("conc", "cap of 40 open calls", cap=40)
    requests = Scenario("rpm_blind", "600 requests a minute, no headers", requests_per_min=600, ceiling=125)
    tokens = Scenario("tpm_blind", "1.5 M tokens a minute, no headers", tokens_per_min=1.5e6, ceiling=125)
    stepped = requests.but(
        "rpm_steps_blind",
        "1200, 300, 1200 requests a minute, no headers",
        requests_per_min=1200,
        ceiling=250,
        steps=_DOWN_UP,
        marks=_MARKS,
    )
    quanta = requests.but("quant_blind", "600 counted as 10 a second, no headers", Class.ADVERSE, per_second=True)
    return [
        capped,
        capped.but("conc_steps", "cap 80, 20, 80", cap=80, ceiling=200, steps=_DOWN_UP, marks=_MARKS),
        capped.but("conc_drift", "cap 40 +- 50 % in half an hour", ceiling=150, drift=(0.5, 1800.0)),
        capped.but("noise", "cap 40, 1.5 % refused at random", Class.ADVERSE, noise_share=0.015),
        capped.but("soft", "40 servers and a queue", cap=0, servers=40),
        capped.but("lat_shift", "cap 40, answers 2.5 times slower for 10 min", slow=(_MIDDLE, 2.5)),
        requests.but("rpm_hdr", "600 requests a minute, OpenAI", refusal_cost=1.0).telling(Dialect.OPENAI),
        requests,
        quanta.but("quant_hdr", "600 counted as 10 a second, OpenAI").telling(Dialect.OPENAI, Class.ADVERSE),
        quanta,
        tokens.but("tpm_hdr", "1.5 M tokens a minute, Anthropic", requests_per_min=4000).telling(Dialect.ANTHROPIC),
        tokens,
        stepped.but("rpm_steps_hdr", "1200, 300, 1200 requests a minute, OpenAI").telling(Dialect.OPENAI),
        stepped,
        requests.but(
            "tenant_hdr", "another tenant takes half for 10 min, OpenAI", tenant=(_MIDDLE, 0.5), marks=_MARKS
        ).telling(Dialect.OPENAI),
        capped.but(
            "tenant_blind",
            "another tenant takes half of cap 60 for 10 min",
            cap=60,
            ceiling=150,
            tenant=(_MIDDLE, 0.5),
            marks=_MARKS,
        ),
        capped.but(
            "overload529",
            "three times a quarter of the capacity, and 10 % 529 at random",
            Class.ADVERSE,
            overloads=tuple(Overload(span, 0.25, 0.1) for span in ((300.0, 420.0), (800.0, 830.0), (1300.0, 1480.0))),
            marks=(0.0, 420.0, 1480.0),
        ),
        capped.but(
            "outage",
            "down for 5 min and for 20 s",
            Class.ADVERSE,
            outages=((500.0, 800.0), (1300.0, 1320.0)),
            marks=(0.0, 800.0, 1320.0),
        ),
        capped.but(
            "slow_reject",
            "cap 40, 20, 40; a refusal takes 2 to 5 s",
            Class.ADVERSE,
            refusal_latency_s=(2.0, 5.0),
            steps=((600.0, 0.5), (1200.0, 1.0)),
            marks=_MARKS,
        ),
        capped.but(
            "ramp", "cap 80, at most 1.5 times the 10 s before", Class.ADVERSE, cap=80, ceiling=200, accelerates=1.5
        ),
        capped.but(
            "mixed",
            "cap 60, 600 requests, 1.8 M tokens, Anthropic, tenant, 529, outage, 1 % errors",
            cap=60,
            ceiling=150,
            requests_per_min=600,
            tokens_per_min=1.8e6,
            tenant=((400.0, 700.0), 0.5),
            overloads=(Overload((900.0, 960.0), 0.25, 0.1),),
            outages=((1200.0, 1260.0),),
            error_share=0.01,
            marks=(0.0, 700.0, 1260.0),
        ).telling(Dialect.ANTHROPIC, Class.ADVERSE),
    ]


CATALOGUE = {scenario.name: scenario for scenario in _catalogue()}


def random_scenario(index: int) -> Scenario:
    """A provider drawn at random; the same index is the same provider. Not for tuning."""
    draw = seeded("scenario", index)
    median = math.exp(draw.uniform(0.0, math.log(12.0)))
    sigma = draw.uniform(0.3, 0.8)
    per_s = math.exp(draw.uniform(math.log(2.0), math.log(18.0)))
    open_calls = max(4, round(per_s * median * math.exp(sigma * sigma / 2.0)))
    dialect = draw.choice([Dialect.SILENT, Dialect.OPENAI, Dialect.ANTHROPIC])
    found = Scenario(
        name=f"random{index}",
        note="",
        seconds=1500.0,
        ceiling=max(6, round(open_calls * draw.uniform(1.3, 5.0))),
        dialect=dialect,
        retry_after=bool(dialect) and draw.random() < 0.8,
        bucket_s=60.0 if dialect else draw.choice([5.0, 15.0, 30.0, 60.0]),
        latency_median_s=median,
        latency_sigma=sigma,
        error_share=draw.choice([0.0, 0.003, 0.01]),
        noise_share=draw.choice([0.0, 0.0, 0.0, 0.005]),
        refusal_cost=draw.choice([0.0, 0.0, 1.0]),
    )
    bound = draw.choice(["cap", "cap", "requests", "requests", "tokens", "servers", "both"])
    if bound in ("cap", "both"):
        found = replace(found, cap=open_calls if bound == "cap" else round(open_calls * draw.uniform(0.9, 1.4)))
    if bound in ("requests", "both"):
        per_second = bound == "requests" and per_s >= 4.0 and draw.random() < 0.25
        found = replace(found, requests_per_min=float(round(60.0 * per_s)), per_second=per_second)
    if bound == "tokens":
        found = replace(found, requests_per_min=10_000.0, tokens_per_min=60.0 * per_s * MEAN_TOKENS)
    if bound == "servers":
        found = replace(found, servers=open_calls)
    event = draw.choice(["", "steps", "tenant", "drift", "outage", "overload", "slow"])
    first, second = float(draw.randint(350, 500)), float(draw.randint(800, 1000))
    match event:
        case "steps":
            factors = (math.exp(draw.uniform(math.log(0.2), math.log(0.8))), draw.uniform(0.8, 1.2))
            steps = ((first, factors[0]), (second, factors[1]))
            found = replace(found, steps=steps, marks=(0.0, first, second))
        case "tenant":
            found = replace(found, tenant=((first, second), draw.uniform(0.2, 0.7)), marks=(0.0, first, second))
        case "drift":
            found = replace(found, drift=(draw.uniform(0.1, 0.5), draw.uniform(600.0, 1800.0)))
        case "outage":
            until = float(round(first + draw.uniform(10.0, 300.0)))
            found = replace(found, outages=((first, until),), marks=(0.0, until))
        case "overload" if found.cap:
            until = float(round(first + draw.uniform(30.0, 200.0)))
            overload = Overload((first, until), draw.uniform(0.15, 0.6), draw.uniform(0.0, 0.15))
            found = replace(found, overloads=(overload,), marks=(0.0, until))
        case "slow":
            found = replace(found, slow=((first, second), draw.uniform(1.3, 3.0)))
    note = f"{bound} {dialect or 'silent'} {event or 'steady'}, {per_s:.1f} calls/s of {found.rtt_s:.1f} s"
    return replace(found, note=note + (", per second" if found.per_second else ""))
