"""Times as providers write them into headers."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta


def duration(seconds: float) -> str:
    """A Go duration, as OpenAI writes resets: `0s`, `120ms`, `1.5s`, `6m0s`, `1h2m3s`. Rounded up to whole ms."""
    ms = math.ceil(round(max(0.0, seconds) * 1000, 6))
    if ms == 0:
        return "0s"
    if ms < 1000:
        return f"{ms}ms"
    minutes, rest_ms = divmod(ms, 60_000)
    hours, minutes = divmod(minutes, 60)
    text = f"{rest_ms / 1000:.3f}".rstrip("0").rstrip(".") + "s"
    if hours:
        return f"{hours}h{minutes}m{text}"
    return f"{minutes}m{text}" if minutes else text


def instant(unix_s: float) -> str:
    """An RFC 3339 instant, as Anthropic writes resets: `2026-01-27T12:00:30Z`. Rounded up to whole seconds."""
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=math.ceil(unix_s))).strftime("%Y-%m-%dT%H:%M:%SZ")
