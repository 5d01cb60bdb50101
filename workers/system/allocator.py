"""Settings of malloc and of Arrow's allocator."""

from __future__ import annotations

import contextlib
import ctypes
import os

_M_ARENA_MAX = -8
"""The value in glibc's malloc.h."""


def share_one_arena() -> None:
    """Have all threads of this process allocate from one arena, unless MALLOC_ARENA_MAX says otherwise.

    The interpreter's lock lets one of them work at a time, and it cannot use memory that is free in another thread's
    arena, or that Arrow's own allocator keeps. So Arrow uses malloc, unless ARROW_DEFAULT_MEMORY_POOL says otherwise.
    With another C library than glibc, the arenas stay as they are.
    """
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")  # pyarrow reads it when it is loaded
    if "MALLOC_ARENA_MAX" not in os.environ:
        with contextlib.suppress(AttributeError):
            ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)
