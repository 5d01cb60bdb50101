"""Recovers what dead processes have left on disk, what the store has lost, and the work of dead or silent nodes.

What may be lost or left are results, claims and jobs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from typing import Protocol

from redis.exceptions import ResponseError

from dicast.app.ledger.client import JobLost
from dicast.app.ledger.keys import PageRef
from dicast.app.ledger.ledger import Ledger
from dicast.app.ledger.records import Recorded, WriteVerdict
from dicast.app.pipeline.gather import RETENTION_S, Gatherer
from dicast.app.pipeline.messages import Messages, Sender
from dicast.app.pipeline.record import Recorder, Spool
from dicast.workers.store.connection import is_passing
from dicast.workers.store.scripts import Epoch

logger = logging.getLogger(__name__)

ADOPTED_TOGETHER = 100


class Working(Protocol):
    """Knows which units this process is working on."""

    def works_on(self, ref: PageRef, position: int) -> bool: ...


class AdoptionCounter(Protocol):
    def adopted(self, *, accepted: bool) -> None: ...


class Adoption:
    """Stores answers that dead processes of this machine have left on disk."""

    def __init__(self, spool: Spool, recorder: Recorder, messages: Sender, metrics: AdoptionCounter) -> None:
        self._spool, self._recorder, self._messages, self._metrics = spool, recorder, messages, metrics
        self._adopting = asyncio.Lock()

    async def adopt(self) -> None:
        """Store the answers. Raises redis errors; answers that were not stored stay on disk. The beat's tick and this
        worker's own housekeeping take turns, since no file lock separates them on entries of this process."""
        async with self._adopting:
            await self._adopt()

    async def _adopt(self) -> None:
        with contextlib.ExitStack() as locks:
            entries = await asyncio.to_thread(locks.enter_context, self._spool.orphans(ADOPTED_TOGETHER))
            for path, entry in entries:
                try:
                    ref, recorded = await self._recorder.store_spooled(entry)
                except (ValueError, KeyError, ResponseError) as error:
                    if is_passing(error):
                        raise
                    logger.error("%s holds no answer: %s", path, error)
                    self._spool.set_aside(path)
                    continue
                outcome = "is stored" if WriteVerdict.NEW in recorded.written else "came too late"
                logger.warning("an answer of %s was on disk, and %s", ref, outcome,
                               extra={"event": "adopted", "job": ref.job, "counted": recorded.news})  # fmt: skip
                self._metrics.adopted(accepted=recorded.news)
                self._spool.drop(path)
                await _follow(self._messages, ref, recorded)


class Recovery:
    """Restores what the store has lost. Every step may be taken twice."""

    def __init__(
        self, ledger: Ledger, messages: Messages, recorder: Recorder, gatherer: Gatherer, working: Working, epoch: Epoch
    ) -> None:
        self._ledger, self._messages, self._recorder = ledger, messages, recorder
        self._gatherer, self._working, self._epoch = gatherer, working, epoch
        self._seen, self._cuts = (0, ""), 0
        self._unfinished: dict[str, Mapping[str, str]] = {}

    async def remember(self) -> None:
        """Notice what the store has lost, and restore it. After a new epoch or on another server, these are queues and
        the outcomes of units. Jobs that vanished before they ended are marked as lost, and messages that may have been
        lost with a connection are looked for soon."""
        if (store := (self._epoch.number, self._epoch.server)) != self._seen:
            await self._messages.declare()
            if self._seen[1]:
                await self._recall()
                await self._release_lost_claims()
                await self._ledger.look_soon()
            self._seen = store
        if (cuts := self._epoch.cuts) != self._cuts:
            await self._ledger.look_soon()
            self._cuts = cuts
        now = await self._ledger.unfinished()
        still = set(now)
        ended_jobs = [job for job in self._unfinished if job not in still]
        for job, facts in zip(ended_jobs, await self._ledger.facts(ended_jobs) if ended_jobs else [], strict=True):
            if facts is None:
                await self._lost(job, self._unfinished[job])
            self._unfinished.pop(job, None)
        new = [job for job in now if job not in self._unfinished]
        new_facts = zip(new, await self._ledger.facts(new) if new else [], strict=True)
        self._unfinished.update((job, facts) for job, facts in new_facts if facts is not None)

    async def watch(self, job: str) -> None:
        """Watch a job from now on, so that its loss is noticed even if the store loses it before the next round."""
        (facts,) = await self._ledger.facts([job])
        if facts is not None:
            self._unfinished[job] = facts

    async def _recall(self) -> None:
        """Store answers again that the store took and has lost. Their number is logged even if the store or the broker
        fails before the last one, since the next attempt does not count them as new."""
        count = 0
        try:
            async for ref, recorded in self._recorder.recall():
                count += len(recorded.written)
                await _follow(self._messages, ref, recorded)
        finally:
            if count:
                logger.warning("the store had lost %d results, and has them again", count,
                               extra={"event": "recalled", "results": count})  # fmt: skip

    async def _release_lost_claims(self) -> None:
        """Release the claims of this node for units that it is not working on. The claims are read first, so a claim
        that is made meanwhile is not among them, and a message that ends meanwhile has written its outcome."""
        for ref in await self._ledger.open_pages():
            claims = await self._ledger.list_claims(ref)
            ended = {p: fence for p, fence in claims.items() if not self._working.works_on(ref, p)}
            if ended and (lost := await self._ledger.release_claims(ref, ended)):
                logger.warning("page %s: the store has lost how %d units ended, they come again", ref, lost)

    async def _lost(self, job_id: str, facts: Mapping[str, str]) -> None:
        if await self._ledger.mark_lost(job_id, facts, RETENTION_S):
            logger.error("%s", JobLost(job_id), extra={"event": "job_lost", "job": job_id})
            await self._gatherer.announce(job_id)


async def _follow(messages: Sender, ref: PageRef, recorded: Recorded) -> None:
    if recorded.plan:
        await messages.plan(ref.job, ref.incarnation, ref.lane)
    if recorded.gather:
        await messages.gather(ref)


class Heir(Protocol):
    """Takes over the messages and leases of dead nodes (see `dicast.workers.nodes.reaper.Reaper`)."""

    def reap(self) -> int:
        """Check all nodes once, and return how many were dead or silent. Blocks."""


class DeadNodes:
    """Takes over from dead nodes on one event loop."""

    def __init__(self, ledger: Ledger, heir: Heir) -> None:
        self._ledger, self._heir = ledger, heir
        self._pass: asyncio.Future[None] | None = None

    async def deregister(self) -> None:
        """Take over from nodes that are dead or silent. Concurrent callers share one pass."""
        if self._pass is None or self._pass.done():
            self._pass = asyncio.ensure_future(self._take_over())
        await asyncio.shield(self._pass)

    async def _take_over(self) -> None:
        if await asyncio.to_thread(self._heir.reap):
            await self._ledger.look_soon()
