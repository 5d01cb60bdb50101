"""The open leases, for display."""

from __future__ import annotations

from dataclasses import dataclass

from dicast.workers.admission.holders import read_holder
from dicast.workers.store.connection import AsyncStoreClient
from dicast.workers.store.keys import Keys


@dataclass(frozen=True, slots=True)
class OpenLease:
    """The lease of one open call.

    `age_s` is the time since the grant, `left_s` the time to its deadline, both by the lease clock. A `probe` decides
    whether its pool's circuit breaker closes. `node` is the holder's id; `unit` is the place in the job (lane, page,
    position), '' if it is not known. Nobody waits any longer for a call that was `cut`; its lease counts because the
    provider may still be working on it.
    """

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
    """Return all open leases, the oldest first. Raises redis errors."""
    pipe = client.pipeline(transaction=False)
    pipe.hget(keys.clock, "now")
    pipe.hgetall(keys.holders)
    pipe.zrange(keys.leases, 0, -1, withscores=True)
    now, holders, deadlines = await pipe.execute()
    ends = dict(deadlines)
    now_ms = float(now or 0)
    leases = []
    for lease, record in holders.items():
        holder = read_holder(record)
        left_s = max(0.0, ends.get(lease, now_ms) - now_ms) / 1000
        age_s = max(0.0, now_ms - holder.sent_ms) / 1000
        place = holder.pool, holder.project, holder.job, holder.node
        unit = lease.partition("~")[2]
        leases.append(
            OpenLease(lease, *place, age_s, left_s, holder.probe, unit=unit, model=holder.model, cut=holder.cut)
        )
    return sorted(leases, key=lambda lease: (-lease.age_s, lease.lease))
