"""What a process knows of the store's epoch, so that it can tell the store what that has forgotten.

A store that was flushed, or that is an older copy of itself, cannot know it. Each node therefore remembers the epoch
and how many answers with grants it was given, and says so whenever it asks: a store that counts fewer has lost writes,
begins a new epoch, and grants nothing for as long as a call that it forgot may be open (`epoch.lua`).
"""

from __future__ import annotations

import threading
from typing import NamedTuple


class Knowledge(NamedTuple):
    """The newest epoch, and how many answers with grants a node was given in it; (0, 0) before the first answer."""

    number: int = 0
    told: int = 0


class Epoch:
    """One process's knowledge, for all its threads. `grace_ms` is how long a call of any pool may be open, `server` the
    run id that last answered: another one may lack the last writes, even those that were answered."""

    def __init__(self, grace_ms: int = 0) -> None:
        self.grace_ms, self.number, self.server = grace_ms, 0, ""
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
