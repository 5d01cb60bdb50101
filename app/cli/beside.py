"""Waits for the HTML report beside a job's results, which a worker writes after the job has ended."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from dicast.app.cli.console import Terminal
from dicast.app.reports.files import REPORT

LOCAL_S = 30.0
"""Writing it takes a second or two, longer on a machine under full load."""
ELSEWHERE_S = 10.0
"""Workers on other machines may be configured to write no page."""
LOOK_S = 0.1
PAGE = "report.html"


def wait_for_page(
    folder: Path,
    seconds: float,
    *,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> bool:
    """Wait up to so many seconds until the page is at least as new as the report in the folder. Return whether
    it is."""
    until = clock() + seconds
    while not _current(folder):
        if clock() >= until:
            return False
        pause(LOOK_S)
    return True


def _current(folder: Path) -> bool:
    try:
        return (folder / PAGE).stat().st_mtime_ns >= (folder / REPORT).stat().st_mtime_ns
    except OSError:
        return False


def print_page_path(terminal: Terminal, folder: Path, job_id: str) -> None:
    """Say where the page is, or how to write it."""
    if (folder / PAGE).exists():
        terminal.say(f"Report in {folder / PAGE}")
    else:
        terminal.say(f"{PAGE} is not written yet: `dicast report {job_id} -o FILE` makes it", "dim")
