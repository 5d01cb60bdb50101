"""Starts a submitted job: prepares its folder and items, freezes its limit and bounds, and plans its lanes."""

from __future__ import annotations

import asyncio
import logging
from functools import partial

from dicast.app import logs
from dicast.app.domain.arrangement import arrangement_of
from dicast.app.domain.deadlines import Bounds
from dicast.app.domain.item import ItemSource
from dicast.app.ledger.client import LedgerClient, UnknownJob
from dicast.app.ledger.ledger import Ledger
from dicast.app.ledger.records import JobRecord
from dicast.app.ledger.states import JobState
from dicast.app.pipeline.arranging import Arranging
from dicast.app.pipeline.gather import Gatherer
from dicast.app.pipeline.held import ITEMS_TOGETHER
from dicast.app.pipeline.inquiring import require_libraries
from dicast.app.pipeline.job_faults import reporting_file_errors
from dicast.app.pipeline.lanes import Lanes
from dicast.app.pipeline.plan import DatasetChanged
from dicast.app.pipeline.rated import Ratings
from dicast.app.pipeline.recovery import Recovery
from dicast.app.pipeline.unwritten import UnwrittenPages
from dicast.app.reports.assessing import SCORES, NoLibraries
from dicast.app.reports.folders import begin
from dicast.app.reports.resuming import read_items, set_aside
from dicast.config.settings import Settings
from dicast.workers.nodes.registry import Registry

logger = logging.getLogger(__name__)


class Terms:
    """Determines the limit and the bounds with which a job is started."""

    def __init__(self, registry: Registry, settings: Settings) -> None:
        self._registry, self._settings = registry, settings

    def limit(self) -> int:
        """Return the smallest limit of all living workers, which binds. Blocks."""
        live_limits = {node.limit for node, is_live in self._registry.registered() if is_live}
        limits = live_limits | {self._settings.max_concurrent_llm_calls}
        if len(limits) > 1:
            logger.warning("workers disagree on MAX_CONCURRENT_LLM_CALLS (%s); the smallest binds", sorted(limits))
        return min(limits)

    def is_missing_everywhere(self, extra: str) -> bool:
        """Return True if there are living workers and all of them lack the libraries of an optional part. Blocks."""
        live_nodes = [node for node, is_live in self._registry.registered() if is_live]
        return bool(live_nodes) and all(extra in node.missing_extras for node in live_nodes)

    def bounds(self, job: JobRecord) -> Bounds:
        """Return the bounds that the job sets, with this worker's settings for those that it does not set."""
        spec, settings = job.spec, self._settings
        return Bounds.from_options(
            unit_deadline_s=settings.unit_deadline if spec.unit_deadline is None else spec.unit_deadline,
            finish_by=spec.finish_by,
            max_pool_down_s=settings.max_pool_down if spec.max_pool_down is None else spec.max_pool_down,
        )


class Preparation:
    """Prepares a job for its start, or ends it before it has started."""

    def __init__(self, ledger: Ledger, submitted: LedgerClient, results_dir: str) -> None:
        self._ledger, self._submitted, self._results_dir = ledger, submitted, results_dir
        self._ratings = Ratings(ledger, results_dir)
        self._arranging = Arranging(ledger, results_dir)
        self._unwritten = UnwrittenPages(ledger, results_dir)

    async def prepare(self, job: JobRecord) -> None:
        """Make the folder of a job that is about to start, with people's ratings, and with its items if they have to be
        arranged. For a resumed job, set its earlier files aside and put its items back into the store."""
        record = await self._ledger.progress(job.id)
        if record.get("state") != JobState.SUBMITTED:
            return
        if job.spec.question is not None:
            require_libraries()
        place = self._results_dir, job.id, job.incarnation
        if aside := await asyncio.to_thread(partial(begin, *place, resumed=job.resumed > 0)):
            logger.warning("job %s: results of an earlier job of this id are now in %s", job.id, aside,
                           extra={"event": "set_aside", "job": job.id})  # fmt: skip
        await self._ratings.keep(job, record.get("ratings_fingerprint"))
        await self._arranging.arrange(job)
        if not job.resumed:
            return
        await self._unwritten.write(job, job.resumed - 1)
        waits = partial(self._submitted.awaits_start, job.id)
        await asyncio.to_thread(partial(set_aside, *place, waits=waits, run=job.resumed))
        if arrangement_of(job.spec).needed or isinstance(job.spec.items, ItemSource):
            return
        if await self._ledger.item_count(job.id) < job.items:
            pages, first = read_items(*place, ITEMS_TOGETHER), 0
            while page := await asyncio.to_thread(next, pages, None):
                await self._ledger.put_items(job.id, first, page)
                first += len(page)

    async def expire(self, job_id: str) -> None:
        """End a job that was not started in time."""
        await asyncio.to_thread(self._submitted.cancel, job_id, "it was not started in time", revoked="expired")

    async def reject(self, job_id: str, why: str) -> None:
        """Cancel a job that cannot be started as it was submitted."""
        await asyncio.to_thread(self._submitted.cancel, job_id, why)


class Starter:
    """Starts jobs on one event loop."""

    def __init__(
        self, ledger: Ledger, preparation: Preparation, terms: Terms, recovery: Recovery, lanes: Lanes,
        gatherer: Gatherer,
    ) -> None:  # fmt: skip
        self._ledger, self._preparation, self._terms = ledger, preparation, terms
        self._recovery, self._lanes, self._gatherer = recovery, lanes, gatherer

    async def start(self, job_id: str) -> None:
        """Start a submitted job and freeze its limit. For a job that has ended, announce the report again. Raises
        `UnknownJob`."""
        job = await self._ledger.job(job_id)
        if job is None:
            raise UnknownJob(job_id)
        try:
            async with reporting_file_errors(self._ledger, job_id):
                await self._preparation.prepare(job)
        except DatasetChanged as error:
            await self._reject(job_id, error)
            return
        except NoLibraries as error:
            if await asyncio.to_thread(self._terms.is_missing_everywhere, SCORES):
                await self._reject(job_id, error)
            else:
                await self._ledger.waits(job_id, f"it is left to workers that have the libraries: {error}")
                self._lanes.start_elsewhere(job_id)
            return
        await self._recovery.watch(job_id)
        limit = await asyncio.to_thread(self._terms.limit)
        state, started, expired = await self._ledger.start(job_id, limit, job.resumed, self._terms.bounds(job))
        if expired:
            await self._preparation.expire(job_id)
            await self._gatherer.finish(job_id)
            return
        if started:
            logs.limit_frozen(job=job_id, limit=limit, units=job.units)
            await self._ledger.attended(job_id)
        if state is JobState.RUNNING:  # started now, or by a worker that died before it had planned
            for lane in range(len(job.lanes)):
                await self._lanes.plan(job_id, job.incarnation, lane)
        elif state is not None and state.ended:
            await self._gatherer.announce(job_id)
        elif state is JobState.FINISHING:
            await self._gatherer.finish(job_id)

    async def _reject(self, job_id: str, why: Exception) -> None:
        await self._preparation.reject(job_id, str(why))
        await self._gatherer.finish(job_id)
