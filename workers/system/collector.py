"""Settings of Python's garbage collector for a loop that holds thousands of objects for seconds."""

from __future__ import annotations

import gc

YOUNG_MAX, OLDER_EVERY = 10_000, (20, 10)
"""Python collects when this many objects are new. Open calls hold many that live for seconds: with the default of 700,
collections take much of the CPU time; with many more than this, one collection stops the loop for too long."""


def collect_rarely() -> None:
    gc.set_threshold(YOUNG_MAX, *OLDER_EVERY)


def keep_imports() -> None:
    """Exempt all present objects from collection: walking over all imports would stop the loop for a tenth of a
    second."""
    gc.collect()
    gc.freeze()
