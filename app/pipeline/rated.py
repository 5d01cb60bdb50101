"""People's ratings on their way into the job's folder, where they lie apart from all that judges are shown."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

from dicast.app import datasets
from dicast.app.domain.item import Item, ItemSource
from dicast.app.domain.rating import Rating
from dicast.app.ledger.ledger import Ledger
from dicast.app.ledger.records import JobRecord
from dicast.app.pipeline.plan import DatasetChanged
from dicast.app.reports.ratings import keeps_ratings, write_ratings

ITEMS_TOGETHER = 500


class _ItemsGone(LookupError):
    """A job's items have left the store."""


class Ratings:
    """Keeps ratings, for one event loop; files are read and written in threads."""

    def __init__(self, ledger: Ledger, results_dir: str) -> None:
        self._ledger, self._results_dir = ledger, results_dir

    async def keep(self, job: JobRecord, fingerprint: str | None) -> None:
        """Put the ratings of a job that is to start into its folder, unless they are there. `fingerprint` is that of
        their own file. Raises `DatasetChanged` if the file is another by now, `DatasetError`, OSError."""
        place = self._results_dir, job.id, job.incarnation
        if job.spec.ratings is None or await asyncio.to_thread(keeps_ratings, *place):
            return
        if job.spec.ratings.path is None and not isinstance(job.spec.items, ItemSource):
            found = self._beside(job, await self._ledger.item_count(job.id))
        else:
            found = _in_file(job, fingerprint)
        with contextlib.suppress(_ItemsGone):  # others have ended the job meanwhile
            await asyncio.to_thread(write_ratings, *place, found)

    def _beside(self, job: JobRecord, count: int) -> Iterator[Rating]:
        """Of items that came with the job; runs in a thread, while the loop reads them."""
        loop, source = asyncio.get_running_loop(), job.spec.ratings
        assert source is not None

        def items() -> Iterator[Item]:
            first = 0
            while first < count:
                reading = self._ledger.items_within(job.id, range(first, min(first + ITEMS_TOGETHER, count)))
                page = asyncio.run_coroutine_threadsafe(reading, loop).result()
                if not page:
                    raise _ItemsGone
                yield from page
                first += len(page)

        return (rating for rating, _ in datasets.ratings_beside(source, items(), job.spec.dimensions))


def _in_file(job: JobRecord, fingerprint: str | None) -> Iterator[Rating]:
    assert job.spec.ratings is not None
    if job.spec.ratings.path is not None:
        source, before = datasets.file_of(job.spec.ratings), fingerprint
    else:
        assert isinstance(job.spec.items, ItemSource)
        source, before = job.spec.items, job.fingerprint
    yield from (rating for rating, _ in datasets.read_ratings(job.spec))
    if before is not None and datasets.fingerprint(source) != before:
        raise DatasetChanged(f"{source.path} has changed since job {job.id} was submitted")
