"""Wall clocks that step: processes started with `SteppedClock.environ` see the host's clock plus what was stepped.

The kernel's own idea of the time does not move: file dates, `btime`, and whatever a program asks it without libc.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

STEP_SEEN_S = 0.3
"""A line of a log is dated before it is written."""
SOURCE = Path(__file__).with_name("stepped_clock.c")


def available() -> bool:
    """Whether there is a C compiler, by which the shim is made."""
    return shutil.which("cc") is not None


@functools.cache
def _library() -> tempfile.TemporaryDirectory[str]:
    folder = tempfile.TemporaryDirectory(prefix="stepped-clock-")
    library = Path(folder.name) / "stepped_clock.so"
    command = ["cc", "-shared", "-fPIC", "-O2", "-o", str(library), str(SOURCE), "-ldl"]
    subprocess.run(command, check=True, capture_output=True)
    return folder


class SteppedClock:
    """One clock, for any number of processes: one host's, or one store's."""

    def __init__(self, folder: Path, name: str = "clock") -> None:
        self._file = folder / name
        self._file.write_bytes(bytes(8))
        self._ns = 0
        self._steps = [(0.0, 0.0)]
        self.environ = {
            "LD_PRELOAD": str(Path(_library().name) / "stepped_clock.so"), "STEPPED_CLOCK": str(self._file),
        }  # fmt: skip

    @property
    def off_s(self) -> float:
        """How far it is ahead of the host's own."""
        return self._ns / 1e9

    def step(self, seconds: float) -> None:
        """At once, for all its processes."""
        self._ns += round(seconds * 1e9)
        self._steps.append((time.time(), self.off_s))
        file = os.open(self._file, os.O_WRONLY)
        try:
            os.pwrite(file, self._ns.to_bytes(8, sys.byteorder, signed=True), 0)
        finally:
            os.close(file)

    def true_time(self, told_s: float, after_s: float = 0.0) -> float:
        """When it was by the host's clock as one of these processes told this Unix time, after `after_s`; the earliest,
        where several answers are possible since the clock was put back."""
        ends = [*(at_s for at_s, _ in self._steps[1:]), float("inf")]
        possible = [
            told_s - off_s
            for (at_s, off_s), end_s in zip(self._steps, ends, strict=True)
            if max(at_s, after_s) - STEP_SEEN_S <= told_s - off_s <= end_s + STEP_SEEN_S
        ]
        return min(possible, default=told_s - self.off_s)
