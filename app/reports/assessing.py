"""The statistics of a finished job, from its files; what they rest on is loaded when they are asked for."""
# ruff: noqa: PLC0415  (see above)

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Literal, ParamSpec, TypeVar

from pydantic_core import to_json

from dicast.app.domain.calibrated import circumstances
from dicast.app.domain.calibration import CalibrationMap, Method
from dicast.app.domain.findings import NotCalibrated, PanelFront
from dicast.app.domain.judge_statistics import JobStatistics
from dicast.app.domain.report import Report
from dicast.app.reports.durable import replacing
from dicast.app.reports.files import REPORT
from dicast.errors import DicastError, Exit

P = ParamSpec("P")
T = TypeVar("T")
MISSING = "the libraries for statistics are not installed here: pip install -e '.[scores]'"


class NoFingerprints(DicastError, LookupError):
    """A report does not say how its judges were asked."""


class NoLibraries(DicastError, ImportError):
    """The extra `scores` is not installed."""

    exit_code = Exit.FAILED


def _needing_libraries(function: Callable[P, T]) -> Callable[P, T]:
    """Some libraries are loaded only when a figure needs them: any that is missing is told in the same way."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except ImportError as error:
            raise NoLibraries(MISSING) from error

    return call


@_needing_libraries
def compute(folder: Path, report: Report, by: Sequence[str] | None = None, cluster: str | None = None) -> JobStatistics:
    """The statistics of the job in a folder, grouped `by` metadata (None: as the job says), clustered by `cluster`.

    Takes about half a second a judge and dimension. Raises `NoLibraries`, `NotKept`, OSError.
    """
    from dicast.app.assessment.assess import assess
    from dicast.app.assessment.combined import learned
    from dicast.app.reports.scores import load_scores

    return assess(learned(load_scores(folder, report, by, cluster)))


@_needing_libraries
def learn_panels(folder: Path, report: Report) -> Report:
    """The report with what its panels' rules learn from the whole job, unless it is there. Raises `NoLibraries`,
    OSError."""
    if not any(of.panel.learns and of.learned is None for of in report.dimensions) or not report.scored:
        return report
    from dicast.app.assessment.combined import learned
    from dicast.app.reports.scores import load_scores

    dimensions = [of.dimension for of in learned(load_scores(folder, report, by=[])).dimensions]
    told = [
        of.model_copy(update={"dimension": dimension})
        for of, dimension in zip(report.by_dimension, dimensions, strict=True)
    ]
    return report.model_copy(update={"dimensions": dimensions, "by_dimension": told})


@_needing_libraries
def panel_fronts(
    folder: Path, report: Report, costs: Sequence[float], *, dimensions: Collection[str], largest: int,
    measure: Literal["pearson", "spearman"], reach: float | None,
) -> list[PanelFront]:  # fmt: skip
    """For each of the dimensions the panels of up to `largest` judges that no cheaper one beats, and the cheapest that
    reaches `reach`. `costs` are one a judge, an item. Raises `NoLibraries`, OSError."""
    from dicast.app.assessment.panels import panel_front
    from dicast.app.reports.scores import load_scores

    scores = load_scores(folder, report, by=[])
    return [
        panel_front(of, scores.judges, costs, largest=largest, measure=measure, reach=reach)
        for of in scores.dimensions
        if of.dimension.id in dimensions
    ]


@_needing_libraries
def calibrate(
    folder: Path, report: Report, method: Method, dimensions: Collection[str]
) -> tuple[list[CalibrationMap], list[NotCalibrated]]:
    """Maps from the scores of each judge and of the panel to people's in these dimensions, and why some are not there.
    Raises `NoLibraries`, `NoFingerprints`, OSError."""
    if not report.prompt or not all(agent.judge for agent in report.agents):
        raise NoFingerprints(
            f"the report of job {report.job_id} is an earlier version's and does not say how its judges were asked, "
            "which a calibration is bound to: judge again"
        )
    from dicast.app.assessment.calibrating import calibrations
    from dicast.app.assessment.combined import learned
    from dicast.app.reports.scores import load_scores

    scores = learned(load_scores(folder, report, by=[]))
    chosen = replace(scores, dimensions=tuple(of for of in scores.dimensions if of.dimension.id in dimensions))
    found = list(calibrations(chosen, circumstances(report), method))
    return (
        [one for one in found if isinstance(one, CalibrationMap)],
        [one for one in found if isinstance(one, NotCalibrated)],
    )


def keep(folder: Path, report: Report, found: JobStatistics) -> Report:
    """The report with these statistics, in its file too. Raises OSError."""
    return keep_report(folder, report.model_copy(update={"statistics": found}))


def keep_report(folder: Path, report: Report) -> Report:
    """The report, which its file now holds. Raises OSError."""
    with replacing(folder / REPORT) as out:
        out.write(to_json(report, indent=2) + b"\n")
    return report
