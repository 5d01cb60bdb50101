"""What must happen though no message asks for it: due messages, dead nodes, stuck pages and jobs.

Every worker publishes due messages, several times a second. The rest is the beat's tick; where no beat ticks, the
workers do it themselves, one at a time. Every step is safe to take twice and by several at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import ParamSpec, TypeVar

from kombu.exceptions import KombuError
from redis.exceptions import RedisError

from dicast.app.domain.intervals import STANDARD, Intervals
from dicast.app.ledger.client import JobState
from dicast.app.ledger.keys import PageRef
from dicast.app.ledger.ledger import Ledger
from dicast.app.ledger.records import JobRecord, MessageId
from dicast.app.pipeline.gather import Gatherer
from dicast.app.pipeline.messages import Messages, is_away
from dicast.app.pipeline.unserved import Unserved

logger = logging.getLogger(__name__)

AWAY = (RedisError, KombuError, OSError)
"""Among these are the errors of a store or a broker that is away; `is_away` tells which are."""

P = ParamSpec("P")
T = TypeVar("T")
JobOf = Callable[[PageRef], Awaitable[JobRecord | None]]


class Housekeeper:
    """One worker's part of it. `reap` is a blocking pass over the nodes (workers/nodes/reaper.py); `govern` decides on
    every pool's limits; `store` names the store's epoch and server as far as is known; `works_on` tells what this
    process has in hand (see `Judge.works_on`); `lost` tells of a job that the store forgot; `adopt` stores what dead
    processes of this machine have left on disk, `recall` what another server may not have got; `troubled` hears of
    what keeps a job from going on; `time_limits` ends what a job does not wait for any longer.

    Whatever concerns one page, job or message is that one's trouble alone: the others are looked after all the same."""

    def __init__(
        self,
        ledger: Ledger,
        messages: Messages,
        gatherer: Gatherer,
        *,
        job: JobOf,
        plan: Callable[[str, str, int], Awaitable[None]],
        reap: Callable[[], int],
        govern: Callable[[], Awaitable[None]],
        store: Callable[[], tuple[int, str]],
        works_on: Callable[[PageRef, int], bool],
        lost: Callable[[str, Mapping[str, str]], Awaitable[None]],
        adopt: Callable[[], Awaitable[None]],
        recall: Callable[[], Awaitable[None]],
        unserved: Unserved,
        troubled: Callable[[str, Exception], Awaitable[None]],
        time_limits: Callable[[str], Awaitable[None]],
        intervals: Intervals = STANDARD,
    ) -> None:
        self._intervals = intervals
        self._time_limits = time_limits
        self._unserved, self._troubled = unserved, troubled
        self._ledger, self._messages, self._gatherer = ledger, messages, gatherer
        self._job, self._plan, self._reap, self.govern = job, plan, reap, govern
        self._store, self._works_on, self._lost, self._adopt = store, works_on, lost, adopt
        self._recall = recall
        self._seen = (0, "")
        self._burying: asyncio.Future[None] | None = None
        self._unfinished: dict[str, Mapping[str, str]] = {}

    async def run(self) -> None:
        """Until cancelled: publish what is due, and stand in for a beat that does not tick."""
        rounds_per_check = round(1 / self._intervals.due_every_s)
        while True:
            for _ in range(rounds_per_check):
                await asyncio.sleep(self._intervals.due_every_s)
                await _surviving(self.publish_due)
            await _surviving(self._adopt)
            await _surviving(self.remember)
            await _surviving(self._unserved.tell)
            if await _surviving(self._ledger.lead, self._intervals.beat_silent_ms):
                await _surviving(self.tick)
                await _surviving(self.govern)

    async def remember(self) -> None:
        """Notice what the store has forgotten: after a new epoch or on another server queues and how units ended, and
        jobs that did not end before they went."""
        if (store := self._store()) != self._seen:
            await self._messages.declare()
            if self._seen[1]:
                await self._recall()
                await self._disown()
                await self._ledger.look_soon()
            self._seen = store
        now = await self._ledger.unfinished()
        still = set(now)
        gone = [job for job in self._unfinished if job not in still]
        for job, found in zip(gone, await self._ledger.facts(gone) if gone else [], strict=True):
            if found is None:
                await self._lost(job, self._unfinished[job])
            self._unfinished.pop(job, None)
        new = [job for job in now if job not in self._unfinished]
        known = zip(new, await self._ledger.facts(new) if new else [], strict=True)
        self._unfinished.update((job, facts) for job, facts in known if facts is not None)

    async def watch(self, job: str) -> None:
        """Know a job from now on, so that it is told as lost even if the store forgets it before the next look."""
        (facts,) = await self._ledger.facts([job])
        if facts is not None:
            self._unfinished[job] = facts

    async def _disown(self) -> None:
        """Give up what this node has claimed and does not work on. The claims are read first: one that is made
        meanwhile is not among them, and a message that ends meanwhile has written how."""
        for ref in await self._ledger.open_pages():
            claims = await self._ledger.list_claims(ref)
            ended = {p: fence for p, fence in claims.items() if not self._works_on(ref, p)}
            if ended and (lost := await self._ledger.release_claims(ref, ended)):
                logger.warning("page %s: the store has lost how %d units ended, they come again", ref, lost)

    async def publish_due(self) -> None:
        """Publish every message whose time has come. Those that come after one that finds the broker away are due again
        soon, and not only when they would be taken for lost."""
        taken = await self._ledger.take_due()
        for number, (ref, token) in enumerate(taken):
            try:
                await self._alone(ref.job, f"publish {ref}.{token} again", partial(self._publish_again, ref, token))
            except AWAY:
                await self._unserved.due_again(taken[number:])
                raise

    async def _publish_again(self, ref: PageRef, token: MessageId) -> None:
        job = await self._job(ref)
        if job is None:
            return
        lane = job.lanes[ref.lane]
        if self._unserved.serves(lane):
            await self._messages.again(job, ref, token)
        elif why := await self._unserved.gone(job, lane):
            await self._unserved.reject(ref, [token], why)
        else:
            await self._unserved.due_again([(ref, token)])

    async def tick(self) -> None:
        """The beat's work."""
        await self._ledger.led(self._intervals.beat_silent_ms)
        await _surviving(self._adopt)  # before their units are handed to others, who would call again
        await _surviving(self.deregister)
        intervals, keys = self._intervals, self._ledger.keys
        for ref in [PageRef.parse(m) async for m in self._ledger.overdue(keys.watch, intervals.page_still_ms)]:
            await self._alone(ref.job, f"look after page {ref}", partial(self._look_after_page, ref))
        for job_id in [j async for j in self._ledger.overdue(keys.unfinished, intervals.unattended_ms)]:
            await self._alone(job_id, f"look after job {job_id}", partial(self._look_after_job, job_id))
        for job_id in [j async for j in self._ledger.overdue(keys.bounded, intervals.look_again_ms)]:
            await self._alone(job_id, f"see to the deadlines of job {job_id}", partial(self._time_limits, job_id))
        for job_id in await self._ledger.unannounced():
            await self._alone(job_id, f"announce job {job_id}", partial(self._gatherer.announce, job_id))

    async def _alone(self, job_id: str, what: str, step: Callable[[], Awaitable[object]]) -> None:
        """Take one step; what is wrong with its job alone is told, and counted against that job. Raises one of `AWAY`
        while the store or the broker is: then nothing can be done for the others either."""
        try:
            await step()
        except Exception as error:
            if is_away(error):
                raise
            logger.exception("housekeeping could not %s", what, extra={"job": job_id})
            await self._troubled(job_id, error)

    async def deregister(self) -> None:
        """Take over from nodes that are dead or silent; many who ask at once are answered by one pass."""
        if self._burying is None or self._burying.done():
            self._burying = asyncio.ensure_future(self._bury())
        await asyncio.shield(self._burying)

    async def _bury(self) -> None:
        if await asyncio.to_thread(self._reap):
            await self._ledger.look_soon()

    async def _look_after_page(self, ref: PageRef) -> None:
        """A page that did not move: gather it if it is whole, or send again what nobody living works on."""
        job = await self._job(ref)
        if job is None:
            return
        lane = job.lanes[ref.lane]
        if not self._unserved.serves(lane):
            if why := await self._unserved.gone(job, lane):
                await self._unserved.reject_page(job, ref, why)
            return
        pools = self._unserved.served(lane)
        empty = await self._messages.queues_empty(pools)
        lost = await self._ledger.find_lost(
            ref, lane.stride, queue_empty=empty, queues=[self._messages.queue(pool) for pool in pools]
        )
        if lost is None:
            await self._messages.gather(ref)
        elif lost:
            logger.warning("page %s: %d messages were lost and are sent again", ref, lost)

    async def _look_after_job(self, job_id: str) -> None:
        """A job that nobody attends: start it, plan its lanes, or finish it."""
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
                await self._plan(job_id, job.incarnation, lane)
        elif state == JobState.CANCELLING and await self._ledger.ripe(job_id):
            await self._messages.finish(job_id)


async def _surviving(step: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T | None:
    """A store or broker that is away stops no housekeeper: it tries again with the next round."""
    try:
        return await step(*args, **kwargs)
    except Exception as error:
        if is_away(error):
            logger.warning("housekeeping waits for the store or the broker: %s", error)
        else:  # a fault of this program: whatever else has to be done still is
            logger.exception("housekeeping could not %s", step.__name__)
    return None
