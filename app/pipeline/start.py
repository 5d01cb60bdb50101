"""Starts a submitted job: prepares its folder and items, freezes its limit and bounds, and plans its lanes.

People's ratings are copied into the job's folder, where they are kept apart from everything that judges see. Items are
written in the order in which they are judged, where that differs from the order of their file.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path

from dicast.app import datasets, logs
from dicast.app.analysis import SCORES, NoLibraries
from dicast.app.domain.arrangement import Arrangement, arrangement_of
from dicast.app.domain.deadlines import Bounds
from dicast.app.domain.image import ImageError
from dicast.app.domain.item import Item, ItemSource, Rating
from dicast.app.domain.plan import PIECE_BYTES
from dicast.app.ledger.client import LedgerClient, UnknownJob
from dicast.app.ledger.ledger import Ledger
from dicast.app.ledger.records import JobRecord, JobState
from dicast.app.pipeline.gather import Gatherer, UnwrittenPages
from dicast.app.pipeline.images import image_storer
from dicast.app.pipeline.job_faults import reporting_file_errors
from dicast.app.pipeline.lanes import Lanes
from dicast.app.pipeline.plan import DatasetChanged
from dicast.app.pipeline.question import require_libraries
from dicast.app.pipeline.record import ITEMS_TOGETHER, ItemsGone, stored_items
from dicast.app.pipeline.recovery import Recovery
from dicast.app.reports.folders import begin, own_folder
from dicast.app.reports.stored_items import (
    ItemCountMismatch,
    is_arranged,
    keeps_ratings,
    read_items,
    set_aside,
    write_arranged,
    write_ratings,
)
from dicast.config.settings import Settings
from dicast.workers.nodes.registry import Registry

logger = logging.getLogger(__name__)


class Arranging:
    """Arranges items, for one event loop; files are read and written in threads."""

    def __init__(self, ledger: Ledger, results_dir: str) -> None:
        self._ledger, self._results_dir = ledger, results_dir

    async def arrange(self, job: JobRecord) -> None:
        """Write the items of a job that is about to start into its folder, in the order in which they are judged. Does
        nothing if they have been written, or are in that order already. Raises `DatasetChanged` if the file has changed
        since the job was submitted, `DatasetError`, OSError."""
        arrangement = arrangement_of(job.spec)
        folder = own_folder(self._results_dir, job.id, job.incarnation)
        if not arrangement.needed or await asyncio.to_thread(is_arranged, folder):
            return
        in_file = isinstance(job.spec.items, ItemSource)
        items = _in_file(job) if in_file else await stored_items(self._ledger, job.id)
        async with self._attended(job.id):
            with contextlib.suppress(ItemsGone):  # others have ended the job meanwhile
                await asyncio.to_thread(_write, folder, job, items, arrangement)

    @contextlib.asynccontextmanager
    async def _attended(self, job_id: str) -> AsyncIterator[None]:
        """Mark the job as attended while the block runs: a million items take longer than the housekeeping waits before
        it lets another worker start the job."""

        over = asyncio.Event()

        async def attend() -> None:
            while not over.is_set():
                await self._ledger.attended(job_id)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(over.wait(), self._ledger.intervals.unattended_ms / 3000)

        attending = asyncio.ensure_future(attend())
        try:
            yield
        finally:
            over.set()
            await asyncio.gather(attending, return_exceptions=True)


def _write(folder: Path, job: JobRecord, items: Iterator[Item], arrangement: Arrangement) -> None:
    plain: Iterator[Item] = (item.without(job.spec.rating_columns) for item in items)
    if arrangement.images:
        plain = map(image_storer(job, folder), plain)
    chance = random.Random(arrangement.shuffle.seed if arrangement.shuffle is not None else 0)  # noqa: S311
    try:
        write_arranged(folder, plain, arrangement, chance, job.items)
    except (ItemCountMismatch, ImageError) as error:
        raise DatasetChanged(f"the items of job {job.id} have changed since it was submitted: {error}") from None
    except FileNotFoundError:  # another worker has started the job meanwhile, and it has ended
        if not is_arranged(folder):
            raise


def _in_file(job: JobRecord) -> Iterator[Item]:
    source = job.spec.items
    assert isinstance(source, ItemSource)
    cursor, more = None, True
    while more:
        page, cursor = datasets.read_page(source, cursor, ITEMS_TOGETHER, PIECE_BYTES)
        yield from page
        more = cursor is not None
    if job.fingerprint is not None and datasets.fingerprint(source) != job.fingerprint:
        raise DatasetChanged(f"{source.path} has changed since job {job.id} was submitted")


class Ratings:
    """Stores ratings, on one event loop; files are read and written in threads."""

    def __init__(self, ledger: Ledger, results_dir: str) -> None:
        self._ledger, self._results_dir = ledger, results_dir

    async def keep(self, job: JobRecord, fingerprint: str | None) -> None:
        """Copy the ratings of a job that is about to start into its folder, unless they are there. `fingerprint`
        belongs to the file of ratings. Raises `DatasetChanged` if the file has changed since the job was submitted,
        `DatasetError`, OSError."""
        place = self._results_dir, job.id, job.incarnation
        if job.spec.ratings is None or await asyncio.to_thread(keeps_ratings, *place):
            return
        stored = None if isinstance(job.spec.items, ItemSource) else await stored_items(self._ledger, job.id)
        ratings = _read_unchanged(job, stored, fingerprint)
        with contextlib.suppress(ItemsGone):  # others have ended the job meanwhile
            await asyncio.to_thread(write_ratings, *place, ratings)


def _read_unchanged(job: JobRecord, stored: Iterator[Item] | None, fingerprint: str | None) -> Iterator[Rating]:
    yield from (rating for rating, _ in datasets.read_ratings(job.spec, stored))
    source, items = job.spec.ratings, job.spec.items
    assert source is not None
    if source.path is not None:
        _check(job, datasets.file_of(source), fingerprint)
    elif isinstance(items, ItemSource):
        _check(job, items, job.fingerprint)


def _check(job: JobRecord, source: ItemSource, before: str | None) -> None:
    if before is not None and datasets.fingerprint(source) != before:
        raise DatasetChanged(f"{source.path} has changed since job {job.id} was submitted")


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
