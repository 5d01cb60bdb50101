"""Takes over the work of nodes that are dead or silent."""

from __future__ import annotations

import asyncio
from typing import Protocol

from dicast.app.ledger.ledger import Ledger


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
