"""How long a provider asks to wait: `retry-after-ms`, and `retry-after` in seconds or as a date."""

from __future__ import annotations

from collections.abc import Mapping

from dicast.workers.policy.headers.structured import items
from dicast.workers.policy.headers.values import LONGEST_S, instant, number, provider_now


def retry_after(headers: Mapping[str, str], wall_s: float) -> tuple[float, float] | None:
    """Return the seconds to wait from the answer, which was read at `wall_s`, and their resolution; None if none are
    given.

    The finer form is preferred. Of several values the longest counts, since earlier retries would fail.
    """
    fine = [value / 1000.0 for value in _numbers(headers.get("retry-after-ms", ""))]
    if fine:
        return _within(max(fine)), 0.001
    text = headers.get("retry-after", "")
    coarse = _numbers(text)
    if coarse:
        return _within(max(coarse)), 1.0 if max(coarse) % 1.0 == 0.0 else 0.01
    at = instant(text) if text else None
    return None if at is None else (_within(at - provider_now(headers.get("date", ""), wall_s)), 1.0)


def _numbers(text: str) -> list[float]:
    values = [number(item.value) for item in items(text)] if text else []
    return [value for value in values if value is not None and value >= 0.0]


def _within(seconds: float) -> float:
    return max(0.0, min(LONGEST_S, seconds))
