"""How a call would fare that is sent to a pool now: for whoever may choose among several."""

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
"""An outcome so old counts 1/e of a fresh one (health.lua)."""
_LOOK = Path(__file__).parent / "governor_look.lua"


@dataclass(frozen=True, slots=True)
class ModelHealth:
    """How one model's calls ended lately: `good` of `ended`, recent ones counting more (see `HEALTH_S`); the good ones
    took `took_s` together, from their leases to the return of these."""

    good: float
    ended: float
    took_s: float = 0.0

    @property
    def success_rate(self) -> float:
        """Between 0 and 1; 1 where nothing is known, to which it returns while no call ends."""
        return (self.good + 1.0) / (self.ended + 1.0)

    @property
    def latency_s(self) -> float | None:
        """Seconds that a good call takes on average; None where none has ended lately."""
        return self.took_s / self.good if self.good > 0.0 else None


UNKNOWN = ModelHealth(0.0, 0.0)


@dataclass(frozen=True, slots=True)
class PoolHealth:
    """One pool now. `limit` is in force (None before the first decision), `assigned` are units that chose this pool and
    are not open yet; `broken`: its circuit breaker lets nothing pass for now."""

    limit: int | None
    open: int
    assigned: int
    broken: bool
    health: Mapping[str, ModelHealth]


class PoolHealthReader:
    """Reads them, all in one round trip."""

    def __init__(self, client: AsyncStoreClient, keys: Keys) -> None:
        self._redis, self._keys = client, keys
        self._look = client.register_script(script_text(_LOOK))

    async def read(self, pools: Iterable[str]) -> dict[str, PoolHealth]:
        """Raises redis errors."""
        k, names = self._keys, list(dict.fromkeys(pools))
        pipe = self._redis.pipeline(transaction=False)
        pipe.hget(k.clock, "now")
        pipe.hmget(k.open, [f"p:{pool}" for pool in names])
        pipe.hmget(k.assigned, names)
        for pool in names:
            pipe.hget(k.governor(pool), "parameters")
            await self._look(keys=[k.governor(pool), k.open], args=[pool], client=pipe)
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
    """The limit as the scripts apply it, by what they remember of the pool."""
    names = ("version", "refusals", "refused", "refused_sent_at")
    state = EnforcementState(**{name: remembered[name] for name in names if name in remembered})
    obey(parameters, state)
    return effective_limit(parameters, state, now)


def health_now(remembered: Mapping[str, float], now: float) -> ModelHealth:
    """A model's health as the scripts remember it, brought to `now` (s, lease clock)."""
    kept = math.exp(-max(0.0, now - remembered["at"]) / HEALTH_S)
    return ModelHealth(remembered["good"] * kept, remembered["all"] * kept, remembered.get("took", 0.0) * kept)
