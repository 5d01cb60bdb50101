"""A heat map of judges and dimensions in a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.style import Style
from rich.text import Text

from dicast.app.domain.report import DimensionReport, Report
from dicast.app.reports.table import TableStyle

MOST_JUDGES = 40
HEAT_NAME_MAX, HEAD_MAX = 24, 12
GAP = 2
COLD, HOT = (230, 238, 247), (47, 109, 179)


def print_heat_map(report: Report, console: Console) -> None:
    """Print each judge's mean in each dimension, in a stronger colour the nearer it is to the upper end of the scale,
    for as many dimensions as fit. Prints nothing for a single judge, or a job without a mean."""
    rows = [row for row in report.by_dimension if row.by_judge and row.scores.mean is not None]
    if len(report.agents) < 2 or not rows:
        return
    style = TableStyle(console.options.ascii_only)
    coloured = console.color_system in ("256", "truecolor")  # sixteen colours have no shades
    names = [style.show(agent.name, HEAT_NAME_MAX) for agent in report.agents[:MOST_JUDGES]]
    room = console.width - max(len("all judges"), *(name.cell_len for name in names))
    heads, fitting = [], []
    for row in rows:
        head = style.show(row.dimension.name or row.dimension.id, HEAD_MAX)
        room -= max(head.cell_len, 6) + GAP
        if room < 0:
            break
        heads.append(head)
        fitting.append(row)
    table = style.table()
    table.add_column("Judge", no_wrap=True)
    for head in heads:
        table.add_column(head, justify="right", no_wrap=True, min_width=max(head.cell_len, 6))
    for at, name in enumerate(names):
        table.add_row(name, *(_cell(row, row.by_judge[at].mean, coloured=coloured) for row in fitting))
    table.add_row(
        Text("all judges", style="bold"), *(_cell(row, row.scores.mean, coloured=coloured) for row in fitting)
    )
    console.print(table)
    _print_more(report, rows, fitting, console)


def _print_more(report: Report, rows: list[DimensionReport], fitting: list[DimensionReport], console: Console) -> None:
    hidden = [
        f"{count:,} more {what}"
        for count, what in ((len(report.agents) - MOST_JUDGES, "judges"), (len(rows) - len(fitting), "dimensions"))
        if count > 0
    ]
    console.print(Text(f"and {' and '.join(hidden)}, see report.json" if hidden else "", style="dim"))


def _cell(row: DimensionReport, mean: float | None, *, coloured: bool) -> Text:
    if mean is None:
        return Text("-", style="dim")
    if not coloured:
        return Text(f"{mean:.2f}")
    low, high = row.dimension.scale_min, row.dimension.scale_max
    share = min(1.0, max(0.0, (mean - low) / (high - low)))
    colour = [round(cold + share * (hot - cold)) for cold, hot in zip(COLD, HOT, strict=True)]
    ink = "white" if share > 0.6 else "black"
    return Text(f" {mean:.2f} ", style=Style(color=ink, bgcolor=f"rgb({colour[0]},{colour[1]},{colour[2]})"))
