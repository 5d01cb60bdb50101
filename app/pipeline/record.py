"""Writes results to the ledger. While the store is unavailable, results are kept on disk and tried again.

A result that the store has taken may be lost in a fail-over, if the replica had not received it yet. Results are
therefore remembered for a while after they were written, and written to the new server again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

import orjson

from dicast.app import logs
from dicast.app.ledger.keys import PageRef
from dicast.app.ledger.ledger import Ledger
from dicast.app.ledger.records import Deferral, Due, Recorded, UnitResult
from dicast.app.pipeline.spool import Spool
from dicast.workers.admission.suspension import Suspension
from dicast.workers.store.errors import is_passing

T = TypeVar("T")

SPOOL_AFTER_S = 3.0
"""A result that the store has not taken after this time is also kept on disk. A busy event loop alone needs less."""
STORE_PAUSE_MAX_S = 2.0
REMEMBERED_S = 30.0
"""A replica that is further behind should not be made a master."""
REMEMBERED_MAX = 10_000


class _Entry(NamedTuple):
    at: float
    ref: PageRef
    write: Callable[[], Awaitable[Recorded | None]]


class Recorder:
    """Writes the outcomes of claims, on one event loop."""

    def __init__(self, ledger: Ledger, spool: Spool, suspension: Suspension | None = None) -> None:
        self._ledger, self._spool, self._suspension = ledger, spool, suspension or Suspension()
        self._stored: deque[_Entry] = deque(maxlen=REMEMBERED_MAX)

    async def store(self, ref: PageRef, counters: dict[str, int], results: Sequence[UnitResult]) -> Recorded:
        """Write results to the ledger, waiting for the store as long as necessary. Results that are not stored soon are
        also kept on disk. Raises errors that waiting cannot mend: the results are then lost, and a worker to which this
        happens repeatedly is suspended."""
        write = partial(self._ledger.record, ref, counters, results)
        writing = asyncio.ensure_future(retry_until_available(write))
        spooled: Path | None = None
        try:
            if not (await asyncio.wait({writing}, timeout=SPOOL_AFTER_S))[0]:
                spooled = await asyncio.to_thread(self._spool.put, _spool_entry(ref, counters, results))
            recorded = await asyncio.shield(writing)
        except asyncio.CancelledError:
            if writing.done():
                self._spool.drop(spooled)
            else:
                writing.cancel()
                self._spool.abandon(spooled or self._spool.put(_spool_entry(ref, counters, results)))
            raise
        except Exception as error:
            self._spool.drop(spooled)  # another process could not store it either
            self._suspension.failed(error)
            raise
        self._spool.drop(spooled)
        self._suspension.reported()
        self._remember(ref, write)
        return recorded

    async def defer(
        self, ref: PageRef, counters: dict[str, int], deferrals: Sequence[Deferral], due: Sequence[Due]
    ) -> None:
        """Give units up until their messages come again. Waits for the store as long as necessary."""

        async def write() -> None:
            await self._ledger.defer(ref, counters, deferrals, due)

        await retry_until_available(write)
        self._remember(ref, write)

    def _remember(self, ref: PageRef, write: Callable[[], Awaitable[Recorded | None]]) -> None:
        now = asyncio.get_running_loop().time()
        while self._stored and self._stored[0].at < now - REMEMBERED_S:
            self._stored.popleft()
        self._stored.append(_Entry(now, ref, write))

    async def recall(self) -> AsyncIterator[tuple[PageRef, Recorded]]:
        """Write again what the store took in the last `REMEMBERED_S`. Yields the answers for results that the store did
        not have, or that require next steps. The ledger decides by the fences what counts. Raises redis errors; the
        next call then writes everything again."""
        open_pages = set(await self._ledger.open_pages()) if self._stored else set()
        for _, ref, write in list(self._stored):
            recorded = await write() if ref in open_pages else None
            if recorded is not None and (recorded.news or recorded.plan or recorded.gather):
                yield ref, recorded

    async def store_spooled(self, entry: bytes) -> tuple[PageRef, Recorded]:
        """Write an entry that another process has left on disk. Raises redis errors, or ValueError if it is no entry of
        ours."""
        fields = orjson.loads(entry)
        ref = PageRef.parse(fields["page"])
        results = [UnitResult.read(*written) for written in fields["results"]]
        return ref, await self._ledger.record(ref, fields["counters"], results)


def _spool_entry(ref: PageRef, counters: dict[str, int], results: Sequence[UnitResult]) -> bytes:
    fields = [[p, fence, payload.decode(), scored, *board] for p, fence, payload, scored, *board in results]
    return orjson.dumps({"page": str(ref), "counters": counters, "results": fields})


async def retry_until_available(operation: Callable[[], Awaitable[T]]) -> T:
    """Repeat an operation until the store is available, and return its result. All ledger verbs may be repeated. Raises
    errors that waiting cannot mend at once."""
    pause_s = 0.05
    while True:
        try:
            return await operation()
        except Exception as error:  # errors of many libraries; `is_passing` tells which may pass
            if not is_passing(error):
                raise
            logs.store_away(error)
            await asyncio.sleep(pause_s)
            pause_s = min(STORE_PAUSE_MAX_S, pause_s * 2)
