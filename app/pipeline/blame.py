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

UNAVAILABLE_STATUSES = frozenset({502, 503, 504})
OUTAGE_KINDS = frozenset({FailureKind.SERVER, FailureKind.CONNECTION, FailureKind.TIMEOUT, *RATE_LIMITS})


class Conditions(Protocol):
    """Reads the condition of pools (see `dicast.workers.admission.outages.Outages`)."""

    async def read(self, pools: Iterable[str]) -> Mapping[str, PoolCondition]: ...


class Attribution(NamedTuple):
    """If `pool_down`, the failure is the pool's and says nothing about the unit. The pool admits no call for
    `breaker_open_s`."""

    pool_down: bool
    breaker_open_s: float


class FailureAttributor:
    """Attributes failures on one event loop. Waits for the store while it is unavailable."""

    def __init__(self, conditions: Conditions, fail_fast: FailFast) -> None:
        self._conditions, self._fail_fast = conditions, fail_fast

    async def attribute(self, call: Call, failure: ProviderFailure, model: str) -> Attribution:
        """Decide whether the failure of a call is its unit's or its pool's."""
        if failure.kind not in OUTAGE_KINDS or (failure.kind in RATE_LIMITS and not call.probe):
            return Attribution(pool_down=False, breaker_open_s=0.0)
        condition = await self._condition(call.pool)
        if not call.probe or await retry_until_available(
            lambda: self._fail_fast.seems_broken(call.job, call.pool, model)
        ):
            return Attribution(pool_down=False, breaker_open_s=condition.breaker_for_s)
        is_pool_down = (
            failure.kind in RATE_LIMITS
            or not failure.reached
            or failure.status_code in UNAVAILABLE_STATUSES
            or (condition.outage is not None and condition.outage.units >= UNITS_SURE)
        )
        return Attribution(is_pool_down, condition.breaker_for_s)

    async def outage_text(self, pool: str) -> str:
        """Return "pool 'p' has been down for 40 s ...", or "" if the pool is up."""
        condition = await self._condition(pool)
        return outage_text_of(pool, condition)

    async def _condition(self, pool: str) -> PoolCondition:
        return (await retry_until_available(lambda: self._conditions.read([pool])))[pool]


def outage_text_of(pool: str, condition: PoolCondition) -> str:
    """Describe an outage in one line for people; return "" if the pool is up."""
    if condition.outage is None or not condition.down_for_s:
        return ""
    return f"pool {pool!r} has been down for {condition.down_for_s:.0f} s (last error: {condition.outage.last_error})"
