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
from pathlib import Path

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
        file = os.open(self._file, os.O_WRONLY)
        try:
            os.pwrite(file, self._ns.to_bytes(8, sys.byteorder, signed=True), 0)
        finally:
            os.close(file)
