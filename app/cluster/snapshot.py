"""The state that all workers share, read from the store for commands and metrics; and the beat's sign of life."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dicast.workers.admission.leases import OpenLease, open_leases
from dicast.workers.admission.pool_state import PoolState, PoolStates
from dicast.workers.nodes.registry import Node, Registry
from dicast.workers.policy.rules import RulesStatus
from dicast.workers.store.connection import connect, connect_async
from dicast.workers.store.keys import Keys


@dataclass(frozen=True, slots=True)
class SharedState:
    """The state that all workers share, at one instant."""

    pools: Sequence[PoolState]
    nodes: Sequence[tuple[Node, RulesStatus]]
    leases: Sequence[OpenLease] = ()


def read_shared(store_url: str, keys: Keys) -> SharedState:
    """Read the shared state from the store, in a thread without an event loop. Raises redis errors."""

    async def pools() -> tuple[Sequence[PoolState], Sequence[OpenLease]]:
        async with connect_async(store_url) as client:
            return await PoolStates(client, keys).all(), await open_leases(client, keys)

    with connect(store_url) as client:
        states, leases = asyncio.run(pools())
        return SharedState(states, Registry(client, keys).statuses(), leases)


FILE = "beat.tick"


def mark(state_dir: str | Path) -> None:
    """Record that a tick was sent now. Raises OSError.

    The beat's sign of life is for health checks on its machine: it tells when the broker last took one of its ticks.
    """
    path = Path(state_dir) / FILE
    beside = path.with_suffix(".tmp")
    beside.write_text(repr(time.monotonic()))
    beside.replace(path)


def age_s(state_dir: str | Path) -> float | None:
    """Return the seconds since the last tick of a beat on this machine, by its monotonic clock; None if there was none
    since the machine was started."""
    try:
        age = time.monotonic() - float((Path(state_dir) / FILE).read_text())
    except (OSError, ValueError):
        return None
    return age if age >= 0 else None
