"""A comparison of two finished runs, with the judges' arguments on the items that moved most."""

from __future__ import annotations

from collections.abc import Sequence, Set
from pathlib import Path
from typing import Any

from dicast.app.domain.findings import JudgeShift, MovedItem, RunsCompared
from dicast.app.domain.report import Report
from dicast.app.reports.assessing import MISSING, NoLibraries
from dicast.errors import DicastError

PARQUET = "opinions.parquet"
NAMES = {"item_id": "item", "criterion_id": "dimension", "judge": "rater", "replicate": "replicate", "score": "score"}


class RunsDiffer(DicastError, ValueError):
    """The runs measure different things, or have nothing in common."""


def compare_jobs(
    first: tuple[Path, Report], second: tuple[Path, Report], *, most: int = 20, force: bool = False
) -> RunsCompared:
    """Compare two runs: how far scores moved from the first to the second, by dimension and judge, and the `most`
    items that moved furthest.

    Labels without an order are left out, since they have no mean. Raises `RunsDiffer` where a rubric or scale differs,
    unless `force` is set, and where nothing is left to compare; `NoLibraries`.
    """
    try:
        from dicast.app.assessment import runs  # noqa: PLC0415  (takes long to load)
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
    shifts, moved = runs.shifts(_frame(first[0], ordered), _frame(second[0], ordered), most)
    if not shifts:
        raise RunsDiffer("no judge has scored the same item in the same dimension in both runs")
    arguments = [_arguments(folder, moved) for folder, _ in (first, second)]
    return RunsCompared(
        first=first[1].job_id,
        second=second[1].job_id,
        shifts=shifts,
        moved=[
            item.model_copy(
                update={
                    "first_argument": arguments[0].get(_key(item), ""),
                    "second_argument": arguments[1].get(_key(item), ""),
                }
            )
            for item in moved
        ],
        forced=problems,
        spared=_partly_asked(shifts, [first[1], second[1]]),
    )


def _partly_asked(shifts: Sequence[JudgeShift], reports: Sequence[Report]) -> list[str]:
    """Return the judges who were not asked about all items, as `judge (dimension)`."""
    seldom = {
        (row.dimension.id, cell.judge)
        for report in reports for row in report.by_dimension for cell in row.by_judge if cell.spared
    }  # fmt: skip
    return [f"{shift.judge} ({shift.dimension})" for shift in shifts if (shift.dimension, shift.judge) in seldom]


def _frame(folder: Path, dimensions: Set[str]) -> Any:
    import pyarrow.parquet as pq  # noqa: PLC0415  (takes long to load)

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
    import pyarrow.dataset as ds  # noqa: PLC0415  (takes long to load)

    if not moved:
        return {}
    columns = ["item_id", "criterion_id", "judge", "argument"]
    condition = ds.field("item_id").isin([item.item_id for item in moved]) & (ds.field("replicate") == 0)
    rows = ds.dataset(folder / PARQUET).to_table(columns=columns, filter=condition).to_pylist()
    return {(row["item_id"], row["criterion_id"], row["judge"]): row["argument"] for row in rows}
