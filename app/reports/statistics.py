"""The statistics of a finished job, computed from its files, and comparisons of two finished jobs.

The libraries are imported when a function needs them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence, Set
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeVar

from dicast.app.analysis import MISSING, NoLibraries
from dicast.app.domain.calibrated import scoring_context
from dicast.app.domain.calibration import CalibrationMap, Method
from dicast.app.domain.item import Rating
from dicast.app.domain.judge_statistics import (
    JobStatistics,
    JudgeShift,
    MovedItem,
    NotCalibrated,
    PanelFront,
    RatingPlan,
    RunsCompared,
    TrustedPanel,
)
from dicast.app.domain.report import Report
from dicast.app.reports.files import changing, keep_report, reading, write_report_file
from dicast.app.reports.stored_items import RatingsChange, kept_texts
from dicast.errors import DicastError, Exit

# ruff: noqa: PLC0415  (see above)


P = ParamSpec("P")
T = TypeVar("T")


class NoFingerprints(DicastError, LookupError):
    """A report does not say how its judges were asked."""


class StatisticsFailed(DicastError, RuntimeError):
    """The statistics cannot be computed from the data, for example from ratings that no sample can have. The message
    says what went wrong."""

    exit_code = Exit.FAILED


def require_statistics() -> None:
    """Raise `NoLibraries` unless the libraries for intervals and p-values are installed."""
    try:
        import dicast.app.analysis.group_figures
        import dicast.app.analysis.runs  # noqa: F401
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
    from dicast.app.analysis.assess import assess
    from dicast.app.analysis.scores import with_learned_panels
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
        return write_report_file(folder, report)


@_requires_libraries
def learn_panels(folder: Path, report: Report) -> Report:
    """Return the report with what its panels' rules learn from the whole job, unless it has that already. Raises
    `NoLibraries`, OSError."""
    if (
        not any(dimension.panel.learns and dimension.learned is None for dimension in report.dimensions)
        or not report.scored
    ):
        return report
    from dicast.app.analysis.scores import with_learned_panels
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
    from dicast.app.analysis.panels import panel_front
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
    from dicast.app.analysis.raters import calibrations
    from dicast.app.analysis.scores import with_learned_panels
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


@_requires_libraries
def trusted_panels(
    folder: Path, report: Report, dimensions: Collection[str], *, agree: float, confidence: float, within: float
) -> list[TrustedPanel]:
    """Learn, for each of the dimensions, up to which uncertainty the job's judges may decide. Raises `NoLibraries`,
    OSError."""
    from dicast.app.analysis.panels import trusted_panel
    from dicast.app.reports.scores import load_scores

    with reading(folder, report):
        scores = load_scores(folder, report, by=[])
    return [
        trusted_panel(scores, dimension, agree=agree, confidence=confidence, within=within)
        for dimension in scores.dimensions
        if dimension.spec.id in dimensions
    ]


@_requires_libraries
def rating_plans(folder: Path, report: Report, width: float | None) -> list[RatingPlan]:
    """Return, for each dimension, what people's ratings of the job's items would buy. Raises `NoLibraries`, OSError."""
    from dicast.app.analysis.assess import rating_plan
    from dicast.app.analysis.scores import with_learned_panels
    from dicast.app.reports.scores import load_scores

    with reading(folder, report):
        scores = with_learned_panels(load_scores(folder, report, by=[]))
    return [rating_plan(scores, dimension, width) for dimension in scores.dimensions]


def keep(folder: Path, report: Report, statistics: JobStatistics) -> Report:
    """Store these statistics in the report's file, and return the report with them. Raises what `keep_report` does."""
    return keep_report(folder, report, report.model_copy(update={"statistics": statistics}))


PARQUET = "opinions.parquet"
NAMES = {"item_id": "item", "criterion_id": "dimension", "judge": "rater", "replicate": "replicate", "score": "score"}


class RunsDiffer(DicastError, ValueError):
    """The runs measure different things, or have nothing in common."""

    problem = "runs-differ"


