"""The jobs whose units a process judges, each incarnation read once, and the items that were submitted with a job."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Protocol

from dicast.app.domain.item import Item
from dicast.app.ledger.ledger import Ledger
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


ITEMS_TOGETHER = 500


class ItemsGone(LookupError):
    """A job's items have left the store."""


async def stored_items(ledger: Ledger, job_id: str) -> Iterator[Item]:
    """Return an iterator over the items in the store. It is consumed in a thread, while the event loop that called this
    reads the items. The iterator raises `ItemsGone` if the job ends meanwhile."""
    count, loop = await ledger.item_count(job_id), asyncio.get_running_loop()

    def items() -> Iterator[Item]:
        first = 0
        while first < count:
            reading = ledger.items_within(job_id, range(first, min(first + ITEMS_TOGETHER, count)))
            page = asyncio.run_coroutine_threadsafe(reading, loop).result()
            if not page:
                raise ItemsGone
            yield from page
            first += len(page)

    return items()
