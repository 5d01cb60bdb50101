"""Locks on files that the kernel drops with their holder, however it dies.

They use flock and no library: some are shared locks, one lies in a folder that vanishes with it, and the rest would not
be worth a dependency.
"""

from __future__ import annotations

import fcntl
from typing import IO, Any


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
