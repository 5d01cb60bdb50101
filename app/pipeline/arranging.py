"""Writes a job's items in the order in which they are judged, where that differs from the order of their file."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from dicast.app import datasets
from dicast.app.domain.arrangement import Arrangement, arrangement_of
from dicast.app.domain.image import ImageError
from dicast.app.domain.item import Item, ItemSource
from dicast.app.domain.pieces import PIECE_BYTES
from dicast.app.ledger.ledger import Ledger
from dicast.app.ledger.records import JobRecord
from dicast.app.pipeline.held import ITEMS_TOGETHER, ItemsGone, stored_items
from dicast.app.pipeline.images import image_storer
from dicast.app.pipeline.plan import DatasetChanged
from dicast.app.reports.arranged import ItemCountMismatch, is_arranged, write_arranged
from dicast.app.reports.folders import own_folder


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
