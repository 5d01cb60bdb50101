"""The items of a finished job that deserve attention: those with the lowest scores, and those that judges dispute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from dicast.app.domain.report import Report
from dicast.app.reports.stored_items import kept_texts

PARQUET = "opinions.parquet"
MOST_ITEMS = 15
MOST_OPINIONS = 10
"""The most opinions shown of one item; those in the dimension it was chosen for come first."""
OF_CHIEFS = ("dissent",)
"""Columns that only jobs with a chief judge have."""
MOST_ROWS = 5_000
"""The most opinions of the chosen items that are read; in jobs with thousands of judges, only the first ones."""


@dataclass(frozen=True, slots=True)
class ChosenItem:
    """An item, its scores, and the opinions on it. `place` is its weighted score from 0 to 1 over all dimensions;
    `apart` is how far the judges lie apart in `dimension`, as a share of its scale."""

    item_id: str
    place: float | None
    dimension: str
    apart: float | None
    opinions: list[dict[str, Any]]
    more: int
    texts: list[tuple[str, str]] = field(default_factory=list)
    """What was judged, as (what it is, text); empty if the job's folder does not hold it."""


@dataclass(frozen=True, slots=True)
class ChosenItems:
    """The items with the lowest scores and the items that were disputed most."""

    worst: list[ChosenItem]
    disputed: list[ChosenItem]


def choose(folder: Path, report: Report, most: int = MOST_ITEMS) -> ChosenItems:
    """Choose at most `most` items of each kind from the job's Parquet file; takes some 40 bytes an opinion. Raises
    OSError."""
    cells = _cells(folder, report)
    worst, disputed = _lowest(cells, report, most), _farthest(cells, report, most)
    chosen = {row["item"] for row in (*worst, *disputed)}
    opinions, texts = _opinions_by_item(folder, chosen), kept_texts(folder, chosen)
    return ChosenItems(
        [_chosen(row, opinions, texts, report) for row in worst],
        [_chosen(row, opinions, texts, report) for row in disputed],
    )


def _cells(folder: Path, report: Report) -> Any:
    """Return a row for each item and dimension: the mean position on the scale, and the standard deviation between
    judges."""
    table = pq.read_table(folder / PARQUET, columns=["item_id", "criterion_id", "judge", "score"])
    nominal = pa.array([d.id for d in report.dimensions if d.nominal], pa.string())
    table = table.filter(pc.is_valid(table["score"]))
    table = table.filter(pc.invert(pc.is_in(table["criterion_id"], value_set=nominal)))
    if not len(table):
        return _EMPTY
    items = table["item_id"].combine_chunks().dictionary_encode()
    dimension = _codes(table["criterion_id"], [d.id for d in report.dimensions])
    low = pa.array([float(d.scale_min) for d in report.dimensions]).take(dimension)
    high = pa.array([float(d.scale_max) for d in report.dimensions]).take(dimension)
    score = pc.cast(table["score"].combine_chunks(), pa.float64())
    flat = pa.table({
        "item": items.indices, "dimension": dimension,
        "judge": _codes(table["judge"], [agent.name for agent in report.agents]),
        "place": pc.divide(pc.subtract(score, low), pc.subtract(high, low)),
    })  # fmt: skip
    by_judge = flat.group_by(["item", "dimension", "judge"]).aggregate([("place", "mean")])
    cells = by_judge.group_by(["item", "dimension"]).aggregate([("place_mean", "mean"), ("place_mean", "stddev")])
    names = items.dictionary.take(cells["item"].combine_chunks())
    return pa.table(
        [names, cells["dimension"], cells["place_mean_mean"], cells["place_mean_stddev"]], names=_EMPTY.column_names
    )


_EMPTY = pa.table({
    "item": pa.array([], pa.string()), "dimension": pa.array([], pa.int32()), "place": pa.array([], pa.float64()),
    "apart": pa.array([], pa.float64()),
})  # fmt: skip


def _codes(column: Any, names: Sequence[str]) -> Any:
    return pc.index_in(column.combine_chunks(), value_set=pa.array(list(names), pa.string()))


def _lowest(cells: Any, report: Report, most: int) -> list[dict[str, Any]]:
    """Return the items with the lowest weighted mean over dimensions, each with the dimension in which it is lowest."""
    weights = pa.array([d.weight for d in report.dimensions], pa.float64()).take(cells["dimension"].combine_chunks())
    table = cells.append_column("sum", pc.multiply(cells["place"], weights)).append_column("weight", weights)
    by_item = table.group_by(["item"]).aggregate([("sum", "sum"), ("weight", "sum")])
    by_item = by_item.filter(pc.greater(by_item["weight_sum"], 0))
    ranked = pa.table({"item": by_item["item"], "place": pc.divide(by_item["sum_sum"], by_item["weight_sum"])})
    ranked = ranked.sort_by([("place", "ascending"), ("item", "ascending")]).slice(0, most)
    candidates = cells.filter(pc.is_in(cells["item"], value_set=ranked["item"].combine_chunks()))
    lowest: dict[str, tuple[float, int]] = {}
    for row in candidates.to_pylist():
        candidate = (row["place"], row["dimension"])
        lowest[row["item"]] = min(lowest.get(row["item"], candidate), candidate)
    return [
        {"item": row["item"], "place": row["place"], "dimension": lowest[row["item"]][1], "apart": None}
        for row in ranked.to_pylist()
    ]


def _farthest(cells: Any, report: Report, most: int) -> list[dict[str, Any]]:
    """Return the items with the largest deviation between judges in one dimension, each item once."""
    table = cells.filter(pc.greater(cells["apart"], 0))
    table = table.sort_by([("apart", "descending"), ("item", "ascending"), ("dimension", "ascending")])
    by_item: dict[str, dict[str, Any]] = {}
    for row in table.slice(0, most * len(report.dimensions)).to_pylist():
        if len(by_item) < most:
            by_item.setdefault(row["item"], row)
    return list(by_item.values())


def _opinions_by_item(folder: Path, items: set[str]) -> dict[str, list[dict[str, Any]]]:
    columns = ["item_id", "criterion_id", "judge", "replicate", "score", "argument", "cited_evidence"]
    if not items:
        return {}
    condition = ds.field("item_id").isin(sorted(items))
    by_item: dict[str, list[dict[str, Any]]] = {}
    dataset = ds.dataset(folder / PARQUET)
    columns += [name for name in OF_CHIEFS if name in dataset.schema.names]
    for row in dataset.scanner(columns=columns, filter=condition).head(MOST_ROWS).to_pylist():
        by_item.setdefault(row["item_id"], []).append(row)
    return by_item


def _chosen(
    row: dict[str, Any], by_item: dict[str, list[dict[str, Any]]], texts: dict[str, list[tuple[str, str]]],
    report: Report,
) -> ChosenItem:  # fmt: skip
    dimension = report.dimensions[row["dimension"]].id
    opinions = sorted(by_item.get(row["item"], ()), key=lambda opinion: _order(opinion, dimension, report))
    return ChosenItem(
        item_id=row["item"], place=row["place"], dimension=dimension, apart=row["apart"],
        opinions=opinions[:MOST_OPINIONS], more=max(0, len(opinions) - MOST_OPINIONS), texts=texts.get(row["item"], []),
    )  # fmt: skip


def _order(opinion: dict[str, Any], first: str, report: Report) -> tuple[bool, int, int, int]:
    dimensions = [d.id for d in report.dimensions]
    judges = [agent.name for agent in report.agents]
    criterion, judge = opinion["criterion_id"], opinion["judge"]
    return criterion != first, dimensions.index(criterion), judges.index(judge), opinion["replicate"]
