"""The jobs whose units a process judges, each read once an epoch of the store."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable

from app.ledger.records import JobRecord

JOBS_KEPT = 64

Read = Callable[[str], Awaitable[JobRecord | None]]


class JobCache:
    """For one event loop. `read` gives the job's unchanging part, None where there is none; `epoch` is the store's as
    far as is known: after a flush, another job may have the same id."""

    def __init__(self, read: Read, epoch: Callable[[], int]) -> None:
        self._read, self._epoch = read, epoch
        self._jobs: OrderedDict[tuple[str, int], JobRecord] = OrderedDict()
        self._reading: dict[tuple[str, int], asyncio.Future[JobRecord | None]] = {}

    async def get(self, job_id: str) -> JobRecord | None:
        """The job, as it was when it was first asked for; None is never kept. Raises what `read` raises."""
        key = job_id, self._epoch()
        job = self._jobs.get(key)
        if job is not None:
            return job
        # A job's first units come by the hundred: one of them has it read, the others wait for that.
        reading = self._reading.get(key)
        if reading is None:
            reading = self._reading[key] = asyncio.ensure_future(self._keep(key))
        return await asyncio.shield(reading)

    async def _keep(self, key: tuple[str, int]) -> JobRecord | None:
        try:
            job = await self._read(key[0])
        finally:
            del self._reading[key]
        if job is not None:
            self._jobs[key] = job
            if len(self._jobs) > JOBS_KEPT:
                self._jobs.popitem(last=False)
        return job
