"""Writes `report.html` beside a finished job's results, in a process of its own, after the job has ended.

No job waits for it or fails with it: if it cannot be written (no room, no time, the worker stopped), the log says so,
and `dicast report JOB -o FILE` writes it. A worker starts one such process at a time; each is niced, has one thread,
and ends after `MOST_SECONDS`, also when its worker is gone.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import signal
import subprocess
import sys
import threading
from pathlib import Path

from pydantic import ValidationError

from dicast.errors import DicastError

logger = logging.getLogger(__name__)

MOST_SECONDS = 120
MOST_WAITING = 1_000
NICENESS = 10
MESSAGE_CHARS = 300
TRIES = 3
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


class HtmlWriter:
    """Starts the processes, one after the other, from a thread of its own. The list of fonts, which takes a second to
    build, is stored in `cache`: the home folder of a container may be read-only."""

    def __init__(self, cache: Path) -> None:
        self._cache = cache.absolute()
        self._waiting: queue.Queue[Path] = queue.Queue(MOST_WAITING)
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def write(self, folder: Path) -> None:
        """Schedule the report of the job in a folder to be written. Returns at once and raises nothing."""
        with self._lock:
            try:
                self._waiting.put_nowait(folder)
            except queue.Full:
                logger.warning("no report.html in %s: %d others wait", folder, MOST_WAITING)
                return
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="html reports", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while True:
            folder = self._waiting.get()
            try:
                trouble = in_own_process(folder, self._cache)
            except OSError as error:
                trouble = f"{type(error).__name__}: {error}"
            if trouble is not None:
                logger.warning("no report.html in %s: %s", folder, trouble)


def in_own_process(folder: Path, cache: Path) -> str | None:
    """Write the report in a process of its own and wait for it. Return what went wrong, None if nothing did. Raises
    OSError if the process cannot be started."""
    command = [sys.executable, "-P", "-m", "dicast.app.reports.html.beside", str(folder)]
    overrides = {"MPLCONFIGDIR": str(cache / "matplotlib"), "PYTHONPATH": str(Path(__file__).parents[4])}
    environ = {**os.environ, **ONE_THREAD, **overrides}
    process = subprocess.run(  # noqa: S603  (this very package, on a folder of its own)
        command, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        check=False, start_new_session=True,  # Ctrl-C in the worker must not end it
    )  # fmt: skip
    if process.returncode == 0:
        return None
    return (process.stderr.strip().splitlines() or [f"its process ended with {process.returncode}"])[-1][:MESSAGE_CHARS]


def main() -> int:
    """Write the report of the job whose folder is the only argument, unless the job has been resumed in the
    meantime."""
    from dicast.app.reports.files import REPORT, ReportChanged, RunChanged, parse_report  # noqa: PLC0415  (takes long to load)
    from dicast.app.reports.html.page import write_own_page  # noqa: PLC0415

    with contextlib.suppress(AttributeError):  # Windows has no such clock
        signal.alarm(MOST_SECONDS)
    os.nice(NICENESS)
    folder = Path(sys.argv[1])
    for retries_left in reversed(range(TRIES)):
        try:
            write_own_page(folder, parse_report((folder / REPORT).read_bytes()))
        except RunChanged:
            return 0  # the new run has a page of its own
        except (DicastError, OSError, ValidationError) as error:
            if retries_left and isinstance(error, ReportChanged):  # statistics or ratings were added
                continue
            sys.stderr.write(f"{type(error).__name__}: {error}".replace("\n", " ") + "\n")
            return 1
        else:
            return 0
    return 1


if __name__ == "__main__":
    sys.exit(main())
