"""Durations and instants as people write them, and the deadlines of a job.

A duration is a number of seconds, or a text like 90s, 10m, 1h30m, 2d. An instant is ISO 8601 with a time zone.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, NamedTuple

from pydantic import BeforeValidator

LONGEST_S = 366 * 86_400.0
_DURATION = re.compile(r"(\d+(?:\.\d+)?(?:d|h|min|m|s))+", re.ASCII)
_PART = re.compile(r"(\d+(?:\.\d+)?)(d|h|min|m|s)", re.ASCII)
_SECONDS = {"d": 86_400.0, "h": 3600.0, "min": 60.0, "m": 60.0, "s": 1.0}


def seconds(value: Any) -> float:
    """Return a duration in seconds, 0 <= result <= LONGEST_S. Raises ValueError."""
    duration_s: float | None = None
    if isinstance(value, timedelta):
        duration_s = value.total_seconds()
    elif isinstance(value, int | float) and not isinstance(value, bool):
        duration_s = float(value)
    elif isinstance(value, str) and len(value) <= 40 and _DURATION.fullmatch(value.strip()):
        duration_s = sum(float(number) * _SECONDS[unit] for number, unit in _PART.findall(value))
    if duration_s is None or not 0 <= duration_s <= LONGEST_S:
        raise ValueError("must be a duration of at most a year, as seconds or like 90s, 10m, 1h30m, 2d")
    return duration_s


def finish_by(value: Any) -> float | str:
    """Return a duration in seconds, or an instant as ISO 8601 in UTC. Raises ValueError."""
    if isinstance(value, str) and "T" in value.strip()[:11].upper().replace(" ", "T"):
        try:
            value = datetime.fromisoformat(value.strip())
        except ValueError:
            raise ValueError("must be a duration like 10m, or an instant like 2030-06-01T18:00:00Z") from None
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise ValueError("must be an instant with its time zone, like 2030-06-01T18:00:00Z")
        return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    duration_s = seconds(value)
    if not duration_s:
        raise ValueError("must be longer than 0 s")
    return duration_s


def instant_ms(value: str) -> int:
    """Return an instant, as `finish_by` returns it, as Unix time in ms."""
    return round(datetime.fromisoformat(value).timestamp() * 1000)


Duration = Annotated[float, BeforeValidator(seconds)]
FinishBy = Annotated[float | str, BeforeValidator(finish_by)]


class Bounds(NamedTuple):
    """A job's deadlines from its start on, in ms; None where there is none. `finish_at_ms` is an instant of the store's
    wall clock, all others are durations."""

    unit_ms: int | None = None
    finish_in_ms: int | None = None
    finish_at_ms: int | None = None
    pool_down_ms: int | None = None

    @classmethod
    def from_options(cls, *, unit_deadline_s: float, finish_by: float | str | None, max_pool_down_s: float) -> Bounds:
        """Make the bounds from a job's options; a deadline of 0 s means none."""
        return cls(
            unit_ms=round(1000 * unit_deadline_s) or None,
            finish_in_ms=round(1000 * finish_by) if isinstance(finish_by, float) else None,
            finish_at_ms=instant_ms(finish_by) if isinstance(finish_by, str) else None,
            pool_down_ms=round(1000 * max_pool_down_s) or None,
        )


UNBOUNDED = Bounds()
