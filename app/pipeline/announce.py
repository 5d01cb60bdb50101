"""Reports a job's progress and its end to whoever waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from celery import Celery

from dicast.app.ledger.client import JobLost
from dicast.app.ledger.ledger import Ledger
from dicast.app.ledger.records import Ended, JobStanding
from dicast.app.pipeline.calling_options import Continuation
from dicast.app.pipeline.messages import CONTROL_QUEUE


class Announcer:
    """Reports a job's end to the result backend and to monitors, and sends the tasks that follow it. `node` is this
    worker's name."""

    def __init__(self, app: Celery, node: str) -> None:
        self._app, self._node = app, node

    def announce(self, job_id: str, end: Ended, continuations: Mapping[str, str]) -> None:
        """Announce the end of a job and send its continuations, by task id. Blocks; may be called twice."""
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
        # Sent under this worker's name: a monitor lists every name that it receives as a worker.
        routing = {"exchange": self._app.names.qualify("dicast"), "routing_key": self._app.names.qualify(CONTROL_QUEUE)}
        with self._app.events.default_dispatcher(hostname=self._node) as events:
            events.send(event, uuid=job_id, **routing, **fields)
        for task_id, text in continuations.items():
            Continuation.parse(task_id, text).send(self._app, job_id, CONTROL_QUEUE)


class StoresProgress(Protocol):
    """See `dicast.workers.runtime.result_backend.RedisBackend`."""

    def store_progress(self, task_id: str, info: Mapping[str, Any]) -> bool:
        """Store a running task's state. Blocks; changes nothing if the task's end is stored."""
        ...


class ProgressReports:
    """Stores the progress of running jobs as the state of their tasks: `AsyncResult.state` is PROGRESS, and `.info` has
    the counts of units. A job that has not changed since this process last stored it is skipped. Not safe to share
    between event loops."""

    def __init__(self, ledger: Ledger, backend: StoresProgress) -> None:
        self._ledger, self._backend = ledger, backend
        self._stored: dict[str, JobStanding] = {}

    async def store(self, jobs: Sequence[str] | None = None) -> None:
        """Store the progress of these jobs; with None, of all jobs that have not ended. Raises redis errors."""
        names = list(await self._ledger.unfinished() if jobs is None else jobs)
        standings = dict(zip(names, await self._ledger.standings(names), strict=True)) if names else {}
        if jobs is None:
            self._stored = {job: standing for job, standing in self._stored.items() if job in standings}
        for job, standing in standings.items():
            if standing is not None and self._stored.get(job) != standing:
                for task_id in {job, *await self._ledger.continuations(job)}:  # a canvas waits under its own task id
                    await asyncio.to_thread(self._backend.store_progress, task_id, standing._asdict())
                self._stored[job] = standing
