"""How a job has ended, told to whoever waits for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from celery import Celery

from dicast.app.ledger.client import JobLost
from dicast.app.ledger.records import Ended
from dicast.app.pipeline.calling_options import Continuation
from dicast.app.pipeline.messages import CONTROL_QUEUE


class Announcer:
    """Tells in the result backend, to monitors, and by the tasks that follow; `node` is this worker's name."""

    def __init__(self, app: Celery, node: str) -> None:
        self._app, self._node = app, node

    def announce(self, job_id: str, end: Ended, continuations: Mapping[str, str]) -> None:
        """Blocks. May be called twice."""
        if end.lost:
            self._app.backend.mark_as_failure(job_id, JobLost(job_id))
            event = "task-failed"
            fields: dict[str, Any] = {"exception": repr(JobLost(job_id)), "traceback": ""}
        elif end.revoked:
            self._app.backend.mark_as_revoked(job_id, end.revoked)
            event, fields = "task-revoked", {"terminated": False, "signum": None, "expired": end.revoked == "expired"}
        else:
            self._app.backend.mark_as_done(job_id, end.report)
            event, fields = "task-succeeded", {"result": f"<report of {job_id}>", "runtime": end.report["wall_s"]}
        # As this worker's: a monitor makes a worker of whatever name it hears.
        place = {"exchange": self._app.names.of("dicast"), "routing_key": self._app.names.of(CONTROL_QUEUE)}
        with self._app.events.default_dispatcher(hostname=self._node) as events:
            events.send(event, uuid=job_id, **place, **fields)
        for task_id, text in continuations.items():
            Continuation.parse(task_id, text).send(self._app, job_id, CONTROL_QUEUE)
