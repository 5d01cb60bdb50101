"""A store that is far away: what a round trip costs the grant of a lease, a claim, and a slot between two calls.

A proxy on loopback passes everything on after half a round trip, in both directions.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from lab.scale.shards import Connection, Shard, Tenant, on
from lab.scale.stores import stores

ROUND_TRIPS_MS = (0, 1, 5, 20, 80)
TIMES = 25
CHUNK = 65536


@dataclass(frozen=True, slots=True)
class Distance:
    """Medians in ms, at one round trip to the store: a grant, a claim, and a slot that stands empty between a call's
    end and the next one's beginning (give back and grant in one step, then the claim)."""

    round_trip_ms: float
    grant_ms: float
    claim_ms: float

    @property
    def empty_ms(self) -> float:
        return self.grant_ms + self.claim_ms

    @property
    def trips(self) -> int:
        """How many round trips a slot waits for."""
        return 2


def distances(round_trips_ms: Sequence[float] = ROUND_TRIPS_MS, times: int = TIMES) -> list[Distance]:
    """Measured on a new store each, over one connection that does nothing else."""
    found = []
    for round_trip_ms in round_trips_ms:
        with stores(1) as urls:
            found.append(asyncio.run(_at(urls[0], round_trip_ms, times)))
    return found


async def _at(url: str, round_trip_ms: float, times: int) -> Distance:
    (shard,) = on([url]).all
    tenant = Tenant(shard, shard, "pool", "job")
    await tenant.start(10 * (times + 1))
    async with _delayed(url, round_trip_ms / 2000) as far:
        away = Shard(far, shard.keys)
        connection = Connection(tenant.seen_from(away))
        grants, claims = [], []
        held = await tenant.grant(connection.leases, 0, [])  # connects, and loads the scripts
        await tenant.claim(connection.ledger, 0)
        for position in range(1, times + 1):
            started = time.perf_counter()
            held = await tenant.grant(connection.leases, position, held)
            granted = time.perf_counter()
            await tenant.claim(connection.ledger, position)
            grants.append(1000 * (granted - started))
            claims.append(1000 * (time.perf_counter() - granted))
        await connection.close()
    return Distance(round_trip_ms, statistics.median(grants), statistics.median(claims))


@asynccontextmanager
async def _delayed(url: str, one_way_s: float) -> AsyncIterator[str]:
    """The URL of a socket that leads to a store so far away."""
    loop, tasks = asyncio.get_running_loop(), set[asyncio.Task[None]]()

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(CHUNK):
                loop.call_later(one_way_s, writer.write, data)
        loop.call_later(one_way_s, writer.close)

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        to_store = await asyncio.open_unix_connection(urlsplit(url).path)
        for source, target in ((reader, to_store[1]), (to_store[0], writer)):
            task = asyncio.create_task(carry(source, target))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    with tempfile.TemporaryDirectory(prefix="dicast-far-") as folder:
        path = Path(folder) / "s"
        async with await asyncio.start_unix_server(accept, path):
            yield f"unix://{path}?db=0"
            for task in list(tasks):
                task.cancel()
