"""When a provider asks clients to wait: `retry-after` (RFC 9110 §10.2.3) and `retry-after-ms`, in every form seen in
practice."""

from __future__ import annotations

import email.utils
import re
from collections.abc import Iterable
from datetime import UTC, datetime

LONGEST_S = 1e9
"""Longer delays are cut to this, so that later arithmetic stays finite; the caller clamps to its own policy."""

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_DATE = re.compile(r"[A-Za-z]{3}.*\d{1,2}:\d{2}", re.ASCII)
_LONGEST_VALUE = 200


def retry_after_s(headers: Iterable[tuple[str, str]], now_s: float) -> float | None:
    """Return the seconds to wait, 0 <= result <= LONGEST_S; None if absent or unusable.

    A date is by the server's clock: it counts from the server's own `date` header, or from `now_s` (Unix time) if that
    is absent.

    Numbers (also with fraction or exponent) are delays; negative ones mean now. Dates are HTTP dates in any of the
    three forms; without a zone they are UTC, and past ones mean now. A usable `retry-after-ms` is preferred because it
    is finer. Of several values the longest counts: earlier retries are known to fail.
    """
    seconds: list[float] = []
    milliseconds: list[float] = []
    headers = list(headers)
    dated = (_instant(value) for name, value in headers if name.lower() == "date")
    now_s = next((when for when in dated if when is not None), now_s)
    for name, value in headers:
        match name.lower():
            case "retry-after":
                seconds += _delays(value, now_s)
            case "retry-after-ms":
                milliseconds += [number / 1000 for number in _numbers(value)]
    delays = milliseconds or seconds
    return min(max(delays), LONGEST_S) if delays else None


def _delays(value: str, now_s: float) -> list[float]:
    """Return all delays in one header value; a proxy may have joined several with commas."""
    when = _instant(value)
    return [max(0.0, when - now_s)] if when is not None else _numbers(value)


def _numbers(value: str) -> list[float]:
    """Return the numbers in a header value. NaN and infinity are texts, not numbers; `1e400` is a number, only a very
    long one."""
    parts = (part.strip() for part in value[:_LONGEST_VALUE].split(","))
    return [max(0.0, float(part)) for part in parts if _NUMBER.fullmatch(part)]


def _instant(value: str) -> float | None:
    if len(value) > _LONGEST_VALUE or not _DATE.search(value):
        return None
    try:
        parts = email.utils.parsedate_tz(value)
        if parts is None:
            return None
        year, month, day, hour, minute, second = parts[:6]
        return datetime(year, month, day, hour, minute, min(second, 59), tzinfo=UTC).timestamp() - (parts[9] or 0)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
