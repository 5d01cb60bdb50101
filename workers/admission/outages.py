"""Pools that are down: their calls fail one after the other, and none is answered. The store's scripts keep the record
(health.lua), by the lease clock, so that it outlives every worker."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from dicast.workers.store.connection import AsyncStoreClient
from dicast.workers.store.keys import Keys
from dicast.workers.store.scripts import script_text

DOWN_AFTER = 3
"""The number of failures in a row that count as an outage."""
UNITS_SURE = 5
"""If this many different units all failed, the units are not the cause."""
_ENFORCEMENT = Path(__file__).parent / "governor_look.lua"


@dataclass(frozen=True, slots=True)
class Outage:
    """The failures in a row of one pool.

    `since` (the first) and `at` (the last) are seconds of the lease clock. `units` is the number of different units
    that failed, counted up to 8. `status` is 0 if there was no answer; `error` is the error of the last failure.
    """

    since: float
    at: float
    failures: int
    units: int
    status: int
    error: str

    @property
    def is_down(self) -> bool:
        return self.failures >= DOWN_AFTER

    @property
    def last_error(self) -> str:
        return self.error or (f"status {self.status}" if self.status else "no answer")

    @classmethod
    def from_remembered(cls, remembered: Mapping[str, Any]) -> Outage | None:
        """Read the outage from what the scripts remember of a pool; None if its last call was answered, or none was
        made."""
        record = remembered.get("outage")
        if record is None:
            return None
        return cls(
            since=record["since"], at=record["at"], failures=int(record["failures"]), units=len(record["units"]),
            status=int(record["status"]), error=record["error"],
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class PoolCondition:
    """What keeps calls from a pool at `now` (s, lease clock): its outage, and how long its breaker stays open."""

    now: float
    outage: Outage | None
    breaker_for_s: float

    @property
    def down_for_s(self) -> float:
        """How long the pool has been down; 0 while it is up."""
        return max(0.0, self.now - self.outage.since) if self.outage is not None and self.outage.is_down else 0.0


class Outages:
    """Reads the conditions of pools, all in one round trip."""

    def __init__(self, client: AsyncStoreClient, keys: Keys) -> None:
        self._redis, self._keys = client, keys
        self._enforcement_script = client.register_script(script_text(_ENFORCEMENT))

    async def read(self, pools: Iterable[str]) -> dict[str, PoolCondition]:
        """Return the condition of each of these pools. Raises redis errors."""
        k, names = self._keys, list(dict.fromkeys(pools))
        pipe = self._redis.pipeline(transaction=False)
        pipe.hget(k.clock, "now")
        for pool in names:
            pipe.hget(k.governor(pool), "parameters")
            await self._enforcement_script(keys=[k.governor(pool), k.open], args=[pool], client=pipe)
        now_ms, *rest = await pipe.execute()
        now = int(now_ms or 0) / 1000.0
        return {
            pool: _condition(now, orjson.loads(parameters or "{}"), orjson.loads(remembered or "{}"))
            for pool, parameters, remembered in zip(names, rest[::2], rest[1::2], strict=True)
        }


def _condition(now: float, parameters: Mapping[str, Any], remembered: Mapping[str, Any]) -> PoolCondition:
    is_open = parameters.get("breaker", "closed") != "closed"
    rest_s = max(0.0, parameters["breaker_until"] - now) if is_open else 0.0
    return PoolCondition(now, Outage.from_remembered(remembered), rest_s)
