"""A report's statistics as they are printed in a terminal: sentences and, on demand, the figures behind them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.console import Console, ConsoleOptions, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from dicast.app.domain.figure import Figure
from dicast.app.domain.judge_statistics import DimensionStatistics, GroupStatistics, JobStatistics
from dicast.app.domain.report import Report
from dicast.app.reports.table import TableStyle

MOST_DIMENSIONS = 12
MOST_DIFFERENCES = 15
NAME_MAX = 24
GAP = 3


def print_statistics(report: Report, console: Console, *, figures: bool = False) -> None:
    """Print what is known of the job's judges; with `figures`, all of it."""
    if report.statistics is not None:
        console.print(_StatisticsView(report, report.statistics, figures=figures))


class _StatisticsView:
    def __init__(self, report: Report, found: JobStatistics, *, figures: bool) -> None:
        self._report, self._found, self._figures = report, found, figures

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        found, style = self._found, TableStyle(options.ascii_only)
        yield Text()
        if found.state != "computed":
            yield from _nothing(found, style)
            return
        if found.stopped is not None:
            for line in found.stopped.summary:
                yield _point(line, style)
            yield Text()
        if found.unknowable:
            yield _unknowable(found, style, whole=self._figures)
        for dimension in found.dimensions[:MOST_DIMENSIONS]:
            yield _title(dimension, found, style)
            if self._figures:
                yield from _figures(dimension, style, options.max_width)
            for line in dimension.summary:
                yield _point(line, style)
            yield Text()
        more = len(found.dimensions) - MOST_DIMENSIONS
        if more > 0:
            yield Text(f"and {more:,} more dimensions, see report.json", style="dim")
        if not self._figures:
            yield Text(f"All figures: dicast report {self._report.job_id}", style="dim")


def _nothing(found: JobStatistics, style: TableStyle) -> Iterator[Text]:
    if found.rated:
        yield Text.assemble(("Statistics ", "bold"), style.show(f"left out: {found.reason}", 400))
        return
    yield Text(
        "No ratings by people, so this report cannot say how far the judges are right (`ratings:` in the job).",
        style="dim",
    )


def _unknowable(found: JobStatistics, style: TableStyle, *, whole: bool) -> Text:
    told = Text("Without ratings by people it cannot be said:\n", style="bold")
    for line in found.unknowable if whole else found.unknowable[:2]:
        told.append(f"- {line}\n", style="not bold")
    return told


def _title(of: DimensionStatistics, found: JobStatistics, style: TableStyle) -> Text:
    title = Text.assemble((style.show(of.dimension, NAME_MAX).plain, "bold"))
    if of.rated_items:
        raters = f"{len(of.raters)} people" if len(of.raters) > 1 else "one person"
        title.append(f"  {of.rated_items:,} of {found.items:,} items rated by {raters}, {of.ratings:,} ratings", "dim")
    return title


def _point(line: str, style: TableStyle) -> Padding:
    return Padding(style.show(line, 1000), (0, 0, 0, 2))


def _figures(of: DimensionStatistics, style: TableStyle, width: int) -> RenderResult:
    if of.person is not None:
        yield _voices(of, style, width)
        yield Text()
    yield from _among(of, style)
    yield from _probes(of, style)
    yield from _calibrated(of, style)
    yield from _shares(of, style)
    yield from _contestants(of, style)
    yield from _rankings(of, style)
    for group in of.groups:
        if group.reason is None:
            yield from _groups(group, style)


def _voices(of: DimensionStatistics, style: TableStyle, width: int) -> Table:
    """Return a table with as many columns as fit; the least important ones are left out first."""
    rows = [*of.voices, *([of.person] if of.person is not None else [])]
    names = [style.show(voice.name + (" (audit)" if voice.audited else ""), NAME_MAX) for voice in rows]
    columns = {
        "Pearson": [_told(voice.pearson) for voice in rows],
        "bias": [_told(voice.bias) for voice in rows],
        "kappa": [_told(voice.kappa) for voice in rows],
        "limits": [
            f"{_plain(voice.lower_limit)} to {_plain(voice.upper_limit)}" if voice.lower_limit.is_known else "-"
            for voice in rows
        ],
        "Spearman": [_told(voice.spearman) for voice in rows],
        "missing": [f"{voice.missing:.0%}" for voice in rows],
    }
    table = style.table()
    least = max(len("Against people"), *(name.cell_len for name in names))
    table.add_column("Against people", no_wrap=True, min_width=least)
    room, shown = width - least, []
    for title, cells in columns.items():
        size = max(map(len, (title, *cells)))
        room -= size + GAP
        if room < 0:
            break
        table.add_column(title, justify="right", no_wrap=True, min_width=size)
        shown.append(cells)
    for place, name in enumerate(names):
        table.add_row(name, *(cells[place] for cells in shown))
    return table


