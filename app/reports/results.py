"""A finished job's opinions, for programs: as objects, or as a data frame of pandas or polars.

    report = evaluate.delay(job).get()
    frame = to_pandas(report)
    frame.groupby(["criterion_id", "metadata.language"])["score"].mean()

All take a report (as `.get()` gives it, or a `Report`), or a job's id. An id is looked for in `results_dir`, by default
what DICAST_RESULTS_DIR names; a report names its folder itself. They raise `NoResults`, or `ResultsAway` if the files
cannot be seen from here. `show_reports` makes notebooks show reports as HTML.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from dicast.app.domain.judge_statistics import JobStatistics, StatisticRow, statistic_rows
from dicast.app.domain.opinion import Opinion
from dicast.app.domain.report import Report
from dicast.app.reports.collecting import ResultsAway, results_root
from dicast.app.reports.files import NoResults, read_opinions, read_report
from dicast.app.reports.folders import job_folder
from dicast.app.reports.statistics import compute
from dicast.config.settings import Settings, environment

if TYPE_CHECKING:
    import pandas
    import polars

__all__ = [
    "NoResults",
    "ResultsAway",
    "load_opinions",
    "load_report",
    "load_statistics",
    "statistics_frame",
    "to_pandas",
    "to_polars",
]


def show_reports() -> None:
    """Make notebooks show a `Report` as HTML from now on."""
    Report.as_html = _html


def _html(report: Report) -> str:
    from dicast.app.reports.html.page import fragment

    return fragment(report)


# ruff: noqa: PLC0415  (pandas and polars are loaded only by the functions that need them)


show_reports()

Job = Report | Mapping[str, Any] | str


def load_report(job: Job, results_dir: str | Path | None = None) -> Report:
    """Return the report of a finished job."""
    if isinstance(job, Report):
        return job
    if isinstance(job, Mapping):
        return Report.model_validate(job)
    return read_report(_root(results_dir), job)


def load_opinions(job: Job, results_dir: str | Path | None = None) -> list[Opinion]:
    """Return all opinions in the order of their units; `dicast.app.reports.files.read_opinions` yields one at
    a time."""
    root, report = _place(job, results_dir)
    return list(read_opinions(root, report.job_id))


def load_statistics(
    job: Job, results_dir: str | Path | None = None, *, by: Sequence[str] | None = None, cluster: str | None = None
) -> JobStatistics:
    """Return the statistics of a finished job: those in the report, or else computed now (half a second a judge and
    dimension). `by` groups the items by metadata that the job kept, `cluster` says which items belong together.

    Raises `NoLibraries` (an ImportError) without the extra `scores`, `NotKept` for metadata that the opinions lack.
    """
    report = load_report(job, results_dir)
    if by is None and cluster is None and report.statistics is not None and report.statistics.state == "computed":
        return report.statistics
    root = results_root(report, _root(results_dir))
    return compute(job_folder(root, report.job_id), report, by, cluster)


@overload
def statistics_frame(
    job: Job, results_dir: str | Path | None = None, library: Literal["pandas"] = "pandas"
) -> pandas.DataFrame: ...
@overload
def statistics_frame(
    job: Job, results_dir: str | Path | None = None, *, library: Literal["polars"]
) -> polars.DataFrame: ...
def statistics_frame(
    job: Job, results_dir: str | Path | None = None, library: Literal["pandas", "polars"] = "pandas"
) -> Any:
    """Return a data frame with a row for each figure of the statistics (`StatisticRow` has the columns), as
    `load_statistics` gives them. Unknown figures have a reason and no numbers. Raises what `load_statistics` does, and
    ImportError."""
    rows = list(statistic_rows(load_statistics(job, results_dir)))
    if library == "polars":
        import polars

        texts = dict.fromkeys(StatisticRow._fields, polars.String)
        kinds = texts | dict.fromkeys(_FRACTIONS, polars.Float64) | {"items": polars.Int64}
        return polars.DataFrame(rows, kinds, orient="row")
    import pandas

    frame = pandas.DataFrame(rows, columns=list(StatisticRow._fields))
    return frame.astype(dict.fromkeys(_FRACTIONS, "float64") | {"items": "int64"})


_FRACTIONS = ("value", "low", "high", "confidence", "p")


def to_pandas(job: Job, results_dir: str | Path | None = None) -> pandas.DataFrame:
    """Return a data frame with a row for each opinion and the columns of `opinions.parquet`. Raises ImportError
    without pandas."""
    try:
        import pandas
    except ImportError as error:
        raise ImportError("to_pandas needs pandas: pip install pandas") from error
    return pandas.read_parquet(_parquet(job, results_dir))


def to_polars(job: Job, results_dir: str | Path | None = None) -> polars.DataFrame:
    """Return a data frame with a row for each opinion and the columns of `opinions.parquet`. Raises ImportError
    without polars."""
    try:
        import polars
    except ImportError as error:
        raise ImportError("to_polars needs polars: pip install polars") from error
    return polars.read_parquet(_parquet(job, results_dir))


def _parquet(job: Job, results_dir: str | Path | None) -> Path:
    root, report = _place(job, results_dir)
    return job_folder(root, report.job_id) / Path(report.files.opinions_parquet).name


def _place(job: Job, results_dir: str | Path | None) -> tuple[Path, Report]:
    report = load_report(job, results_dir)
    return results_root(report, _root(results_dir)), report


def _root(results_dir: str | Path | None) -> Path:
    return Path(results_dir if results_dir is not None else Settings.from_env(environment()).results_dir)
