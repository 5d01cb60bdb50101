"""What malloc, and Arrow, are told."""

from __future__ import annotations

import contextlib
import ctypes
import os

_M_ARENA_MAX = -8
"""malloc.h of glibc."""


def share_one_arena() -> None:
    """Have all threads of this process allocate from one arena, unless MALLOC_ARENA_MAX says otherwise.

    The interpreter's lock lets one of them work at a time, and what is free in another thread's arena is lost to it.
    So is what Arrow's own allocator keeps, which is left out unless ARROW_DEFAULT_MEMORY_POOL says otherwise. With
    another C library than glibc, nothing else happens.
    """
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")  # pyarrow reads it when it is loaded
    if "MALLOC_ARENA_MAX" not in os.environ:
        with contextlib.suppress(AttributeError):
            ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)
