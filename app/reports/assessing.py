"""The statistics of a finished job, computed from its files. The libraries are imported when a function needs them."""
# ruff: noqa: PLC0415  (see above)

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from functools import wraps
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, ParamSpec, TypeVar

from dicast.app.domain.calibrated import scoring_context
from dicast.app.domain.calibration import CalibrationMap, Method
from dicast.app.domain.findings import NotCalibrated, PanelFront
from dicast.app.domain.judge_statistics import JobStatistics
from dicast.app.domain.rating import Rating
from dicast.app.domain.report import Report
from dicast.app.reports.files import changing, keep_report, reading, write_report_file
from dicast.app.reports.ratings import RatingsChange
from dicast.errors import DicastError, Exit

P = ParamSpec("P")
T = TypeVar("T")
SCORES = "scores"
"""The extra that installs the libraries."""
LIBRARIES = ("numpy", "scipy", "pandas", "statsmodels", "sklearn", "krippendorff", "choix", "threadpoolctl")
INSTALL = f"pip install -e '.[{SCORES}]'"
MISSING = f"the libraries for statistics are not installed here: {INSTALL}"


class NoFingerprints(DicastError, LookupError):
    """A report does not say how its judges were asked."""


class NoLibraries(DicastError, ImportError):
    """The extra `scores` is not installed."""

    exit_code = Exit.FAILED


def has_libraries() -> bool:
    """Return whether all libraries that statistics may need are installed."""
    return all(find_spec(name) is not None for name in LIBRARIES)


class StatisticsFailed(DicastError, RuntimeError):
    """The statistics cannot be computed from the data, for example from ratings that no sample can have. The message
    says what went wrong."""

    exit_code = Exit.FAILED


def require_statistics() -> None:
    """Raise `NoLibraries` unless the libraries for intervals and p-values are installed."""
    try:
        import dicast.app.assessment.gating
        import dicast.app.assessment.runs  # noqa: F401
    except ImportError as error:
        raise NoLibraries(MISSING) from error


def _requires_libraries(function: Callable[P, T]) -> Callable[P, T]:
    """Turn the ImportError of a missing library into `NoLibraries`: some libraries are imported only when a figure
    needs them."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except ImportError as error:
            raise NoLibraries(MISSING) from error

    return call


@_requires_libraries
def compute(
    folder: Path, report: Report, by: Sequence[str] | None = None, cluster: str | None = None,
    ratings: Iterable[Rating] | None = None,
) -> JobStatistics:  # fmt: skip
    """Compute the statistics of the job in a folder. Nothing is written.

    Items are grouped `by` metadata (None: as the job says), and intervals are clustered by `cluster`. `ratings` are
    people's ratings (None: those in the folder). It takes about half a second a judge and dimension. Raises
    `NoLibraries`, `NotKept`, `RunChanged`, `StatisticsFailed`, OSError.
    """
    from dicast.app.assessment.assess import assess
    from dicast.app.assessment.combined import with_learned_panels
    from dicast.app.reports.scores import load_scores

    with reading(folder, report):
        try:
            return assess(with_learned_panels(load_scores(folder, report, by, cluster, ratings)))
        except (DicastError, ImportError, OSError):
            raise
        except Exception as error:  # whatever arithmetic does with figures that nobody thought of
            raise StatisticsFailed(f"the statistics cannot be computed: {type(error).__name__}: {error}") from error


def evaluated(folder: Path, report: Report, change: RatingsChange | None = None) -> Report:
    """Return the report with what its panels' rules learn and with the statistics that its job asks for. With a
    `change`, they are computed from the changed ratings. Nothing is written. Raises what `compute` does."""
    if change is not None:
        report = report.model_copy(update={"rated": bool(change.ratings)})
    report = learn_panels(folder, report)
    statistics = compute(folder, report, ratings=None if change is None else change.ratings)
    return report.model_copy(update={"statistics": statistics})


def keep_evaluated(folder: Path, current: Report, report: Report, change: RatingsChange | None = None) -> Report:
    """Replace the report `current` by `report`, together with the ratings it was computed from. Raises `RunChanged` or
    `ReportChanged`, in which case nothing is written, and OSError."""
    with changing(folder, current):
        if change is not None:
            change.apply(folder)
        write_report_file(folder, report)
    return report


@_requires_libraries
def learn_panels(folder: Path, report: Report) -> Report:
    """Return the report with what its panels' rules learn from the whole job, unless it has that already. Raises
    `NoLibraries`, OSError."""
    if (
        not any(dimension.panel.learns and dimension.learned is None for dimension in report.dimensions)
        or not report.scored
    ):
        return report
    from dicast.app.assessment.combined import with_learned_panels
    from dicast.app.reports.scores import load_scores

    with reading(folder, report):
        dimensions = [scores.spec for scores in with_learned_panels(load_scores(folder, report, by=[])).dimensions]
    by_dimension = [
        row.model_copy(update={"dimension": dimension})
        for row, dimension in zip(report.by_dimension, dimensions, strict=True)
    ]
    return report.model_copy(update={"dimensions": dimensions, "by_dimension": by_dimension})


@_requires_libraries
def panel_fronts(
    folder: Path, report: Report, costs: Sequence[float], *, dimensions: Collection[str], largest: int,
    measure: Literal["pearson", "spearman"], reach: float | None,
) -> list[PanelFront]:  # fmt: skip
    """Find, for each of the dimensions, the panels of up to `largest` judges that no cheaper panel beats, and the
    cheapest panel that reaches `reach`. `costs` has the cost of an item for each judge. Raises `NoLibraries`, OSError.
    """
    from dicast.app.assessment.panels import panel_front
    from dicast.app.reports.scores import load_scores

    with reading(folder, report):
        scores = load_scores(folder, report, by=[])
    return [
        panel_front(dimension, scores.judges, costs, largest=largest, measure=measure, reach=reach)
        for dimension in scores.dimensions
        if dimension.spec.id in dimensions
    ]


@_requires_libraries
def calibrate(
    folder: Path, report: Report, method: Method, dimensions: Collection[str]
) -> tuple[list[CalibrationMap], list[NotCalibrated]]:
    """Learn maps from the scores of each judge and of the panel to people's scores in these dimensions. The second
    list says why other maps could not be learned. Raises `NoLibraries`, `NoFingerprints`, OSError."""
    if not report.prompt or not all(agent.judge for agent in report.agents):
        raise NoFingerprints(
            f"the report of job {report.job_id} is an earlier version's and does not say how its judges were asked, "
            "which a calibration is bound to: judge again"
        )
    from dicast.app.assessment.calibrating import calibrations
    from dicast.app.assessment.combined import with_learned_panels
    from dicast.app.reports.scores import load_scores

    with reading(folder, report):
        scores = with_learned_panels(load_scores(folder, report, by=[]))
    chosen = replace(
        scores, dimensions=tuple(dimension for dimension in scores.dimensions if dimension.spec.id in dimensions)
    )
    outcomes = list(calibrations(chosen, scoring_context(report), method))
    return (
        [outcome for outcome in outcomes if isinstance(outcome, CalibrationMap)],
        [outcome for outcome in outcomes if isinstance(outcome, NotCalibrated)],
    )


def keep(folder: Path, report: Report, statistics: JobStatistics) -> Report:
    """Store these statistics in the report's file, and return the report with them. Raises what `keep_report` does."""
    return keep_report(folder, report, report.model_copy(update={"statistics": statistics}))
