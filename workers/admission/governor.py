"""Decides each pool's limits from what happened in it, and puts the decisions into force.

The scripts enforce the limits at every call. Decisions are made by the beat's task each second, and by the worker that
the store tells that there is something to decide (a refusal, a failure, a step that is due). Several may decide at
once: a decision is committed only if no other was made since its brief was read. So one leads at any time, a stale
leader's decision is rejected, and the next leader goes on from the stored state and the events since then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

from pydantic import ValidationError

from dicast.workers.admission.governor_store import Brief, Decision, GovernorStore, StoredState
from dicast.workers.admission.overrides import PACING_JITTER, Overrides
from dicast.workers.policy.calls import NEVER
from dicast.workers.policy.engines import FixedState
from dicast.workers.policy.governor import ChangeCause, GovernorState, LimitChange, PoolGovernor
from dicast.workers.policy.parameters import Parameters
from dicast.workers.policy.profiles import PoolConfig
from dicast.workers.policy.rules import RulesConfig
from dicast.workers.store.connection import AsyncStoreClient
from dicast.workers.store.keys import Keys

logger = logging.getLogger(__name__)

STATE_EVERY_S = 1.0
"""How often the whole state is stored. In between, the events are kept from which it can be derived."""
ATTEMPTS = 3
"""How often a decision is tried when others are quicker; then theirs stand."""
SLO = "slo"
FOR_ALL = ""
"""Stands for the pool's name where an override is for all pools."""


@dataclass(slots=True)
class _CachedPolicy:
    """One pool's policy as this process knows it, in force while the store's version is `version`."""

    policy: PoolGovernor
    limit_wished: int | None
    version: int
    cursor: str
    stored_at: float
    cap: int


