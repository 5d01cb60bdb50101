"""What is wrong with one job alone: it is put on record, and ends that job if it lasts."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable

from redis.exceptions import RedisError

from dicast.app.ledger.client import LedgerClient, UnknownJob
from dicast.app.ledger.ledger import Ledger
from dicast.app.ledger.states import JobState
from dicast.app.ledger.troubles import Troubles
from dicast.app.pipeline.messages import is_away
from dicast.app.reports.files import ResultsMismatch
from dicast.errors import DicastError

logger = logging.getLogger(__name__)

TRIES = 5
"""A job that the same trouble has kept from going on so often is given up."""
DISK_TRIES = 240
"""The same where all of it is judged, and a disk or a library is in the way: that may be mended, or another worker has
it. At a try each 15 s it is an hour."""
WHY_CHARS = 500


class JobFaults:
    """For one event loop."""

    def __init__(self, troubles: Troubles, jobs: LedgerClient) -> None:
        self._troubles, self._jobs = troubles, jobs

    async def alone(self, job_id: str, what: str, step: Callable[[], Awaitable[object]]) -> None:
        """Take one step for a job; what is wrong with that job alone is told, and counted against it. Raises what tells
        that the store or the broker is away: then nothing can be done for the others either."""
        try:
            await step()
        except Exception as error:  # whatever it is, the other jobs are looked after all the same
            if is_away(error):
                raise
            logger.exception("housekeeping could not %s", what, extra={"job": job_id})
            await self.note(job_id, error)

    async def note(self, job_id: str, error: Exception) -> None:
        """Something keeps a job from going on that is no outage: it is put on record, and after `TRIES` of the same the
        job is cancelled with that reason."""
        why = f"{type(error).__name__}: {error}"[:WHY_CHARS]
        if await self._troubles.note(job_id, why) >= TRIES:
            await self.cancel(job_id, why)

    async def cancel(self, job_id: str, why: str) -> None:
        """Nothing becomes of the job."""
        with contextlib.suppress(UnknownJob):
            state, _ = await asyncio.to_thread(self._jobs.cancel, job_id, why)
            if state in (JobState.SUBMITTED, JobState.RUNNING):
                logger.error("job %s is cancelled: %s", job_id, why, extra={"event": "job_given_up", "job": job_id})


@contextlib.asynccontextmanager
async def telling_of_files(ledger: Ledger, job_id: str) -> AsyncIterator[None]:
    """Have those who watch the job know why its files cannot be written; whoever sweeps tries again."""
    try:
        yield
    except (OSError, ResultsMismatch) as error:
        with contextlib.suppress(RedisError):  # the trouble itself is raised
            await ledger.waits(job_id, files_trouble(error))
        raise


def files_trouble(error: Exception) -> str:
    """What keeps a job's files from being written or put together, for people."""
    if isinstance(error, OSError):
        where = f"{error.filename}: {error.strerror}" if error.filename else error
        return f"its results cannot be written: {where}"
    what = error if isinstance(error, DicastError) else f"{type(error).__name__}: {error}"
    return f"its results cannot be put together: {what}"
