"""Answers that cannot be stored now, on this machine's disk until somebody stores them.

    <state dir>/spool/<namespace>/<node>/lock            held by the living process
    <state dir>/spool/<namespace>/<node>/<number>.json   one write to the ledger, synced

An answer is paid for. While the store is away its process keeps it in memory and tries again, and here, so that it
outlives the process too: the next one on the machine stores what it finds without a living owner. Whether it still
counts is the ledger's decision, by its fence. A disk that refuses is told loudly and stops nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path

from dicast.app.reports.durable import replacing
from dicast.app.reports.folders import folder_name
from dicast.workers.store.keys import encode
from dicast.workers.system.file_locks import try_lock
from dicast.workers.system.private_files import make_folder

logger = logging.getLogger(__name__)

MAX_BYTES = 256 * 1024 * 1024
"""What one process may keep here."""


class Spool:
    """One process's part of the machine's spool; any thread. Nothing touches the disk before it is needed."""

    def __init__(self, state_dir: str | Path, namespace: str, node: str, max_bytes: int = MAX_BYTES) -> None:
        self._root = Path(state_dir).resolve() / "spool" / folder_name(encode(namespace))
        self._own, self._max_bytes = self._root / encode(node), max_bytes
        self._numbers = itertools.count()
        self._sizes: dict[Path, int] = {}
        self._left: set[Path] = set()
        self._lock: int | None = None
        self._mutex = threading.Lock()
        self.refused = 0

    def put(self, entry: bytes) -> Path | None:
        """Keep one entry; when this returns its path, it survives a loss of power. None, and an error in the log, if
        the disk refuses or this process keeps `MAX_BYTES` already."""
        try:
            path = self._place(len(entry))
            try:
                with replacing(path) as file:
                    file.write(entry)
            except OSError:
                self.drop(path)
                raise
        except OSError as error:
            self.refused += 1
            logger.error(
                "an answer cannot be kept on disk while the store is away, it is safe only as long as this process "
                "lives: %s", error, extra={"event": "spool_refused", "refused": self.refused},
            )  # fmt: skip
            return None
        return path

    def _place(self, size: int) -> Path:
        """Where the next entry goes; its size counts from now on."""
        with self._mutex:  # two threads that open the folder would wait for each other's lock for ever
            if sum(self._sizes.values()) + size > self._max_bytes:
                raise OSError(f"{self._max_bytes} bytes are kept already")
            if self._lock is None:
                self._open()
            path = self._own / f"{next(self._numbers):08d}.json"
            self._sizes[path] = size
            return path

    def drop(self, path: Path | None) -> None:
        """The entry is stored, or refused for good."""
        if path is not None:
            with self._mutex:
                self._sizes.pop(path, None)
                self._left.discard(path)
            path.unlink(missing_ok=True)

    def refuse(self, path: Path) -> None:
        """The entry cannot be read: it is kept for people, and no heir is given it again."""
        path.rename(path.with_suffix(".broken"))
        with self._mutex:
            self._left.discard(path)

    def leave(self, path: Path | None) -> None:
        """The task that kept the entry has ended without storing it: it is now as one of a dead process."""
        if path is not None:
            with self._mutex:
                self._left.add(path)

    @contextlib.contextmanager
    def orphans(self, most: int) -> Iterator[list[tuple[Path, bytes]]]:
        """Entries whose process is gone, and own ones that were left, oldest first of each owner. Nobody else is given
        an owner's entries before the block ends; the caller drops there those it has stored."""
        with self._mutex:
            left = sorted(self._left)[:most]
        found = [(path, path.read_bytes()) for path in left]
        with contextlib.ExitStack() as inherited:
            for folder in sorted(self._root.glob("*/")) if self._root.exists() else []:
                if folder != self._own and len(found) < most and inherited.enter_context(_inherited(folder)):
                    others = sorted(folder.glob("*.json"))[: most - len(found)]
                    found += [(path, path.read_bytes()) for path in others]
            yield found

    def _open(self) -> None:
        """Make the folder and lock it; again if an heir took it for an abandoned one in between."""
        while self._lock is None:
            make_folder(self._own, shared=False)
            with contextlib.suppress(FileNotFoundError):
                lock = os.open(self._own / "lock", os.O_RDWR | os.O_CREAT, 0o600)
                fcntl.flock(lock, fcntl.LOCK_EX)
                if _is_at(lock, self._own / "lock"):
                    self._lock = lock
                else:
                    os.close(lock)

    def close(self) -> None:
        """Give the folder up; what is still in it is the next process's."""
        with self._mutex:
            self._give_up()

    def _give_up(self) -> None:
        if self._lock is not None:
            if not any(self._own.glob("*.json")):
                (self._own / "lock").unlink()
                self._own.rmdir()
            os.close(self._lock)
            self._lock = None


@contextlib.contextmanager
def _inherited(folder: Path) -> Iterator[bool]:
    """Whether the folder's owner is gone and nobody else has inherited it; then it is the caller's until the block
    ends, and vanishes if it is empty then."""
    try:
        lock = os.open(folder / "lock", os.O_RDWR)
    except FileNotFoundError:  # just made, or just emptied by another heir
        yield False
        return
    try:
        if not try_lock(lock):
            yield False
            return
        yield True
        if not any(folder.glob("*.json")):
            for path in folder.iterdir():
                path.unlink()
            folder.rmdir()
    finally:
        os.close(lock)


def _is_at(file: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False
