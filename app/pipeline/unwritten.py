"""Keeps in the store the pages that no disk took, and writes them to their files when one does.

A page lies in the store until its file is written, and its job waits for that. A job that is given up, or cancelled,
ends all the same: its pages are set aside in the store, which keeps them as long as the job's record. They are written
before the job's files are put together, or before it goes on when it is resumed, whichever comes first.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

import orjson

from dicast.app.domain.opinion import EvaluationError, Opinion
from dicast.app.ledger.keys import PageRef
from dicast.app.ledger.ledger import Ledger
from dicast.app.ledger.records import JobRecord
from dicast.app.pipeline.call_facts import opinion_of
from dicast.app.reports import files

logger = logging.getLogger(__name__)

PageResults = tuple[list[Opinion], list[EvaluationError]]


def results_of(page: Mapping[int, str], *, salvage: bool = False) -> PageResults:
    """Return the opinions and errors of a page, in the order of its positions. With `salvage`, those that cannot be
    read are left out, and logged: their units are judged again when the job is resumed."""
    opinions, errors = [], []
    for position, text in sorted(page.items()):
        try:
            result = orjson.loads(text)
            opinion = opinion_of(result)
            error = EvaluationError.model_construct(**result["error"]) if "error" in result else None
        except (ValueError, TypeError, KeyError):
            if not salvage:
                raise
            logger.exception("the result at position %d cannot be read, and is left out", position)
            continue
        opinions.append(opinion)
        errors += [] if error is None else [error]
    return opinions, errors


class UnwrittenPages:
    """Writes the pages of a job that the store has kept for it."""

    def __init__(self, ledger: Ledger, results_dir: str) -> None:
        self._ledger, self._results_dir = ledger, results_dir

    async def write(self, job: JobRecord, run: int) -> None:
        """Write all pages that are kept, and have the store forget them. They belong to the `run`-th run of the job;
        once a later one has begun in its folder, they are there. May be interrupted and repeated. Raises OSError, and
        errors of the store."""
        for ref in await self._ledger.kept_pages(job.id, job.incarnation):
            page = await self._ledger.kept_page(ref)
            if page is not None:
                await asyncio.to_thread(self._write, ref, page, run)
                await self._ledger.forget_kept(ref)

    async def count(self, job: JobRecord, report: files.UnfiledReport) -> None:
        """Add all pages that are kept to a report. Raises errors of the store."""
        for ref in await self._ledger.kept_pages(job.id, job.incarnation):
            page = await self._ledger.kept_page(ref)
            if page is not None:
                await asyncio.to_thread(report.add, *results_of(page, salvage=True))

    def _write(self, ref: PageRef, page: Mapping[int, str], run: int) -> None:
        opinions, errors = results_of(page, salvage=True)
        place = self._results_dir, ref.job, ref.incarnation, str(ref.lane), ref.page
        try:
            files.write_kept_page(*place, opinions, errors, run=run)
        except files.RunChanged:
            logger.info("page %s was written by another process before the job went on", ref)
