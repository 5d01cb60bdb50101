"""The state of each pool: for display, for callers that may choose among several, and whether it is down.

A `PoolState` has the limits and their reasons, who waits, what was denied, and the budgets. It makes no decision, and
no decision is based on it. `PoolHealth` tells how a call sent to a pool now would fare, for callers that may choose
among several. An `Outage` says that a pool is down.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import orjson

from dicast.workers.admission.governor_store import GovernorStore, read_parameters
from dicast.workers.admission.leases import OpenLease, open_leases
from dicast.workers.policy.governor import ChangeCause
from dicast.workers.policy.headers import BudgetUnit
from dicast.workers.policy.latency import CurvePoint
from dicast.workers.policy.parameters import BreakerPhase, Bucket, Parameters
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

    The pool's calls fail one after the other, and none is answered. The store's scripts keep the record (`health.lua`),
    by the lease clock, so that it outlives every worker.
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


HEALTH_S = 60.0
"""The time after which an outcome counts 1/e of a fresh one (health.lua)."""
ALONE_S, SURELY_ALONE = 600.0, math.log(100.0)
"""The time after which the evidence that one model is refused alone counts 1/e, and how much of it is told."""


@dataclass(frozen=True, slots=True)
class ModelHealth:
    """The recent outcomes of one model's calls: `good` of `ended` were answered.

    Recent ones count more (see `HEALTH_S`). The good ones took `took_s` together, from the grant of their leases to the
    return of these. `alone` is how surely the pool's refusals are of this model alone: the logarithm of a likelihood
    ratio, from 0 on.
    """

    good: float
    ended: float
    took_s: float = 0.0
    alone: float = 0.0

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
    refused = int(remembered.get("refused", 0))
    if int(remembered.get("version", 0)) != parameters.version:
        refused = parameters.unknown_refusals(
            int(remembered.get("refusals", 0)), remembered.get("refused_sent_at", 0.0)
        )
    return parameters.limit_in_force(refused, now)


def health_now(remembered: Mapping[str, float], now: float) -> ModelHealth:
    """Return a model's health as the scripts remember it, decayed to `now` (s, lease clock)."""
    decay = math.exp(-max(0.0, now - remembered["at"]) / HEALTH_S)
    alone = remembered.get("alone", 0.0) * math.exp(-max(0.0, now - remembered.get("alone_at", now)) / ALONE_S)
    good, ended = remembered["good"] * decay, remembered["all"] * decay
    return ModelHealth(good, ended, remembered.get("took", 0.0) * decay, alone)


STALE_S = 10.0
STALE_DEMAND_S = 600.0
TRIED_LATELY_S = 600.0
FLAPS = 3
FLAPS_WITHIN_S = 600.0


@dataclass(frozen=True, slots=True)
class ProjectState:
    """One project in one pool. `service` is what it has been granted so far, in weighted tokens."""

    open: int
    waiting: bool
    service: float


@dataclass(frozen=True, slots=True)
class BudgetState:
    """One budget. `level` is the estimate of what is left of `capacity` now; both are in its unit, as is the refill."""

    level: float
    capacity: float
    refill_per_min: float
    unit: BudgetUnit = BudgetUnit.REQUESTS


