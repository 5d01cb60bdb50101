"""The jobs whose units a process judges, each incarnation read once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from dicast.app.ledger.records import JobRecord

JOBS_KEPT = 64
"""Those that were read last."""

Read = Callable[[str], Awaitable[JobRecord | None]]
Key = tuple[str, str]


class JobCache:
    """For one event loop. `read` gives the unchanging part of the job that has an id now, None where there is none."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._jobs: dict[Key, JobRecord] = {}
        self._reading: dict[Key, asyncio.Future[JobRecord | None]] = {}

    async def get(self, job_id: str, incarnation: str) -> JobRecord | None:
        """The job, as it was when it was first asked for; None if another one has its id, and None is never kept.
        Raises what `read` raises."""
        key = job_id, incarnation
        job = self._jobs.get(key)
        if job is not None:
            return job
        # A job's first units come by the hundred: one of them has it read, the others wait for that.
        reading = self._reading.get(key)
        if reading is None:
            reading = self._reading[key] = asyncio.ensure_future(self._keep(key))
        return await asyncio.shield(reading)

    async def _keep(self, key: Key) -> JobRecord | None:
        try:
            job = await self._read(key[0])
        finally:
            del self._reading[key]
        if job is None or job.incarnation != key[1]:
            return None
        self._jobs[key] = job
        if len(self._jobs) > JOBS_KEPT:
            del self._jobs[next(iter(self._jobs))]
        return job
