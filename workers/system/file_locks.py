"""Locks on files that the kernel drops with their holder, however it dies.

By flock and not by a library: holders share some of them, one lock lies in a folder that vanishes with it, and
the others alone would not be worth a dependency.
"""

from __future__ import annotations

import fcntl
from typing import IO, Any


def try_lock(file: IO[Any] | int) -> bool:
    """Whether nobody else holds the open file, not even a share of it; then it is locked until it is closed."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
