"""The catalogue of scenarios, and random ones.

The clients know nothing of a scenario but the ceiling, which is two to three times the truth, as an operator would
guess.
"""

from __future__ import annotations

import math
from dataclasses import replace

from lab.simulation.chance import seeded
from lab.simulation.scenario import MEAN_TOKENS, Class, HeaderDialect, Overload, Scenario

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
        capped.but("knee", "32 at full speed, more only get slower", cap=0, knee=32, ceiling=200, seconds=600.0),
        capped.but(
            "thrash", "the same, twice as slow beyond 64", cap=0, knee=32, thrash=64, ceiling=200, seconds=600.0
        ),
        capped.but("slots", "8 servers and an endless queue", cap=0, servers=8, queue=1e9, seconds=600.0),
        capped.but("lat_shift", "cap 40, answers 2.5 times slower for 10 min", slow=(_MIDDLE, 2.5)),
        requests.but("rpm_hdr", "600 requests a minute, OpenAI", refusal_cost=1.0).telling(HeaderDialect.OPENAI),
        requests,
        quanta.but("quant_hdr", "600 counted as 10 a second, OpenAI").telling(HeaderDialect.OPENAI, Class.ADVERSE),
        quanta,
        tokens.but("tpm_hdr", "1.5 M tokens a minute, Anthropic", requests_per_min=4000).telling(
            HeaderDialect.ANTHROPIC
        ),
        tokens,
        stepped.but("rpm_steps_hdr", "1200, 300, 1200 requests a minute, OpenAI").telling(HeaderDialect.OPENAI),
        stepped,
        requests.but(
            "tenant_hdr", "another tenant takes half for 10 min, OpenAI", tenant=(_MIDDLE, 0.5), marks=_MARKS
        ).telling(HeaderDialect.OPENAI),
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
        ).telling(HeaderDialect.ANTHROPIC, Class.ADVERSE),
        *_told(),
    ]


def _told() -> list[Scenario]:
    """What headers say of limits that bind, and of limits that do not."""
    capped = Scenario(
        "told", "", Class.TOLD, seconds=150.0, ceiling=60, cap=24, latency_median_s=0.5, latency_sigma=0.3,
        latency_least_s=0.1, retry_after=True, dialect=HeaderDialect.OPENAI,
    )  # fmt: skip
    window = Scenario(
        "told", "", Class.TOLD, seconds=461.75, ceiling=80, requests_per_min=480, window_s=60.0, window_over_s=18.0,
        latency_median_s=1.5, latency_sigma=0.4, latency_least_s=0.3, retry_after=True, dialect=HeaderDialect.OPENAI,
    )  # fmt: skip
    return [
        capped.but("told_window", "cap 24; a window of 3,600 a minute that does not bind",
                   requests_per_min=3600, window_s=60.0, window_over_s=20.0),
        capped.but("told_short", "cap 24; a window of 800 in 10 s that does not bind", requests_per_min=4800,
                   window_s=10.0, dialect=HeaderDialect.IETF),
        capped.but("told_bucket", "cap 24; a bucket of 6,000 a minute that does not bind", requests_per_min=6000),
        capped.but("told_too_low", "cap 24; a bucket of 200 a minute that nobody enforces", requests_per_min=200,
                   enforced=False),
        capped.but("told_never", "cap 24; 900 that only fall, and that nobody enforces", requests_per_min=900,
                   window_s=3600.0 * 24, enforced=False, dialect=HeaderDialect.NO_RESET),
        window.but("window", "480 in windows of a minute, told with the time to their end"),
        window.but("window_ietf", "the same, RateLimit and RateLimit-Policy", dialect=HeaderDialect.IETF),
        window.but("window_unix_ms", "the same, ends told in Unix milliseconds", dialect=HeaderDialect.UNIX_MS),
        window.but("window_no_reset", "the same, ends not told", dialect=HeaderDialect.NO_RESET, retry_after=False),
        window.but("window_hidden", "the same, only Retry-After tells", dialect=HeaderDialect.SILENT),
        window.but("window_log", "480 in any minute", log=True, seconds=480.0, dialect=HeaderDialect.IETF),
        window.but("day", "10,800 a day, of which 600 are left", seconds=240.0, window_s=0.0, start_part=600 / 10800,
                   ceiling=30, requests_per_min=7.5, bucket_s=86400.0),
    ]  # fmt: skip


CATALOGUE = {scenario.name: scenario for scenario in _catalogue()}


def random_scenario(index: int) -> Scenario:
    """A provider drawn at random; the same index is the same provider. Not for tuning."""
    draw = seeded("scenario", index)
    median = math.exp(draw.uniform(0.0, math.log(12.0)))
    sigma = draw.uniform(0.3, 0.8)
    per_s = math.exp(draw.uniform(math.log(2.0), math.log(18.0)))
    open_calls = max(4, round(per_s * median * math.exp(sigma * sigma / 2.0)))
    dialect = draw.choice([HeaderDialect.SILENT, HeaderDialect.OPENAI, HeaderDialect.ANTHROPIC])
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
