"""Jobs from asyncio programs: submitted, watched and cancelled without blocking the loop.

    async with AsyncClient() as client:
        report = await client.evaluate(job)

The ledger alone is asked, so no result backend has to be listened to, and any number of jobs may be waited for.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self

from redis.exceptions import RedisError
from rich.progress import Progress

from dicast.app.access.audit import operator
from dicast.app.application import Dicast, create_app
from dicast.app.domain.job import EvaluationJob
from dicast.app.domain.report import Report
from dicast.app.ledger.client import JobLost, JobStatus
from dicast.app.ledger.records import JobState
from dicast.app.operator import jobs
from dicast.app.reports.results import show_reports
from dicast.config.settings import environment

show_reports()

LOOK_FIRST_S = 0.1
LOOK_MAX_S = 1.0


class AsyncClient:
    """Submits and watches jobs from one event loop. Settings come from the environment and `.env`, unless `environ` or
    `app` is given.

    All methods raise redis errors while the store is unavailable, except `wait`, which tries again.
    """

    def __init__(self, environ: Mapping[str, str] | None = None, *, app: Dicast | None = None) -> None:
        self._app = app if app is not None else create_app(environment() if environ is None else environ)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await asyncio.to_thread(self._app.close)

    async def submit(self, job: EvaluationJob | Mapping[str, Any]) -> str:
        """Check a job, store it, and return its id. Submitting the same job again gives the same job.

        Raises TypeError, `InvalidJob`, `JobRefused`, `UnknownPool`, `DatasetError` or `JobConflict`.
        """

        def store_and_send() -> str:
            job_id = self._app.submit(job)
            jobs.send(self._app, job_id)
            return job_id

        return await asyncio.to_thread(store_and_send)

    async def status(self, job_id: str) -> JobStatus:
        """Return a job's state and counters now. Raises `UnknownJob`."""
        return await asyncio.to_thread(self._app.ledger.status, job_id)

    async def wait(self, job_id: str, progress: Callable[[JobStatus], None] | None = None) -> Report:
        """Wait until the job has ended, and return its report. `progress` is called with each status that is read. Use
        `asyncio.timeout` to bound the wait. Raises `UnknownJob` and `JobLost`."""
        pause_s = LOOK_FIRST_S
        while True:
            with contextlib.suppress(RedisError):
                status = await self.status(job_id)
                if progress is not None:
                    progress(status)
                if status.state is JobState.LOST:
                    raise JobLost(job_id)
                if status.report is not None:
                    return Report.model_validate(status.report)
            await asyncio.sleep(pause_s)
            pause_s = min(LOOK_MAX_S, 1.5 * pause_s)

    async def evaluate(
        self, job: EvaluationJob | Mapping[str, Any], progress: Callable[[JobStatus], None] | None = None
    ) -> Report:
        """Submit a job and wait for its report. `progress` is called with each status that is read. Cancelling this
        call does not cancel the job: see `cancel`."""
        return await self.wait(await self.submit(job), progress)

    async def cancel(self, job_id: str) -> JobState:
        """Cancel a job, so that it makes no new calls, and return its state before. Raises `UnknownJob`."""

        def cancel_and_note() -> JobState:
            before = jobs.cancel(self._app, job_id)
            outcome = jobs.outcome_of_cancel(before)
            self._app.record(operator(), "job.cancel", job_id, outcome, {"before": before})
            return before

        return await asyncio.to_thread(cancel_and_note)


def evaluate_and_wait(job: EvaluationJob | Mapping[str, Any], *, progress: bool = True) -> Report:
    """Submit a job and wait for its report, with a progress bar: in a notebook or on a terminal. Blocks, also where an
    event loop runs already; raises as `AsyncClient` does."""
    with Progress(disable=not progress, transient=True) as display:
        bar = display.add_task("judging", total=None)

        def update_display(status: JobStatus) -> None:
            display.update(bar, total=status.units, completed=status.done, description=f"{status.id} {status.state}")

        async def evaluate() -> Report:
            async with AsyncClient() as client:
                return await client.evaluate(job, update_display)

        with ThreadPoolExecutor(1) as aside:  # a notebook's own thread has a loop that runs
            return aside.submit(asyncio.run, evaluate()).result()
