"""Iterates over the items that were submitted with a job and are kept in the store."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from dicast.app.domain.item import Item
from dicast.app.ledger.ledger import Ledger

ITEMS_TOGETHER = 500


class ItemsGone(LookupError):
    """A job's items have left the store."""


async def stored_items(ledger: Ledger, job_id: str) -> Iterator[Item]:
    """Return an iterator over the items in the store. It is consumed in a thread, while the event loop that called this
    reads the items. The iterator raises `ItemsGone` if the job ends meanwhile."""
    count, loop = await ledger.item_count(job_id), asyncio.get_running_loop()

    def items() -> Iterator[Item]:
        first = 0
        while first < count:
            reading = ledger.items_within(job_id, range(first, min(first + ITEMS_TOGETHER, count)))
            page = asyncio.run_coroutine_threadsafe(reading, loop).result()
            if not page:
                raise ItemsGone
            yield from page
            first += len(page)

    return items()
