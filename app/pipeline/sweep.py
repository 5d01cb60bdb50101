"""Finds and restarts what stands still: pages without progress, unattended jobs, ends that were not announced.

An error that concerns one page or job does not stop the work for the others. Every step may be taken twice and by
several workers at once.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from itertools import islice

from dicast.app.ledger.keys import PageRef
from dicast.app.ledger.ledger import Ledger
from dicast.app.ledger.records import JobRecord, MessageId
from dicast.app.ledger.states import JobState
from dicast.app.pipeline.gather import Gatherer
from dicast.app.pipeline.job_cache import JobCache
from dicast.app.pipeline.job_faults import JobFaults
from dicast.app.pipeline.judge import Judge
from dicast.app.pipeline.lanes import Lanes
from dicast.app.pipeline.messages import Messages
from dicast.app.pipeline.time_limits import TimeLimits
from dicast.app.pipeline.unserved import MissingPools

logger = logging.getLogger(__name__)

UNITS_TOGETHER = 50
"""How many units are ended at once: enough to share round trips, and few enough to keep scripts short."""


class StalledPages:
    """Restarts pages without progress."""

    def __init__(self, ledger: Ledger, messages: Messages, jobs: JobCache, missing_pools: MissingPools) -> None:
        self._ledger, self._messages, self._jobs, self._missing_pools = ledger, messages, jobs, missing_pools

    async def look_after(self, ref: PageRef) -> None:
        """Gather a page whose units have all ended, or send messages again that no living worker is working on."""
        job = await self._jobs.get(ref.job, ref.incarnation)
        if job is None:
            return
        lane = job.lanes[ref.lane]
        if not self._missing_pools.serves(lane):
            if why := await self._missing_pools.rejection_reason(job, lane):
                await self._missing_pools.reject_page(job, ref, why)
            return
        pools = self._missing_pools.served_pools(lane)
        empty = await self._messages.queues_empty(pools)
        lost = await self._ledger.find_lost(
            ref, lane.stride, queue_empty=empty, queues=[self._messages.queue(pool) for pool in pools]
        )
        if lost is None:
            await self._messages.gather(ref)
        elif lost:
            logger.warning("page %s: %d messages were lost and are sent again", ref, lost)


class CancelledUnits:
    """Ends the units of cancelled jobs without a call. This includes units whose messages nobody takes, for example
    because no living worker has the labels that their pool demands."""

    def __init__(self, ledger: Ledger, judge: Judge, messages: Messages) -> None:
        self._ledger, self._judge, self._messages = ledger, judge, messages

    async def end(self, job: JobRecord) -> None:
        """End all units that no living worker is working on, and have the job's pages gathered."""
        for page in await self._ledger.unended(job.id):
            lane = job.lanes[page.ref.lane]
            tokens = dict.fromkeys(
                MessageId(position - position % lane.stride, batch=True) if lane.batched else MessageId(position)
                for position in page.open
            )
            waiting = iter(tokens)
            while some := list(islice(waiting, UNITS_TOGETHER)):
                await asyncio.gather(*(self._judge.judge(page.ref, token, None, early=True) for token in some))
            await self._messages.gather(page.ref)


class UnattendedJobs:
    """Restarts jobs that no worker attends."""

    def __init__(self, ledger: Ledger, messages: Messages, lanes: Lanes, cancelled: CancelledUnits) -> None:
        self._ledger, self._messages, self._lanes, self._cancelled = ledger, messages, lanes, cancelled

    async def look_after(self, job_id: str) -> None:
        """Have a job started or finished, plan its lanes, or end the waiting units of a cancelled job."""
        job = await self._ledger.job(job_id)
        if job is None:
            return
        state = (await self._ledger.progress(job_id)).get("state")
        if state == JobState.SUBMITTED:
            await self._messages.start(job_id)
        elif state == JobState.FINISHING:
            await self._messages.finish(job_id)
        elif state == JobState.RUNNING:
            for lane in range(len(job.lanes)):
                await self._lanes.plan(job_id, job.incarnation, lane)
        elif state == JobState.CANCELLING:
            if await self._ledger.ripe(job_id):
                await self._messages.finish(job_id)
            else:
                await self._cancelled.end(job)


class Sweeper:
    """Restarts everything that the ledger lists as overdue."""

    def __init__(
        self, ledger: Ledger, pages: StalledPages, jobs: UnattendedJobs, time_limits: TimeLimits, gatherer: Gatherer,
        faults: JobFaults,
    ) -> None:  # fmt: skip
        self._ledger, self._pages, self._jobs = ledger, pages, jobs
        self._time_limits, self._gatherer, self._faults = time_limits, gatherer, faults

    async def sweep(self) -> None:
        """Check everything once."""
        ledger, isolate = self._ledger, self._faults.isolate
        keys, intervals = ledger.keys, ledger.intervals
        for ref in [PageRef.parse(m) async for m in ledger.overdue(keys.watch, intervals.page_still_ms)]:
            await isolate(ref.job, f"look after page {ref}", partial(self._pages.look_after, ref))
        for job_id in [j async for j in ledger.overdue(keys.unfinished, intervals.unattended_ms)]:
            await isolate(job_id, f"look after job {job_id}", partial(self._jobs.look_after, job_id))
        for job_id in [j async for j in ledger.overdue(keys.bounded, intervals.look_again_ms)]:
            await isolate(job_id, f"see to the deadlines of job {job_id}", partial(self._time_limits.check, job_id))
        for job_id in await ledger.unannounced():
            await isolate(job_id, f"announce job {job_id}", partial(self._gatherer.announce, job_id))
