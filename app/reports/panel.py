"""The panel's scores: one an item and dimension, from what all judges gave it.

<results>/<job>/panel.parquet     item_id, criterion_id, score (null without any opinion), opinions, label
                                  (the score in words, if it is one), and of a job with a calibration `calibrated`
                                  (null where no map holds)
"""

from __future__ import annotations

import contextlib
import csv
import io
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import IO, Any, NamedTuple

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json
import pyarrow.parquet as pq

from dicast.app.domain.calibrated import fits_of
from dicast.app.domain.calibration import CalibrationMap
from dicast.app.domain.panel import combined_score, commonest
from dicast.app.domain.report import DimensionReport, PanelCell, Report, ReportDimension
from dicast.app.domain.text import cell
from dicast.app.reports.files import changing, write_report_file
from dicast.app.reports.folders import replacing
from dicast.app.reports.stored_items import read_ratings

PANEL = "panel.parquet"
OPINIONS = "opinions.parquet"
NAME = pa.schema([("name", pa.string())])
ROWS = 65_536
SCHEMA = pa.schema(
    [
        ("item_id", pa.string()),
        ("criterion_id", pa.string()),
        ("score", pa.float64()),
        ("opinions", pa.int32()),
        ("label", pa.string()),
    ]
)


class PanelScore(NamedTuple):
    """The score that a panel gave one item in one dimension. `opinions` counts the judges' opinions with a score."""

    item_id: str
    criterion_id: str
    score: float | None
    opinions: int
    label: str | None = None
    calibrated: float | None = None


def panel_scores(folder: Path, report: Report) -> Iterator[PanelScore]:
    """Yield the panel's scores, in the order in which the items first occur.

    The replicates of a judge are combined first: into their mean, or into the commonest score where scores are labels;
    opinions on a pair in both orders are combined. Memory is some 25 bytes an opinion, and the items' ids. Raises
    `NotLearned` where a rule learns from the whole job and `dicast report` has not been run.
    """
    table = pq.read_table(folder / OPINIONS, columns=["item_id", "criterion_id", "judge", "replicate", "score"])
    items = table["item_id"].combine_chunks().dictionary_encode()
    judges, maps = [agent.name for agent in report.agents], _maps(report)
    learning = {d.id for d in report.dimensions if d.learned is not None and d.learned.halves}
    rated = {(r.item_id, r.dimension) for r in read_ratings(folder) if r.dimension in learning} if learning else set()
    coded = pa.table({
        "item": items.indices,
        "dimension": _codes(table["criterion_id"], [d.id for d in report.dimensions]),
        "judge": _codes(table["judge"], judges),
        "round": table["replicate"],
        "score": table["score"],
    }).sort_by([("item", "ascending"), ("dimension", "ascending"), ("judge", "ascending")])  # fmt: skip
    rows = (
        row
        for batch in coded.to_batches(max_chunksize=ROWS)
        for row in zip(*(column.to_pylist() for column in batch.columns), strict=True)
    )
    for (item, at), group in groupby(rows, key=itemgetter(0, 1)):
        dimension = report.dimensions[at]
        opinions = [(judges[judge], round, score) for _, _, judge, round, score in group if score is not None]
        categorical = dimension.nominal or dimension.panel.combine == "dawid_skene"
        by_judge = {
            judge: _combine_rounds(
                {round: score for _, round, score in rounds},
                categorical=categorical,
                both_orders=report.orders == "both",
            )
            for judge, rounds in groupby(opinions, key=itemgetter(0))
        }
        name = items.dictionary[item].as_py()
        score = dimension.combined(name, by_judge, rated=(name, dimension.id) in rated)
        map_ = maps.get(dimension.id)
        calibrated = None if score is None or map_ is None else map_.apply(score)
        yield PanelScore(name, dimension.id, score, len(opinions), _label(score, dimension), calibrated)


def _combine_rounds(rounds: dict[int, int], *, categorical: bool, both_orders: bool) -> float:
    """Combine the rounds of one judge. Labels have no mean: the commonest stands for them, and for pairs the one next
    to the tie."""
    if categorical and not both_orders:
        return commonest(list(rounds.values()))
    score = combined_score(rounds, both_orders=both_orders)
    return float(int(score)) if categorical else score


def _label(score: float | None, dimension: ReportDimension) -> str | None:
    verdict = dimension.panel.threshold is not None  # a verdict is no score of the scale
    if score is None or verdict or not dimension.labels or score != int(score):
        return None
    return dimension.labels[int(score) - dimension.scale_min]


