"""The leases that are held now, for people to see."""

from __future__ import annotations

from dataclasses import dataclass

from dicast.workers.admission.holders import read_holder
from dicast.workers.store.connection import AsyncStoreClient
from dicast.workers.store.keys import Keys


@dataclass(frozen=True, slots=True)
class OpenLease:
    """One open call's lease. `age_s` is since the grant, `left_s` to the deadline at which it ends by itself, both by
    the lease clock; a `probe` decides whether its pool's circuit breaker closes. `node` is the holder's id, `unit` the
    place in the job (lane, page, position), '' if it is not known."""

    lease: str
    pool: str
    project: str
    job: str
    node: str
    age_s: float
    left_s: float
    probe: bool
    unit: str = ""


async def open_leases(client: AsyncStoreClient, keys: Keys) -> list[OpenLease]:
    """All of them, the oldest first. Raises redis errors."""
    pipe = client.pipeline(transaction=False)
    pipe.hget(keys.clock, "now")
    pipe.hgetall(keys.holders)
    pipe.zrange(keys.leases, 0, -1, withscores=True)
    now, holders, deadlines = await pipe.execute()
    ends = dict(deadlines)
    now_ms = float(now or 0)
    found = []
    for lease, record in holders.items():
        pool, job, project, node, sent_ms, probe = read_holder(record)
        left_s = max(0.0, ends.get(lease, now_ms) - now_ms) / 1000
        age_s = max(0.0, now_ms - sent_ms) / 1000
        unit = lease.partition("~")[2]
        found.append(OpenLease(lease, pool, project, job, node, age_s, left_s, probe, unit))
    return sorted(found, key=lambda lease: (-lease.age_s, lease.lease))
