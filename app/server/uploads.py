"""The one folder whose files a job that came over HTTP may name, and how files come there.

Files are named after their content, so that the same file is stored once, and no name leads anywhere else. Workers read
them, so the folder is to be shared by all machines, as the results are.
"""

from __future__ import annotations

import hashlib
import os
import stat
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from starlette.concurrency import run_in_threadpool

from dicast.app.datasets.kinds import ENDINGS
from dicast.app.reports.durable import sync_folder
from dicast.app.server.errors import FileRefused, FolderFull, RequestRefused

PIECE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Upload:
    """A file in the folder. `path` is what a job names: `items: {path: ...}`."""

    path: str
    bytes: int
    sha256: str


class Uploads:
    """The folder. `file_bytes` bound one file, `folder_bytes` all of them."""

    def __init__(self, folder: Path, file_bytes: int, folder_bytes: int) -> None:
        self._folder, self.file_bytes, self._folder_bytes = folder.absolute(), file_bytes, folder_bytes

    @property
    def folder(self) -> Path:
        """Where the files are, with no symbolic link left in it."""
        return self._folder.resolve()

    def find(self, name: str) -> Path:
        """The file that a job means, as an absolute path without symbolic links; raises `FileRefused` for whatever is
        no file inside the folder, in the same words whether there is such a file elsewhere or not."""
        root = self.folder
        try:
            found = (root / name).resolve(strict=True)
            inside = found.is_relative_to(root) and found.relative_to(root).parts[:1] not in ((), ("..",))
            regular = stat.S_ISREG(found.stat().st_mode)
        except (OSError, ValueError, RuntimeError):  # RuntimeError: links that lead round in a circle
            inside = regular = False
        if not inside or not regular or found.name.startswith("."):
            raise FileRefused(f"items.path: there is no uploaded file {name[:200]!r}; POST /uploads gives a path")
        return found

    async def take(self, body: AsyncIterator[bytes], ending: str) -> Upload:
        """Store a body as it comes, whole or not at all. Raises `RequestRefused`, `FolderFull`, OSError."""
        if ending not in ENDINGS:
            raise RequestRefused(f"query.ending: must be one of {', '.join(ENDINGS)}, got {ending[:20]!r}")
        room = await run_in_threadpool(self._room)
        beside = self.folder / f".{uuid.uuid4().hex}.tmp"
        digest, size, piece = hashlib.sha256(), 0, bytearray()
        file = await run_in_threadpool(beside.open, "xb")
        try:
            async for chunk in body:
                size += len(chunk)
                if size > room:
                    raise FolderFull("the uploads' folder has no room for this file")
                piece += chunk
                if len(piece) >= PIECE_BYTES:
                    await run_in_threadpool(_write, file, digest, bytes(piece))
                    piece.clear()
            await run_in_threadpool(_write, file, digest, bytes(piece))
            if size == 0:
                raise RequestRefused("body: the file is empty")
            name = f"{digest.hexdigest()}{ending}"
            await run_in_threadpool(self._keep, file, beside, name)
        finally:
            await run_in_threadpool(_discard, file, beside)
        return Upload(name, size, digest.hexdigest())

    def _room(self) -> int:
        """Bytes that may still be stored."""
        self.folder.mkdir(parents=True, exist_ok=True)
        held = 0
        with os.scandir(self.folder) as entries:
            for entry in entries:
                held += entry.stat(follow_symlinks=False).st_size
        return max(0, self._folder_bytes - held)

    def _keep(self, file: IO[bytes], beside: Path, name: str) -> None:
        file.flush()
        os.fsync(file.fileno())
        beside.replace(self.folder / name)
        sync_folder(self.folder)


def _write(file: IO[bytes], digest: hashlib._Hash, piece: bytes) -> None:
    digest.update(piece)
    file.write(piece)


def _discard(file: IO[bytes], beside: Path) -> None:
    file.close()
    beside.unlink(missing_ok=True)
