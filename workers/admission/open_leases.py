"""The leases that count now, for people to see."""

from __future__ import annotations

from dataclasses import dataclass

from dicast.workers.admission.holders import read_holder
from dicast.workers.store.connection import AsyncStoreClient
from dicast.workers.store.keys import Keys


@dataclass(frozen=True, slots=True)
class OpenLease:
    """One open call's lease. `age_s` is since the grant, `left_s` to the deadline at which it ends by itself, both by
    the lease clock; a `probe` decides whether its pool's circuit breaker closes. `node` is the holder's id, `unit` the
    place in the job (lane, page, position), '' if it is not known. A call that was `cut` is waited for by nobody any
    more, and counts since the provider may still be working on it."""

    lease: str
    pool: str
    project: str
    job: str
    node: str
    age_s: float
    left_s: float
    probe: bool
    unit: str = ""
    model: str = ""
    cut: bool = False


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
        holder = read_holder(record)
        left_s = max(0.0, ends.get(lease, now_ms) - now_ms) / 1000
        age_s = max(0.0, now_ms - holder.sent_ms) / 1000
        place = holder.pool, holder.project, holder.job, holder.node
        unit = lease.partition("~")[2]
        found.append(
            OpenLease(lease, *place, age_s, left_s, holder.probe, unit=unit, model=holder.model, cut=holder.cut)
        )
    return sorted(found, key=lambda lease: (-lease.age_s, lease.lease))
