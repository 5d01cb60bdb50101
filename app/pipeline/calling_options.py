"""Handles Celery's calling options for `evaluate`, so that it works in groups, chains and chords like any task.

A job ends long after its task has run. Whatever Celery has to do then (links, the rest of a chain, a chord's join, a
result under the task id of a canvas) is stored with the job, and is done by a task of its own when the job has ended.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from celery import Celery
from celery.canvas import Signature
from celery.utils.time import maybe_make_aware
from kombu.utils import json

CANVAS = ("link", "link_error", "chain", "chord", "group_id", "group_index", "root_id", "parent_id")
"""Options that concern a task's end."""
DELIVER = "dicast.deliver"
_CALL_TIME = "a call's time is LLM_CALL_TIMEOUT, or its pool's timeout_s; a job that is too late to start: expires"
REJECTED_OPTIONS = {
    "priority": "a job has no priority: its project has a share (dicast governor set --weight PROJECT=N)",
    "time_limit": _CALL_TIME,
    "soft_time_limit": _CALL_TIME,
    "exchange": "a job's units go to the queues of their pools",
    "routing_key": "a job's units go to the queues of their pools",
}
"""Options that would do nothing for a job."""


def check(options: Mapping[str, Any], queues: Collection[str]) -> None:
    """Raise TypeError for an option that cannot be honoured; `queues` are the names of the queue that takes jobs."""
    for name, why in REJECTED_OPTIONS.items():
        if options.get(name) is not None:
            raise TypeError(f"evaluate takes no {name}: {why}")
    queue = options.get("queue")
    if queue is not None and str(getattr(queue, "name", queue)) not in queues:
        raise TypeError(f"evaluate takes no queue but {min(queues)}: {REJECTED_OPTIONS['routing_key']}")
    if options.get("serializer") not in (None, "json"):
        raise TypeError(f"evaluate takes no serializer but json, got {options['serializer']!r}")


class Continuation(NamedTuple):
    """What Celery has to do for the task id of one canvas when a job has ended."""

    task_id: str
    options: Mapping[str, Any]

    @classmethod
    def taken_from(cls, options: dict[str, Any], task_id: str | None, job_id: str) -> Continuation | None:
        """Remove the options that concern the end from `options`. Return None if only the job's own result is
        wanted."""
        taken = {name: value for name in CANVAS if (value := options.pop(name, None)) is not None}
        if task_id in (None, job_id) and not set(taken) - {"root_id", "parent_id"}:
            return None
        return cls(task_id or job_id, taken)

    @classmethod
    def parse(cls, task_id: str, text: str) -> Continuation:
        return cls(task_id, json.loads(text))

    def dumps(self) -> str:
        return str(json.dumps({name: _plain(value) for name, value in self.options.items()}))

    def send(self, app: Celery, job_id: str, queue: str) -> None:
        """Send the task that returns the job's result under the canvas's id. Celery does the rest. May be sent
        twice."""
        app.send_task(DELIVER, args=(job_id,), task_id=self.task_id, queue=queue, **self.options)


def delay_s(app: Celery, countdown: float | None, eta: datetime | None) -> float:
    """Return the seconds to wait before a job starts. Raises TypeError if an argument is no time."""
    if eta is not None:
        return max(0.0, _seconds_until(app, eta, "eta"))
    if countdown is None:
        return 0.0
    if isinstance(countdown, bool) or not isinstance(countdown, int | float):
        raise TypeError(f"countdown is a number of seconds, got {countdown!r}")
    return max(0.0, float(countdown))


def expires_s(app: Celery, expires: float | datetime | None) -> float | None:
    """Return for how many seconds from now a job may be started; None means for ever. Raises TypeError if `expires` is
    no time."""
    if expires is None:
        return None
    if isinstance(expires, datetime):
        return _seconds_until(app, expires, "expires")
    if isinstance(expires, bool) or not isinstance(expires, int | float):
        raise TypeError(f"expires is a number of seconds or a datetime, got {expires!r}")
    return float(expires)


def _seconds_until(app: Celery, when: Any, name: str) -> float:
    if not isinstance(when, datetime):
        raise TypeError(f"{name} is a datetime, got {when!r}")
    return float((maybe_make_aware(when, app.timezone) - app.now()).total_seconds())


def _plain(value: Any) -> Any:
    """Return `value` with signatures, alone or in lists, turned into plain dicts."""
    if isinstance(value, Signature):
        return dict(value)
    return [_plain(element) for element in value] if isinstance(value, list | tuple) else value
