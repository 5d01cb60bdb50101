"""The part of a report's table for scales in words: labels, preferences, checklists."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from dicast.app.domain.report import DimensionReport, ReportDimension

MAX_WORDS = 60
"""The most rows; report.json has all of them."""
NAME_MAX = 24
WORD_MAX = 60


class TableMaker(Protocol):
    """How things are drawn on this console: the part of `TableStyle` that this module needs."""

    def show(self, text: str, limit: int = 200) -> Text:
        """Return any text on one line."""

    def table(self) -> Table:
        """Return an empty table."""


def scale_name(dimension: ReportDimension) -> str:
    """Describe a scale in a few characters."""
    names = {"preference": "A or B", "checklist": f"{len(dimension.questions)} yes/no"}
    if dimension.kind == "labels":
        return f"{len(dimension.labels)} labels"
    return names.get(dimension.kind, f"{dimension.scale_min}..{dimension.scale_max}")


def label_table(rows: Sequence[DimensionReport], style: TableMaker) -> Iterator[RenderableType]:
    """Yield a table of how often each label was given and each question answered with yes; nothing if all scales are
    numbers."""
    lines = [line for row in rows for line in _lines(row)]
    if not lines:
        return
    table = style.table()
    table.add_column("Dimension", no_wrap=True)
    table.add_column("label, or question", overflow="fold")
    for title in ("count", "share"):
        table.add_column(title, justify="right", no_wrap=True)
    before = None
    for name, word, count, total in lines[:MAX_WORDS]:
        share = f"{100 * count / total:.0f} %" if total else "-"
        table.add_row(
            style.show(name if name != before else "", NAME_MAX), style.show(word, WORD_MAX), Text(f"{count:,}"), share
        )
        before = name
    yield table
    more = len(lines) - MAX_WORDS
    yield Text(f"and {more:,} more, see report.json\n" if more > 0 else "", style="dim")


def _lines(row: DimensionReport) -> Iterator[tuple[str, str, int, int]]:
    name = row.dimension.name or row.dimension.id
    for label, count in row.labels.items():
        yield name, label, count, row.scores.n
    for question in row.questions:
        yield name, question.question, question.yes, question.n
