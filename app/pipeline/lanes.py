"""Plans one lane when a message or the housekeeping asks for it."""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from dicast.app.ledger.ledger import Ledger
from dicast.app.ledger.records import JobRecord, JobState
from dicast.app.pipeline.job_faults import JobFaults
from dicast.app.pipeline.messages import is_away
from dicast.app.pipeline.missing_pools import MissingPools
from dicast.app.pipeline.plan import DatasetChanged, Planner, Publisher
from dicast.app.pipeline.question import can_answer
from dicast.workers.system.supervision import watch

logger = logging.getLogger(__name__)


class Finisher(Publisher, Protocol):
    """See `Messages`."""

    async def finish(self, job_id: str) -> None: ...
    async def start(self, job_id: str) -> None: ...


class Lanes:
    """Plans lanes on one event loop. Planned pages are published by `messages`, or rejected if no worker knows their
    pool."""

    def __init__(
        self, ledger: Ledger, planner: Planner, messages: Finisher, missing_pools: MissingPools, faults: JobFaults,
        batches: Publisher | None = None,
    ) -> None:  # fmt: skip
        """Pages of lanes whose units may go by batches are handed to `batches`, of which such lanes need one."""
        self._ledger, self._planner, self._messages = ledger, planner, messages
        self._missing_pools, self._faults, self._batches = missing_pools, faults, batches
        self._starting: set[str] = set()

    def start_elsewhere(self, job_id: str) -> None:
        """Send a job's message again after a delay, until it comes to a worker that can start the job."""

        async def hand_on() -> None:
            try:
                await asyncio.sleep(self._ledger.intervals.elsewhere_s)
                await self._messages.start(job_id)
            finally:
                self._starting.discard(job_id)

        if job_id not in self._starting:
            self._starting.add(job_id)
            watch(asyncio.ensure_future(hand_on()), f"start of job {job_id} by others")

    async def plan(self, job_id: str, incarnation: str, lane: int) -> None:
        """Fill a lane's window.

        A job whose file of items has changed is cancelled. Other errors that concern the job are recorded, and cancel
        it if they persist. Raises errors that may pass by themselves, and LookupError if the job has no such lane: the
        message is then at fault, and not the job.
        """
        job = await self._ledger.job(job_id)
        if job is None or job.incarnation != incarnation:
            return
        if not isinstance(lane, int) or not 0 <= lane < len(job.lanes):  # Python counts -1 from the end
            raise LookupError(f"job {job_id} has no lane {lane!r}")
        planning = await self._ledger.lane(job_id, lane)
        if planning.state != JobState.RUNNING or planning.cursor == "":
            return  # this does not mark the job as attended: the sweeper ends what is being cancelled
        try:
            await self._plan(job, lane)
        except DatasetChanged as error:
            await self._faults.cancel(job_id, str(error))
        except Exception as error:  # such as a file that cannot be read: the error concerns the job, not the message
            if is_away(error):
                raise
            logger.exception("lane %d of job %s cannot be planned", lane, job_id, extra={"job": job_id})
            await self._ledger.planned(job_id, lane)
            await self._faults.note(job_id, error)
        await self._ledger.attended(job_id)

    async def _plan(self, job: JobRecord, lane: int) -> None:
        served, finish = self._missing_pools.serves(job.lanes[lane]), False
        able = job.spec.question is None or can_answer()
        if able and served:
            publisher = self._batches if job.lanes[lane].may_batch else self._messages
            finish = await self._planner.plan(job, lane, publisher or self._messages)
        elif able and await self._missing_pools.rejection_reason(job, job.lanes[lane]):
            finish = await self._planner.plan(job, lane, self._missing_pools)
        else:
            await self._ledger.planned(job.id, lane)
            self._missing_pools.hand_on(job, lane)
        if finish:
            await self._messages.finish(job.id)
