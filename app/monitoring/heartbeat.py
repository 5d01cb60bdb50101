"""The beat's sign of life, for health checks on its machine: when the broker last took a tick of it."""

from __future__ import annotations

import time
from pathlib import Path

FILE = "beat.tick"


def mark(state_dir: str | Path) -> None:
    """A tick was sent now. Raises OSError."""
    path = Path(state_dir) / FILE
    beside = path.with_suffix(".tmp")
    beside.write_text(repr(time.monotonic()))
    beside.replace(path)


def age_s(state_dir: str | Path) -> float | None:
    """Seconds since the last tick of a beat on this machine, by the machine's monotonic clock; None if there was none
    since it was started."""
    try:
        age = time.monotonic() - float((Path(state_dir) / FILE).read_text())
    except (OSError, ValueError):
        return None
    return age if age >= 0 else None
