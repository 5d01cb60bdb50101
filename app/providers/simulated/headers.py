"""Rate-limit headers as the two providers write them."""

from __future__ import annotations

from dicast.app.providers.simulated.limits import Level, Limits
from dicast.app.providers.simulated.times import duration, instant


def openai(limits: Limits, now: float) -> dict[str, str]:
    """`x-ratelimit-*` of the limits that are set; resets tell when the bucket is full."""
    headers: dict[str, str] = {}
    for axis, bucket in (("requests", limits.requests), ("tokens", limits.tokens)):
        if bucket:
            level = bucket.level(now)
            headers[f"x-ratelimit-limit-{axis}"] = str(level.limit)
            headers[f"x-ratelimit-remaining-{axis}"] = str(int(level.remaining))
            headers[f"x-ratelimit-reset-{axis}"] = duration(level.full_in_s)
    return headers


def anthropic(limits: Limits, now: float, unix_s: float) -> dict[str, str]:
    """`anthropic-ratelimit-*` of the limits that are set; tokens left are rounded to thousands.

    The plain `tokens` axis repeats whichever of input and output is closer to its end.
    """
    axes: dict[str, Level] = {}
    if limits.requests:
        axes["requests"] = limits.requests.level(now)
    if limits.tokens:
        axes["input-tokens"] = limits.tokens.level(now)
    if limits.output:
        axes["output-tokens"] = limits.output.level(now)
    of_tokens = [level for axis, level in axes.items() if axis != "requests"]
    if of_tokens:
        axes["tokens"] = min(of_tokens, key=lambda level: level.remaining / level.limit)
    headers: dict[str, str] = {}
    for axis, level in axes.items():
        remaining = int(level.remaining) if axis == "requests" else round(level.remaining / 1000) * 1000
        headers[f"anthropic-ratelimit-{axis}-limit"] = str(level.limit)
        headers[f"anthropic-ratelimit-{axis}-remaining"] = str(remaining)
        headers[f"anthropic-ratelimit-{axis}-reset"] = instant(unix_s + level.full_in_s)
    return headers
