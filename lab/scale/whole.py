"""A whole unit at a real worker, from its planning to its gathered result: CPU time of store and worker, and how much
of the store's memory a unit takes on its way."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from dicast.workers.store.connection import connect
from lab.bench.counts import kept
from lab.bench.pipeline import Figures, Machine
from lab.bench.pipeline import cpu_s as process_cpu_s
from lab.scale.shards import Connection, Tenant, on
from lab.scale.stores import cpu_s, memory_bytes, stores
from tests.e2e.cluster import a_job

LATENCY_S = 0.5
IDLE_S = 2.0
OPEN = (40, 400)
MEMORY_UNITS = 8000
MESSAGE_FIELD = "bytes: message"


def a_unit(open_calls: int, units: int) -> Figures:
    """One worker with so many calls of half a second open: CPU ms a unit of its process and of the store's, broker and
    chords included, with what they use while nothing is to be done taken off."""
    limits = {"MAX_CONCURRENT_LLM_CALLS": str(open_calls), "DICAST_MAX_CONCURRENT_LLM_CALLS_RANGE": str(open_calls)}
    with Machine("--latency", str(LATENCY_S), **limits) as m:
        worker = m.worker()
        m.cluster.report(m.cluster.submit(a_job(agents=1, dimensions=10, items=4, pool="wide")))  # imports, first calls

        def used() -> tuple[float, float, float]:
            return time.monotonic(), cpu_s(m.redis), process_cpu_s(worker)

        idle = used()
        time.sleep(IDLE_S)
        before = used()
        m.cluster.report(m.cluster.submit(a_job(agents=1, dimensions=10, items=units // 10, pool="wide")))
        after = used()
    wall_s, idle_s = after[0] - before[0], before[0] - idle[0]
    store_s, worker_s = (after[n] - before[n] - (before[n] - idle[n]) * wall_s / idle_s for n in (1, 2))
    return {"store_ms": 1000 * store_s / units, "worker_ms": 1000 * worker_s / units, "calls_per_s": units / wall_s}


def memory(units: int = MEMORY_UNITS) -> Figures:
    """Bytes of the store for one unit, by what is known of it; messages are of the size that the bench has counted."""
    with stores(1) as urls:
        return asyncio.run(_memory(urls[0], units))


async def _memory(url: str, units: int) -> Figures:
    (shard,) = on([url]).all
    tenant, store, found = Tenant(shard, shard, "pool", "job"), connect(url), Figures()
    fences: dict[int, int] = {}

    async def grown(name: str, step: Callable[[], Awaitable[Any]]) -> None:
        before = memory_bytes(store)
        await step()
        found[name] = (memory_bytes(store) - before) / units

    async def lease_all() -> None:
        for first in range(0, units, 100):
            await tenant.grant(connection.leases, first, [], 100)

    async def claim_all() -> None:
        for position in range(units):
            fences[position] = await tenant.claim(connection.ledger, position)

    async def record_all() -> None:
        for first in range(0, units, 10):
            await tenant.record(connection.ledger, {p: fences[p] for p in range(first, first + 10)})

    async def queue_all() -> None:
        _push(store, units)

    async def take_all() -> None:
        _take(store)

    await grown("page", lambda: tenant.start(units, limit=units))
    connection = Connection(tenant)
    await grown("message", queue_all)
    await grown("message, unacknowledged", take_all)
    await grown("lease", lease_all)
    await grown("claim", claim_all)
    await grown("result instead of the claim", record_all)
    await connection.close()
    store.close()
    return found


def _push(store: Any, units: int) -> None:
    """Messages as they wait, in one list."""
    size = int(kept()[MESSAGE_FIELD])
    pipe = store.pipeline(transaction=False)
    for number in range(units):
        pipe.lpush("waiting", f"{number:x}".ljust(size, "x"))
    pipe.execute()


def _take(store: Any) -> None:
    """The same, as the broker notes them until they are acknowledged."""
    messages = store.lrange("waiting", 0, -1)
    pipe = store.pipeline(transaction=False)
    pipe.delete("waiting")
    for number, message in enumerate(messages):
        pipe.hset("unacknowledged", f"tag-{number:032x}", message)
        pipe.zadd("index", {f"tag-{number:032x}": float(number)})
    pipe.execute()


def in_flight(bytes_of: Mapping[str, float]) -> dict[str, float]:
    """Bytes of one unit that waits, that is called, and that is done but not gathered."""
    queued = bytes_of["page"] + bytes_of["message"]
    called = queued + bytes_of["message, unacknowledged"] + bytes_of["lease"] + bytes_of["claim"]
    done = bytes_of["page"] + bytes_of["claim"] + bytes_of["result instead of the claim"]
    return {"published, waiting": queued, "called": called, "done, not gathered": done}