class Governor:
    """Makes the decisions, on one event loop. `configured` returns a pool's configured overrides."""

    def __init__(self, client: AsyncStoreClient, keys: Keys, configured: Callable[[str], Overrides]) -> None:
        self._client, self.store, self._configured = client, GovernorStore(client, keys), configured
        self._cached: dict[str, _CachedPolicy] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    async def close(self) -> None:
        await self._client.aclose()

    # ------------------------------------------------------------------ deciding
    async def tick_all(self, pools: list[str]) -> None:
        """Decide for every pool of the configuration and every one in use."""
        for pool in sorted({*pools, *await self.store.pools()}):
            await self.tick(pool)

    async def tick(self, pool: str, now_ms: int | None = None) -> bool:
        """Decide once for a pool; False if others were quicker each time. Raises redis errors."""
        async with self._locks.setdefault(pool, asyncio.Lock()):
            for _ in range(ATTEMPTS):
                if await self._decide(pool, now_ms):
                    return True
            return False

    async def _decide(self, pool: str, now_ms: int | None) -> bool:
        # Whatever goes wrong from here on, what this process knows is no longer what is in force.
        cached = self._cached.pop(pool, None)
        position = (cached.version, cached.cursor) if cached else (-1, "")
        brief = await self.store.read(pool, *position, now_ms=now_ms)
        overrides = self.overrides(pool, brief)
        cached = _continued(pool, overrides, brief, cached)
        config, history = cached.policy.config, cached.policy.state.history
        last = history[-1] if history else None
        _obey(overrides, brief, cached)
        engine = cached.policy.config.engine
        if isinstance(engine, RulesConfig):
            cpu_percent = await self.store.cpu_percent(by_load=engine.cpu_by == "load")
            if cpu_percent is not None:
                cached.policy.set_cpu(cpu_percent)
        parameters = replace(cached.policy.decide(brief.events, brief.now), known_refusals=brief.refusals)
        parameters = _with_pacing(overrides, parameters)
        changes = list(takewhile(lambda change: change is not last, reversed(history)))[::-1]
        store_state = bool(changes) or config != cached.policy.config or brief.now >= cached.stored_at + STATE_EVERY_S
        decision = Decision(
            parameters=parameters,
            next_at=cached.policy.next_at(),
            state=_record(cached) if store_state else None,
            cursor=brief.cursor,
            changes=[_line(change, cached) for change in changes],
            wake=_frees(brief.parameters, parameters),
        )
        if not await self.store.commit(pool, brief.version, decision):
            return False
        cached.version, cached.cursor = parameters.version, brief.cursor
        if store_state:
            cached.stored_at = brief.now
        self._cached[pool] = cached
        for line in decision.changes:
            logger.log(
                _level(line), "pool %s: limit %d -> %d, %s", pool, line["from"], line["to"], line["reason"],
                extra={"event": "limit_changed", "pool": pool, **line},
            )  # fmt: skip
        return True

    async def limit(self, pool: str) -> int:
        """Return the limit as last decided; before the first decision, the first limit."""
        parameters = await self.store.parameters(pool)
        return self._configured(pool).config(0).first_limit if parameters is None else parameters.limit

    # ------------------------------------------------------------------ overrides
    def overrides(self, pool: str, brief: Brief) -> Overrides:
        """Return the overrides in force: the configured ones, with the live ones over them."""
        return self._configured(pool).with_live(brief.override)

    async def set(self, pool: str, **override: Any) -> Overrides:
        """Change a pool's live overrides; None takes one back. Raises `OverrideError` before anything moves."""
        return await self.revise(pool, lambda live: {**live, **override})

    async def revise(self, pool: str, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Overrides:
        """Like `set`, where the new overrides depend on those in force.

        `change` is called again if somebody else was quicker, so that of two concurrent changes neither is lost.
        """
        configured = self._configured(pool)
        overrides = configured

        def revised(live: dict[str, Any]) -> dict[str, Any]:
            nonlocal overrides
            changed = {name: value for name, value in change(live).items() if value is not None}
            overrides = configured.with_live(changed)
            return changed

        await self.store.revise_override(pool, revised)
        await self.tick(pool)
        return overrides

    async def set_slo(self, most: int | None) -> None:
        """Cap every pool's limit, whatever else is set; None lifts the cap. Raises ValueError below 1."""
        if most is not None and most < 1:
            raise ValueError(f"SLO constraint must be >= 1, got {most}")
        await self.store.revise_override(FOR_ALL, lambda _: {} if most is None else {SLO: most})
        await self.tick_all([])


def _continued(pool: str, overrides: Overrides, brief: Brief, cached: _CachedPolicy | None) -> _CachedPolicy:
    """Return this process's own policy if it is still in force, else the stored one, else a new one."""
    if cached is not None and cached.version == brief.version:
        return cached
    state, cap = None, brief.cap
    limit_wished = overrides.limit
    if brief.state is not None:
        try:
            state = GovernorState.from_json(brief.state.policy)
            cap, limit_wished = cap or brief.state.cap, brief.state.limit_wished
        except ValidationError as error:
            logger.error("the state of pool %s cannot be read, its governor begins anew: %s", pool, error)
    # The stored state may be old: the first decision of a new leader stores its own.
    return _CachedPolicy(
        PoolGovernor(overrides.config(cap), state), limit_wished, brief.version, brief.cursor, NEVER, cap
    )


def _obey(overrides: Overrides, brief: Brief, cached: _CachedPolicy) -> None:
    """Follow the operator's overrides and the running jobs' cap where they have changed."""
    cached.cap = brief.cap or cached.cap
    config: PoolConfig = overrides.config(cached.cap)
    state = cached.policy.state
    if overrides.limit != cached.limit_wished:
        cached.limit_wished = overrides.limit
        start = config.first_limit
        change = LimitChange(brief.now, state.limit, start, "set by the operator", ChangeCause.OPERATOR)
        state = replace(state, engine=FixedState(start), limit=start)
        state.history.append(change)
        cached.policy = PoolGovernor(config, state)
    elif config != cached.policy.config:
        cached.policy = PoolGovernor(config, state)
    slo = brief.override_for_all.get(SLO)
    if slo != state.slo:
        cached.policy.set_slo_constraint(slo)
    cached.policy.state.version = brief.version


def _with_pacing(overrides: Overrides, parameters: Parameters) -> Parameters:
    if not overrides.pacing_s:
        return parameters
    pace_s = max(parameters.pace_s, overrides.pacing_s)
    return replace(parameters, pace_s=pace_s, burst_s=0.0, pace_jitter=PACING_JITTER)


def _frees(before: Parameters | None, after: Parameters) -> bool:
    """Return whether a request denied under `before` may be granted under `after` earlier than it was told to retry."""
    return (
        before is None
        or after.limit > before.limit_if_refused
        or after.breaker is not before.breaker
        or after.hold_until < before.hold_until
        or after.single_call_s < before.single_call_s
        or after.pace_s < 0.8 * before.pace_s
        or len(after.buckets) < len(before.buckets)
        or _gives_again(before, after)
    )


def _gives_again(before: Parameters, after: Parameters) -> bool:
    """Return whether a budget that was empty has something now."""
    empty = {bucket.name for bucket in before.buckets if bucket.level < 1.0}
    return any(bucket.level >= 1.0 and bucket.name in empty for bucket in after.buckets)


def _line(change: LimitChange, cached: _CachedPolicy) -> dict[str, Any]:
    return {
        "at": round(change.at, 3),
        "from": change.before,
        "to": change.after,
        "reason": change.reason,
        "cause": change.cause,
        "ceiling": cached.policy.config.ceiling,
        "profile": cached.policy.state.engine.kind,
    }


_ALARMING = frozenset({ChangeCause.CPU, ChangeCause.SLO, ChangeCause.ERROR_BUDGET})


def _level(line: Mapping[str, Any]) -> int:
    """Return the log level: a warning if CPU load or an SLO lowers the limit, since an operator should notice that."""
    return logging.WARNING if line["cause"] in _ALARMING and line["to"] < line["from"] else logging.INFO


def _record(cached: _CachedPolicy) -> StoredState:
    policy = cached.policy
    return StoredState(cached.limit_wished, cached.cap, policy.config.ceiling, policy.state.to_json())
