"""Parsers of the values of rate-limit headers: counts, durations, instants. Nothing here raises."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import NamedTuple

LONGEST_TEXT = 200
MOST = 1e15
"""A larger count is ignored."""
LONGEST_S = 400 * 86400.0
UNIX_S, UNIX_MS = 1e9, 1e11
"""Bare numbers from here on are instants: no budget lasts for 30 years."""
SAME_CLOCK_S = 2.0
"""A `date` this near to our own clock is by the same clock: it is in whole seconds, and arrives late."""


class Reset(NamedTuple):
    """A reset: `seconds` from now, or Unix time if `instant`; its resolution is `grain_s`. For `bare` see `Reading`."""

    seconds: float
    instant: bool
    grain_s: float
    bare: bool = False


_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_PART = re.compile(r"(\d+(?:\.\d+)?)(ns|us|µs|ms|d|h|m|s)", re.ASCII)
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def number(text: str) -> float | None:
    """Return a finite number; None for anything else."""
    text = text.strip()
    if len(text) > LONGEST_TEXT or not _NUMBER.fullmatch(text):
        return None
    value = float(text)
    return value if math.isfinite(value) else None


def count(text: str) -> float | None:
    """Return an amount of calls or tokens; None if none is given (Azure's -1) or it is implausible."""
    value = number(text)
    return value if value is not None and 0.0 <= value <= MOST else None


def reset(text: str) -> Reset | None:
    """Parse `6m0s`, `120ms`, `7.5`, Unix seconds or milliseconds, RFC 3339 or an HTTP date; None for anything else."""
    text = text.strip()
    if len(text) > LONGEST_TEXT:
        return None
    value = number(text)
    if value is not None:
        return _bare(text, value)
    lasting = duration(text)
    if lasting is not None:
        coarse = text.endswith("s") and not text.endswith("ms") and "." not in text
        return Reset(lasting, instant=False, grain_s=1.0 if coarse else 0.001)
    at = instant(text)
    if at is None:
        return None
    return Reset(at, instant=True, grain_s=0.001 if at % 1.0 else 1.0)


def _bare(text: str, value: float) -> Reset | None:
    if value < 0.0 or value > 1e14:
        return None
    whole = "." not in text and "e" not in text.lower()
    if value >= UNIX_MS:
        return Reset(value / 1000.0, instant=True, grain_s=1.0 if value % 1000.0 == 0.0 else 0.001)
    if value >= UNIX_S:
        return Reset(value, instant=True, grain_s=1.0 if whole else 0.001)
    if value > 1000.0 * LONGEST_S:
        return None
    return Reset(value, instant=False, grain_s=1.0 if whole else 0.001, bare=True)


def duration(text: str) -> float | None:
    """Return the seconds of a Go duration; None for anything else, such as a number alone."""
    parts = list(_PART.finditer(text))
    if not parts or "".join(part.group() for part in parts) != text:
        return None
    seconds = sum(float(part.group(1)) * _SECONDS[part.group(2)] for part in parts)
    return seconds if seconds <= LONGEST_S else None


def instant(text: str) -> float | None:
    """Return the Unix time of an RFC 3339 or HTTP date; one without a zone is UTC."""
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        try:
            parsed = parsedate_to_datetime(text)
        except (ValueError, TypeError, IndexError, OverflowError):
            return None
    try:
        return (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None


def provider_now(date: str, wall_s: float) -> float:
    """Return the Unix time by the provider's clock, as its `date` header shows it, when ours says `wall_s`."""
    provider_s = instant(date) if 0 < len(date) <= LONGEST_TEXT else None
    if provider_s is None or abs(provider_s - wall_s) <= SAME_CLOCK_S:
        return wall_s
    return provider_s + 0.5
