"""People's ratings on their way into the job's folder, where they lie apart from all that judges are shown."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

from dicast.app import datasets
from dicast.app.domain.item import ItemSource
from dicast.app.domain.rating import Rating
from dicast.app.ledger.ledger import Ledger
from dicast.app.ledger.records import JobRecord
from dicast.app.pipeline.held import ItemsGone, held_items
from dicast.app.pipeline.plan import DatasetChanged
from dicast.app.reports.ratings import keeps_ratings, write_ratings


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
            beside = datasets.ratings_beside(
                job.spec.ratings, await held_items(self._ledger, job.id), job.spec.dimensions
            )
            found: Iterator[Rating] = (rating for rating, _ in beside)
        else:
            found = _in_file(job, fingerprint)
        with contextlib.suppress(ItemsGone):  # others have ended the job meanwhile
            await asyncio.to_thread(write_ratings, *place, found)


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
