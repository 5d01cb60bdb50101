"""Loads Lua scripts: one verb per file, beside its caller.

`--@include PATH` includes another file, relative to the folder of the including one; a file that is included
several times is inserted once.

A script begins with `#!lua`, and then a store with full memory rejects it before it changes anything; or with `#!lua
flags=allow-oom`, if it gives back, records or ends something: that must always work, and makes room. Needs Redis 7 or
newer.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from dicast.workers.store.connection import StoreClient
from dicast.workers.store.keys import Keys

_INCLUDE = re.compile(r"^--@include ([a-z_./]+\.lua)\n", re.MULTILINE)


PLAIN, FREEING = "#!lua\n", "#!lua flags=allow-oom\n"


def freeing(text: str) -> str:
    """Return the same script in a form that also runs in a full store."""
    return text.replace(PLAIN, FREEING, 1)


@cache
def script_text(path: Path) -> str:
    """Return the source of a script with its includes."""
    return "".join(text for _, text in script_parts(path))


def script_parts(path: Path) -> list[tuple[Path, str]]:
    """Return the source of a script with its includes, in pieces, each with the file that it comes from."""
    visited: set[Path] = set()

    def pieces(file: Path) -> list[tuple[Path, str]]:
        visited.add(file.resolve())
        fragments = iter(_INCLUDE.split(file.read_text()))
        parts = [(file, next(fragments))]
        for name, text in zip(fragments, fragments, strict=True):
            included = file.parent / name
            if included.resolve() not in visited:
                parts += pieces(included)
            parts.append((file, text))
        return parts

    return pieces(path)


class Knowledge(NamedTuple):
    """The newest epoch, and how many answers with grants a node has received in it; (0, 0) before the first answer."""

    number: int = 0
    answers: int = 0


class Epoch:
    """One process's knowledge of the epoch; safe to use from any thread.

    `grace_ms` is how long a call of any pool may be open. `server` is the run id of the server that last answered:
    another one may lack the last writes, even confirmed ones. `cuts` counts the broken connections to a store that is
    the broker: the last message that each of them popped may be lost.

    By it a store that has lost writes can be detected. A store that was flushed, or that is an older copy of itself,
    cannot notice that. Each node therefore remembers the epoch and how many answers with grants it has received, and
    sends both with each request: a store that counts fewer has lost writes, begins a new epoch, and grants nothing for
    as long as a forgotten call may be open (`epoch.lua`).
    """

    def __init__(self, grace_ms: int = 0) -> None:
        self.grace_ms, self.number, self.server, self.cuts = grace_ms, 0, "", 0
        self._answers: dict[str, int] = {}
        self._lock = threading.Lock()

    def knowledge(self, node: str) -> Knowledge:
        with self._lock:
            return Knowledge(self.number, self._answers.get(node, 0))

    def forget(self, node: str) -> None:
        """Forget a node that leaves; the store is going to forget its count, too."""
        with self._lock:
            self._answers.pop(node, None)

    def learn(self, node: str, number: int, answers: int) -> None:
        """Take in an answer's epoch and count; answers may arrive out of order."""
        with self._lock:
            if number > self.number:
                self.number, self._answers = number, {}
            if number == self.number:
                self._answers[node] = max(answers, self._answers.get(node, 0))


def vouch(client: StoreClient, keys: Keys) -> None:
    """Declare that the server was started from all that it had ever written, so that grants need not wait for the
    living nodes to report (`epoch.lua`). If a node knows of a newer epoch, the store closes all the same."""
    server = client.info("server")
    assert isinstance(server, Mapping)
    begins = {} if client.hexists(keys.epoch, "number") else {"number": time.time_ns() // 1_000_000, "closed_until": 0}
    client.hset(keys.epoch, mapping={**begins, "server": server["run_id"]})
