"""Comparisons of runs, searches for panels, and calibrations, as they are printed in a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from dicast.app.domain.calibration import Calibration
from dicast.app.domain.figure import Figure
from dicast.app.domain.findings import NotCalibrated, PanelFront, PanelOption, RunsCompared
from dicast.app.reports.table import TableStyle

NAME_MAX = 24
ARGUMENT_MAX = 300
MOST_NAMED = 10


def print_comparison(comparison: RunsCompared, console: Console) -> None:
    """Print how far scores moved between two runs, and the items that moved most."""
    for part in _comparison(comparison, TableStyle(console.options.ascii_only)):
        console.print(part)


def print_fronts(fronts: list[PanelFront], console: Console, *, unit: str) -> None:
    """Print the front of each dimension; costs are in `unit` an item."""
    for front in fronts:
        for part in _front(front, TableStyle(console.options.ascii_only), unit):
            console.print(part)


def print_calibration(calibration: Calibration, missing: list[NotCalibrated], console: Console) -> None:
    """Print how much each map improves scores on items that it was not learned from, and why maps are missing."""
    style = TableStyle(console.options.ascii_only)
    table = style.table()
    table.add_column("Dimension", no_wrap=True)
    table.add_column("judge", no_wrap=True)
    for title in ("rated", "error", "calibrated", "squared error falls by"):
        table.add_column(title, justify="right", no_wrap=title != "squared error falls by")
    for map_ in calibration.maps:
        errors = [f"{error:.2f}" if error is not None else "-" for error in (map_.error, map_.calibrated_error)]
        table.add_row(
            style.show(map_.dimension, NAME_MAX), style.show(map_.judge, NAME_MAX), f"{map_.items:,}", *errors,
            style.show(figure_text(map_.gain)),
        )  # fmt: skip
    console.print(table)
    console.print(_line("Errors are roots of mean squares against people, on items that the map had not seen.", style))
    useless = [map_ for map_ in calibration.maps if map_.gain.low is None or map_.gain.low <= 0]
    if useless:
        names = ", ".join(f"{map_.judge} ({map_.dimension})" for map_ in useless[:MOST_NAMED])
        console.print(_line(f"It is not clear that these maps help: {names}.", style))
    for other in missing:
        text = f"{other.judge} ({other.dimension}) cannot be calibrated, because {other.reason}."
        console.print(_line(text, style))


def figure_text(figure: Figure) -> str:
    """Format a figure as `0.31 (0.10..0.52)`, or return the reason why it is unknown."""
    if figure.value is None or figure.low is None or figure.high is None:
        return figure.reason or "-"
    return f"{figure.value:.2f} ({figure.low:.2f}..{figure.high:.2f})"


def _comparison(comparison: RunsCompared, style: TableStyle) -> Iterator[RenderableType]:
    yield Text.assemble(("From ", "dim"), style.show(comparison.first), (" to ", "dim"), style.show(comparison.second))
    for problem in comparison.forced:
        yield Text.assemble(("compared all the same: ", "yellow"), style.show(problem))
    table = style.table()
    table.add_column("Dimension", no_wrap=True)
    table.add_column("judge", no_wrap=True)
    for title in ("items", "moved", "p (Holm)", "only in one"):
        table.add_column(title, justify="right", no_wrap=title != "moved")
    for shift in comparison.shifts:
        p = "-" if shift.p is None else ("<0.001" if shift.p < 0.001 else f"{shift.p:.3f}")
        alone = f"{shift.only_first:,} + {shift.only_second:,}" if shift.only_first or shift.only_second else "-"
        table.add_row(
            style.show(shift.dimension, NAME_MAX), style.show(shift.judge, NAME_MAX),
            f"{shift.shift.items:,}" if shift.shift.is_known else "-", style.show(figure_text(shift.shift)), p, alone,
        )  # fmt: skip
    yield table
    if comparison.skipped_sentence is not None:
        yield _line(comparison.skipped_sentence, style)
    yield Text()
    if not comparison.moved:
        yield Text("No item moved.")
        return
    yield Text("What moved most", style="bold")
    for item in comparison.moved:
        names = f"{item.item_id}, {item.dimension}, {item.judge}"
        yield Text.assemble((f"{item.first:g} to {item.second:g}  ", "cyan"), style.show(names))
        for argument in (item.first_argument, item.second_argument):
            yield Padding(style.show(argument or "(nothing)", ARGUMENT_MAX), (0, 0, 0, 4))


def _front(front: PanelFront, style: TableStyle, unit: str) -> Iterator[RenderableType]:
    title = Text.assemble((style.show(front.dimension, NAME_MAX).plain, "bold"))
    if front.items:
        title.append(
            f"  {front.panels:,} panels tried on {front.items:,} items that all judges scored and people rated", "dim"
        )
    yield title
    if front.audited:
        yield _line(f"All judges were asked on the {front.audited:,} items of the audit alone, a random sample.", style)
    if front.front:
        yield _options(front, style, unit)
    if front.person.is_known:
        others = "the mean of the other people; panels are measured by that of all, which errs less"
        yield _line(f"A person reaches {figure_text(front.person)} against {others}.", style)
    if front.enough is not None:
        yield _line(f"Cheapest that reaches it: {panel_name(front.enough)}.", style)
    elif front.reason is not None:
        yield _line(f"No panel can be recommended, because {front.reason}.", style)
    yield Text()


def _options(front: PanelFront, style: TableStyle, unit: str) -> Table:
    table = style.table()
    table.add_column("Panel", overflow="fold")
    for column in (f"cost ({unit})", front.measure, "seen when chosen"):
        table.add_column(column, justify="right", no_wrap=True)
    for option in front.front:
        table.add_row(
            style.show(panel_name(option)), f"{option.cost:g}", figure_text(option.agreement), f"{option.apparent:.2f}"
        )
    return table


def panel_name(option: PanelOption) -> str:
    """Return the names of a panel's judges, and how their scores are combined."""
    names = ", ".join(option.judges)
    return names if len(option.judges) == 1 else f"{names} ({option.combination})"


def _line(text: str, style: TableStyle) -> Padding:
    return Padding(style.show(text, 1000), (0, 0, 0, 2))
