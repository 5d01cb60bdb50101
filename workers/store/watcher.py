"""The embedded store's watcher: a small process that ends the store when nobody has used it for a while.

    python -I -S watcher.py SOCKET HOLDERS IDLE_S FD

SOCKET is the store's, HOLDERS the file that each process which uses the store holds a shared lock on, and FD an open
file whose lock says that this store is watched (workers/store/embedded.py, which starts this). A Valkey cannot end
itself, and its users come and go, so this is a process of its own. It looks a few times in each idle time and imports
nothing but a little of the standard library: 10 MB, 4 of them its own, and no CPU worth measuring.

The store is in use while somebody holds HOLDERS, or has a connection open, or has had one since the last look. It ends
under the whole lock on HOLDERS, so that who comes at that moment waits, finds no store afterwards, and starts it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import socket
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing alone would cost a megabyte
    from collections.abc import Callable
    from typing import IO

LOOKS = 5
"""The number of checks in each idle time, so that a store ends at most a fifth of that time late."""
ANSWER_TIMEOUT_S = 5.0
OWN_CONNECTIONS = 1


class Store:
    """A connection to the store. Each method raises OSError if the store does not answer as it should."""

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        try:
            self._socket.settimeout(ANSWER_TIMEOUT_S)
            self._socket.connect(path)
        except OSError:
            self._socket.close()
            raise

    def close(self) -> None:
        self._socket.close()

    def closes_within(self, seconds: float) -> bool:
        """Wait so long at most; return whether the store has closed the connection, as it does when it ends."""
        return bool(select.select([self._socket], [], [], seconds)[0])

    def info(self) -> dict[str, str]:
        """Return the fields of INFO, by name."""
        self._socket.sendall(b"INFO\r\n")
        received = b""
        while b"\r\n" not in received:
            received += self._receive()
        head, _, body = received.partition(b"\r\n")
        if not head.startswith(b"$"):
            raise OSError(head.decode(errors="replace"))
        while len(body) < int(head[1:]) + 2:
            body += self._receive()
        return dict(line.split(":", 1) for line in body.decode(errors="replace").splitlines() if ":" in line)

    def shut_down(self) -> None:
        """Shut the store down, with all writes fsynced first, and wait until it has ended. Raises OSError if it
        refuses."""
        self._socket.sendall(b"SHUTDOWN\r\n")
        self._socket.settimeout(None)  # a slow disk takes its time, and nobody may start another one before
        with contextlib.suppress(ConnectionResetError):
            if refusal := self._socket.recv(4096):
                raise OSError(refusal.decode(errors="replace").strip())

    def _receive(self) -> bytes:
        received = self._socket.recv(65536)
        if not received:
            raise ConnectionResetError
        return received


def has_lost_nothing(info: dict[str, str]) -> bool:
    """Return whether all writes to the store have reached its file, so that none is lost to a full disk."""
    return info.get("aof_last_write_status") == "ok" and int(info.get("aof_buffer_length", 0)) == 0


def watch(
    path: str, holders: IO[bytes], watched: IO[bytes], idle_s: float, clock: Callable[[], float] = time.monotonic
) -> bool:
    """Watch until the store has ended. Return whether it ended here, for want of use; then `holders` is still locked,
    and `watched` is not any more: whoever starts the next store finds it unwatched."""
    store = connected(path)
    used_at, connections = clock(), -1
    while True:
        if store is None or store.closes_within(idle_s / LOOKS):
            if store is not None:
                store.close()
            # Another may have been started already, by somebody who saw that the store is watched.
            fcntl.flock(watched, fcntl.LOCK_UN)
            store = connected(path)
            if store is None or not locked(watched):
                return False
            used_at, connections = clock(), -1
        now = clock()
        if not locked(holders):
            used_at = now
            continue
        try:
            info = store.info()
            received = int(info["total_connections_received"])
            if int(info["connected_clients"]) > OWN_CONNECTIONS or received != connections:
                used_at, connections = now, received
            if now - used_at >= idle_s and has_lost_nothing(info):
                store.shut_down()
                fcntl.flock(watched, fcntl.LOCK_UN)
                return True
        except (OSError, KeyError, ValueError) as error:  # frozen, or in trouble: neither is idleness
            report(f"the store cannot be asked whether it is in use: {error or type(error).__name__}")
            store.close()
            store, used_at = connected(path), now
        fcntl.flock(holders, fcntl.LOCK_UN)


def connected(path: str) -> Store | None:
    """Return a connection, or None where no store listens."""
    try:
        return Store(path)
    except OSError:
        return None


def locked(file: IO[bytes]) -> bool:
    """Lock the file, unless somebody else holds it or a share of it; returns whether it is locked."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def report(message: str) -> None:
    """Write a line into the store's log."""
    sys.stderr.write(f"{os.getpid()}:watcher {time.strftime('%d %b %Y %H:%M:%S')} {message}\n")
    sys.stderr.flush()


def main() -> None:
    path, holders, idle_s, fd = sys.argv[1:]
    with os.fdopen(int(fd), "ab") as watched, open(holders, "ab") as file:  # noqa: PTH123  (pathlib takes long to load)
        if watch(path, file, watched, float(idle_s)):
            report(f"nobody has used the store for {idle_s} s: it has ended, and the next command starts it again")


if __name__ == "__main__":
    main()