@dataclass(frozen=True, slots=True)
class Knee:
    """What the default engine has learned of how a pool's latency grows with its calls.

    At most `level` calls are kept open for the latency's sake; None if that does not bound the limit. `reason` says
    why. `base_s` is the median latency without load, as far as it is known. `curve` has what was seen at up to 16
    levels, from few calls to many; its instants are of the lease clock.
    """

    level: int | None
    reason: str
    base_s: float | None
    target_s: float | None
    curve: Sequence[CurvePoint]

    @classmethod
    def from_engine(cls, engine: Mapping[str, Any]) -> Knee | None:
        """Read it from an engine's state; None if that has learned nothing."""
        watch = engine.get("latency") or {}
        curve = sorted((CurvePoint(**point) for point in watch.get("curve", {}).values()), key=lambda point: point.open)
        knee, base_s, target = watch.get("knee"), watch.get("base"), watch.get("target") or {}
        most, target_s = target.get("most"), target.get("target_s")
        if most is not None and most <= (knee or most):
            level, reason = most, f"more would miss the latency target of {target_s:g} s"
        elif knee is not None:
            level, reason = knee, f"more only wait for each other, for a call takes {base_s:.3g} s without load"
        else:
            level, reason = None, "no knee was found: latency bounds nothing"
        if level is None and not curve:
            return None
        return cls(None if level is None else int(level), reason, base_s, target_s, curve)

    @property
    def summary(self) -> str:
        return self.reason if self.level is None else f"at most {self.level:,} calls: {self.reason}"


class Availability(StrEnum):
    """Whether a unit sent to a pool now would find a slot, would wait for one, or would find the pool offline."""

    READY = "ready"
    BUSY = "busy"
    OFFLINE = "offline"


@dataclass(frozen=True, slots=True)
class PoolState:
    """The state of one pool.

    `limit` is the limit as decided, `effective_limit` the one in force (lower after a refusal, or when nobody decides).
    `refused` counts denied lease requests by reason, `statuses` the provider's answers by status. `zombies` counts
    leases of unreachable nodes. `silent` maps projects whose demand has expired to the seconds since they last
    requested a lease. `health` is by model. `job_limit` is the largest limit of the running jobs, 0 if none runs.
    `reopened` counts the failed probes of the present break. For `settle_for_s` more seconds a cut keeps the limit from
    moving. `assigned` counts units that were assigned to this pool among others and whose calls have not begun.

    `now` and the instants of `changes` are seconds of the lease clock, which stands still while nobody works.
    """

    pool: str
    profile: str
    limit: int
    effective_limit: int
    ceiling: int
    floor: int
    open: int
    projects: Mapping[str, ProjectState]
    granted: int
    refused: Mapping[str, int]
    statuses: Mapping[int, int]
    breaker: str
    breaker_for_s: float
    breaks: int
    budgets: Mapping[str, BudgetState]
    decided_s_ago: float
    reason: str
    changes: Sequence[Mapping[str, Any]]
    override: Mapping[str, Any]
    zombies: int
    silent: Mapping[str, float]
    health: Mapping[str, ModelHealth]
    input_tokens: int
    output_tokens: int
    slo: int | None
    job_limit: int
    now: float
    assigned: int
    reopened: int
    settle_for_s: float = 0.0
    unknown_headers: Sequence[str] = ()
    outage: Outage | None = None
    cut: int = 0
    """The number of open calls that were cut: nobody waits for them, but the provider may still be working on them."""
    cut_for_s: float = 0.0
    """How many seconds until the last of them no longer counts."""
    zombies_for_s: float = 0.0
    """How many seconds until the last lease of an unreachable node no longer counts."""
    knee: Knee | None = None
    """What was learned of how latency grows with load; None if nothing was, or by another engine than the default."""
    budget_cap: int | None = None
    """The cap on the limit while errors use up the error budget too fast."""

    @property
    def down(self) -> str | None:
        """A sentence such as 'down for 40 s: ...' if all calls of the pool fail; None if it answers, or nobody has
        tried."""
        if self.outage is None or not self.outage.is_down:
            return None
        down, tried = span(self.now - self.outage.since), span(self.now - self.outage.at)
        row = f"{self.outage.failures:,} calls have failed in a row, the last {tried} ago"
        return f"down for {down}: {row} (last error: {self.outage.last_error})"

    @property
    def kept(self) -> str | None:
        """A sentence if no slot is free because leases are kept whose calls nobody waits for any more: how many those
        are, for how long, and what would free them. None if none is kept, or if there are free slots."""
        if not self.cut + self.zombies or self.open < self.effective_limit:
            return None
        head = "it stands still" if self.cut + self.zombies >= self.open else "no slot is free"
        phrase = kept_words(self.cut, self.cut_for_s, self.zombies, self.zombies_for_s)
        return f"{head}: of its {self.open:,} open calls {phrase}"

    @property
    def recent_breaks(self) -> int:
        """How often the circuit breaker has opened lately, the failed probes of the present break included."""
        since = self.now - FLAPS_WITHIN_S
        ended = len(
            [change for change in self.changes if change.get("cause") == ChangeCause.RECOVERED and change["at"] > since]
        )
        return ended + (0 if self.breaker == BreakerPhase.CLOSED.value else 1 + self.reopened)

    @property
    def waiting(self) -> list[str]:
        return [name for name, project in self.projects.items() if project.waiting]

    @property
    def rate_limited(self) -> int:
        return self.statuses.get(429, 0)

    @property
    def load(self) -> float:
        """Open calls, and assigned units whose calls are not open yet, divided by the limit in force; at most 1."""
        return min(1.0, (self.open + self.assigned) / max(1, self.effective_limit))

    @property
    def availability(self) -> Availability:
        """The availability: offline while the circuit breaker is not closed or the pool is down, else busy or ready."""
        if self.breaker != BreakerPhase.CLOSED.value or (self.outage is not None and self.outage.is_down):
            return Availability.OFFLINE
        taken = self.open + self.assigned
        return Availability.BUSY if taken >= self.effective_limit else Availability.READY

    @property
    def latency_s(self) -> float | None:
        """How many seconds a good call takes on average, over all models; None if none has ended lately."""
        good = sum(health.good for health in self.health.values())
        return sum(health.took_s for health in self.health.values()) / good if good > 0 else None

    @property
    def error_rate(self) -> float:
        """The share of recent calls that ended without an answer; 0 if none did."""
        ended = sum(health.ended for health in self.health.values())
        return 1.0 - sum(health.good for health in self.health.values()) / ended if ended > 0 else 0.0


