"""Locks on files that the kernel drops with their holder, however it dies.

By flock and not by a library: holders share some of them, one lock lies in a folder that vanishes with it, and
the others alone would not be worth a dependency.
"""

from __future__ import annotations

import fcntl
from typing import IO, Any


def try_lock(file: IO[Any] | int) -> bool:
    """Whether nobody else holds the open file, not even a share of it; then it is locked until it is closed."""
    return _try(file, fcntl.LOCK_EX)


def try_share(file: IO[Any] | int) -> bool:
    """Whether nobody else holds the open file for itself; then a share of it is held until it is closed."""
    return _try(file, fcntl.LOCK_SH)


def _try(file: IO[Any] | int, kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
