"""Python's garbage collector, set for a loop that holds thousands of objects for seconds."""

from __future__ import annotations

import gc

YOUNG_MAX, OLDER_EVERY = 10_000, (20, 10)
"""Python collects when so many objects are new. Open calls hold many that live for seconds: looking at them after each
700, its default, takes much of the CPU time; after many more than this, one look stops the loop for too long."""


def collect_rarely() -> None:
    gc.set_threshold(YOUNG_MAX, *OLDER_EVERY)


def keep_imports() -> None:
    """What is imported by now stays; a collection that walks over all of it stops the loop for a tenth of a second."""
    gc.collect()
    gc.freeze()
