"""The pools as documents, and the changes that an operator makes to them.

They are the same for the command line and the HTTP interface. All functions wait for the store, so they are for threads
without an event loop.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from typing import Any, TypeVar

from dicast.app.application import Dicast
from dicast.app.cluster.snapshot import SharedState, read_shared
from dicast.workers.admission.governor import Governor
from dicast.workers.admission.overrides import Overrides
from dicast.workers.admission.pool_state import Availability, PoolState, findings
from dicast.workers.store.connection import AsyncStoreClient, connect_async

CALLS_MAX = "MAX_CONCURRENT_LLM_CALLS"
TABLES = ("weights", "project_max")
"""Overrides that are tables by project: new entries are merged with those that were set before."""

T = TypeVar("T")


def read_state(dicast: Dicast, only: str | None = None) -> SharedState:
    """Read the state of all pools, or of one. Raises `UnknownPool` for a name that is neither in the pools file nor
    in use."""
    shared = SharedState((), ()) if dicast.nothing_stored else read_shared(dicast.store_url, dicast.keys)
    if only is None:
        return shared
    states = [state for state in shared.pools if state.pool == only]
    if not states:
        dicast.pools.get(only)
    return replace(shared, pools=states)


def document(dicast: Dicast, shared: SharedState) -> dict[str, Any]:
    """Return everything that is known of these pools and the living nodes, as plain data."""
    states = shared.pools
    live = [
        {
            **asdict(state), "live": True, "waiting": state.waiting, "rate_limited": state.rate_limited,
            "error_rate": state.error_rate, "load": state.load, "configured": configured(dicast, state.pool),
            "findings": findings(state), "bound": bound(state, configured(dicast, state.pool)),
            "availability": state.availability, "latency_s": state.latency_s,
            "leases": [asdict(lease) for lease in shared.leases if lease.pool == state.pool],
        }
        for state in states
    ]  # fmt: skip
    unused = [{"pool": name, "live": False, "configured": configured(dicast, name)} for name in idle(dicast, states)]
    open_calls = Counter(lease.node for lease in shared.leases if not lease.cut)
    nodes = [
        {"node": node.name, "host": node.host, **asdict(status), "free": max(0, status.current - open_calls[node.id])}
        for node, status in shared.nodes
    ]
    totals = summary(states)
    return {"slo": states[0].slo if states else None, "summary": totals, "pools": [*live, *unused], "nodes": nodes}


def summary(states: Sequence[PoolState]) -> dict[str, Any]:
    """Summarise the pools: how many are available (and how many of these have no open call), how many are not, and
    means over the pools that have ended calls recently. A mean is None if no pool has."""
    active = [state for state in states if any(health.ended > 0 for health in state.health.values())]
    latencies = [state.latency_s for state in active if state.latency_s is not None]
    availabilities = Counter(state.availability.value for state in states)
    return {
        **{availability.value: availabilities[availability.value] for availability in Availability},
        "idle": sum(state.availability is Availability.READY and not state.open for state in states),
        "mean_load": _mean([state.load for state in states]),
        "mean_success_rate": _mean([1.0 - state.error_rate for state in active]),
        "mean_latency_s": _mean(latencies),
    }


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def idle(dicast: Dicast, states: Sequence[PoolState]) -> list[str]:
    """Return the pools of the pools file that have not been used yet."""
    return sorted(set(dicast.pools.pools) - {state.pool for state in states})


def configured(dicast: Dicast, pool: str) -> dict[str, Any]:
    """Return the overrides that the pools file has for a pool."""
    return in_force(dicast.configured_overrides(pool))


def in_force(overrides: Overrides) -> dict[str, Any]:
    """Return the overrides that differ from the defaults."""
    plain = Overrides()
    return {
        spec.name: value
        for spec in fields(overrides)
        if (value := getattr(overrides, spec.name)) != getattr(plain, spec.name)
    }


def bound(state: PoolState, configured: Mapping[str, Any]) -> str | None:
    """Return which smaller limit cuts what is set for the pool, None if none does."""
    set = [override for name in ("limit", "ceiling") if (override := state.override.get(name, configured.get(name)))]
    others = {
        f"{CALLS_MAX} of the running jobs": state.job_limit, "the SLO": state.slo,
        "the SLO's error budget": state.budget_cap,
    }  # fmt: skip
    cuts = {name: most for name, most in others.items() if most and set and most < max(set)}
    if not cuts:
        return None
    name = min(cuts, key=lambda name: cuts[name])
    return f"{max(set)} is set, and {name} ({cuts[name]}) binds"


def change(dicast: Dicast, pool: str, override: Mapping[str, Any]) -> Overrides:
    """Change a pool's live overrides ('' is the default pool), and return those in force.

    None takes an override back; in a table by project, it takes back that entry and the others stay. Raises
    `UnknownPool` or `OverrideError`.
    """
    tables = {name: value for name, value in override.items() if name in TABLES and isinstance(value, Mapping)}
    if dicast.nothing_stored:
        dicast.pools.get(pool)  # nobody's calls know another one: refused before a store is started for it

    def changed(live: dict[str, Any]) -> dict[str, Any]:
        merged = {name: _merged(live.get(name, {}), entries) for name, entries in tables.items()}
        return {**live, **override, **merged}

    async def revise(governor: Governor) -> Overrides:
        return await governor.revise(await _resolve_name(dicast, governor, pool), changed)

    return _governing(dicast, revise)


def cap_all(dicast: Dicast, most: int | None) -> None:
    """Cap every pool's limit, whatever else is set; None lifts the cap. Raises ValueError below 1."""
    _governing(dicast, lambda governor: governor.set_slo(most))


def cap_of_all(dicast: Dicast) -> int | None:
    """Return the cap on every pool's limit, None if there is none."""

    async def read(governor: Governor) -> int | None:
        most = (await governor.store.read("")).override_for_all.get("slo")
        return None if most is None else int(most)

    return _governing(dicast, read)


def _merged(before: Mapping[str, Any], entries: Mapping[str, Any]) -> dict[str, Any]:
    return {project: value for project, value in {**before, **entries}.items() if value is not None}


async def _resolve_name(dicast: Dicast, governor: Governor, pool: str) -> str:
    """Return the pool's name ('' is the default pool). Raises `UnknownPool` if it is neither in the pools file nor in
    use."""
    name = pool or dicast.pools.default
    if name not in dicast.pools.pools and name not in await governor.store.pools():
        dicast.pools.get(name)
    return name


def _governing(dicast: Dicast, work: Callable[[Governor], Awaitable[T]]) -> T:
    return _with_store(dicast, lambda client: work(Governor(client, dicast.keys, dicast.configured_overrides)))


def _with_store(dicast: Dicast, work: Callable[[AsyncStoreClient], Awaitable[T]]) -> T:
    async def run() -> T:
        async with connect_async(dicast.store_url) as client:
            return await work(client)

    return asyncio.run(run())
