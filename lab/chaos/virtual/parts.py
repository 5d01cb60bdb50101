"""Parts of a node that stand for what virtual time has not: threads, Celery's result backend, a disk of its own."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from dicast.app.assembly import Services
from dicast.app.ledger.client import LedgerClient
from dicast.app.ledger.keys import PageRef
from dicast.app.pipeline.gather import Gatherer
from dicast.app.pipeline.spool import Spool
from lab.chaos.virtual.wire import Direct

if TYPE_CHECKING:
    from lab.chaos.virtual.node import VirtualNode

NO_SPACE = 28


class Silent:
    """The gate's observer."""

    def queueing(self, *_: Any) -> None: ...
    def acquired(self, *_: Any) -> None: ...
    def released(self, *_: Any) -> None: ...
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

    def _write(self, ref: PageRef, page: dict[int, str]) -> None:
        if self.pages.setdefault(ref, page) != page:
            self.differs(ref)
        super()._write(ref, page)

    def differs(self, ref: PageRef) -> None:
        raise NotImplementedError

    async def _keep_items(self, job_id: str) -> None: ...


class SimServices(Services):
    """The product's start, plan, adoption and recall, over the simulation's parts."""

    def __init__(self, node: VirtualNode) -> None:
        world = node.world
        self._node, self._world = node, world
        self.ledger, self.gatherer = node.ledger, node.gatherer
        self._planner, self._rejecter = node.planner, node.rejecter
        self.troubles, self.unserved = node.troubles, node.unserved
        self.judge, self.messages, self.spool = node.judge, node.messages, node.spool  # type: ignore[assignment]
        self._settings = SimpleNamespace(  # type: ignore[assignment]
            results_dir=str(world.folder / "results"), unit_deadline=0.0, max_pool_down=3600.0
        )
        self._app = SimpleNamespace(  # type: ignore[assignment]
            ledger=LedgerClient(Direct(world, node), world.keys),
            process_metrics=SimpleNamespace(adopted=lambda **_: None),
        )

    def _limit(self) -> int:
        return self._node.limit
