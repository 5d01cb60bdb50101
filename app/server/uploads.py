"""The folder of uploads, the only one whose files a job submitted over HTTP may name.

Files are named after their content, so that the same file is stored once, and no name leads anywhere else. Workers read
them, so all machines must share the folder, as they share the results.
"""

from __future__ import annotations

import hashlib
import os
import stat
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from starlette.concurrency import run_in_threadpool

from dicast.app.datasets.kinds import ENDINGS
from dicast.app.reports.durable import sync_folder
from dicast.app.server.errors import FileNotAllowed, FolderFull, InvalidRequest
from dicast.workers.system.file_locks import try_lock
from dicast.workers.system.private_files import create, make_folder, open_or_create

PIECE_BYTES = 1 << 20
AHEAD_BYTES = 8 << 20
"""How much is reserved ahead, if there is room: the folder is scanned once for each such piece."""
AHEAD_SHARE = 16
"""At most this fraction of the remaining room (one part in so many) is reserved ahead."""
LOCK_S = 20.0


@dataclass(frozen=True, slots=True)
class Upload:
    """A file in the folder. `path` is what a job names: `items: {path: ...}`."""

    path: str
    bytes: int
    sha256: str
    is_new: bool = True
    """Whether there was no such file before."""


class Uploads:
    """The folder of uploads. `file_bytes` bounds one file, `folder_bytes` all of them."""

    def __init__(self, folder: Path, file_bytes: int, folder_bytes: int) -> None:
        self._folder, self.file_bytes, self._folder_bytes = folder.absolute(), file_bytes, folder_bytes

    @property
    def folder(self) -> Path:
        """The path of the folder, with symbolic links resolved."""
        return self._folder.resolve()

    def find(self, name: str) -> Path:
        """Return the file that a job names, as an absolute path without symbolic links.

        Raises `FileNotAllowed` for anything that is not a file in the folder; the message does not reveal whether such
        a file exists elsewhere.
        """
        root = self.folder
        try:
            path = (root / name).resolve(strict=True)
            inside = path.is_relative_to(root) and path.relative_to(root).parts[:1] not in ((), ("..",))
            regular = stat.S_ISREG(path.stat().st_mode)
        except (OSError, ValueError, RuntimeError):  # RuntimeError: links that lead round in a circle
            inside = regular = False
        if not inside or not regular or path.name.startswith("."):
            raise FileNotAllowed(f"items.path: there is no uploaded file {name[:200]!r}; POST /uploads gives a path")
        return path

    async def take(self, body: AsyncIterator[bytes], ending: str, announced: int = 0) -> Upload:
        """Store a body as it arrives, completely or not at all; `announced` is its announced size in bytes. Raises
        `InvalidRequest`, `FolderFull`, OSError."""
        if ending not in ENDINGS:
            raise InvalidRequest(f"query.ending: must be one of {', '.join(ENDINGS)}, got {ending[:20]!r}")
        digest, size, piece = hashlib.sha256(), 0, bytearray()
        reserved = await run_in_threadpool(_Reserved, self.folder, self._folder_bytes)
        try:
            await run_in_threadpool(reserved.reserve, announced)
            async for chunk in body:
                size += len(chunk)
                piece += chunk
                if len(piece) >= PIECE_BYTES:
                    await run_in_threadpool(reserved.write, digest, bytes(piece))
                    piece.clear()
            await run_in_threadpool(reserved.write, digest, bytes(piece))
            if size == 0:
                raise InvalidRequest("body: the file is empty")
            name = f"{digest.hexdigest()}{ending}"
            is_new = await run_in_threadpool(reserved.keep, name)
        finally:
            await run_in_threadpool(reserved.discard)
        return Upload(name, size, digest.hexdigest(), is_new)


class _Reserved:
    """A file that is being written. Each byte is written only once the folder has room for it, including what others
    write at the same time, in any process.

    The file is as long as what is reserved for it, and locked by its writer. If the writer dies, the kernel drops the
    lock, and the next writer removes the file.
    """

    def __init__(self, folder: Path, folder_bytes: int) -> None:
        self._folder, self._folder_bytes = folder, folder_bytes
        make_folder(folder)
        self._path = folder / f".{uuid.uuid4().hex}.tmp"
        with self._alone():
            self._file = create(self._path)
            try_lock(self._file)
        self._written = self._length = 0

    def write(self, digest: hashlib._Hash, piece: bytes) -> None:
        """Append a piece and add it to the digest. Raises `FolderFull`, OSError."""
        self.reserve(self._written + len(piece))
        digest.update(piece)
        self._file.write(piece)
        self._written += len(piece)

    def keep(self, name: str) -> bool:
        """Truncate the file to what was written and move it to its place; returns whether there was no such file.

        Raises `FolderFull`, OSError."""
        self._file.flush()
        self._file.truncate(self._written)
        os.fsync(self._file.fileno())
        path = self._folder / name
        with self._alone():  # whoever scans the folder meanwhile might see the file under neither name
            is_new = not path.exists()
            self._path.replace(path)
        sync_folder(self._folder)
        return is_new

    def discard(self) -> None:
        """Remove the file unless it was kept."""
        self._path.unlink(missing_ok=True)
        self._file.close()

    def reserve(self, size: int) -> None:
        """Reserve room for so many bytes in all, and for some more if there is plenty, so that the folder is rarely
        scanned. Raises `FolderFull`, OSError."""
        if size <= self._length:
            return
        with self._alone():
            room = self._folder_bytes - self._others()
            if size > room:
                raise FolderFull("the uploads' folder has no room for this file")
            self._length = size + min(AHEAD_BYTES, (room - size) // AHEAD_SHARE)
            self._file.truncate(self._length)

    def _others(self) -> int:
        """Return the size of all other files, including what is reserved."""
        total = 0
        with os.scandir(self._folder) as entries:
            for entry in entries:
                if entry.name.startswith(".") and entry.name.endswith(".tmp") and _is_orphan(Path(entry.path)):
                    Path(entry.path).unlink(missing_ok=True)
                elif entry.name != self._path.name:
                    with suppress(FileNotFoundError):
                        total += entry.stat(follow_symlinks=False).st_size
        return total

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold the folder's lock, across all processes that share it. Raises `FolderFull` if that takes too long."""
        end_s = time.monotonic() + LOCK_S
        with open_or_create(self._folder / ".lock") as lock:
            while not try_lock(lock):
                if time.monotonic() > end_s:
                    raise FolderFull("the uploads' folder is in use by others; try again")
                time.sleep(0.01)
            yield


def _is_orphan(path: Path) -> bool:
    """Return whether the file's writer is gone."""
    try:
        with path.open("rb+") as file:
            return try_lock(file)
    except OSError:  # it is gone, or another user's
        return False