class PoolStates:
    """Reads the states of pools."""

    def __init__(self, client: AsyncStoreClient, keys: Keys) -> None:
        self._redis, self._keys, self._store = client, keys, GovernorStore(client, keys)

    async def all(self) -> list[PoolState]:
        """Return the state of every pool that has live state, by name."""
        leases = await open_leases(self._redis, self._keys)
        zombies, cut = await self._zombies(leases), [lease for lease in leases if lease.cut]
        states = [
            await self._read_pool(pool, _left_s(zombies, pool), _left_s(cut, pool))
            for pool in await self._store.pools()
        ]
        return [state for state in states if state is not None]

    async def _read_pool(self, pool: str, zombies_s: Sequence[float], cut_s: Sequence[float]) -> PoolState | None:
        k = self._keys
        brief = await self._store.read(pool)
        if brief.parameters is None:
            return None
        pipe = self._redis.pipeline(transaction=False)
        pipe.hget(k.open, f"p:{pool}")
        pipe.hget(k.assigned, pool)
        pipe.hgetall(k.counters(pool))
        pipe.lrange(k.changes(pool), 0, -1)
        opened, assigned, counters, changes = await pipe.execute()
        policy = orjson.loads(brief.state.policy) if brief.state else {}
        engine = policy.get("engine", {})
        remembered = await self._store.enforcement(pool)
        return _state(
            pool, brief.parameters, remembered, brief.now,
            profile=engine.get("kind", ""), ceiling=brief.state.ceiling if brief.state else brief.parameters.limit,
            open_calls=int(opened or 0), assigned=int(assigned or 0), counters=counters,
            changes=[orjson.loads(line) for line in changes],
            reason=engine.get("reason", ""), override=brief.override, zombies_s=zombies_s,
            slo=brief.override_for_all.get("slo"), job_limit=brief.cap,
            reopened=engine.get("breaker", {}).get("reopened", 0),
            settle_until=engine.get("settle_until", 0.0),
            unknown_headers=engine.get("told", {}).get("unknown", ()), outage=Outage.from_remembered(remembered),
            budget_cap=policy.get("budget_use", {}).get("cap"), cut_s=cut_s, knee=Knee.from_engine(engine),
        )  # fmt: skip

    async def _zombies(self, leases: Sequence[OpenLease]) -> list[OpenLease]:
        """Return the leases of unreachable nodes, except those of calls that were cut."""
        uncut = [lease for lease in leases if not lease.cut]
        nodes = sorted({lease.node for lease in uncut})
        beacons = await self._redis.mget([self._keys.node(node) for node in nodes]) if nodes else []
        silent = {node for node, beacon in zip(nodes, beacons, strict=True) if beacon is None}
        return [lease for lease in uncut if lease.node in silent]