def compare_jobs(
    first: tuple[Path, Report], second: tuple[Path, Report], *, most: int = 20, force: bool = False
) -> RunsCompared:
    """Compare two runs: how far scores moved from the first to the second, by dimension and judge, and the `most` items
    that moved furthest.

    Labels without an order are left out, since they have no mean. Raises `RunsDiffer` where a rubric or scale differs,
    unless `force` is set, and where nothing is left to compare; `NoLibraries`.

    The judges' arguments are given for the items that moved most.
    """
    try:
        from dicast.app.analysis import runs
    except ImportError as error:
        raise NoLibraries(MISSING) from error
    problems = runs.incompatibilities(first[1], second[1])
    common = {d.id for d in first[1].dimensions} & {d.id for d in second[1].dimensions}
    if not common:
        raise RunsDiffer("the runs have no dimension in common")
    ordered = common - {d.id for report in (first[1], second[1]) for d in report.dimensions if d.nominal}
    if not ordered:
        raise RunsDiffer("the runs have only labels without an order in common, of which no mean can shift")
    if problems and not force:
        raise RunsDiffer(
            f"{first[1].job_id} and {second[1].job_id} measure different things ({'; '.join(problems)}); "
            "--force compares them all the same"
        )
    frames = _frame(first[0], ordered), _frame(second[0], ordered)
    lengths = _lengths(first[1], second[1])
    shifts, moved = runs.shifts(*frames, most, lengths)
    if not shifts:
        raise RunsDiffer("no judge has scored the same item in the same dimension in both runs")
    by, systems = _systems(first, second)
    panel, of_systems = runs.run_shifts(runs.by_item(*frames), systems, lengths)
    changed = {shift.system for shift in of_systems if shift.p is not None and shift.p < runs.CLEAR}
    unchanged = [name for name, system in systems.items() if system not in changed]
    partly = changed and unchanged
    still = [frame[frame["item"].isin(unchanged)] for frame in frames]
    elsewhere = runs.shifts(still[0], still[1], 0, lengths)[0] if partly else shifts
    return RunsCompared(
        first=first[1].job_id,
        second=second[1].job_id,
        summary=runs.summary(panel, of_systems, elsewhere),
        by=by,
        panel=panel,
        systems=of_systems,
        shifts=shifts,
        moved=_with_texts(moved, first[0], second[0]),
        forced=problems,
        spared=_partly_asked(shifts, [first[1], second[1]]),
    )


def _lengths(*reports: Report) -> dict[str, float]:
    """Return how far a score can move in each dimension: from the lowest end of its scales to the highest."""
    ends: dict[str, list[int]] = {}
    for report in reports:
        for dimension in report.dimensions:
            ends.setdefault(dimension.id, []).extend((dimension.scale_min, dimension.scale_max))
    return {name: float(max(values) - min(values)) for name, values in ends.items()}


def _with_texts(moved: Sequence[MovedItem], first: Path, second: Path) -> list[MovedItem]:
    """Return the items with the judges' arguments and what was judged in each run."""
    arguments = [_arguments(folder, moved) for folder in (first, second)]
    names = {item.item_id for item in moved}
    texts = [
        {name: "\n".join(text for kind, text in parts if kind != "prompt") for name, parts in texts_of_run.items()}
        for texts_of_run in (kept_texts(folder, names) for folder in (first, second))
    ]
    return [
        item.model_copy(
            update={
                "first_argument": arguments[0].get(_key(item), ""), "second_argument": arguments[1].get(_key(item), ""),
                "first_text": texts[0].get(item.item_id, "")[:MOVED_CHARS],
                "second_text": texts[1].get(item.item_id, "")[:MOVED_CHARS],
            }
        )
        for item in moved
    ]  # fmt: skip


MOVED_CHARS = 2000


def _systems(first: tuple[Path, Report], second: tuple[Path, Report]) -> tuple[str, dict[str, str]]:
    """Return the metadata by which the runs group their items, and the group of each item; nothing if there is none."""
    import pyarrow.parquet as pq

    from dicast.app.reports.columns import kept_columns

    by = next((name for name in (*second[1].groups, *first[1].groups) if name in second[1].keep), None)
    if by is None:
        return "", {}
    (column,) = kept_columns([by])
    table = pq.read_table(second[0] / PARQUET, columns=["item_id", column])
    pairs = zip(table["item_id"].to_pylist(), table[column].to_pylist(), strict=True)
    systems = {item: str(value) for item, value in pairs if value is not None}
    return (by, systems) if 1 < len(set(systems.values())) <= MOST_SYSTEMS else ("", {})


MOST_SYSTEMS = 20


def _partly_asked(shifts: Sequence[JudgeShift], reports: Sequence[Report]) -> list[str]:
    """Return the judges who were not asked about all items, as `judge (dimension)`."""
    seldom = {
        (row.dimension.id, cell.judge)
        for report in reports for row in report.by_dimension for cell in row.by_judge if cell.spared
    }  # fmt: skip
    return [f"{shift.judge} ({shift.dimension})" for shift in shifts if (shift.dimension, shift.judge) in seldom]


def _frame(folder: Path, dimensions: Set[str]) -> Any:
    import pyarrow.parquet as pq

    filters = [("criterion_id", "in", dimensions)]
    return (
        pq.read_table(folder / PARQUET, columns=list(NAMES), filters=filters)
        .rename_columns(list(NAMES.values()))
        .to_pandas()
    )


def _key(item: MovedItem) -> tuple[str, str, str]:
    return item.item_id, item.dimension, item.judge


def _arguments(folder: Path, moved: Sequence[MovedItem]) -> dict[tuple[str, str, str], str]:
    """Return the arguments on these items by (item, dimension, judge); of several replicates the first one's."""
    import pyarrow.dataset as ds

    if not moved:
        return {}
    columns = ["item_id", "criterion_id", "judge", "argument"]
    condition = ds.field("item_id").isin([item.item_id for item in moved]) & (ds.field("replicate") == 0)
    rows = ds.dataset(folder / PARQUET).to_table(columns=columns, filter=condition).to_pylist()
    return {(row["item_id"], row["criterion_id"], row["judge"]): row["argument"] for row in rows}