def _among(of: DimensionStatistics, style: TableStyle) -> Iterator[Table | Text | Padding]:
    found = {"judges": of.judges, "people": of.people}
    rows = {name: among for name, among in found.items() if among is not None}
    if not rows:
        return
    table = style.table()
    table.add_column("Among", no_wrap=True)
    for title in ("alpha", "ICC(2,1)", "ICC(2,k)", "base rate"):
        table.add_column(title, justify="right", no_wrap=True)
    for name, among in rows.items():
        rate = "-" if among.base_rate is None else f"{among.base_rate:.0%}"
        table.add_row(name, _told(among.alpha), _told(among.icc_single), _told(among.icc_mean), rate)
    yield table
    if of.judges is not None and of.judges.left_out:
        yield _point(f"without {', '.join(of.judges.left_out)}, asked about some items only", style)
    yield Text()


def _probes(of: DimensionStatistics, style: TableStyle) -> Iterator[Table | Text]:
    if not of.probes:
        return
    table = style.table()
    table.add_column("Points more for", no_wrap=True)
    table.add_column("judge", no_wrap=True)
    table.add_column("points", justify="right")
    table.add_column("p (Holm)", justify="right", no_wrap=True)
    for probe in of.probes:
        points = _told(probe.effect) if probe.effect.is_known else probe.effect.reason or "-"
        table.add_row(probe.title, style.show(probe.voice, NAME_MAX), points, _chance(probe.p))
    yield table
    yield Text()


def _table(
    style: TableStyle, first: str | Text, titles: Sequence[str], rows: Iterable[Sequence[str | Text]]
) -> Iterator[Table | Text]:  # fmt: skip
    """Yield a table with names on the left and figures on the right; nothing if there are no rows."""
    table = style.table()
    table.add_column(first, no_wrap=True)
    for title in titles:
        table.add_column(title, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    if table.row_count:
        yield table
        yield Text()


def _shares(of: DimensionStatistics, style: TableStyle) -> Iterator[Table | Text]:
    return _table(style, "Label", ("judges", "people", "people alone"), (
        (style.show(share.label, NAME_MAX), *map(_told, (share.judges, share.people, share.people_alone)))
        for share in of.shares
    ))  # fmt: skip


def _contestants(of: DimensionStatistics, style: TableStyle) -> Iterator[Table | Text]:
    if of.preferences is None:
        return
    ranked = {one.name: one for one in of.preferences.contestants}
    rows = []
    for rate in of.preferences.rates:
        one = ranked.get(rate.name)
        strength = (_told(one.strength), f"{one.ranks[0]:.0%}") if one is not None else ("-", "-")
        rows.append((style.show(rate.name, NAME_MAX), f"{rate.pairs:,}", _told(rate.wins), *strength))
    yield from _table(style, "Compared", ("pairs", "wins", "strength", "first"), rows)


def _rankings(of: DimensionStatistics, style: TableStyle) -> Iterator[Table | Text]:
    return _table(style, "Lists, against people", ("lists", "Kendall's tau", "pairs alike"), (
        (style.show(one.name, NAME_MAX), f"{one.lists:,}", _told(one.tau), _told(one.agreeing))
        for one in (of.preferences.rankings if of.preferences is not None else ())
    ))  # fmt: skip


def _calibrated(of: DimensionStatistics, style: TableStyle) -> Iterator[Table | Text]:
    if not of.calibrated:
        return
    table = style.table()
    table.add_column("Calibrated", no_wrap=True)
    for title in ("mean", "raw", "bias"):
        table.add_column(title, justify="right", no_wrap=title != "mean")
    for voice in of.calibrated:
        mean = _told(voice.calibrated) if voice.calibrated.is_known else voice.calibrated.reason or "-"
        table.add_row(style.show(voice.name, NAME_MAX), style.show(mean), _told(voice.raw), _told(voice.bias))
    yield table
    yield Text()


def _groups(group: GroupStatistics, style: TableStyle) -> Iterator[Table | Text]:
    name, titles = style.show(f"By {group.by}", NAME_MAX), ("items", "panel's mean", "people's mean", "first")
    yield from _table(style, name, titles, (
        (
            style.show(mean.name, NAME_MAX), f"{mean.items:,}", _told(mean.mean),
            _told(mean.people) if mean.people is not None else "-",
            f"{mean.ranks[0]:.0%}" if mean.ranks is not None else "-",
        )
        for mean in group.means
    ))  # fmt: skip
    yield from _table(style, "Difference", ("", "p (Holm)"), (
        (style.show(f"{one.first} - {one.second}", 2 * NAME_MAX), _told(one.difference), _chance(one.p))
        for one in group.differences[:MOST_DIFFERENCES]
    ))  # fmt: skip
    more = len(group.differences) - MOST_DIFFERENCES
    if more > 0:
        yield Text(f"and {more:,} more differences, see report.json\n", style="dim")


def _chance(p: float | None) -> str:
    return "-" if p is None else ("<0.001" if p < 0.001 else f"{p:.3f}")


def _told(found: Figure) -> str:
    if found.value is None or found.low is None or found.high is None:
        return "-"
    return f"{found.value:.2f} ({found.low:.2f}..{found.high:.2f})"


def _plain(found: Figure) -> str:
    return "-" if found.value is None else f"{found.value:.2f}"
