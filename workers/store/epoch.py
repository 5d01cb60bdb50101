"""What a process knows of the store's epoch, so that it can tell the store what that has forgotten.

A store that was flushed, or that is an older copy of itself, cannot know it. Each node therefore remembers the epoch
and how many answers with grants it was given, and says so whenever it asks: a store that counts fewer has lost writes,
begins a new epoch, and grants nothing for as long as a call that it forgot may be open (`epoch.lua`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import NamedTuple

from dicast.workers.store.connection import StoreClient
from dicast.workers.store.keys import Keys


class Knowledge(NamedTuple):
    """The newest epoch, and how many answers with grants a node was given in it; (0, 0) before the first answer."""

    number: int = 0
    told: int = 0


class Epoch:
    """One process's knowledge, for all its threads. `grace_ms` is how long a call of any pool may be open, `server` the
    run id that last answered: another one may lack the last writes, even those that were answered. `cuts` counts the
    broken connections to a store that is the broker: what one of them popped last may have reached nobody."""

    def __init__(self, grace_ms: int = 0) -> None:
        self.grace_ms, self.number, self.server, self.cuts = grace_ms, 0, "", 0
        self._told: dict[str, int] = {}
        self._lock = threading.Lock()

    def known(self, node: str) -> Knowledge:
        with self._lock:
            return Knowledge(self.number, self._told.get(node, 0))

    def forget(self, node: str) -> None:
        """The node leaves, and the store is going to forget what it was told."""
        with self._lock:
            self._told.pop(node, None)

    def learn(self, node: str, number: int, told: int) -> None:
        """An answer came; answers may overtake each other."""
        with self._lock:
            if number > self.number:
                self.number, self._told = number, {}
            if number == self.number:
                self._told[node] = max(told, self._told.get(node, 0))


def vouch(client: StoreClient, keys: Keys) -> None:
    """Whoever has just started the server from all that it had ever written says so: grants need not wait until the
    living nodes have spoken (`epoch.lua`). What a node knows of a newer epoch closes the store all the same."""
    server = client.info("server")
    assert isinstance(server, Mapping)
    begins = {} if client.hexists(keys.epoch, "number") else {"number": time.time_ns() // 1_000_000, "closed_until": 0}
    client.hset(keys.epoch, mapping={**begins, "server": server["run_id"]})
