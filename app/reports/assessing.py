"""The statistics of a finished job: computed in this process or in one of its own, and kept in `report.json`.

A worker takes a process of its own: the libraries would stay in its memory, and what they compute would hold up its
event loop. That process is niced, has one thread, ends after `MOST_SECONDS`, and is not started for a job of more than
`MOST_OPINIONS`: those are computed when somebody asks (`dicast report`). A job completes whatever becomes of it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Literal

from pydantic_core import to_json

from dicast.app.domain.findings import PanelFront
from dicast.app.domain.judge_statistics import JobStatistics
from dicast.app.domain.report import Report
from dicast.app.reports.durable import replacing
from dicast.app.reports.files import REPORT, NoResults
from dicast.errors import DicastError, Exit

MOST_OPINIONS = 300_000
MOST_CELLS = 200
"""Judges x dimensions: each takes about half a second."""
MOST_SECONDS = 240.0
SAID_CHARS = 300
NICENESS = 10
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
MISSING = "the libraries for statistics are not installed here: pip install 'dicast[scores]'"


class NoLibraries(DicastError, ImportError):
    """The extra `scores` is not installed."""

    exit_code = Exit.FAILED


def compute(folder: Path, report: Report, by: Sequence[str] | None = None, cluster: str | None = None) -> JobStatistics:
    """The statistics of the job in a folder, grouped `by` metadata (None: as the job says), clustered by `cluster`.

    Takes about half a second a judge and dimension. Raises `NoLibraries`, `NotKept`, OSError.
    """
    try:
        from dicast.app.assessment.assess import assess  # noqa: PLC0415  (takes long to load)
        from dicast.app.reports.scores import load_scores  # noqa: PLC0415
    except ImportError as error:
        raise NoLibraries(MISSING) from error
    return assess(load_scores(folder, report, by, cluster))


def panel_fronts(
    folder: Path, report: Report, costs: Sequence[float], *, dimensions: Collection[str], largest: int,
    measure: Literal["pearson", "spearman"], reach: float | None,
) -> list[PanelFront]:  # fmt: skip
    """For each of the dimensions the panels of up to `largest` judges that no cheaper one beats, and the cheapest that
    reaches `reach`. `costs` are one a judge, an item. Raises `NoLibraries`, OSError."""
    try:
        from dicast.app.assessment.panels import panel_front  # noqa: PLC0415  (takes long to load)
        from dicast.app.reports.scores import load_scores  # noqa: PLC0415
    except ImportError as error:
        raise NoLibraries(MISSING) from error
    scores = load_scores(folder, report, by=[])
    return [
        panel_front(of, scores.judges, costs, largest=largest, measure=measure, reach=reach)
        for of in scores.dimensions
        if of.dimension.id in dimensions
    ]


def keep(folder: Path, report: Report, found: JobStatistics) -> Report:
    """The report with these statistics, in its file too. Raises OSError."""
    report = report.model_copy(update={"statistics": found})
    with replacing(folder / REPORT) as out:
        out.write(to_json(report, indent=2) + b"\n")
    return report


def keep_computed(folder: Path, report: Report) -> Report:
    """Compute the statistics of a job that waits for them, in a process of its own, and keep them, or why there are
    none. Blocks, for at most about `MOST_SECONDS`. Raises OSError where the report cannot be written."""
    if report.scored == 0:
        return _without(folder, report, "there is no score", wanted=False)
    cells = len(report.agents) * len(report.dimensions)
    if report.scored > MOST_OPINIONS or cells > MOST_CELLS:
        size = (
            f"{report.scored:,} opinions"
            if report.scored > MOST_OPINIONS
            else f"{cells:,} pairs of judge and dimension"
        )
        most = MOST_OPINIONS if report.scored > MOST_OPINIONS else MOST_CELLS
        return _without(folder, report, f"{size} are more than the {most:,} that are looked at unasked")
    trouble = _in_own_process(folder)
    if trouble is not None:
        return _without(folder, report, trouble)
    return Report.model_validate_json((folder / REPORT).read_bytes())


def _without(folder: Path, report: Report, reason: str, *, wanted: bool = True) -> Report:
    waiting = report.statistics or JobStatistics(state="waiting")
    told = f"{reason}; `dicast report {report.job_id}` computes them" if wanted else reason
    return keep(folder, report, waiting.model_copy(update={"state": "left out", "reason": told}))


def _in_own_process(folder: Path) -> str | None:
    """Why the process has kept no statistics, None if it has."""
    command = [sys.executable, "-P", "-m", "dicast.app.reports.assessing", str(folder)]
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


def main() -> int:
    """Compute and keep the statistics of the job whose folder is the one argument."""
    os.nice(NICENESS)
    folder = Path(sys.argv[1])
    try:
        report = Report.model_validate_json((folder / REPORT).read_bytes())
        keep(folder, report, compute(folder, report))
    except (DicastError, OSError, NoResults) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
