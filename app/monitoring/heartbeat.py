"""The beat's sign of life, for health checks on its machine: when the broker last took one of its ticks."""

from __future__ import annotations

import time
from pathlib import Path

FILE = "beat.tick"


def mark(state_dir: str | Path) -> None:
    """Record that a tick was sent now. Raises OSError."""
    path = Path(state_dir) / FILE
    beside = path.with_suffix(".tmp")
    beside.write_text(repr(time.monotonic()))
    beside.replace(path)


def age_s(state_dir: str | Path) -> float | None:
    """Return the seconds since the last tick of a beat on this machine, by its monotonic clock; None if there was none
    since the machine was started."""
    try:
        age = time.monotonic() - float((Path(state_dir) / FILE).read_text())
    except (OSError, ValueError):
        return None
    return age if age >= 0 else None
