"""Private files and folders for everything that Dicast keeps by itself, and locks on files.

Results, uploads, spool and state are for the user that Dicast runs as: folders 0700, files 0600, whatever the umask. A
folder with the setgid bit says otherwise: what is made in it is for its group, too, as far as the folder is, and has
that bit as well. So `chgrp judges results && chmod 2770 results` shares results between the users of one group. The
state of one machine (store, spool, logins) is never shared. What is there already keeps its permissions. A file that
somebody asks for by a path of their own is none of these.

Locks are flock's, which the kernel drops with their holder, however it dies. No library is used for them: some are
shared locks, one lies in a folder that vanishes with it, and the rest would not be worth a dependency.
"""

from __future__ import annotations

import fcntl
import os
import stat
from pathlib import Path
from typing import IO, Any


def folder_mode(parent: Path) -> int:
    """Return the permissions for a folder that is made in this one."""
    mode = parent.stat().st_mode
    return stat.S_ISGID | 0o700 | (mode & 0o070) if mode & stat.S_ISGID else 0o700


def make_folder(path: Path, *, shared: bool = True) -> None:
    """Make a private folder, and its missing parents; an existing one stays as it is. Unless `shared`, it is for its
    owner alone, whatever its parent's permissions are."""
    if path.is_dir():
        return
    if path.parent != path:
        make_folder(path.parent, shared=shared)
    mode = folder_mode(path.parent) if shared else 0o700
    try:
        path.mkdir(0o700)
    except FileExistsError:
        if not path.is_dir():
            raise
        return
    if mode != 0o700:
        path.chmod(mode)


def create(path: Path) -> IO[bytes]:
    """Create a private file for writing. Raises FileExistsError."""
    return _opened(path, os.O_WRONLY | os.O_EXCL, "wb")


def open_or_create(path: Path) -> IO[bytes]:
    """Open a private file for reading and appending, and create it if it does not exist."""
    return _opened(path, os.O_RDWR | os.O_APPEND, "ab+")


def _opened(path: Path, flags: int, mode: str) -> IO[bytes]:
    handle = os.open(path, os.O_CREAT | os.O_CLOEXEC | flags, 0o600)
    try:
        file_mode, status = folder_mode(path.parent) & 0o660, os.fstat(handle)
        if file_mode != 0o600 and status.st_size == 0 and status.st_uid == os.geteuid():
            os.fchmod(handle, file_mode)
        return os.fdopen(handle, mode)
    except BaseException:  # whatever it was, the handle is nobody's
        os.close(handle)
        raise


def try_lock(file: IO[Any] | int) -> bool:
    """Lock the open file until it is closed, unless somebody else holds it or a share of it; returns whether it is
    locked."""
    return _try(file, fcntl.LOCK_EX)


def try_share(file: IO[Any] | int) -> bool:
    """Take a shared lock on the open file until it is closed, unless somebody else has locked it; returns whether it is
    held."""
    return _try(file, fcntl.LOCK_SH)


def _try(file: IO[Any] | int, kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
