"""A job's statistics as rows, one per figure, for data frames."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from pydantic import BaseModel

from dicast.app.domain.figure import Figure
from dicast.app.domain.judge_statistics import JobStatistics


class StatisticRow(NamedTuple):
    """One figure.

    `part` is where it stands in a dimension's statistics (`voices`, `person`, `judges`, `people`, `groups.means`, ...;
    '' for its own figures), `name` is whose it is (a judge, a group, `a - b` for a difference), `statistic` is what it
    is. Unknown figures have a `reason` and neither value nor interval; `p` is corrected for all that were compared.
    """

    dimension: str
    part: str
    name: str
    statistic: str
    value: float | None
    low: float | None
    high: float | None
    confidence: float
    items: int
    method: str
    reason: str | None
    p: float | None


def statistic_rows(statistics: JobStatistics) -> Iterator[StatisticRow]:
    """Yield all figures in the order of the report; the answer of a question that ended the job comes first."""
    stopped = statistics.stopped
    if stopped is not None:
        yield _row(stopped.dimension, (("stopped", "known"), "", None, stopped.known))
    for dimension in statistics.dimensions:
        for entry in _figures(dimension, (), "", None):
            yield _row(dimension.dimension, entry)


_FigureEntry = tuple[tuple[str, ...], str, float | None, Figure]


def _row(dimension: str, entry: _FigureEntry) -> StatisticRow:
    path, name, p, figure = entry
    return StatisticRow(
        dimension, ".".join(path[:-1]), name, path[-1], figure.value, figure.low, figure.high, figure.confidence,
        figure.items, figure.method, figure.reason, p,
    )  # fmt: skip


def _figures(model: BaseModel, path: tuple[str, ...], name: str, p: float | None) -> Iterator[_FigureEntry]:
    name, p = _name(model) or name, getattr(model, "p", p)
    for field, value in model:
        for element in value if isinstance(value, list) else [value]:
            if isinstance(element, Figure):
                yield (*path, field), name, p, element
            elif isinstance(element, BaseModel):
                yield from _figures(element, (*path, field), name, p)


def _name(model: BaseModel) -> str:
    texts = {field: value for field, value in model if isinstance(value, str)}
    if {"first", "second"} <= texts.keys():
        return f"{texts['first']} - {texts['second']}"
    parts = [texts[field] for field in ("by", "probe", "name", "voice", "label") if texts.get(field)]
    return ": ".join(parts)
