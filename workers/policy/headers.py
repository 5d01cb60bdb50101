"""Rate-limit headers of the providers, read into one form.

Two dialects. OpenAI and most compatible servers tell durations: `x-ratelimit-{limit,remaining,reset}-{requests,tokens}`
with `reset` like `120ms`, `1.5s`, `6m0s`. Anthropic tells instants: `anthropic-ratelimit-{requests,tokens,input-tokens,
output-tokens}-{limit,remaining,reset}` with `reset` in RFC 3339. In both, reset means "the bucket is full again", so
`limit - remaining` refills in that time (sources: the providers' rate-limit guides; captured headers agree).

A header that cannot be read is as good as absent: a provider's typing error must not stop the traffic.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import datetime
from email.utils import parsedate_to_datetime
from enum import StrEnum
from typing import NamedTuple


class Unit(StrEnum):
    """What a budget counts."""

    REQUESTS = "requests"
    TOKENS = "tokens"
    INPUT_TOKENS = "input_tokens"
    OUTPUT_TOKENS = "output_tokens"


class Reading(NamedTuple):
    """One budget as the provider showed it: most per minute, what was left, and seconds until it is full."""

    unit: Unit
    limit_per_min: float
    remaining: float
    full_in_s: float


def read_limits(headers: Mapping[str, str], wall_s: float) -> tuple[Reading, ...]:
    """The budgets that a response shows; names in lower case.

    `wall_s` is Unix time when the response was written, used where it has no `date` header of its own.
    """
    if not headers:
        return ()
    if "x-ratelimit-limit-requests" in headers or "x-ratelimit-limit-tokens" in headers:
        found = [_openai(headers, unit) for unit in (Unit.REQUESTS, Unit.TOKENS)]
    else:
        wall_s = _date(headers.get("date", ""), wall_s)
        found = [_anthropic(headers, unit, wall_s) for unit in Unit]
    return tuple(reading for reading in found if reading is not None)


def read_retry_after(headers: Mapping[str, str], most_s: float) -> float | None:
    """Seconds the provider asks to wait, within 0 and `most_s`; None if absent or unreadable.

    Only the form in seconds is read: no LLM provider sends the date form.
    """
    value = _number(headers.get("retry-after", ""))
    return None if value is None or value < 0 else min(value, most_s)


def _openai(headers: Mapping[str, str], unit: Unit) -> Reading | None:
    return _reading(
        unit,
        _number(headers.get(f"x-ratelimit-limit-{unit}", "")),
        _number(headers.get(f"x-ratelimit-remaining-{unit}", "")),
        _duration(headers.get(f"x-ratelimit-reset-{unit}", "")),
    )


def _anthropic(headers: Mapping[str, str], unit: Unit, wall_s: float) -> Reading | None:
    prefix = f"anthropic-ratelimit-{unit.replace('_', '-')}-"
    full_at = _instant(headers.get(prefix + "reset", ""))
    return _reading(
        unit,
        _number(headers.get(prefix + "limit", "")),
        _number(headers.get(prefix + "remaining", "")),
        None if full_at is None else full_at - wall_s,
    )


def _reading(unit: Unit, limit: float | None, remaining: float | None, full_in_s: float | None) -> Reading | None:
    if limit is None or remaining is None or limit <= 0 or remaining < 0:
        return None
    return Reading(unit, limit, remaining, max(0.0, full_in_s or 0.0))


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|h|m|s)?")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, None: 1.0}


def _duration(text: str) -> float | None:
    """`6m0s` -> 360; a bare number is seconds."""
    parts = list(_DURATION.finditer(text))
    if not parts or "".join(part.group() for part in parts) != text:
        return None
    return sum(float(part.group(1)) * _SECONDS[part.group(2)] for part in parts)


def _instant(text: str) -> float | None:
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        return None


def _date(text: str, otherwise: float) -> float:
    """The `date` header is the provider's own clock, so that a wrong clock of ours does not shift its instants."""
    try:
        return parsedate_to_datetime(text).timestamp()
    except (ValueError, TypeError, OverflowError):
        return otherwise
