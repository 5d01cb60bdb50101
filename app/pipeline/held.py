"""Items that came with a job, read from the store one after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from dicast.app.domain.item import Item
from dicast.app.ledger.ledger import Ledger

ITEMS_TOGETHER = 500


class ItemsGone(LookupError):
    """A job's items have left the store."""


async def held_items(ledger: Ledger, job_id: str) -> Iterator[Item]:
    """Those that the store holds, for a thread to go through while the event loop that called this reads them. Going
    through them raises `ItemsGone` where the job ends meanwhile."""
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
