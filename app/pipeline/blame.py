"""Whose fault a failed call is: the unit's, or that of a pool which is down.

While a pool is down, one call at a time tries it. What such a probe finds out says nothing of its unit, and must not
spend its attempts: an outage would else use up a job's units one after the other. Rules, first match wins:

1. It was no probe -> the unit's, as every failure of a pool that is taken for up.
2. The job had answers of other models of the pool and none of this one -> the unit's: the model is broken.
3. The provider refused, could not be reached, or says that it is unavailable (502, 503, 504) -> the pool's.
4. Any other failure (500, a timeout): the pool's if `UNITS_SURE` units failed and none was answered; a few could be
   such units as bring the provider to fail.
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
    """Knows what is wrong with pools (see `dicast.workers.admission.outages.Outages`)."""

    async def read(self, pools: Iterable[str]) -> Mapping[str, PoolCondition]: ...


class Blame(NamedTuple):
    """`pool_down`: the call says nothing of its unit. For `closed_s` the pool lets no call pass."""

    pool_down: bool
    closed_s: float


class Blames:
    """For one event loop; a store that is away is waited for."""

    def __init__(self, conditions: Conditions, fail_fast: FailFast) -> None:
        self._conditions, self._fail_fast = conditions, fail_fast

    async def of(self, call: Call, failure: ProviderFailure, model: str) -> Blame:
        """Of a call that failed."""
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
        """'pool 'p' has been down for 40 s ...', '' of one that is up."""
        trouble = await self._trouble(pool)
        return described(pool, trouble)

    async def _trouble(self, pool: str) -> PoolCondition:
        return (await retry_until_available(lambda: self._conditions.read([pool])))[pool]


def described(pool: str, trouble: PoolCondition) -> str:
    """One line for people; '' of a pool that is up."""
    if trouble.outage is None or not trouble.down_for_s:
        return ""
    return f"pool {pool!r} has been down for {trouble.down_for_s:.0f} s (last error: {trouble.outage.last_error})"
