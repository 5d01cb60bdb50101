"""Durations and instants as people write them, the deadlines of a job, and whether a batch ends before them.

A duration is a number of seconds, or a text like 90s, 10m, 1h30m, 2d. An instant is ISO 8601 with a time zone.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, BeforeValidator, ConfigDict

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


SEEN_MARGIN = 2.0
"""A batch is reckoned to need so many times what the slowest of the last ones needed."""
ONLINE_MARGIN = 2.0
"""Online calls are reckoned to need so many times what they would need without any failure."""
LOOK_S = 60.0
"""A batch is looked at this often at least, and its end may be noticed so much later."""


def usual_turnaround(seen: Sequence[float], promised_s: float) -> float:
    """Return how long a batch is reckoned to need, in seconds: by the last ones `seen` of its pool and model, but no
    longer than was promised; without any, as promised."""
    return min(promised_s, SEEN_MARGIN * max(seen)) if seen else promised_s


def online_time(calls: int, *, at_once: int, call_s: float) -> float:
    """Return how long online calls take, in seconds, `at_once` of which (1 or more) are open together."""
    return math.ceil(calls / at_once) * call_s


class Outlook(NamedTuple):
    """The figures that decide between batches and online calls are seconds: `left_s` until the job's `finish_by`, None
    without one; `turnaround_s` that a batch is reckoned to need if it begins now; `online_s` that online calls of all
    that is not done would take; and `cancelling_s` for which a batch may go on that is cancelled."""

    left_s: float | None
    turnaround_s: float = 0.0
    online_s: float = 0.0
    cancelling_s: float = 0.0

    @property
    def reserve_s(self) -> float:
        """How much has to be left when units are taken out of a batch, so that online calls still end in time."""
        return ONLINE_MARGIN * self.online_s + self.cancelling_s + LOOK_S

    @property
    def fits_batch(self) -> bool:
        """Whether a batch may begin now: it ends in time by what is known, and if not, its units can still be moved."""
        return self.left_s is None or self.left_s >= self.turnaround_s + self.reserve_s

    @property
    def leaves_in_s(self) -> float:
        """In how long the units of a batch have to be moved online; infinite without a `finish_by`."""
        return math.inf if self.left_s is None else max(0.0, self.left_s - self.reserve_s)

    @property
    def leaves_batch(self) -> bool:
        """Whether the units of a batch have to be moved online now."""
        return self.leaves_in_s <= 0.0

    def sentence(self) -> str:
        """Return the figures in words, for people."""
        if self.left_s is None:
            return "the job has no finish_by"
        return (
            f"{max(0.0, self.left_s):,.0f} s were left until finish_by; a batch may take {self.turnaround_s:,.0f} s, "
            f"and online calls {self.online_s:,.0f} s"
        )


NO_HURRY = Outlook(None)
"""The outlook of a job without a `finish_by`."""


class RoadChange(BaseModel):
    """Tells that a job's units at a pool go online from some instant on, since a batch might end too late; `message`
    says why."""

    model_config = ConfigDict(defer_build=True, frozen=True)

    pool: str
    message: str

    @property
    def reason(self) -> str:
        """One line for people."""
        return f"pool {self.pool!r} was asked online: {self.message}"
