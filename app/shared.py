"""What all workers share, read from the store for those who look on: commands, metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from workers.nodes import Node, Registry
from workers.policy.rules import RulesStatus
from workers.pool_state import PoolState, PoolStates
from workers.store.connection import connect, connect_async
from workers.store.keys import Keys


@dataclass(frozen=True, slots=True)
class Shared:
    """What all workers share, at one instant."""

    pools: Sequence[PoolState]
    nodes: Sequence[tuple[Node, RulesStatus]]


def look(store_url: str, keys: Keys) -> Shared:
    """Read it from the store, in a thread that has no event loop. Raises redis errors."""

    async def pools() -> Sequence[PoolState]:
        async with connect_async(store_url) as client:
            return await PoolStates(client, keys).all()

    with connect(store_url) as client:
        return Shared(asyncio.run(pools()), Registry(client, keys).statuses())
