"""Decides whether a unit is worth a call, and whether its unit or its pool is to blame for a failed call.

A job that only gets the same permanent error stops asking, and an exhausted account is tried again by one unit at a
time. Rules for a job at a place (a pool's model), in the order in which they are tried:

1. The account has no money left, and the job waits for it (`on_exhausted: wait`): the units come again, and one call
   every `recheck_s` tries the account.
2. The job has stopped asking at the place, or has given it up (app/pipeline/time_limits.py): the unit ends without a
   call, with the error that stopped the job, or goes to another deployment of its judge where the job still asks.

A job stops asking at a place when its first units there have all ended in the same permanent error: `fail_fast` units
of at least `ITEMS_LEAST` items (so that one bad text does not stop the others), or one unit if the account has no money
left or no call can be made at all (a missing key). It does not stop where it has had an answer, or two different
errors.

A process reads the store every `REFRESH_S`, so a few more calls may be made after a job has stopped.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Protocol

from dicast.app import logs
from dicast.app.domain.opinion import NO_OPINION, RATE_LIMITS, ErrorKind, FailureKind
from dicast.app.domain.plan import DroppedParameter, Stop, place
from dicast.app.ledger.records import JobRecord
from dicast.app.ledger.troubles import StopStore
from dicast.app.pipeline.call_facts import Models, places_of
from dicast.app.pipeline.record import retry_until_available
from dicast.app.providers.base import ProviderFailure
from dicast.workers.admission.pool_state import UNITS_SURE, PoolCondition

ITEMS_LEAST = 3
REFRESH_S = 0.25
JOBS_KEPT = 64

_POOL_STATUSES = {401, 402, 403, 404}
"""Statuses that concern the key, the account, the path or the model, whatever is asked. For other statuses two errors
are the same only if their messages are."""


@dataclass(frozen=True, slots=True)
class WaitForMoney:
    """No call is made now; the unit comes again after `delay_s`, when the account may have money."""

    delay_s: float

    def words(self, pool: str) -> str:
        """Return why the unit waits, for people."""
        return f"waits {self.delay_s:.0f} s: the account of pool {pool!r} has no money left"


@dataclass(slots=True)
class _JobView:
    """This process's copy of what the store knows about one job."""

    read_at: float = float("-inf")
    stops: Mapping[str, Stop] = field(default_factory=dict)
    exhausted: set[str] = field(default_factory=set)
    answering: set[str] = field(default_factory=set)
    dropped: dict[str, frozenset[str]] = field(default_factory=dict)


