"""What a store bears: operations a second and the store's own CPU time for each, by connections and by stores."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

from dicast.workers.store.connection import connect
from lab.scale.shards import Connection, Shards, Tenant, on, on_cluster
from lab.scale.stores import cpu_s, stores

CONNECTIONS = (1, 2, 4, 8, 16)
UNITS = 4000
TOGETHER = 8
Step = Callable[[Connection, int], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Bearing:
    """An operation as it was asked for: how often a second, by as many connections of one process, and the CPU time of
    each store for one, microseconds."""

    operation: str
    connections: int
    asked_per_s: float
    store_us: Sequence[float]

    @property
    def borne_per_s(self) -> float:
        """The most that its stores have CPU time for: the busiest one's only thread runs all the time."""
        return 1e6 / max(self.store_us)


def one_store(units: int = UNITS, connections: Sequence[int] = CONNECTIONS, *, over_tcp: bool = False) -> list[Bearing]:
    """Commands, grants, claims and records, each by itself, on a new store for each number of connections."""
    return [rate for number in connections for rate in _on_new_store(units, number, over_tcp)]


def _on_new_store(units: int, connections: int, over_tcp: bool) -> list[Bearing]:
    with stores(1, over_tcp=over_tcp) as urls:
        return asyncio.run(_operations(on(urls), units, connections))


async def _operations(shards: Shards, units: int, connections: int) -> list[Bearing]:
    (shard,) = shards.all
    tenant = Tenant(shard, shard, "pool", "job")
    await tenant.start(units, limit=2 * units + TOGETHER * connections)
    fences: dict[int, int] = {}
    held: dict[Connection, list[str]] = {}

    async def command(connection: Connection, _: int) -> None:
        assert await connection.job_client.hget(shard.keys.epoch, "number")

    numbers = count()  # a lease is never asked for twice

    async def grant(connection: Connection, _: int, wanted: int = 1) -> None:
        first, before = TOGETHER * next(numbers), held.get(connection, [])
        held[connection] = await tenant.grant(connection.leases, first, before, wanted)

    async def grants(connection: Connection, _: int) -> None:
        await grant(connection, 0, TOGETHER)

    async def hold(connection: Connection, _: int) -> None:
        await tenant.grant(connection.leases, TOGETHER * next(numbers), [], TOGETHER)

    async def claim(connection: Connection, position: int) -> None:
        fences[position] = await tenant.claim(connection.ledger, position)

    async def record(connection: Connection, position: int) -> None:
        await tenant.record(connection.ledger, {position: fences[position]})

    half = units // 2 // TOGETHER * TOGETHER  # these results come one by one, the others together

    async def records(connection: Connection, place: int) -> None:
        first = half + place * TOGETHER
        some = range(first, min(units, first + TOGETHER))
        await tenant.record(connection.ledger, {position: fences[position] for position in some})

    asking = Asking(tenant, connections)
    rates = [
        await asking.rate("command", units, command),
        await asking.rate("grant", units, grant),
        await asking.rate("grant, 8 a step", units // TOGETHER, grants, TOGETHER),
        await asking.rate("claim", units, claim),
        await asking.rate("record", half, record),
        await asking.rate("record, 8 a step", (units - half) // TOGETHER, records, TOGETHER),
    ]
    await asking.run(units // TOGETHER, hold)
    rates.append(await asking.rate(f"grant, {units:,} more calls open", units, grant))
    await asking.close()
    return rates


class Asking:
    """So many connections of this process, each of which does one step after the other."""

    def __init__(self, tenant: Tenant, connections: int) -> None:
        self._tenant, self._connections = tenant, [Connection(tenant) for _ in range(connections)]

    async def run(self, steps: int, step: Step) -> None:
        """All steps, dealt out in turn."""
        places = iter(range(steps))

        async def ask(connection: Connection) -> None:
            for place in places:
                await step(connection, place)

        await asyncio.gather(*map(ask, self._connections))

    async def rate(self, operation: str, steps: int, step: Step, together: int = 1) -> Bearing:
        """The same, measured: each step is so many operations."""
        with connect(self._tenant.at_job.url) as store:
            started, before = time.perf_counter(), cpu_s(store)
            await self.run(steps, step)
            used_s, wall_s, done = cpu_s(store) - before, time.perf_counter() - started, steps * together
        return Bearing(operation, len(self._connections), done / wall_s, [1e6 * used_s / done])

    async def close(self) -> None:
        for connection in self._connections:
            await connection.close()


@dataclass(frozen=True, slots=True)
class Spreading:
    """Whole units on so many stores: what each store's CPU was; how many keys each held, and how many of them belong to
    another one; and the shards of pools and jobs, by name."""

    stores: int
    rate: Bearing
    keys: Sequence[int]
    misplaced: int
    shard_of: Mapping[str, int]


def sharded(count: int, units: int = UNITS, *, connections: int = 16, clustered: bool = False) -> Spreading:
    """Two pools and two jobs on one store, or on as many shards, each job's pool on another shard than its ledger."""
    with stores(count, clustered=clustered) as urls:
        return asyncio.run(_sharded(on_cluster(urls) if clustered else on(urls), units, connections))


async def _sharded(shards: Shards, units: int, connections: int) -> Spreading:
    places = list(shards.all)
    pools, jobs = list(shards.spread("pool")), list(shards.spread("job"))
    if len(places) == 1:
        pools, jobs = ["pool-0", "pool-1"], ["job-0", "job-1"]
    jobs = [*jobs[1:], jobs[0]]
    tenants = [Tenant(shards.of(p), shards.of(j), p, j) for p, j in zip(pools, jobs, strict=True)]
    for tenant in tenants:
        await tenant.start(units // len(tenants))
    asking = [Asking(tenant, max(1, connections // len(tenants))) for tenant in tenants]
    clients = [connect(shard.url) for shard in places]
    started, before = time.perf_counter(), [cpu_s(client) for client in clients]
    await asyncio.gather(*(a.run(units // len(tenants), t.unit) for a, t in zip(asking, tenants, strict=True)))
    wall_s = time.perf_counter() - started
    used_us = [1e6 * (cpu_s(client) - was) / units for client, was in zip(clients, before, strict=True)]
    for asked, tenant in zip(asking, tenants, strict=True):
        connection = Connection(tenant)
        assert await tenant.finish(connection) == units // len(tenants)
        await connection.close()
        await asked.close()
    found = [list(client.scan_iter(count=1000)) for client in clients]
    misplaced = sum(not key.startswith(p.keys.at()) for p, keys in zip(places, found, strict=True) for key in keys)
    shard_of = {name: places.index(shard) for t in tenants for name, shard in ((t.pool, t.at_pool), (t.job, t.at_job))}
    rate = Bearing("unit", connections, units / wall_s, used_us)
    return Spreading(len(places), rate, [len(keys) for keys in found], misplaced, shard_of)