def _left_s(leases: Sequence[OpenLease], pool: str) -> list[float]:
    return [lease.left_s for lease in leases if lease.pool == pool]


def _state(
    pool: str, parameters: Parameters, remembered: Mapping[str, Any], now: float, *, profile: str, ceiling: int,
    open_calls: int, assigned: int, counters: Mapping[str, str], changes: Sequence[Mapping[str, Any]], reason: str,
    override: Mapping[str, Any], zombies_s: Sequence[float], slo: int | None, job_limit: int, reopened: int,
    settle_until: float, unknown_headers: Sequence[str], outage: Outage | None, budget_cap: int | None,
    cut_s: Sequence[float], knee: Knee | None,
) -> PoolState:  # fmt: skip
    numbers = {name: round(float(value)) for name, value in counters.items()}
    ttl_s = parameters.demand_ttl_s
    return PoolState(
        pool=pool,
        profile=profile,
        limit=parameters.limit,
        effective_limit=limit_in_force(parameters, remembered, now),
        ceiling=ceiling,
        floor=parameters.stale_limit,
        open=open_calls,
        projects=_project_states(remembered, now, ttl_s),
        granted=numbers.get("granted", 0),
        refused={n.removeprefix("refused:"): v for n, v in sorted(numbers.items()) if n.startswith("refused:")},
        statuses={int(n.removeprefix("status:")): v for n, v in sorted(numbers.items()) if n.startswith("status:")},
        breaker=parameters.breaker.value,
        breaker_for_s=max(0.0, parameters.breaker_until - now) if parameters.breaker is BreakerPhase.OPEN else 0.0,
        breaks=parameters.break_number,
        budgets={
            bucket.name: _budget(bucket, fill, now)
            for bucket in parameters.buckets
            if (fill := remembered.get("fills", {}).get(bucket.name)) is not None
        },
        decided_s_ago=max(0.0, now - parameters.decided_at),
        reason=reason,
        changes=changes,
        override=override,
        zombies=len(zombies_s),
        silent={
            name: now - standing["asked_at"]
            for name, standing in sorted(remembered.get("projects", {}).items())
            if standing["waiting"] and ttl_s < now - standing["asked_at"] <= STALE_DEMAND_S
        },
        health={model: health_now(health, now) for model, health in sorted(remembered.get("health", {}).items())},
        input_tokens=numbers.get("input_tokens", 0),
        output_tokens=numbers.get("output_tokens", 0),
        slo=slo,
        job_limit=job_limit,
        now=now,
        assigned=assigned,
        reopened=reopened,
        settle_for_s=max(0.0, settle_until - now),
        unknown_headers=unknown_headers,
        outage=outage,
        budget_cap=budget_cap,
        knee=knee,
        cut=len(cut_s),
        cut_for_s=max(cut_s, default=0.0),
        zombies_for_s=max(zombies_s, default=0.0),
    )


