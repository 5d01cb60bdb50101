"""What is made of a finished job's files: the panel's scores and the statistics, in a process of their own.

The libraries would stay in a worker's memory, and what they compute would hold up its event loop. The process is niced,
has one thread and ends after `MOST_SECONDS`. Statistics of a job of more than `MOST_OPINIONS` are computed when
somebody asks (`dicast report`). A job completes whatever becomes of them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from dicast.app.domain.judge_statistics import JobStatistics
from dicast.app.domain.report import Report
from dicast.app.reports.assessing import compute, keep, keep_report, learn_panels
from dicast.app.reports.files import REPORT
from dicast.errors import DicastError

MOST_OPINIONS = 300_000
MOST_CELLS = 200
"""Judges and groupings, times dimensions: each takes up to half a second, and up to some 40 kB of the report."""
MOST_SECONDS = 240.0
SAID_CHARS = 300
NICENESS = 10
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


def keep_computed(folder: Path, report: Report) -> Report:
    """The report with what its job asks for: the panel's scores beside it, and its statistics or why there are none.
    Blocks, for at most about `MOST_SECONDS`. Raises OSError where the report cannot be written."""
    if _waits(report) and (reason := _unasked(report)) is not None:
        report = _without(folder, report, reason)
    if not _waits(report) and not _wants_panel(report):
        return report
    trouble = _in_own_process(folder)
    report = _read(folder)
    return _without(folder, report, trouble or "they are not there") if _waits(report) else report


def _waits(report: Report) -> bool:
    return report.statistics is not None and report.statistics.state == "waiting"


def _wants_panel(report: Report) -> bool:
    return report.panelled and report.panel_parquet is None and report.scored > 0


def _unasked(report: Report) -> str | None:
    """Why the statistics are not computed before somebody asks."""
    if report.scored == 0:
        return "there is no score"
    cells = (len(report.agents) + len(report.groups)) * len(report.dimensions)
    if report.scored > MOST_OPINIONS:
        return f"{report.scored:,} opinions are more than the {MOST_OPINIONS:,} that are looked at unasked"
    if cells > MOST_CELLS:
        what = "judges and groupings, times dimensions,"
        return f"{cells:,} {what} are more than the {MOST_CELLS:,} that are looked at unasked"
    return None


def _without(folder: Path, report: Report, reason: str) -> Report:
    waiting = report.statistics or JobStatistics(state="waiting")
    told = f"{reason}; `dicast report {report.job_id}` computes them" if report.scored else reason
    return keep(folder, report, waiting.model_copy(update={"state": "left out", "reason": told}))


def _in_own_process(folder: Path) -> str | None:
    """What went wrong there, None if nothing did."""
    command = [sys.executable, "-P", "-m", "dicast.app.reports.finishing", str(folder)]
    environ = {**os.environ, **ONE_THREAD, "PYTHONPATH": str(Path(__file__).parents[3])}
    try:
        done = subprocess.run(  # noqa: S603  (this very package, on a folder of its own)
            command, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=MOST_SECONDS,
            check=False, start_new_session=True,  # who interrupts the worker does not mean it
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"they took longer than {MOST_SECONDS:.0f} s"
    if done.returncode == 0:
        return None
    return (done.stderr.strip().splitlines() or [f"their process ended with {done.returncode}"])[-1][:SAID_CHARS]


def _read(folder: Path) -> Report:
    return Report.model_validate_json((folder / REPORT).read_bytes())


def main() -> int:
    """Make what is wanted of the job whose folder is the one argument."""
    from dicast.app.reports.panel import keep_panel  # noqa: PLC0415  (takes long to load)

    os.nice(NICENESS)
    folder = Path(sys.argv[1])
    try:
        report = _read(folder)
        if _wants_panel(report):
            report = learn_panels(folder, report)
            report = keep_report(folder, keep_panel(folder, report))
        if _waits(report):
            keep(folder, report, compute(folder, report))
    except (DicastError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
