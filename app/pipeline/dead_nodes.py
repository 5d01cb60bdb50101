"""Taking over from nodes that are dead or silent."""

from __future__ import annotations

import asyncio
from typing import Protocol

from dicast.app.ledger.ledger import Ledger


class Heir(Protocol):
    """Takes over messages and leases (see `dicast.workers.nodes.reaper.Reaper`)."""

    def reap(self) -> int:
        """One pass over the nodes, which blocks; how many were dead or silent."""


class DeadNodes:
    """For one event loop."""

    def __init__(self, ledger: Ledger, heir: Heir) -> None:
        self._ledger, self._heir = ledger, heir
        self._pass: asyncio.Future[None] | None = None

    async def deregister(self) -> None:
        """Take over from nodes that are dead or silent; many who ask at once are answered by one pass."""
        if self._pass is None or self._pass.done():
            self._pass = asyncio.ensure_future(self._take_over())
        await asyncio.shield(self._pass)

    async def _take_over(self) -> None:
        if await asyncio.to_thread(self._heir.reap):
            await self._ledger.look_soon()
