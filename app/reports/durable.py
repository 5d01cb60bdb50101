"""Files that appear whole or not at all, and stay after a loss of power."""

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
    """A file that takes the place of `path` at the end of the block, synced, or leaves no trace when the block fails.

    Nobody else reads it, unless it is not `private`: then it is as the umask says. A killed writer leaves
    `<name>.<hex>.tmp` beside it. Of writers that race, one's file stands there whole. An OSError, also a full disk's,
    names `path`.
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
