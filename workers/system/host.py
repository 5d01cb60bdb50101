"""Facts and settings of this host and process: accelerators, malloc and Arrow's allocator, the garbage collector."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import re
from pathlib import Path

_MODEL = re.compile(r"^Model:\s*(.+?)\s*$", re.MULTILINE)


def accelerators(root: Path = Path("/")) -> tuple[str, ...]:
    """Return the models of this host's accelerators, one entry each: those of NVIDIA's driver, else one 'AMD' for each
    of AMD's devices. Empty if there are none, or if they cannot be seen from here.

    They are as the kernel reports them.
    """
    models = []
    for information in sorted(root.glob("proc/driver/nvidia/gpus/*/information")):
        try:
            model = _MODEL.search(information.read_text(errors="replace"))
        except OSError:
            continue
        models.append(model[1] if model else "NVIDIA")
    if not models and (root / "dev/kfd").exists():
        models = ["AMD" for _ in root.glob("dev/dri/renderD*")]
    return tuple(models)


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


YOUNG_MAX, OLDER_EVERY = 10_000, (20, 10)
"""Python collects when this many objects are new. Open calls hold many that live for seconds: with the default of 700,
collections take much of the CPU time; with many more than this, one collection stops the loop for too long."""


def collect_rarely() -> None:
    """Have Python collect garbage rarely, for a loop that holds thousands of objects for seconds."""
    gc.set_threshold(YOUNG_MAX, *OLDER_EVERY)


def keep_imports() -> None:
    """Exempt all present objects from collection: walking over all imports would stop the loop for a tenth of a
    second."""
    gc.collect()
    gc.freeze()
