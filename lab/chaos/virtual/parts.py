"""Parts of a node that stand for what virtual time has not: threads, Celery's result backend, a disk of its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dicast.app.domain.report import Report
from dicast.app.ledger.batches import BatchRecord, BatchStore
from dicast.app.ledger.keys import PageRef
from dicast.app.ledger.records import JobRecord, MessageId
from dicast.app.pipeline.batches import NEVER_CONFIRMED
from dicast.app.pipeline.gather import Gatherer
from dicast.app.pipeline.record import Spool
from dicast.app.pipeline.start import Terms
from dicast.app.reports.stored_items import write_items
from lab.chaos.virtual.jobs import SECRET
from lab.chaos.virtual.world import World

NO_SPACE = 28


class Silent:
    """The gate's observer."""

    def queueing(self, *_: Any) -> None: ...
    def acquired(self, *_: Any) -> None: ...
    def released(self, *_: Any) -> None: ...
    def cut(self, *_: Any) -> None: ...
    def over_share(self, *_: Any, **__: Any) -> None: ...


class SimSpool(Spool):
    """The product's, on a disk that `full` tells to be full. Its node dies as a process does."""

    def __init__(self, folder: Path, node: str, full: Callable[[], bool]) -> None:
        super().__init__(folder, "sim", node)
        self._full = full

    def _place(self, size: int) -> Path:
        if self._full():
            raise OSError(NO_SPACE, os.strerror(NO_SPACE))
        return super()._place(size)

    def die(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


class SimGatherer(Gatherer):
    """The product's, but for a thread that would wait for its own loop. What it writes is kept by `pages`."""

    pages: dict[PageRef, dict[int, str]]
    full: Callable[[], bool] = staticmethod(lambda: False)
    """Whether the disk has room for pages, and for no job's files."""
    takes_no_page: Callable[[], bool] = staticmethod(lambda: False)

    def _write(self, ref: PageRef, page: dict[int, str], *, salvage: bool = False) -> None:
        if self.pages.setdefault(ref, page) != page:
            self.differs(ref)
        if self.takes_no_page():
            raise OSError(NO_SPACE, os.strerror(NO_SPACE), str(ref))
        super()._write(ref, page, salvage=salvage)

    async def _write_kept(self, job: JobRecord, record: Mapping[str, str]) -> bool:
        if self.takes_no_page() and await self._ledger.kept_pages(job.id, job.incarnation):
            raise OSError(NO_SPACE, os.strerror(NO_SPACE), "results")
        return await super()._write_kept(job, record)

    def differs(self, ref: PageRef) -> None:
        raise NotImplementedError

    def _write_files(self, *given: Any, **more: Any) -> Report:
        if self.full():
            raise OSError(NO_SPACE, os.strerror(NO_SPACE), "results")
        return super()._write_files(*given, **more)

    async def _keep_items(self, job: JobRecord) -> bool:
        if count := await self._ledger.item_count(job.id):
            items = await self._ledger.items(job.id, range(count))
            write_items(self._results_dir, job.id, job.incarnation, [items])
        return True


class SimBatchStore(BatchStore):
    """The product's; the world is told what is sent again."""

    world: World

    async def add_members(self, batch: BatchRecord, page: int, tokens: Sequence[MessageId]) -> None:
        self.world.members[batch.name] |= {(batch.lane.job, batch.lane.lane, str(token)) for token in tokens}
        await super().add_members(batch, page, tokens)

    async def drop(self, batch: BatchRecord, summary: Mapping[str, Any] | None = None) -> None:
        if summary is not None and summary["end"] == NEVER_CONFIRMED:
            self.world.write_off(batch.name)
        await super().drop(batch, summary)

    async def resend(self, batch: BatchRecord) -> BatchRecord:
        self.world.sent_again[batch.lane.job] += batch.requests
        return await super().resend(batch)


class SimTerms(Terms):
    """The product's bounds, and the world's limit."""

    def limit(self) -> int:
        return self._registry.frozen_limit  # type: ignore[attr-defined]


class SimMetrics:
    """Nobody looks at them."""

    def adopted(self, **_: Any) -> None: ...
    def assigned(self, *_: Any) -> None: ...


class SimSecret:
    """The same in all worlds."""

    async def get(self) -> bytes:
        return SECRET