class FailFast:
    """Decides on one event loop whether calls are worth making. Waits for the store while it is unavailable."""

    def __init__(self, store: StopStore, models: Models, *, fail_fast: int, recheck_s: float) -> None:
        self._store, self._models, self._fail_fast, self._recheck_s = store, models, fail_fast, recheck_s
        self._jobs: OrderedDict[tuple[str, str], _JobView] = OrderedDict()

    async def stop_or_wait(
        self, job: JobRecord, pool: str, model: str, *, leased: bool = True
    ) -> Stop | WaitForMoney | None:
        """Return why a unit of the job gets no call at this place now, or None if it may be called. A unit that is not
        `leased` passed the gate because its job makes no more calls, so the store is read again if no reason is
        known yet."""
        view, at = self._view(job), place(pool, model)
        if asyncio.get_running_loop().time() >= view.read_at + REFRESH_S or not (leased or at in view.stops):
            await self.refresh(job)
        if pool in view.exhausted and job.spec.on_exhausted == "wait":
            recheck_ms = round(1000 * self._recheck_s)
            may = await retry_until_available(lambda: self._store.may_recheck(pool, recheck_ms))
            return None if may else WaitForMoney(self._recheck_s)
        return view.stops.get(at)

    def asks_at(self, job: JobRecord, places: Iterable[str]) -> bool:
        """Whether the job still asks at any of these places, as of the last time that the store was read."""
        stops = self._view(job).stops
        return any(at not in stops for at in places)

    async def seems_broken(self, job: JobRecord, pool: str, model: str) -> bool:
        """Whether the job has had answers from other models of the pool, and none from this one."""
        answering = (await self._store.load(job))[1] | self._view(job).answering
        return place(pool, model) not in answering and any(at.startswith(place(pool, "")) for at in answering)

    async def give_up(self, job: JobRecord, stop: Stop) -> None:
        """Have the job stop asking at `stop.place`."""
        if await retry_until_available(lambda: self._store.give_up(job, stop)):
            self._view(job).read_at = float("-inf")
            await retry_until_available(lambda: self._release_waiting(job))
            logs.stopped_asking(job=job.id, pool=stop.pool, model=stop.model, after=0, reason=stop.message)

    async def stops(self, job: JobRecord) -> Mapping[str, Stop]:
        """Return the places where the job has stopped asking, each with its stop, as of now."""
        return await self._store.stops(job)

    async def note_answer(self, job: JobRecord, pool: str, model: str) -> None:
        """Note that the place has answered with an opinion."""
        view, at = self._view(job), place(pool, model)
        if pool in view.exhausted:
            view.exhausted.discard(pool)
            await retry_until_available(lambda: self._store.restored(pool))
        if at not in view.answering:
            view.answering.add(at)
            await retry_until_available(lambda: self._store.mark_answered(job, at))

    async def note_failure(
        self, job: JobRecord, pool: str, model: str, failure: ProviderFailure, *, unit: str, item: int, was_made: bool
    ) -> WaitForMoney | None:
        """Note that a unit's last call failed, or was not made at all (`was_made`). Return a wait if the unit is to
        come again because the job waits for money."""
        if failure.kind is FailureKind.QUOTA_EXHAUSTED and job.spec.on_exhausted == "wait":
            self._view(job).exhausted.add(pool)
            await retry_until_available(lambda: self._store.exhaust(pool, round(1000 * self._recheck_s)))
            return WaitForMoney(self._recheck_s)
        most = self._fail_fast if job.spec.fail_fast is None else job.spec.fail_fast
        if most == 0 or failure.kind not in _PERMANENT_KINDS:
            return None
        at: Any = {"pool": pool, "model": model, "status_code": failure.status_code, "message": failure.message}
        error, items = f"{failure.kind}|{failure.status_code}", 1
        if failure.kind is FailureKind.QUOTA_EXHAUSTED:
            stop, most = Stop(**at, kind=ErrorKind.QUOTA_EXHAUSTED, after=1), 1
        elif not was_made:
            stop, most = Stop(**at, kind=ErrorKind.NOT_ASKED, after=0), 1
        else:
            if failure.status_code not in _POOL_STATUSES:
                error, items = f"{error}|{failure.message}", min(ITEMS_LEAST, job.items)
            stop = Stop(**at, kind=ErrorKind.NOT_ASKED, after=most)
        record_failure = self._store.failed
        if await retry_until_available(lambda: record_failure(job, unit, item, error, stop, units=most, items=items)):
            self._view(job).read_at = float("-inf")
            await retry_until_available(lambda: self._release_waiting(job))
            logs.stopped_asking(job=job.id, pool=pool, model=model, after=stop.after, reason=failure.message)
        return None

    async def dropped(self, job: JobRecord) -> list[DroppedParameter]:
        """Return the parameters that models have refused, as of now."""
        return await self._store.dropped(job)

    def left_out(self, job: JobRecord, pool: str, model: str) -> frozenset[str]:
        """Return the parameters without which the job asks a model, as of the last time that the store was read."""
        view = self._jobs.get((job.id, job.incarnation))
        return view.dropped.get(place(pool, model), NONE_LEFT_OUT) if view and view.dropped else NONE_LEFT_OUT

    async def drop(self, job: JobRecord, pool: str, model: str, failure: ProviderFailure) -> None:
        """Have the job ask a model without the parameters that it has refused. Each worker logs each of them once."""
        known = self.left_out(job, pool, model)
        self._view(job).dropped[place(pool, model)] = known.union(failure.refused_params)
        for name in failure.refused_params:
            parameter = DroppedParameter(pool=pool, model=model, name=name, message=failure.message)
            await retry_until_available(partial(self._store.drop, job, parameter))
            if name not in known:
                logs.parameter_dropped(job=job.id, pool=pool, model=model, parameter=name, reason=failure.message)

    async def _release_waiting(self, job: JobRecord) -> None:
        """Let the job's units pass the gate without leases if it has stopped asking everywhere."""
        stops = await self._store.stops(job)
        places = {at for lane in job.lanes for agent in lane.agents for at in places_of(job, lane, agent, self._models)}
        if places <= stops.keys():
            await self._store.silence(job.id)

    async def refresh(self, job: JobRecord) -> None:
        """Read from the store what is known of a job."""
        view = self._view(job)
        view.read_at = asyncio.get_running_loop().time()  # concurrent callers need not read it too
        await retry_until_available(lambda: self._refresh(job, view))

    async def _refresh(self, job: JobRecord, view: _JobView) -> None:
        view.stops, answering = await self._store.load(job)
        view.answering &= answering  # a resumed job starts without answers
        for parameter in await self._store.dropped(job) if has_parameters(job) else ():
            at = place(parameter.pool, parameter.model)
            view.dropped[at] = view.dropped.get(at, frozenset()) | {parameter.name}
        if job.spec.on_exhausted == "wait":
            pools = {name for lane in job.lanes for name in lane.pools}
            view.exhausted = {pool for pool in pools if await self._store.exhausted(pool)}

    def _view(self, job: JobRecord) -> _JobView:
        key = job.id, job.incarnation
        view = self._jobs.setdefault(key, _JobView())
        self._jobs.move_to_end(key)
        if len(self._jobs) > JOBS_KEPT:
            self._jobs.popitem(last=False)
        return view


