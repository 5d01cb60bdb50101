"""The work that no message asks for: due messages, dead nodes, stuck pages and jobs.

Every worker publishes due messages, several times a second. The rest is done at the beat's ticks; where no beat runs,
the workers do it themselves, one at a time. Every step may be taken twice and by several workers at once, and an error
that concerns one page or job does not stop the work for the others.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import islice
from typing import ParamSpec, Protocol, TypeVar

from kombu.exceptions import KombuError
from redis.exceptions import RedisError

from dicast.app.ledger.batches import BatchStore, LaneRef
from dicast.app.ledger.keys import PageRef
from dicast.app.ledger.ledger import Ledger
from dicast.app.ledger.records import JobRecord, JobState, MessageId
from dicast.app.pipeline.gather import Gatherer
from dicast.app.pipeline.job_faults import JobFaults
from dicast.app.pipeline.judge import Judge
from dicast.app.pipeline.lanes import Lanes
from dicast.app.pipeline.messages import Messages, is_away
from dicast.app.pipeline.missing_pools import MissingPools
from dicast.app.pipeline.record import JobCache
from dicast.app.pipeline.recovery import Adoption, DeadNodes, Recovery
from dicast.app.pipeline.time_limits import TimeLimits

logger = logging.getLogger(__name__)
T = TypeVar("T")

OUTAGE_ERRORS = (RedisError, KombuError, OSError)
"""The classes to which the errors of an unavailable store or broker belong; `is_away` tells these from others."""


class DueMessages:
    """Publishes due messages from one event loop. Every worker does so several times a second."""

    def __init__(
        self, ledger: Ledger, messages: Messages, jobs: JobCache, missing_pools: MissingPools, faults: JobFaults,
        batches: BatchStore | None = None,
    ) -> None:  # fmt: skip
        self._ledger, self._messages, self._jobs = ledger, messages, jobs
        self._missing_pools, self._faults, self._batches = missing_pools, faults, batches

    async def publish(self) -> None:
        """Publish every message whose time has come. If the broker fails, this message and those after it are made due
        again soon, instead of being found as lost later."""
        taken = await self._ledger.take_due()
        for number, (ref, token) in enumerate(taken):
            try:
                await self._faults.isolate(ref.job, f"publish {ref}.{token} again", partial(self._resend, ref, token))
            except OUTAGE_ERRORS:
                await self._missing_pools.due_again(taken[number:])
                raise

    async def _resend(self, ref: PageRef, token: MessageId) -> None:
        job = await self._jobs.get(ref.job, ref.incarnation)
        if job is None:
            return
        lane = job.lanes[ref.lane]
        if lane.may_batch and self._batches is not None and await self._ledger.by_batches(job, ref.lane):
            await self._batches.schedule(
                LaneRef(ref.job, ref.incarnation, ref.lane), self._ledger.intervals.batch_forms_ms
            )
        elif self._missing_pools.serves(lane):
            await self._messages.resend(job, ref, token)
        elif why := await self._missing_pools.rejection_reason(job, lane):
            await self._missing_pools.reject(ref, [token], why)
        else:
            await self._missing_pools.due_again([(ref, token)])


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
        # What goes by batches has no messages, and becomes due like lost ones.
        by_batches = lane.may_batch and await self._ledger.by_batches(job, ref.lane)
        empty = by_batches or await self._messages.queues_empty(pools)
        lost = await self._ledger.find_lost(
            ref, lane.stride, queue_empty=empty, queues=[self._messages.queue(pool) for pool in pools]
        )
        if lost is None:
            await self._messages.gather(ref)
        elif lost and not by_batches:
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
            tokens = dict.fromkeys(MessageId.of(lane, position) for position in page.open)
            waiting = iter(tokens)
            while some := list(islice(waiting, UNITS_TOGETHER)):
                await asyncio.gather(*(self._judge.judge(page.ref, token, None, early=True) for token in some))
            await self._messages.gather(page.ref)


class UnattendedJobs:
    """Restarts jobs that no worker attends."""

    def __init__(
        self, ledger: Ledger, messages: Messages, lanes: Lanes, cancelled: CancelledUnits,
        batches: BatchStore | None = None,
    ) -> None:  # fmt: skip
        self._ledger, self._messages, self._lanes, self._cancelled = ledger, messages, lanes, cancelled
        self._batches = batches

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
                if self._batches is not None:
                    await self._batches.hasten(job_id)
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


P = ParamSpec("P")


class Governing(Protocol):
    async def govern(self) -> None:
        """Have the governor decide on every pool's limits."""


