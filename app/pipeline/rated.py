"""Copies people's ratings into the job's folder, where they are kept apart from everything that judges see."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

from dicast.app import datasets
from dicast.app.domain.item import Item, ItemSource
from dicast.app.domain.rating import Rating
from dicast.app.ledger.ledger import Ledger
from dicast.app.ledger.records import JobRecord
from dicast.app.pipeline.held import ItemsGone, stored_items
from dicast.app.pipeline.plan import DatasetChanged
from dicast.app.reports.ratings import keeps_ratings, write_ratings


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