NONE_LEFT_OUT: frozenset[str] = frozenset()


def has_parameters(job: JobRecord) -> bool:
    """Whether a judge of the job is asked with parameters that its model could refuse. Those of pools count as well,
    but are not known here, so that each process finds out by a call."""
    several = any(lane.together > 1 for lane in job.lanes)
    return several or any(agent.temperature is not None or agent.parameters(0) for agent in job.spec.agents)


_PERMANENT_KINDS = {FailureKind.REJECTED, FailureKind.QUOTA_EXHAUSTED, *NO_OPINION}
"""Failures for which asking again did not, or cannot, help. Failures that may pass by themselves stop no job."""


UNAVAILABLE_STATUSES = frozenset({502, 503, 504})
OUTAGE_KINDS = frozenset(
    {FailureKind.SERVER, FailureKind.CONNECTION, FailureKind.TIMEOUT, *RATE_LIMITS} - {FailureKind.UNAVAILABLE}
)


class Conditions(Protocol):
    """Reads the condition of pools (see `dicast.workers.admission.pool_state.Outages`)."""

    async def read(self, pools: Iterable[str]) -> Mapping[str, PoolCondition]: ...


class Attribution(NamedTuple):
    """If `pool_down`, the failure is the pool's and says nothing about the unit. The pool admits no call for
    `breaker_open_s`."""

    pool_down: bool
    breaker_open_s: float


UNIT_FAILED = Attribution(pool_down=False, breaker_open_s=0.0)


def may_concern_pool(failure: ProviderFailure, *, probe: bool) -> bool:
    """Return whether the state of the pool matters for what follows from a failure."""
    return failure.kind in OUTAGE_KINDS and (probe or failure.kind not in RATE_LIMITS)


def attribute(failure: ProviderFailure, condition: PoolCondition, *, probe: bool, model_broken: bool) -> Attribution:
    """Decide whether a failure that may concern the pool is its unit's or its pool's.

    While a pool is down, one call at a time probes it. The failure of a probe says nothing about its unit and must not
    spend its attempts, or an outage would use up the units of a job one after the other. Rules, first match wins:

    1. The call was no probe -> the unit, as with every failure of a pool that is believed to be up.
    2. The job has had answers from other models of the pool and none from this one (`model_broken`) -> the unit.
    3. The provider answered with a rate limit, could not be reached, or is unavailable (502, 503, 504) -> the pool.
    4. Any other failure (500, a timeout) -> the pool, if `UNITS_SURE` units have failed and none was answered. Fewer
       could be units that make the provider fail.
    """
    if not probe or model_broken:
        return Attribution(pool_down=False, breaker_open_s=condition.breaker_for_s)
    is_pool_down = (
        failure.kind in RATE_LIMITS
        or not failure.reached
        or failure.status_code in UNAVAILABLE_STATUSES
        or (condition.outage is not None and condition.outage.units >= UNITS_SURE)
    )
    return Attribution(is_pool_down, condition.breaker_for_s)


def outage_text_of(pool: str, condition: PoolCondition) -> str:
    """Describe an outage in one line for people; return "" if the pool is up."""
    if condition.outage is None or not condition.down_for_s:
        return ""
    return f"pool {pool!r} has been down for {condition.down_for_s:.0f} s (last error: {condition.outage.last_error})"
