"""What `evaluate` makes of Celery's calling options, so that it stands in groups, chains and chords like any task.

A job ends long after its task has run, so whatever Celery has to do then (links, the rest of a chain, a chord's join,
a result under the name that a canvas has given) is kept with the job, and done by a task of its own when it has ended.
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
REFUSED = {
    "priority": "a job has no priority: its project has a share (dicast governor set --weight PROJECT=N)",
    "time_limit": _CALL_TIME,
    "soft_time_limit": _CALL_TIME,
    "exchange": "a job's units go to the queues of their pools",
    "routing_key": "a job's units go to the queues of their pools",
}
"""Options that would do nothing for a job."""


def check(options: Mapping[str, Any], queues: Collection[str]) -> None:
    """Raises TypeError for an option that cannot be kept; `queues` are the names of the one that takes jobs."""
    for name, why in REFUSED.items():
        if options.get(name) is not None:
            raise TypeError(f"evaluate takes no {name}: {why}")
    queue = options.get("queue")
    if queue is not None and str(getattr(queue, "name", queue)) not in queues:
        raise TypeError(f"evaluate takes no queue but {min(queues)}: {REFUSED['routing_key']}")
    if options.get("serializer") not in (None, "json"):
        raise TypeError(f"evaluate takes no serializer but json, got {options['serializer']!r}")


class Continuation(NamedTuple):
    """What follows a job's end, for the task id of one canvas."""

    task_id: str
    options: Mapping[str, Any]

    @classmethod
    def taken_from(cls, options: dict[str, Any], task_id: str | None, job_id: str) -> Continuation | None:
        """Take what concerns the end out of `options`; None where nothing but the job's own result is asked for."""
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
        """Have a worker return the job's result under the canvas's id; Celery does the rest. May be sent twice."""
        app.send_task(DELIVER, args=(job_id,), task_id=self.task_id, queue=queue, **self.options)


def delay_s(app: Celery, countdown: float | None, eta: datetime | None) -> float:
    """How long to wait before a job starts, s; raises `TypeError` for what are no times."""
    if eta is not None:
        return max(0.0, _seconds_until(app, eta, "eta"))
    if countdown is None:
        return 0.0
    if isinstance(countdown, bool) or not isinstance(countdown, int | float):
        raise TypeError(f"countdown is a number of seconds, got {countdown!r}")
    return max(0.0, float(countdown))


def expires_s(app: Celery, expires: float | datetime | None) -> float | None:
    """How long from now a job may be started, s; None: for ever. Raises `TypeError` for what is no time."""
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
    """Signatures are dicts already, alone or in lists."""
    if isinstance(value, Signature):
        return dict(value)
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value
