"""What it costs to be told of limits: the same calls, with every dialect of headers, over HTTP.

`headers-none` is what all others are compared with: the same cap, and no word of it. The budgets of most do not bind,
so that their capacity should be the same; the rest bind, and tell of it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from lab.bench import observed
from lab.bench.cases import CAP, bench, measured
from lab.bench.contenders import ALL
from lab.bench.observed import Cap

UNITS = 900
WIDE_WINDOW, WIDE_BUCKET = "window:4800/60", "bucket:4800/60"


class HeaderCase(NamedTuple):
    """A provider's budgets, and the dialect in which it tells of them."""

    label: str
    budgets: str
    dialect: str


NOT_BINDING: Mapping[str, HeaderCase] = {
    "none": HeaderCase("nothing is told", WIDE_WINDOW, "silent"),
    "openai": HeaderCase("OpenAI, a bucket of 30,000 a minute", "bucket:30000/60+bucket:10000000/60:tokens", "openai"),
    "bucket": HeaderCase("OpenAI's names, a bucket of 4,800 a minute", WIDE_BUCKET, "openai"),
    "window": HeaderCase("OpenAI's names, a window of 4,800 a minute", WIDE_WINDOW, "openai"),
    "log": HeaderCase("OpenAI's names, a sliding minute of 4,800", "log:4800/60", "openai"),
    "day": HeaderCase("OpenAI's names, 100,000 a day", "bucket:100000/86400", "openai"),
    "no-reset": HeaderCase("no reset", WIDE_WINDOW, "openai-no-reset"),
    "falls": HeaderCase("no reset, remaining only falls", "window:100000/86400", "openai-no-reset"),
    "azure": HeaderCase("Azure, resets in seconds", WIDE_BUCKET, "azure"),
    "azure-ms": HeaderCase("Azure, resets in milliseconds", WIDE_BUCKET, "azure-ms"),
    "anthropic": HeaderCase("Anthropic's names, an instant", WIDE_BUCKET, "anthropic"),
    "mistral": HeaderCase("Mistral, no reset", WIDE_WINDOW, "mistral"),
    "cerebras": HeaderCase("Cerebras, minute and day", "window:4800/60+window:200000/86400", "cerebras"),
    "together": HeaderCase("Together, a bucket a second", "bucket:200/1", "together"),
    "litellm": HeaderCase("LiteLLM's key, no reset", WIDE_WINDOW, "litellm"),
    "digitalocean": HeaderCase("DigitalOcean, Unix seconds", WIDE_BUCKET, "digitalocean"),
    "envoy": HeaderCase("Envoy", WIDE_WINDOW, "envoy"),
    "kong": HeaderCase("Kong", WIDE_WINDOW, "kong"),
    "ietf": HeaderCase("IETF, RateLimit and RateLimit-Policy", WIDE_WINDOW, "ietf"),
    "ietf3": HeaderCase("IETF, three fields", WIDE_WINDOW, "ietf3"),
    "too-low": HeaderCase("a tenth of what is served", "window:480/60:shown", "openai"),
}
WINDOW_S, WINDOW_LIMIT = 20.0, 600
BINDING = HeaderCase("a window of 600 in 20 s binds", f"window:{WINDOW_LIMIT}/{WINDOW_S:g}", "openai")
FULL = HeaderCase("a full bucket of 500 a minute, 300 calls", "bucket:500/60", "openai")

Figures = Mapping[str, float]


def _run(told: HeaderCase, units: int, seed: int = 1) -> tuple[Sequence[Mapping[str, Any]], float]:
    """The provider's log of a cold run, and the Unix time of its zero."""
    with bench(seed, "--budgets", told.budgets, "--told", told.dialect) as b:
        running = b.start(ALL["dicast"], units, tell=CAP)
        outcome, _ = measured(running, units)
        assert outcome.answered == units
        return b.log(), float(b.provider.stats()["started_unix_s"])


def _of(told: HeaderCase, units: int) -> Callable[[], Figures]:
    def measure() -> Figures:
        log, _ = _run(told, units)
        seen = observed.observe(log, Cap(CAP))
        assert seen.capacity is not None
        return {"capacity_%": 100 * seen.capacity, "wall_s": seen.wall_s, "refused_%": 100 * seen.refused / seen.calls}

    measure.__doc__ = f"{units} calls under a cap of {CAP}, cold. {told.label}."
    return measure


def binding() -> Figures:
    """2,400 calls under a window of 600 in 20 s: of each window but the first and the last, the share that was used."""
    log, unix_s = _run(BINDING, 2400)
    windows = Counter(math.floor((unix_s + entry["arrival"]) / WINDOW_S) for entry in log if entry["accepted"])
    whole = [windows[number] for number in range(min(windows) + 1, max(windows))]
    seen = observed.observe(log)
    return {
        "quota_%": 100 * sum(whole) / (len(whole) * WINDOW_LIMIT),
        "wall_s": seen.wall_s,
        "refused_%": 100 * seen.refused / seen.calls,
    }


CASES: Mapping[str, Callable[[], Figures]] = {
    **{f"headers-{name}": _of(told, UNITS) for name, told in NOT_BINDING.items()},
    "headers-full": _of(FULL, 300),
    "headers-binding": binding,
}
LABELS = {
    **{f"headers-{name}": told.label for name, told in NOT_BINDING.items()},
    "headers-full": FULL.label,
    "headers-binding": BINDING.label,
}
