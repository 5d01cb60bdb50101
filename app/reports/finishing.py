"""Computes the panel's scores and the statistics of a finished job, in a process of its own.

In the worker, the libraries would stay in memory, and the computation would block its event loop. The process is
niced, has one thread and is killed after `MOST_SECONDS`. Statistics of a job with more than `MOST_OPINIONS` are
computed only on demand (`dicast report`). A failure here never keeps a job from completing.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass

from dicast.app.domain.judge_statistics import JobStatistics
from dicast.app.domain.report import Report
from dicast.app.reports.files import REPORT, ReportChanged, check_run, parse_report
from dicast.app.reports.statistics import evaluated, keep, keep_evaluated, learn_panels
from dicast.app.reports.stored_items import RatingsChange
from dicast.errors import DicastError

MOST_OPINIONS = 300_000
MOST_CELLS = 200
"""(Judges + groupings) x dimensions: each cell takes up to half a second, and up to some 40 kB of the report."""
MOST_SECONDS = 240.0
MESSAGE_CHARS = 300
NICENESS = 10
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


TRIES = 3
"""How often the computation is tried while somebody else changes the report, for example by adding ratings."""
_RATINGS = "--ratings"
_CHANGED_MEANWHILE = 3
"""The exit code of the process if the report was changed in the meantime."""


@dataclass(frozen=True)
class _RatingsRequest:
    """The request on the process's standard input: the ratings to be stored, and the report that they are for."""

    change: RatingsChange
    report: Report


def keep_computed(folder: Path, report: Report) -> Report:
    """Compute what the job asks for and return its report with it: the panel's scores, and the statistics or the
    reason why there are none. Blocks for at most about `MOST_SECONDS`. Raises `RunChanged`, and OSError where the
    report cannot be written."""
    report = check_run(folder, report)  # read again: ratings may have been added
    if _is_waiting(report) and (reason := _reason_to_defer(report)) is not None:
        report = _without(folder, report, reason)
    if not _is_waiting(report) and not _wants_panel(report):
        return report
    trouble = _in_own_process(folder)
    report = check_run(folder, report)
    return _without(folder, report, trouble or "they are not there") if _is_waiting(report) else report


def keep_ratings(
    folder: Path, report: Report, change_of: Callable[[Report], RatingsChange]
) -> tuple[Report, str | None]:  # fmt: skip
    """Store the ratings that `change_of` returns for the report, once the statistics have been computed with them in
    a process of their own.

    Returns the new report, or the report as it was and the reason. Blocks as `keep_computed` does. Raises
    `RunChanged`, OSError and what `change_of` raises.
    """
    for _ in range(TRIES):
        change = change_of(report)
        rated = report.model_copy(update={"rated": bool(change.ratings)})
        if change.added and (reason := _reason_to_defer(rated)) is not None:
            return report, reason
        request = TypeAdapter(_RatingsRequest).dump_json(_RatingsRequest(change, report))
        try:
            trouble = _in_own_process(folder, request)
        except ReportChanged:
            report = check_run(folder, report)
            continue
        return check_run(folder, report), trouble
    raise ReportChanged(report.job_id)


def _is_waiting(report: Report) -> bool:
    return report.statistics is not None and report.statistics.state == "waiting"


def _wants_panel(report: Report) -> bool:
    return report.panelled and report.panel_parquet is None and report.scored > 0


def _reason_to_defer(report: Report) -> str | None:
    """Return why the statistics are computed only on demand, None if they are computed now."""
    if report.scored == 0:
        return "there is no score"
    cells = (len(report.agents) + len(report.groups)) * len(report.dimensions)
    if report.scored > MOST_OPINIONS:
        return f"{report.scored:,} opinions are more than the {MOST_OPINIONS:,} that are looked at unasked"
    if cells > MOST_CELLS:
        kind = "judges and groupings, times dimensions,"
        return f"{cells:,} {kind} are more than the {MOST_CELLS:,} that are looked at unasked"
    return None


def _without(folder: Path, report: Report, reason: str) -> Report:
    waiting = report.statistics or JobStatistics(state="waiting")
    explanation = f"{reason}; `dicast report {report.job_id}` computes them" if report.scored else reason
    return keep(folder, report, waiting.model_copy(update={"state": "left out", "reason": explanation}))


def _in_own_process(folder: Path, request: bytes = b"") -> str | None:
    """Run the computation in a process of its own. Return what went wrong, None if nothing did. Raises
    `ReportChanged`, but only with a `request`."""
    command = [
        sys.executable,
        "-P",
        "-m",
        "dicast.app.reports.finishing",
        str(folder),
        *([_RATINGS] if request else []),
    ]
    environ = {**os.environ, **ONE_THREAD, "PYTHONPATH": str(Path(__file__).parents[3])}
    try:
        process = subprocess.run(  # noqa: S603  (this very package, on a folder of its own)
            command, env=environ, input=request, capture_output=True, timeout=MOST_SECONDS,
            check=False, start_new_session=True,  # Ctrl-C in the worker must not end it
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"they took longer than {MOST_SECONDS:.0f} s"
    if process.returncode == 0:
        return None
    if request and process.returncode == _CHANGED_MEANWHILE:
        raise ReportChanged(folder.name)
    lines = process.stderr.decode(errors="replace").strip().splitlines()
    return (lines or [f"their process ended with {process.returncode}"])[-1][:MESSAGE_CHARS]


def main() -> int:
    """Compute what the job in the folder of the first argument asks for, or its statistics with the ratings that come
    on standard input."""
    os.nice(NICENESS)
    folder = Path(sys.argv[1])
    try:
        if sys.argv[2:] == [_RATINGS]:
            request = TypeAdapter(_RatingsRequest).validate_json(sys.stdin.buffer.read())
            keep_evaluated(folder, request.report, evaluated(folder, request.report, request.change), request.change)
        else:
            _finish(folder)
    except ReportChanged as error:
        sys.stderr.write(f"{error}\n")
        return _CHANGED_MEANWHILE
    except (DicastError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def _finish(folder: Path) -> None:
    """Compute and store what the job asks for. Raises `ReportChanged` if the report was changed by others at every
    try."""
    from dicast.app.reports.panel import keep_panel  # noqa: PLC0415  (takes long to load)

    for retries_left in reversed(range(TRIES)):
        report = parse_report((folder / REPORT).read_bytes())
        try:
            if _wants_panel(report):
                report = keep_panel(folder, report, learn_panels(folder, report))
            if _is_waiting(report):
                keep_evaluated(folder, report, evaluated(folder, report))
        except ReportChanged:
            if not retries_left:
                raise
        else:
            return


if __name__ == "__main__":
    sys.exit(main())
