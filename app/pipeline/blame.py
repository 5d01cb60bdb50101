"""Decides whether a failed call is attributed to its unit or to a pool that is down.

While a pool is down, one call at a time probes it. The failure of a probe says nothing about its unit and must not
spend its attempts, or an outage would use up the units of a job one after the other. Rules, first match wins:

1. The call was no probe -> the unit, as with every failure of a pool that is believed to be up.
2. The job has had answers from other models of the pool and none from this one -> the unit: the model is broken.
3. The provider answered with a rate limit, could not be reached, or is unavailable (502, 503, 504) -> the pool.
4. Any other failure (500, a timeout) -> the pool, if `UNITS_SURE` units have failed and none was answered. Fewer could
   be units that make the provider fail.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol

from dicast.app.domain.failure import RATE_LIMITS, FailureKind
from dicast.app.pipeline.call import Call
from dicast.app.pipeline.fail_fast import FailFast
from dicast.app.pipeline.record import retry_until_available
from dicast.app.providers.base import ProviderFailure
from dicast.workers.admission.outages import UNITS_SURE, PoolCondition

UNAVAILABLE = frozenset({502, 503, 504})
OUTAGES = frozenset({FailureKind.SERVER, FailureKind.CONNECTION, FailureKind.TIMEOUT, *RATE_LIMITS})


class Conditions(Protocol):
    """Reads the condition of pools (see `dicast.workers.admission.outages.Outages`)."""

    async def read(self, pools: Iterable[str]) -> Mapping[str, PoolCondition]: ...


class Blame(NamedTuple):
    """If `pool_down`, the failure is the pool's and says nothing about the unit. The pool admits no call for
    `closed_s`."""

    pool_down: bool
    closed_s: float


class Blames:
    """Attributes failures on one event loop. Waits for the store while it is unavailable."""

    def __init__(self, conditions: Conditions, fail_fast: FailFast) -> None:
        self._conditions, self._fail_fast = conditions, fail_fast

    async def of(self, call: Call, failure: ProviderFailure, model: str) -> Blame:
        """Decide whether the failure of a call is its unit's or its pool's."""
        if failure.kind not in OUTAGES or (failure.kind in RATE_LIMITS and not call.probe):
            return Blame(pool_down=False, closed_s=0.0)
        trouble = await self._trouble(call.pool)
        if not call.probe or await retry_until_available(
            lambda: self._fail_fast.seems_broken(call.job, call.pool, model)
        ):
            return Blame(pool_down=False, closed_s=trouble.breaker_for_s)
        sure = (
            failure.kind in RATE_LIMITS
            or not failure.reached
            or failure.status_code in UNAVAILABLE
            or (trouble.outage is not None and trouble.outage.units >= UNITS_SURE)
        )
        return Blame(sure, trouble.breaker_for_s)

    async def down(self, pool: str) -> str:
        """Return "pool 'p' has been down for 40 s ...", or "" if the pool is up."""
        trouble = await self._trouble(pool)
        return described(pool, trouble)

    async def _trouble(self, pool: str) -> PoolCondition:
        return (await retry_until_available(lambda: self._conditions.read([pool])))[pool]


def described(pool: str, trouble: PoolCondition) -> str:
    """Describe an outage in one line for people; return "" if the pool is up."""
    if trouble.outage is None or not trouble.down_for_s:
        return ""
    return f"pool {pool!r} has been down for {trouble.down_for_s:.0f} s (last error: {trouble.outage.last_error})"
