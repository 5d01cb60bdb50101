"""Records errors that concern one job alone, and cancels the job if they persist."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable

from redis.exceptions import RedisError

from dicast.app.ledger.client import LedgerClient, UnknownJob
from dicast.app.ledger.ledger import Ledger
from dicast.app.ledger.records import JobState
from dicast.app.ledger.troubles import Troubles
from dicast.app.pipeline.messages import is_away
from dicast.app.reports.files import ResultsMismatch
from dicast.errors import DicastError

logger = logging.getLogger(__name__)

TRIES = 5
"""A job is given up when the same error has stopped it this many times."""
DISK_TRIES = 240
"""The same for a job that is judged entirely and waits for a disk or a library: the disk may be mended, and another
worker may have the library. With a try every 15 s this is an hour."""
WHY_CHARS = 500


class JobFaults:
    """Records the errors of jobs on one event loop."""

    def __init__(self, troubles: Troubles, jobs: LedgerClient) -> None:
        self._troubles, self._jobs = troubles, jobs

    async def isolate(self, job_id: str, what: str, step: Callable[[], Awaitable[object]]) -> None:
        """Take one step for a job. An error that concerns this job alone is logged and counted against it. Raises
        errors of an unavailable store or broker, which concern all jobs."""
        try:
            await step()
        except Exception as error:  # whatever it is, it must not stop the other jobs
            if is_away(error):
                raise
            logger.exception("housekeeping could not %s", what, extra={"job": job_id})
            await self.note(job_id, error)

    async def note(self, job_id: str, error: Exception) -> None:
        """Record an error that stops a job and is no outage. After `TRIES` of the same error the job is cancelled with
        that reason."""
        why = f"{type(error).__name__}: {error}"[:WHY_CHARS]
        if await self._troubles.note(job_id, why) >= TRIES:
            await self.cancel(job_id, why)

    async def cancel(self, job_id: str, why: str) -> None:
        """Cancel the job with this reason, if it still exists."""
        with contextlib.suppress(UnknownJob):
            state, _ = await asyncio.to_thread(self._jobs.cancel, job_id, why)
            if state in (JobState.SUBMITTED, JobState.RUNNING):
                logger.error("job %s is cancelled: %s", job_id, why, extra={"event": "job_given_up", "job": job_id})


@contextlib.asynccontextmanager
async def reporting_file_errors(ledger: Ledger, job_id: str) -> AsyncIterator[None]:
    """Show those who watch the job why its files cannot be written, and raise the error. The sweep tries again."""
    try:
        yield
    except (OSError, ResultsMismatch) as error:
        with contextlib.suppress(RedisError):  # the original error is raised
            await ledger.waits(job_id, files_trouble(error))
        raise


def files_trouble(error: Exception) -> str:
    """Describe, for people, why a job's files cannot be written or put together."""
    if isinstance(error, OSError):
        where = f"{error.filename}: {error.strerror}" if error.filename else error
        return f"its results cannot be written: {where}"
    description = error if isinstance(error, DicastError) else f"{type(error).__name__}: {error}"
    return f"its results cannot be put together: {description}"
