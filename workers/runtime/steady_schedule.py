"""A schedule for Celery's beat that follows the monotonic clock.

Celery counts from the wall clock when an entry is due: a clock that is put back by an hour keeps the beat silent for
that hour, and so does a restart, since the scheduler keeps on disk when it ran last. Entries that come every few
seconds need neither a date nor a memory.

    beat_schedule = {"tick": {"task": ..., "schedule": every(1.0)}}
    beat_scheduler = "celery.beat:Scheduler"        # the one that keeps nothing on disk
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

from celery.schedules import schedule

_BEGAN, _BEGAN_AT_S = datetime.now(UTC), time.monotonic()


def steady_now() -> datetime:
    """Return a date that advances with the monotonic clock. It ignores steps of the wall clock since this process
    began."""
    return _BEGAN + timedelta(seconds=time.monotonic() - _BEGAN_AT_S)


def every(seconds: float) -> Any:
    """Return a schedule for Celery's beat."""
    return schedule(seconds, nowfun=steady_now)
