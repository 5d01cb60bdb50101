"""Results on their way into the ledger: a store that is away is waited for, with the answers safe on disk meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeVar

import orjson
from redis.exceptions import RedisError

from app import logs
from app.ledger.keys import PageRef
from app.ledger.ledger import Ledger
from app.ledger.records import Recorded, Result
from app.spool import Spool

T = TypeVar("T")

SPOOL_AFTER_S = 3.0
"""A result that the store has not taken by then is kept on disk too: later than a busy loop alone may need."""
STORE_PAUSE_MAX_S = 2.0


class Recorder:
    """Writes results on one event loop."""

    def __init__(self, ledger: Ledger, spool: Spool) -> None:
        self._ledger, self._spool = ledger, spool

    async def store(self, ref: PageRef, counters: dict[str, int], results: Sequence[Result]) -> Recorded:
        """Write results into the ledger, however long that takes; on disk too, when it is not at once."""
        writing = asyncio.ensure_future(patiently(lambda: self._ledger.record(ref, counters, results)))
        kept: Path | None = None
        try:
            if not (await asyncio.wait({writing}, timeout=SPOOL_AFTER_S))[0]:
                kept = await asyncio.to_thread(self._spool.put, _spooled(ref, counters, results))
            recorded = await asyncio.shield(writing)
        except asyncio.CancelledError:
            if writing.done():
                self._spool.drop(kept)
            else:
                writing.cancel()
                self._spool.leave(kept or self._spool.put(_spooled(ref, counters, results)))
            raise
        self._spool.drop(kept)
        return recorded

    async def store_spooled(self, entry: bytes) -> tuple[PageRef, Recorded]:
        """Write what another process has left on disk. Raises redis errors, or ValueError if it is none of ours."""
        fields = orjson.loads(entry)
        ref = PageRef.parse(fields["page"])
        results = [Result(p, fence, text.encode(), scored) for p, fence, text, scored in fields["results"]]
        return ref, await self._ledger.record(ref, fields["counters"], results)


def _spooled(ref: PageRef, counters: dict[str, int], results: Sequence[Result]) -> bytes:
    fields = [[r.position, r.fence, r.payload.decode(), r.scored] for r in results]
    return orjson.dumps({"page": str(ref), "counters": counters, "results": fields})


async def patiently(operation: Callable[[], Awaitable[T]]) -> T:
    """The operation's answer, however long the store is away: all ledger verbs are safe to repeat."""
    pause_s = 0.05
    while True:
        try:
            return await operation()
        except (RedisError, OSError) as error:
            logs.store_away(error)
            await asyncio.sleep(pause_s)
            pause_s = min(STORE_PAUSE_MAX_S, pause_s * 2)
