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


def print_comparison(found: RunsCompared, console: Console) -> None:
    """Print how far scores moved between two runs, and the items that moved most."""
    for part in _comparison(found, TableStyle(console.options.ascii_only)):
        console.print(part)


def print_fronts(found: list[PanelFront], console: Console, *, unit: str) -> None:
    """Print the front of each dimension; costs are in `unit` an item."""
    for front in found:
        for part in _front(front, TableStyle(console.options.ascii_only), unit):
            console.print(part)


def print_calibration(found: Calibration, missing: list[NotCalibrated], console: Console) -> None:
    """Print how much each map improves scores on items that it was not learned from, and why maps are missing."""
    style = TableStyle(console.options.ascii_only)
    table = style.table()
    table.add_column("Dimension", no_wrap=True)
    table.add_column("judge", no_wrap=True)
    for title in ("rated", "error", "calibrated", "squared error falls by"):
        table.add_column(title, justify="right", no_wrap=title != "squared error falls by")
    for one in found.maps:
        errors = [f"{error:.2f}" if error is not None else "-" for error in (one.error, one.calibrated_error)]
        table.add_row(
            style.show(one.dimension, NAME_MAX), style.show(one.judge, NAME_MAX), f"{one.items:,}", *errors,
            style.show(told(one.gain)),
        )  # fmt: skip
    console.print(table)
    console.print(_line("Errors are roots of mean squares against people, on items that the map had not seen.", style))
    useless = [one for one in found.maps if one.gain.low is None or one.gain.low <= 0]
    if useless:
        names = ", ".join(f"{one.judge} ({one.dimension})" for one in useless[:MOST_NAMED])
        console.print(_line(f"It is not clear that these maps help: {names}.", style))
    for other in missing:
        text = f"{other.judge} ({other.dimension}) cannot be calibrated, because {other.reason}."
        console.print(_line(text, style))


def told(found: Figure) -> str:
    """Format a figure as `0.31 (0.10..0.52)`, or return the reason why it is unknown."""
    if found.value is None or found.low is None or found.high is None:
        return found.reason or "-"
    return f"{found.value:.2f} ({found.low:.2f}..{found.high:.2f})"


def _comparison(found: RunsCompared, style: TableStyle) -> Iterator[RenderableType]:
    yield Text.assemble(("From ", "dim"), style.show(found.first), (" to ", "dim"), style.show(found.second))
    for problem in found.forced:
        yield Text.assemble(("compared all the same: ", "yellow"), style.show(problem))
    table = style.table()
    table.add_column("Dimension", no_wrap=True)
    table.add_column("judge", no_wrap=True)
    for title in ("items", "moved", "p (Holm)", "only in one"):
        table.add_column(title, justify="right", no_wrap=title != "moved")
    for shift in found.shifts:
        p = "-" if shift.p is None else ("<0.001" if shift.p < 0.001 else f"{shift.p:.3f}")
        alone = f"{shift.only_first:,} + {shift.only_second:,}" if shift.only_first or shift.only_second else "-"
        table.add_row(
            style.show(shift.dimension, NAME_MAX), style.show(shift.judge, NAME_MAX),
            f"{shift.shift.items:,}" if shift.shift.is_known else "-", style.show(told(shift.shift)), p, alone,
        )  # fmt: skip
    yield table
    if found.skipped_sentence is not None:
        yield _line(found.skipped_sentence, style)
    yield Text()
    if not found.moved:
        yield Text("No item moved.")
        return
    yield Text("What moved most", style="bold")
    for item in found.moved:
        names = f"{item.item_id}, {item.dimension}, {item.judge}"
        yield Text.assemble((f"{item.first:g} to {item.second:g}  ", "cyan"), style.show(names))
        for argument in (item.first_argument, item.second_argument):
            yield Padding(style.show(argument or "(nothing)", ARGUMENT_MAX), (0, 0, 0, 4))


def _front(found: PanelFront, style: TableStyle, unit: str) -> Iterator[RenderableType]:
    title = Text.assemble((style.show(found.dimension, NAME_MAX).plain, "bold"))
    if found.items:
        title.append(
            f"  {found.panels:,} panels tried on {found.items:,} items that all judges scored and people rated", "dim"
        )
    yield title
    if found.audited:
        yield _line(f"All judges were asked on the {found.audited:,} items of the audit alone, a random sample.", style)
    if found.front:
        yield _options(found, style, unit)
    if found.person.is_known:
        others = "the mean of the other people; panels are measured by that of all, which errs less"
        yield _line(f"A person reaches {told(found.person)} against {others}.", style)
    if found.enough is not None:
        yield _line(f"Cheapest that reaches it: {named(found.enough)}.", style)
    elif found.reason is not None:
        yield _line(f"No panel can be recommended, because {found.reason}.", style)
    yield Text()


def _options(found: PanelFront, style: TableStyle, unit: str) -> Table:
    table = style.table()
    table.add_column("Panel", overflow="fold")
    for column in (f"cost ({unit})", found.measure, "seen when chosen"):
        table.add_column(column, justify="right", no_wrap=True)
    for option in found.front:
        table.add_row(style.show(named(option)), f"{option.cost:g}", told(option.agreement), f"{option.apparent:.2f}")
    return table


def named(option: PanelOption) -> str:
    """Return the names of a panel's judges, and how their scores are combined."""
    names = ", ".join(option.judges)
    return names if len(option.judges) == 1 else f"{names} ({option.combination})"


def _line(text: str, style: TableStyle) -> Padding:
    return Padding(style.show(text, 1000), (0, 0, 0, 2))
