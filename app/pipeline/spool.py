"""Keeps answers that cannot be stored now on this machine's disk, until a process stores them.

    <state dir>/spool/<namespace>/<node>/lock            held by the living process
    <state dir>/spool/<namespace>/<node>/<number>.json   one write to the ledger, synced

Answers are paid for. While the store is away, a process keeps its answers in memory and tries again; it also keeps them
here, so that they outlive the process: another process on the machine stores entries without a living owner. The ledger
decides by the fence whether an answer still counts. A disk that fails is reported as an error in the log and stops
nothing.
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
"""How much one process may keep here."""


class Spool:
    """One process's part of the machine's spool. Safe for any thread. The disk is not touched before it is needed."""

    def __init__(self, state_dir: str | Path, namespace: str, node: str, max_bytes: int = MAX_BYTES) -> None:
        self._root = Path(state_dir).resolve() / "spool" / folder_name(encode(namespace))
        self._folder, self._max_bytes = self._root / encode(node), max_bytes
        self._numbers = itertools.count()
        self._sizes: dict[Path, int] = {}
        self._abandoned: set[Path] = set()
        self._lock: int | None = None
        self._mutex = threading.Lock()
        self.failed_writes = 0

    def put(self, entry: bytes) -> Path | None:
        """Write one entry and return its path; the entry then survives a loss of power. Returns None, and logs an
        error, if the disk fails or this process keeps `MAX_BYTES` already."""
        try:
            path = self._place(len(entry))
            try:
                with replacing(path) as file:
                    file.write(entry)
            except OSError:
                self.drop(path)
                raise
        except OSError as error:
            self.failed_writes += 1
            logger.error(
                "an answer cannot be kept on disk while the store is away, it is safe only as long as this process "
                "lives: %s", error, extra={"event": "spool_refused", "refused": self.failed_writes},
            )  # fmt: skip
            return None
        return path

    def _place(self, size: int) -> Path:
        """Return the path of the next entry, and count its size from now on."""
        with self._mutex:  # two threads that open the folder would wait for each other's lock for ever
            if sum(self._sizes.values()) + size > self._max_bytes:
                raise OSError(f"{self._max_bytes} bytes are kept already")
            if self._lock is None:
                self._open()
            path = self._folder / f"{next(self._numbers):08d}.json"
            self._sizes[path] = size
            return path

    def drop(self, path: Path | None) -> None:
        """Remove an entry, which is stored, or cannot be stored by anybody."""
        if path is not None:
            with self._mutex:
                self._sizes.pop(path, None)
                self._abandoned.discard(path)
            path.unlink(missing_ok=True)

    def set_aside(self, path: Path) -> None:
        """Set aside an entry that cannot be read. It is kept for people, and not adopted again."""
        path.rename(path.with_suffix(".broken"))
        with self._mutex:
            self._abandoned.discard(path)

    def abandon(self, path: Path | None) -> None:
        """Abandon an entry whose task has ended without storing it. It may now be adopted like that of a dead
        process."""
        if path is not None:
            with self._mutex:
                self._abandoned.add(path)

    @contextlib.contextmanager
    def orphans(self, most: int) -> Iterator[list[tuple[Path, bytes]]]:
        """Yield entries of dead processes, and abandoned ones of this process, each owner's oldest first. An owner's
        entries are locked until the block ends; the caller drops those that it has stored."""
        with self._mutex:
            abandoned = sorted(self._abandoned)[:most]
        entries = [(path, path.read_bytes()) for path in abandoned]
        with contextlib.ExitStack() as inherited:
            for folder in sorted(self._root.glob("*/")) if self._root.exists() else []:
                if folder != self._folder and len(entries) < most and inherited.enter_context(_inherited(folder)):
                    others = sorted(folder.glob("*.json"))[: most - len(entries)]
                    entries += [(path, path.read_bytes()) for path in others]
            yield entries

    def _open(self) -> None:
        """Make the folder and lock it. Tries again if another process has adopted the new folder in between."""
        while self._lock is None:
            make_folder(self._folder, shared=False)
            with contextlib.suppress(FileNotFoundError):
                lock = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
                fcntl.flock(lock, fcntl.LOCK_EX)
                if _is_at(lock, self._folder / "lock"):
                    self._lock = lock
                else:
                    os.close(lock)

    def close(self) -> None:
        """Give the folder up. Entries that are still in it are adopted by another process."""
        with self._mutex:
            self._give_up()

    def _give_up(self) -> None:
        if self._lock is not None:
            if not any(self._folder.glob("*.json")):
                (self._folder / "lock").unlink()
                self._folder.rmdir()
            os.close(self._lock)
            self._lock = None


@contextlib.contextmanager
def _inherited(folder: Path) -> Iterator[bool]:
    """Yield whether the folder's owner is dead and no other process has adopted the folder. If so, the caller holds the
    folder until the block ends, when it is removed if it is empty."""
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