class Nodes(Protocol):
    """See `dicast.app.cluster.cluster.Cluster`."""

    def hand_on(self) -> None:
        """Return messages that wait at busy nodes to their queues, for idle nodes. Blocks."""


class Reports(Protocol):
    """See `dicast.app.pipeline.gather.ProgressReports`."""

    async def store(self) -> None:
        """Store the progress of all running jobs."""


class Beat:
    """The work of the beat's ticks, whoever does it. Without `nodes`, messages that wait at busy nodes stay there;
    without `progress`, the progress of jobs is not stored."""

    def __init__(
        self, ledger: Ledger, adoption: Adoption, dead_nodes: DeadNodes, sweeper: Sweeper, pools: Governing,
        nodes: Nodes | None = None, progress: Reports | None = None,
    ) -> None:  # fmt: skip
        self._ledger, self._adoption, self._dead_nodes = ledger, adoption, dead_nodes
        self._sweeper, self._pools, self._nodes, self._progress = sweeper, pools, nodes, progress

    async def tick(self) -> None:
        """Do the work of one housekeeping tick."""
        await self._ledger.led(self._ledger.intervals.beat_silent_ms)
        await _survive_outage(self._adoption.adopt)  # before other nodes get these units and call again
        await _survive_outage(self._dead_nodes.deregister)
        await _survive_outage(self._spread)
        await self._sweeper.sweep()
        if self._progress is not None:
            await _survive_outage(self._progress.store)

    async def _spread(self) -> None:
        if self._nodes is not None:
            await asyncio.to_thread(self._nodes.hand_on)

    async def govern(self) -> None:
        """Do the work of one governor tick."""
        await self._pools.govern()

    async def stand_in(self) -> None:
        """Do the work of both ticks if no beat has ticked for a while and no other worker has taken its place."""
        if await _survive_outage(self._ledger.lead, self._ledger.intervals.beat_silent_ms):
            await _survive_outage(self.tick)
            await _survive_outage(self.govern)


class Housekeeper:
    """One worker's part of the housekeeping."""

    def __init__(
        self,
        due: DueMessages,
        adoption: Adoption,
        recovery: Recovery,
        missing_pools: MissingPools,
        beat: Beat,
        due_every_s: float,
    ) -> None:
        self._due, self._adoption, self._recovery = due, adoption, recovery
        self._missing_pools, self._beat, self._due_every_s = missing_pools, beat, due_every_s

    async def run(self) -> None:
        """Publish what is due and stand in for a missing beat, until cancelled."""
        rounds_per_check = max(1, round(1 / self._due_every_s))
        while True:
            for _ in range(rounds_per_check):
                await asyncio.sleep(self._due_every_s)
                await _survive_outage(self._due.publish)
            await _survive_outage(self._adoption.adopt)
            await _survive_outage(self._recovery.remember)
            await _survive_outage(self._missing_pools.announce_pools)
            await self._beat.stand_in()


async def _survive_outage(step: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T | None:
    """Run one step and log its errors, so that an unavailable store or broker does not end the housekeeper: the step is
    tried again in the next round."""
    try:
        return await step(*args, **kwargs)
    except Exception as error:
        if is_away(error):
            logger.warning("housekeeping waits for the store or the broker: %s", error)
        else:  # a fault of this program must not keep the other steps from being taken
            logger.exception("housekeeping could not %s", step.__name__)
    return None
