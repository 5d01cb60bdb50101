"""Handles units of pools that this worker does not know. Other workers have to publish and judge them.

A client may be newer than its workers, and a pool may have been removed from the configuration. While a living worker
knows the pool, or may still start, its units wait. After `Intervals.pool_gone_ms` without such a worker they are
recorded as rejected, so that their job ends; when the pool is back, `dicast jobs resume` has them judged.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Collection, Iterable

from dicast.app.domain.opinion import FailureKind
from dicast.app.domain.plan import STANDARD, Intervals, Lane
from dicast.app.ledger.keys import PageRef
from dicast.app.ledger.records import JobRecord, MessageId
from dicast.app.ledger.troubles import Troubles
from dicast.app.pipeline.judge import Judge
from dicast.app.pipeline.messages import Sender
from dicast.app.pipeline.plan import PageMessages
from dicast.app.providers.base import ProviderFailure
from dicast.workers.system.supervision import watch

logger = logging.getLogger(__name__)

LOGGED_KEPT = 100
"""How many logged warnings are remembered, so that they are not repeated with each check."""


class MissingPools:
    """Handles units of unknown pools on one event loop. `known_pools` are this worker's."""

    def __init__(
        self,
        troubles: Troubles,
        judge: Judge,
        messages: Sender,
        known_pools: Collection[str],
        intervals: Intervals = STANDARD,
    ) -> None:
        self._troubles, self._judge, self._messages, self._known_pools = troubles, judge, messages, known_pools
        self._intervals = intervals
        self._handed_on: set[tuple[str, str, int]] = set()
        self._announce_at = 0.0
        self._logged: deque[tuple[str, str]] = deque(maxlen=LOGGED_KEPT)

    async def announce_pools(self) -> None:
        """Publish which pools this worker knows, every `tell_pools_every_s`."""
        now = asyncio.get_running_loop().time()
        if now >= self._announce_at:
            await self._troubles.announce_pools(self._known_pools)
            self._announce_at = now + self._intervals.tell_pools_every_s

    async def due_again(self, messages: Iterable[tuple[PageRef, MessageId]]) -> None:
        """Make messages due again that could not be sent from this worker."""
        await self._troubles.due_again(messages)

    def serves(self, lane: Lane) -> bool:
        """Whether this worker knows a pool that the lane's units may go to."""
        return bool(self.served_pools(lane))

    def served_pools(self, lane: Lane) -> set[str]:
        """Return the pools of a lane that this worker knows."""
        return {pool for pool in lane.pools if pool in self._known_pools}

    async def rejection_reason(self, job: JobRecord, lane: Lane) -> str:
        """Return why the units of a lane that this worker does not serve are rejected, or "" while they wait for a
        worker that serves it. Records that they wait."""
        names = ", ".join(sorted(set(lane.pools)))
        unseen_ms = await self._troubles.unannounced_ms(lane.pools)
        if unseen_ms < self._intervals.pool_seen_ms:
            return ""
        if unseen_ms < self._intervals.pool_gone_ms:
            why = f"no worker knows the pool {names}: its units wait for one that does"
            if await self._troubles.note(job.id, why) == 1 and (job.id, why) not in self._logged:
                self._logged.append((job.id, why))
                logger.warning("job %s: %s", job.id, why, extra={"event": "pool_unknown", "job": job.id})
            return ""
        return f"the pool {names} is in no worker's configuration"

    def hand_on(self, job: JobRecord, lane_number: int) -> None:
        """Have a lane planned by another worker, after a delay."""
        place = job.id, job.incarnation, lane_number
        if place not in self._handed_on:
            self._handed_on.add(place)
            watch(asyncio.ensure_future(self._hand_on(*place)), f"planning of job {job.id} by others")

    async def _hand_on(self, job_id: str, incarnation: str, lane: int) -> None:
        try:
            await asyncio.sleep(self._intervals.elsewhere_s)
            await self._messages.plan(job_id, incarnation, lane)
        finally:
            self._handed_on.discard((job_id, incarnation, lane))

    async def reject(self, ref: PageRef, tokens: Iterable[MessageId], why: str) -> None:
        """Record units as rejected, without a call, except those that a living worker is working on."""
        failure = ProviderFailure(FailureKind.REJECTED, why)
        for token in tokens:
            outcome = await self._judge.judge(ref, token, None, rejection=failure)
            if outcome.plan:
                await self._messages.plan(ref.job, ref.incarnation, ref.lane)
        await self._messages.gather(ref)

    async def reject_page(self, job: JobRecord, ref: PageRef, why: str) -> None:
        """Record all units of an open page as rejected."""
        lane = job.lanes[ref.lane]
        positions = await self._troubles.extent(ref)
        await self.reject(ref, [MessageId.of(lane, p) for p in positions[:: lane.stride]], why)

    async def page(self, job: JobRecord, page: PageMessages) -> None:
        """Reject the units of a page, in place of publishing it."""
        why = (
            await self.rejection_reason(job, page.lane)
            or "its pool was in no worker's configuration when it was planned"
        )
        await self.reject(page.ref, page.tokens, why)
