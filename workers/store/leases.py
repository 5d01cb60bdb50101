"""Leases in the store: the right to have one call open. One round trip gives back and grants in batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

import orjson

from workers.store.connection import AsyncStoreClient
from workers.store.keys import Keys
from workers.store.scripts import script_text

_HERE = Path(__file__).parent


class Verdict(IntEnum):
    REFUSED = 0
    GRANTED = 1
    PASS = 2
    """The job makes no calls any more: its units pass without a lease, to be closed."""


class Want(NamedTuple):
    """One lease asked for. `lease` is drawn by the asker and never used twice."""

    lease: str
    job: str
    project: str


@dataclass(frozen=True, slots=True)
class Admission:
    """Answer to one batch. `retry_after_ms` -1: nothing to wait for but a freed lease. `reason` of the refusals."""

    verdicts: Sequence[Verdict]
    open_in_pool: int
    open_in_all: int
    retry_after_ms: int
    reason: str


class LeaseStore:
    """The store's side of admission, for one event loop."""

    def __init__(self, client: AsyncStoreClient, keys: Keys) -> None:
        self._keys = keys
        self._client = client
        self._admit = client.register_script(script_text(_HERE / "admit.lua"))

    async def admit(
        self,
        *,
        pool: str,
        node: str,
        ttl_ms: int,
        give_back: Sequence[str],
        wanted: Sequence[Want],
        now_ms: int | None = None,
    ) -> Admission:
        """Give back and ask for leases of one pool; verdicts are in the order of `wanted`.

        `ttl_ms` is the call's deadline: the lease lives that long at most, and is freed earlier only by its
        holder or on proof of the holder's death. Raises redis errors when the store cannot answer; then
        nothing is known of the batch, and nothing may be called.
        """
        k = self._keys
        reply = await self._admit(
            keys=[k.clock, k.leases, k.holders, k.open, k.pool_limits, k.job_limits, k.rates, k.waiting, k.short],
            args=["" if now_ms is None else now_ms, pool, node, ttl_ms, k.freed, _json(give_back), _json(wanted)],
        )
        open_in_pool, open_in_all, retry_after_ms, reason, *verdicts = reply
        return Admission([Verdict(v) for v in verdicts], open_in_pool, open_in_all, retry_after_ms, reason)

    async def set_pool_limits(self, limits: Mapping[str, int | None]) -> None:
        """Bound the pools' leases from now on; None lifts a bound."""
        bounds = {pool: limit for pool, limit in limits.items() if limit is not None}
        pipe = self._client.pipeline()
        pipe.delete(self._keys.pool_limits)
        if bounds:
            pipe.hset(self._keys.pool_limits, mapping=bounds)
        await pipe.execute()

    async def open_counts(self) -> dict[str, int]:
        """Open leases: 'all', 'p:<pool>', 'j:<job>'."""
        return {field: int(n) for field, n in (await self._client.hgetall(self._keys.open)).items()}


def _json(value: Sequence[object]) -> bytes:
    """Named tuples become lists."""
    return orjson.dumps(list(value), default=list)
