"""The health of pools: how a call sent to one now would fare, for callers that may choose among several."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from dicast.workers.admission.governor_store import read_parameters
from dicast.workers.policy.admission import EnforcementState, effective_limit, obey
from dicast.workers.policy.parameters import BreakerPhase, Parameters
from dicast.workers.store.connection import AsyncStoreClient
from dicast.workers.store.keys import Keys
from dicast.workers.store.scripts import script_text

HEALTH_S = 60.0
"""The time after which an outcome counts 1/e of a fresh one (health.lua)."""
_ENFORCEMENT = Path(__file__).parent / "governor_look.lua"


@dataclass(frozen=True, slots=True)
class ModelHealth:
    """The recent outcomes of one model's calls: `good` of `ended` were answered.

    Recent ones count more (see `HEALTH_S`). The good ones took `took_s` together, from the grant of their leases to the
    return of these.
    """

    good: float
    ended: float
    took_s: float = 0.0

    @property
    def success_rate(self) -> float:
        """The share of good calls, between 0 and 1. It is 1 if nothing is known, and goes back to 1 while no call
        ends."""
        return (self.good + 1.0) / (self.ended + 1.0)

    @property
    def latency_s(self) -> float | None:
        """How many seconds a good call takes on average; None if none has ended lately."""
        return self.took_s / self.good if self.good > 0.0 else None


UNKNOWN = ModelHealth(0.0, 0.0)


@dataclass(frozen=True, slots=True)
class PoolHealth:
    """The health of one pool now.

    `limit` is the limit in force (None before the first decision). `assigned` counts units that were assigned to this
    pool and whose calls are not open yet. `broken` says that its circuit breaker lets nothing pass for now.
    """

    limit: int | None
    open: int
    assigned: int
    broken: bool
    health: Mapping[str, ModelHealth]


class PoolHealthReader:
    """Reads the health of pools, all in one round trip."""

    def __init__(self, client: AsyncStoreClient, keys: Keys) -> None:
        self._redis, self._keys = client, keys
        self._enforcement_script = client.register_script(script_text(_ENFORCEMENT))

    async def read(self, pools: Iterable[str]) -> dict[str, PoolHealth]:
        """Return the health of each of these pools. Raises redis errors."""
        k, names = self._keys, list(dict.fromkeys(pools))
        pipe = self._redis.pipeline(transaction=False)
        pipe.hget(k.clock, "now")
        pipe.hmget(k.open, [f"p:{pool}" for pool in names])
        pipe.hmget(k.assigned, names)
        for pool in names:
            pipe.hget(k.governor(pool), "parameters")
            await self._enforcement_script(keys=[k.governor(pool), k.open], args=[pool], client=pipe)
        now_ms, opened, assigned, *rest = await pipe.execute()
        now = int(now_ms or 0) / 1000.0
        return {
            pool: _pool_health_of(
                read_parameters(parameters), orjson.loads(remembered or "{}"), int(n or 0), int(m or 0), now
            )
            for pool, n, m, parameters, remembered in zip(names, opened, assigned, rest[::2], rest[1::2], strict=True)
        }


def _pool_health_of(
    parameters: Parameters | None, remembered: Mapping[str, Any], opened: int, assigned: int, now: float
) -> PoolHealth:
    health = {model: health_now(health, now) for model, health in remembered.get("health", {}).items()}
    if parameters is None:
        return PoolHealth(None, opened, assigned, False, health)
    broken = parameters.breaker is not BreakerPhase.CLOSED and now < parameters.breaker_until
    return PoolHealth(limit_in_force(parameters, remembered, now), opened, assigned, broken, health)


def limit_in_force(parameters: Parameters, remembered: Mapping[str, Any], now: float) -> int:
    """Return the limit as the scripts apply it, given what they remember of the pool."""
    names = ("version", "refusals", "refused", "refused_sent_at")
    state = EnforcementState(**{name: remembered[name] for name in names if name in remembered})
    obey(parameters, state)
    return effective_limit(parameters, state, now)


def health_now(remembered: Mapping[str, float], now: float) -> ModelHealth:
    """Return a model's health as the scripts remember it, decayed to `now` (s, lease clock)."""
    decay = math.exp(-max(0.0, now - remembered["at"]) / HEALTH_S)
    return ModelHealth(remembered["good"] * decay, remembered["all"] * decay, remembered.get("took", 0.0) * decay)
