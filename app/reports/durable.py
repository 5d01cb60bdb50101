"""Files that appear whole or not at all, and survive a loss of power."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from dicast.workers.system.private_files import create


@contextlib.contextmanager
def replacing(path: Path, *, private: bool = True) -> Iterator[IO[bytes]]:
    """Open a file that replaces `path` at the end of the block, synced. If the block fails, it leaves no trace.

    Only the owner can read the file, unless `private` is false: then its mode follows the umask. A killed writer
    leaves `<name>.<hex>.tmp` beside it. If several writers race, one of their files is there, whole. An OSError, such
    as that of a full disk, names `path`.
    """
    beside = path.with_name(f"{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with create(beside) if private else beside.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        if error.errno is None or error.filename not in (None, str(beside)):
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        beside.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