def _maps(report: Report) -> dict[str, CalibrationMap | None]:
    """Return the map for the panel's scores by dimension, None where no map applies."""
    calibration = report.calibration
    if calibration is None:
        return {}
    return {d.id: fits_of(report, d)[-1].usable_map(calibration) for d in report.dimensions}


def _schema(report: Report) -> pa.Schema:
    return SCHEMA if report.calibration is None else SCHEMA.append(pa.field("calibrated", pa.float64()))


def _codes(column: Any, names: Sequence[str]) -> Any:
    return pc.index_in(
        column.combine_chunks(), value_set=_read(({"name": name} for name in names), NAME)["name"].combine_chunks()
    )


def _read(rows: Iterable[Mapping[str, Any]], schema: pa.Schema) -> pa.Table:
    """Build an Arrow table by way of JSON: to convert Python lists, Arrow would first load pandas, which takes every
    worker a second and 40 MB. There must be rows."""
    lines = b"".join(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE) for row in rows)
    return pa.json.read_json(
        pa.BufferReader(lines),
        read_options=pa.json.ReadOptions(use_threads=False, block_size=len(lines) + 1),
        parse_options=pa.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
    )


def keep_panel(folder: Path, expected: Report, report: Report) -> Report:
    """Write the panel's scores beside the opinions, and replace the report `expected` by one that names their file and
    has their means. Raises what `changing` does, in which case nothing is written."""
    tallies, schema = {dimension.id: _Tally(dimension) for dimension in report.dimensions}, _schema(report)
    with contextlib.ExitStack() as lock:
        with replacing(folder / PANEL) as file:
            with pq.ParquetWriter(file, schema, compression="zstd") as writer:
                for rows in _chunks(panel_scores(folder, report)):
                    for row in rows:
                        tallies[row.criterion_id].add(row)
                    writer.write_table(_read((row._asdict() for row in rows), schema))
            lock.enter_context(changing(folder, expected))
        by_dimension: list[DimensionReport] = [
            entry.model_copy(update={"panel": tallies[entry.dimension.id].cell()}) for entry in report.by_dimension
        ]
        whole = report.model_copy(update={"by_dimension": by_dimension, "panel_parquet": str(folder / PANEL)})
        return write_report_file(folder, whole)


def export_panel(folder: Path, report: Report, format: str, out: Path) -> int:
    """Write the panel's scores to a file of this format, whole or not at all, and return how many there are."""
    count, schema = 0, _schema(report)
    with replacing(out, private=False) as file:
        if format == "parquet":
            with pq.ParquetWriter(file, schema, compression="zstd") as writer:
                for rows in _chunks(panel_scores(folder, report)):
                    count += len(rows)
                    writer.write_table(_read((row._asdict() for row in rows), schema))
        elif format == "csv":
            count = _write_csv(file, panel_scores(folder, report), schema.names)
        else:
            for row in panel_scores(folder, report):
                count += 1
                file.write(orjson.dumps(dict(zip(schema.names, row, strict=False))) + b"\n")
    return count


def _write_csv(file: IO[bytes], rows: Iterator[PanelScore], columns: Sequence[str]) -> int:
    text, count = io.TextIOWrapper(file, encoding="utf-8", newline=""), 0
    writer = csv.writer(text, quoting=csv.QUOTE_ALL)
    writer.writerow(columns)
    for row in rows:
        count += 1
        writer.writerow([cell(value) if isinstance(value, str) else value for value in row[: len(columns)]])
    text.flush()
    text.detach()
    return count


def _chunks(rows: Iterator[PanelScore]) -> Iterator[list[PanelScore]]:
    piece: list[PanelScore] = []
    for row in rows:
        piece.append(row)
        if len(piece) == ROWS:
            yield piece
            piece = []
    if piece:
        yield piece


class _Tally:
    """Mean and deviation of a stream of scores, after B. P. Welford (Technometrics 4, 1962, 419-420), and counts of
    labels."""

    def __init__(self, dimension: ReportDimension) -> None:
        self._n, self._mean, self._squares = 0, 0.0, 0.0
        self._nominal, self._labels = dimension.nominal, dict.fromkeys(dimension.labels, 0)

    def add(self, row: PanelScore) -> None:
        if row.score is not None:
            self._n += 1
            apart = row.score - self._mean
            self._mean += apart / self._n
            self._squares += apart * (row.score - self._mean)
        if row.label is not None:
            self._labels[row.label] += 1

    def cell(self) -> PanelCell:
        n = self._n
        if self._nominal:
            return PanelCell(n=n, mean=None, sd=None, labels=self._labels)
        sd = math.sqrt(self._squares / (n - 1)) if n > 1 else None
        return PanelCell(n=n, mean=self._mean if n else None, sd=sd, labels=self._labels)