def _project_states(remembered: Mapping[str, Any], now: float, ttl_s: float) -> dict[str, ProjectState]:
    """Return the projects that have open calls, or have asked within `ttl_s`."""
    return {
        name: ProjectState(
            standing["open"], standing["waiting"] and now <= standing["asked_at"] + ttl_s, standing["service"]
        )
        for name, standing in sorted(remembered.get("projects", {}).items())
        if standing["open"] or now <= standing["asked_at"] + ttl_s
    }


def kept_words(cut: int, cut_for_s: float, zombies: int, zombies_for_s: float) -> str:
    """Say of leases that are kept why, for how long, and what would free them."""
    parts = []
    if cut:
        parts.append(
            f"{cut:,} were cut, and count for up to {span(cut_for_s)} more, since the provider may still be working on "
            "them (if it ends a call when its connection is closed, cut_frees = true in the pools file frees the next "
            "ones at once)"
        )
    if zombies:
        parts.append(f"{zombies:,} are of nodes that cannot be heard, and count for up to {span(zombies_for_s)} more")
    return "; ".join(parts)


def span(seconds: float) -> str:
    """Format a duration in its largest unit: 40 s, 3 min, 5 h."""
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


def _budget(bucket: Bucket, fill: Mapping[str, float], now: float) -> BudgetState:
    refill_per_s = bucket.net_refill_per_s
    level = min(max(bucket.capacity, fill["level"]), fill["level"] + refill_per_s * max(0.0, now - fill["at"]))
    return BudgetState(level, bucket.capacity, 60.0 * refill_per_s, bucket.unit)


def findings(state: PoolState) -> list[str]:
    """Return what an operator should look at in a pool, one sentence each; empty if all is well."""
    notes = []
    tried_lately = state.outage is not None and state.now - state.outage.at < TRIED_LATELY_S
    if state.down is not None and (tried_lately or state.waiting):
        notes.append(f"it has been {state.down}")
    if state.recent_breaks >= FLAPS:
        notes.append(f"the circuit breaker flaps: {state.recent_breaks} breaks in {FLAPS_WITHIN_S / 60:.0f} minutes")
    if state.breaker_for_s > 0:
        notes.append(f"the circuit breaker is open, for {span(state.breaker_for_s)} more")
    elif state.breaker != BreakerPhase.CLOSED.value:
        if state.open or state.waiting:  # else nothing is held up: the next call, whenever it comes, is the probe
            notes.append("the circuit breaker is half open: one call tries the provider, all others wait for it")
    elif state.waiting and state.limit <= state.floor < state.ceiling:
        notes.append(f"pinned at its floor of {state.floor}, and {len(state.waiting)} projects wait: {state.reason}")
    if state.budget_cap is not None:
        notes.append(f"capped at {state.budget_cap}: too many of its calls fail for the SLO (its error budget burns)")
    if state.decided_s_ago > STALE_S and (state.open or state.waiting):
        notes.append(f"no decision for {span(state.decided_s_ago)}: is a worker or the beat running?")
    if state.silent and state.job_limit:
        names = ", ".join(f"{project} ({span(silent_s)})" for project, silent_s in state.silent.items())
        notes.append(f"stale demand: these wanted more calls and stopped asking: {names}")
    if state.open > state.effective_limit:
        notes.append(f"{state.open} calls are open over a limit of {state.effective_limit}: they finish, none is added")
    for model, health in state.health.items():
        if health.alone >= SURELY_ALONE and len(state.health) > 1:
            notes.append(
                f"nearly all calls that were refused lately are of {model}, one of {len(state.health)} models: if the "
                "provider limits it apart, limits_by_model in the pools file keeps it from slowing the others"
            )
    if state.unknown_headers:
        notes.append(f"headers that seem to be about limits were not understood: {', '.join(state.unknown_headers)}")
    if state.waiting and (kept := state.kept) is not None:
        notes.append(kept)
    elif state.zombies:
        left = span(state.zombies_for_s)
        notes.append(f"{state.zombies} leases belong to nodes that cannot be heard; they end within {left}")
    return notes
