"""Caches the jobs whose units a process judges; each incarnation is read once."""

from __future__ import annotations

import asyncio
from typing import Protocol

from dicast.app.ledger.records import JobRecord
from dicast.app.pipeline.record import retry_until_available

JOBS_KEPT = 64
"""How many jobs are cached; the oldest are dropped."""

Key = tuple[str, str]


class Jobs(Protocol):
    """See `dicast.app.ledger.ledger.Ledger`."""

    async def job(self, job: str) -> JobRecord | None: ...


class JobCache:
    """Caches jobs for one event loop. Waits for the store while it is unavailable."""

    def __init__(self, ledger: Jobs) -> None:
        self._ledger = ledger
        self._jobs: dict[Key, JobRecord] = {}
        self._reading: dict[Key, asyncio.Future[JobRecord | None]] = {}

    async def get(self, job_id: str, incarnation: str) -> JobRecord | None:
        """Return the job as it was when it was first read, or None if another job has its id now; None is never cached.
        Raises errors that waiting cannot mend."""
        key = job_id, incarnation
        job = self._jobs.get(key)
        if job is not None:
            return job
        # A job's first units come by the hundred: the first one starts the reading, the others wait for it.
        reading = self._reading.get(key)
        if reading is None:
            reading = self._reading[key] = asyncio.ensure_future(self._keep(key))
        return await asyncio.shield(reading)

    async def _keep(self, key: Key) -> JobRecord | None:
        try:
            job = await retry_until_available(lambda: self._ledger.job(key[0]))
        finally:
            del self._reading[key]
        if job is None or job.incarnation != key[1]:
            return None
        self._jobs[key] = job
        if len(self._jobs) > JOBS_KEPT:
            del self._jobs[next(iter(self._jobs))]
        return job
