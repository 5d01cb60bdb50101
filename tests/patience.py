"""Time as deadlines count it: without what a busy machine takes.

Tests wait for events, and a deadline says when that is hopeless. On a machine that does other work besides, the same
event comes later. Linux tells for how long some program has wanted a core and had none; that does not count.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable
from pathlib import Path

PRESSURE = Path("/proc/pressure/cpu")
MOST_PART = 0.8
"""At most this part of the time does not count: some program nearly always waits on a machine that is full."""


def stalled_s() -> float:
    """Return for how long some program has waited for a core since the machine was started; 0 where nothing tells."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(PRESSURE.read_text().split("total=")[1].split()[0]) / 1e6
    return 0.0


class Stopwatch:
    """Counts from when it is made. Of a machine with nothing else to do it tells what any clock does."""

    def __init__(self) -> None:
        self._began, self._stalled = time.monotonic(), stalled_s()

    @property
    def s(self) -> float:
        """The seconds since then, without those in which a program waited for a core."""
        wall = time.monotonic() - self._began
        return wall - min(MOST_PART * wall, stalled_s() - self._stalled)


def scheduling_s(processes: Iterable[int]) -> float:
    """Return for how long these processes, by their ids, have been ready to run and did not, one after the other.

    Of each it is the thread that has waited longest: threads of a process wait at the same time.
    """
    waits = 0
    for process in processes:
        longest = 0
        for thread in Path(f"/proc/{process}/task").glob("*/schedstat"):
            with contextlib.suppress(OSError, ValueError, IndexError):
                longest = max(longest, int(thread.read_text().split()[1]))
        waits += longest
    return waits / 1e9
