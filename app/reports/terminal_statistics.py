"""A report's statistics as they are printed in a terminal: sentences and, on demand, the figures behind them.

Comparisons of runs, searches for panels, and calibrations are printed here, too. `plot_fronts` draws a search for
panels: cost of an item against agreement with people.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from dicast.app.analysis import MISSING, NoLibraries
from dicast.app.domain.calibration import Calibration
from dicast.app.domain.certificate import Certificate, Drift
from dicast.app.domain.figure import Figure, interval_text
from dicast.app.domain.judge_statistics import (
    PROBE_TITLES,
    DimensionStatistics,
    GroupDifference,
    GroupStatistics,
    JobStatistics,
    MovedItem,
    NotCalibrated,
    PanelFront,
    PanelOption,
    RatingPlan,
    RunsCompared,
    TrustedPanel,
    VarianceComponents,
)
from dicast.app.domain.report import Report
from dicast.app.domain.standings import CLEAR
from dicast.app.domain.text import percent, printable
from dicast.app.reports import formats
from dicast.app.reports.folders import replacing
from dicast.app.reports.terminal import TableStyle
from dicast.errors import DicastError

MOST_DIMENSIONS = 12
MOST_DIFFERENCES = 15
NAME_MAX = 24
GAP = 3


def print_statistics(report: Report, console: Console, *, figures: bool = False) -> None:
    """Print what is known of the job's judges; with `figures`, all of it."""
    if report.statistics is not None:
        console.print(_StatisticsView(report, report.statistics, figures=figures))


class _StatisticsView:
    def __init__(self, report: Report, statistics: JobStatistics, *, figures: bool) -> None:
        self._report, self._statistics, self._figures = report, statistics, figures

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        statistics, style = self._statistics, TableStyle(options.ascii_only)
        yield Text()
        if statistics.state != "computed":
            yield from _nothing(statistics, style)
            return
        if statistics.stopped is not None:
            for line in statistics.stopped.summary:
                yield _point(line, style)
            yield Text()
        if statistics.unknowable:
            yield _unknowable(statistics, style, whole=self._figures)
        for dimension in statistics.dimensions[:MOST_DIMENSIONS]:
            yield _title(dimension, statistics, style)
            if self._figures:
                yield from _figures(dimension, style, options.max_width)
            for line in dimension.summary:
                yield _point(line, style)
            yield Text()
        if self._figures and statistics.components is not None:
            yield from _components(statistics.components, style)
        more = len(statistics.dimensions) - MOST_DIMENSIONS
        if more > 0:
            yield Text(f"and {more:,} more dimensions, see report.json", style="dim")
        if not self._figures:
            yield Text(f"All figures: dicast report {self._report.job_id}", style="dim")


def _nothing(statistics: JobStatistics, style: TableStyle) -> Iterator[Text]:
    if statistics.rated:
        yield Text.assemble(("Statistics ", "bold"), style.show(f"left out: {statistics.reason}", 400))
        return
    yield Text(
        "No ratings by people, so this report cannot say how far the judges are right (`ratings:` in the job).",
        style="dim",
    )


def _unknowable(statistics: JobStatistics, style: TableStyle, *, whole: bool) -> Text:
    text = Text("Without ratings by people it cannot be said:\n", style="bold")
    for line in statistics.unknowable if whole else statistics.unknowable[:2]:
        text.append(f"- {line}\n", style="not bold")
    return text


def _title(statistics: DimensionStatistics, job: JobStatistics, style: TableStyle) -> Text:
    title = Text.assemble((style.show(statistics.dimension, NAME_MAX).plain, "bold"))
    if statistics.rated_items:
        raters = f"{len(statistics.raters)} people" if len(statistics.raters) > 1 else "one person"
        title.append(
            f"  {statistics.rated_items:,} of {job.items:,} items rated by {raters}, {statistics.ratings:,} ratings",
            "dim",
        )
    return title


def _point(line: str, style: TableStyle) -> Padding:
    return Padding(style.show(line, 1000), (0, 0, 0, 2))


def _figures(statistics: DimensionStatistics, style: TableStyle, width: int) -> RenderResult:
    if statistics.person is not None:
        yield _rater_table(statistics, style, width)
        yield Text()
    yield from _agreement_table(statistics, style)
    for components in statistics.components:
        yield from _components(components, style)
    yield from _probes(statistics, style)
    yield from _calibrated(statistics, style)
    yield from _shares(statistics, style)
    yield from _contestants(statistics, style)
    yield from _rankings(statistics, style)
    for group in statistics.groups:
        if group.reason is None:
            yield from _groups(group, style)


def _rater_table(statistics: DimensionStatistics, style: TableStyle, width: int) -> Table:
    """Return a table with as many columns as fit; the least important ones are left out first."""
    rows = [*statistics.voices, *([statistics.person] if statistics.person is not None else [])]
    names = [style.show(rater.name + (" (audit)" if rater.audited else ""), NAME_MAX) for rater in rows]
    columns = {
        "Pearson": [_interval(rater.pearson) for rater in rows],
        "bias": [_interval(rater.bias) for rater in rows],
        "kappa": [_interval(rater.kappa) for rater in rows],
        "limits": [
            f"{_value(rater.lower_limit)} to {_value(rater.upper_limit)}" if rater.lower_limit.is_known else "-"
            for rater in rows
        ],
        "Spearman": [_interval(rater.spearman) for rater in rows],
        "missing": [percent(rater.missing) for rater in rows],
    }
    table = style.table()
    least = max(len("Against people"), *(name.cell_len for name in names))
    table.add_column("Against people", no_wrap=True, min_width=least)
    room, fitting = width - least, []
    for title, cells in columns.items():
        size = max(map(len, (title, *cells)))
        room -= size + GAP
        if room < 0:
            break
        table.add_column(title, justify="right", no_wrap=True, min_width=size)
        fitting.append(cells)
    for place, name in enumerate(names):
        table.add_row(name, *(cells[place] for cells in fitting))
    return table


def _agreement_table(statistics: DimensionStatistics, style: TableStyle) -> Iterator[Table | Text | Padding]:
    groups = {"judges": statistics.judges, "people": statistics.people}
    rows = {name: among for name, among in groups.items() if among is not None}
    if not rows:
        return
    table = style.table()
    table.add_column("Among", no_wrap=True)
    for title in ("alpha", "ICC(2,1)", "ICC(2,k)", "base rate"):
        table.add_column(title, justify="right", no_wrap=True)
    for name, among in rows.items():
        rate = "-" if among.base_rate is None else percent(among.base_rate)
        table.add_row(name, _interval(among.alpha), _interval(among.icc_single), _interval(among.icc_mean), rate)
    yield table
    if statistics.judges is not None and statistics.judges.left_out:
        yield _point(f"without {', '.join(statistics.judges.left_out)}, asked about some items only", style)
    yield Text()


def _components(components: VarianceComponents, style: TableStyle) -> Iterator[Table | Text]:
    """Yield where the variance comes from, and what other designs would be worth."""
    yield from _table(style, f"Variance of {components.of}", ("points squared", "share"), (
        (part.source, _interval(part.variance), percent(part.share)) for part in components.components
    ))  # fmt: skip
    yield from _table(style, "Design", ("generalizability", "dependability", "error of the mean"), (
        (one.design, f"{one.generalizability:.2f}", f"{one.dependability:.2f}", f"{one.error_of_mean:.3f}")
        for one in components.designs
    ))  # fmt: skip


def _probes(statistics: DimensionStatistics, style: TableStyle) -> Iterator[Table | Text]:
    if not statistics.probes:
        return
    table = style.table()
    table.add_column("Points more for", no_wrap=True)
    table.add_column("judge", no_wrap=True)
    table.add_column("points", justify="right")
    table.add_column("p (Holm)", justify="right", no_wrap=True)
    for probe in statistics.probes:
        points = _interval(probe.effect) if probe.effect.is_known else probe.effect.reason or "-"
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


def _shares(statistics: DimensionStatistics, style: TableStyle) -> Iterator[Table | Text]:
    return _table(style, "Label", ("judges", "people", "people alone"), (
        (style.show(share.label, NAME_MAX), *map(_interval, (share.judges, share.people, share.people_alone)))
        for share in statistics.shares
    ))  # fmt: skip


def _contestants(statistics: DimensionStatistics, style: TableStyle) -> Iterator[Table | Text]:
    if statistics.preferences is None:
        return
    ranked = {contestant.name: contestant for contestant in statistics.preferences.contestants}
    rows = []
    for rate in statistics.preferences.rates:
        contestant = ranked.get(rate.name)
        strength = (
            (_interval(contestant.strength), percent(contestant.ranks[0])) if contestant is not None else ("-", "-")
        )
        rows.append((style.show(rate.name, NAME_MAX), f"{rate.pairs:,}", _interval(rate.wins), *strength))
    yield from _table(style, "Compared", ("pairs", "wins", "strength", "first"), rows)


def _rankings(statistics: DimensionStatistics, style: TableStyle) -> Iterator[Table | Text]:
    return _table(style, "Lists, against people", ("lists", "Kendall's tau", "pairs alike"), (
        (style.show(ranking.name, NAME_MAX), f"{ranking.lists:,}", _interval(ranking.tau), _interval(ranking.agreeing))
        for ranking in (statistics.preferences.rankings if statistics.preferences is not None else ())
    ))  # fmt: skip


def _calibrated(statistics: DimensionStatistics, style: TableStyle) -> Iterator[Table | Text]:
    if not statistics.calibrated:
        return
    table = style.table()
    table.add_column("Calibrated", no_wrap=True)
    for title in ("mean", "raw", "bias"):
        table.add_column(title, justify="right", no_wrap=title != "mean")
    for rater in statistics.calibrated:
        mean = _interval(rater.calibrated) if rater.calibrated.is_known else rater.calibrated.reason or "-"
        table.add_row(style.show(rater.name, NAME_MAX), style.show(mean), _interval(rater.raw), _interval(rater.bias))
    yield table
    yield Text()


def _groups(group: GroupStatistics, style: TableStyle) -> Iterator[Table | Text]:
    """Yield the groups' means and differences: people's, where they are known, and the panel's own."""
    name = style.show(f"By {group.by}", NAME_MAX)
    titles = ("items", "people's mean", "first", "panel's mean", "first")
    yield from _table(style, name, titles, (
        (
            style.show(mean.name, NAME_MAX), f"{mean.items:,}",
            _interval(mean.people) if mean.people is not None else "-", _first(mean.people_ranks),
            _interval(mean.mean), _first(mean.ranks),
        )
        for mean in group.means
    ))  # fmt: skip
    yield from _differences("People's difference", group.people_differences, style)
    yield from _differences("Panel's difference", group.differences, style)
    yield from _table(style, "With people", (f"by {group.by}", "Pearson", "bias"), (
        (style.show(rater.voice, NAME_MAX), style.show(one.name, NAME_MAX), _interval(one.pearson), _interval(one.bias))
        for rater in group.agreement
        for one in rater.groups
    ))  # fmt: skip


def _first(ranks: Sequence[float] | None) -> str:
    return percent(ranks[0]) if ranks else "-"


def _differences(
    title: str, differences: Sequence[GroupDifference], style: TableStyle
) -> Iterator[Table | Text]:  # fmt: skip
    yield from _table(style, title, ("", "p (Holm)"), (
        (style.show(f"{pair.first} - {pair.second}", 2 * NAME_MAX), _interval(pair.difference), _chance(pair.p))
        for pair in differences[:MOST_DIFFERENCES]
    ))  # fmt: skip
    more = len(differences) - MOST_DIFFERENCES
    if more > 0:
        yield Text(f"and {more:,} more differences, see report.json\n", style="dim")


def _chance(p: float | None) -> str:
    return formats.chance(p, unknown="-")


def _interval(figure: Figure) -> str:
    return interval_text(figure, to="..") or "-"


def _value(figure: Figure) -> str:
    return formats.number(figure.value, unknown="-")


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
        errors = [formats.number(error, unknown="-") for error in (map_.error, map_.calibrated_error)]
        table.add_row(
            style.show(map_.dimension, NAME_MAX), style.show(map_.judge, NAME_MAX), f"{map_.items:,}", *errors,
            style.show(interval_or_reason(map_.gain)),
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


def print_trusted_panels(panels: Sequence[TrustedPanel], console: Console) -> None:
    """Print when the judges may decide in each dimension, as a panel that a job can have."""
    style = TableStyle(console.options.ascii_only)
    for panel in panels:
        console.print(style.show(panel.dimension, NAME_MAX), style="bold")
        if panel.bound is None:
            console.print(_line(f"Nobody is shown to be fit to decide, because {panel.reason}.", style))
            continue
        goal = f"agree: {panel.agree:g}, confidence: {panel.confidence:g}"
        console.print(_line(f"panel: {{combine: mean, escalate: {{{panel.by}: {panel.bound:.7g}, {goal}}}}}", style))
        covered = f"The judges decide {percent(panel.coverage)} of the items and leave the others to people"
        agreed = f"people agreed, within {panel.within:g} points, on {panel.agreeing:,} of {panel.decided:,}"
        console.print(_line(f"{covered}. Of the rated items that they decided {agreed}.", style))


def print_certificate(certificate: Certificate, console: Console) -> None:
    """Print what a certificate says of each judge."""
    style = TableStyle(console.options.ascii_only)
    table = style.table()
    table.add_column("Judge", no_wrap=True)
    table.add_column("dimension", no_wrap=True)
    for title in ("with people", "a person", "with itself", "highest score"):
        table.add_column(title, justify="right", no_wrap=True)
    for judge in certificate.judges:
        for area in judge.dimensions:
            figures = map(_interval, (area.agreement, area.person, area.repeats))
            name = style.show(judge.name, NAME_MAX)
            table.add_row(name, style.show(area.dimension, NAME_MAX), *figures, percent(area.ceiling))
    console.print(table)
    for judge in certificate.judges:
        for area in judge.dimensions:
            moved = [probe for probe in area.probes if probe.p is not None and probe.p < CLEAR]
            for probe in moved:
                what = f"{PROBE_TITLES[probe.probe]} {probe.variant}".strip()
                text = f"{judge.name}, {area.dimension}: {what} moves it by {_interval(probe.effect)} points."
                console.print(_line(text, style))
        models = ", ".join(judge.answering.models) or "nobody"
        console.print(_line(f"For {judge.name} answered {models}.", style))
    anchors = f"{len(certificate.anchors):,} anchors"
    console.print(_line(f"It holds until {certificate.expires:%Y-%m-%d}; `dicast watch` has {anchors}.", style))


def print_drift(drifts: Sequence[Drift], objections: Sequence[str], console: Console) -> None:
    """Print whether judges have changed, and why the certificate does not hold any more."""
    style = TableStyle(console.options.ascii_only)
    for objection in objections:
        console.print(Text.assemble(("The certificate does not hold: ", "red"), style.show(objection, 600)))
    table = style.table()
    table.add_column("Judge", no_wrap=True)
    table.add_column("dimension", no_wrap=True)
    for title in ("judgements", "moved by", "evidence", "needed"):
        table.add_column(title, justify="right", no_wrap=True)
    for drift in drifts:
        moved = "-" if drift.shift is None else f"{drift.shift:+.2f}"
        table.add_row(
            style.show(drift.judge, NAME_MAX), style.show(drift.dimension, NAME_MAX), f"{drift.judgements:,}", moved,
            f"{drift.evidence:.3g}", f"{drift.needed:.0f}",
        )  # fmt: skip
    console.print(table)
    changed = [drift for drift in drifts if drift.since is not None]
    for drift in changed:
        console.print(_line(f"{drift.judge} has changed in {drift.dimension}, seen at {drift.since:%Y-%m-%d}.", style))
    if not changed:
        console.print(_line("No judge is seen to have changed.", style))


def print_rating_plans(plans: Sequence[RatingPlan], console: Console) -> None:
    """Print what ratings would buy in each dimension, and whether those there are suffice."""
    style = TableStyle(console.options.ascii_only)
    for plan in plans:
        console.print(style.show(plan.dimension, NAME_MAX), style="bold")
        if plan.reason is not None:
            console.print(_line(f"Nothing can be planned, because {plan.reason}.", style))
            continue
        table = style.table()
        for title in ("Ratings", "alone", "with the judges", "and by --neyman"):
            table.add_column(title, justify="right", no_wrap=True)
        for price in plan.prices:
            table.add_row(f"{price.ratings:,}", f"{price.alone:.2f}", f"{price.even:.2f}", f"{price.neyman:.2f}")
        console.print(table)
        source = f"{plan.pilot:,} rated items" if plan.pilot else "the judges' spread, without errors that they share"
        console.print(_line(f"Width of the 95 % interval of people's mean, as expected from {source}.", style))
        for line in _known_enough(plan):
            console.print(_line(line, style))


def _known_enough(plan: RatingPlan) -> Iterator[str]:
    if plan.now is not None:
        yield f"Now, with {plan.rated:,} items rated: {interval_or_reason(plan.now)}, however often one looks."
    if plan.width is None:
        return
    if plan.is_known:
        yield f"That is no wider than {plan.width:g}: it is known, and no more ratings are needed."
    elif plan.enough is None:
        yield f"Ratings of all items are not expected to make it as narrow as {plan.width:g}."
    else:
        more = max(plan.enough - plan.rated, 1)
        yield f"For a width of {plan.width:g} about {more:,} more ratings are expected to be needed, by --neyman."


def interval_or_reason(figure: Figure) -> str:
    """Format a figure as `0.31 (0.10..0.52)`, or return the reason why it is unknown."""
    return interval_text(figure, to="..") or figure.reason or "-"


def _comparison(comparison: RunsCompared, style: TableStyle) -> Iterator[RenderableType]:
    yield Text.assemble(("From ", "dim"), style.show(comparison.first), (" to ", "dim"), style.show(comparison.second))
    for problem in comparison.forced:
        yield Text.assemble(("compared all the same: ", "yellow"), style.show(problem))
    for n, line in enumerate(comparison.summary):
        yield Text(style.show(line, 600).plain, style="" if n else "bold")
    yield Text()
    yield from _run_shifts(comparison, style)
    table = style.table()
    table.add_column("Dimension", no_wrap=True)
    table.add_column("judge", no_wrap=True)
    for title in ("items", "moved", "p (Holm)", "only in one"):
        table.add_column(title, justify="right", no_wrap=title != "moved")
    for shift in comparison.shifts:
        alone = f"{shift.only_first:,} + {shift.only_second:,}" if shift.only_first or shift.only_second else "-"
        table.add_row(
            style.show(shift.dimension, NAME_MAX), style.show(shift.judge, NAME_MAX),
            f"{shift.shift.items:,}" if shift.shift.is_known else "-", style.show(interval_or_reason(shift.shift)),
            _chance(shift.p), alone,
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
        yield Padding(_side_by_side(item, style), (0, 0, 0, 4))


def _run_shifts(comparison: RunsCompared, style: TableStyle) -> Iterator[RenderableType]:
    """Yield how far each system moved, and all items together."""
    shifts = [*comparison.systems, *comparison.panel]
    if not shifts:
        return
    table = style.table()
    table.add_column(style.show(comparison.by or "System", NAME_MAX), no_wrap=True)
    table.add_column("dimension", no_wrap=True)
    for title in ("items", "moved", "p (Holm)"):
        table.add_column(title, justify="right", no_wrap=title != "moved")
    for shift in shifts:
        table.add_row(
            style.show(shift.system or "all items", NAME_MAX), style.show(shift.dimension, NAME_MAX),
            f"{shift.shift.items:,}" if shift.shift.is_known else "-", _interval(shift.shift),
            _chance(shift.p),
        )  # fmt: skip
    yield table
    yield Text()


def _side_by_side(item: MovedItem, style: TableStyle) -> Table:
    """Return what was judged in each run, and what the judge said of it, beside each other."""
    table = Table.grid(padding=(0, GAP, 0, 0), expand=True)
    for _ in range(2):
        table.add_column(ratio=1, overflow="fold")
    if item.first_text or item.second_text:
        same = item.first_text == item.second_text
        texts = [item.first_text, "(the same text)" if same else item.second_text]
        table.add_row(*(Text(style.show(text or "(not kept)", ARGUMENT_MAX).plain, style="dim") for text in texts))
    table.add_row(
        *(style.show(said or "(nothing)", ARGUMENT_MAX) for said in (item.first_argument, item.second_argument))
    )
    return table


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
        yield _line(f"A person reaches {interval_or_reason(front.person)} against {others}.", style)
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
            style.show(panel_name(option)),
            f"{option.cost:g}",
            interval_or_reason(option.agreement),
            f"{option.apparent:.2f}",
        )
    return table


def panel_name(option: PanelOption) -> str:
    """Return the names of a panel's judges, and how their scores are combined."""
    names = ", ".join(option.judges)
    return names if len(option.judges) == 1 else f"{names} ({option.combination})"


def _line(text: str, style: TableStyle) -> Padding:
    return Padding(style.show(text, 1000), (0, 0, 0, 2))


FORMATS = (".svg", ".png")
WIDTH_IN, HEIGHT_IN = 7.0, 4.5
MOST_LABELLED = 40
"""Characters of a panel's name beside its point."""


class NoPlot(DicastError, ValueError):
    """The plot cannot be drawn."""


def plot_fronts(fronts: Sequence[PanelFront], out: Path, *, unit: str) -> None:
    """Write one image with a subplot for each dimension, whole or not at all.

    Each shows all panels as measured on the items that they were chosen on, and the front as measured on other items,
    with its intervals. Raises `NoPlot`, `NoLibraries`, OSError.
    """
    if out.suffix.lower() not in FORMATS:
        raise NoPlot(f"--plot: the file must end in {', '.join(FORMATS)}, got {out.name[:80]!r}")
    plotted = [front for front in fronts if front.tried]
    if not plotted:
        raise NoPlot(f"--plot: there is no panel to show, because {fronts[0].reason}")
    try:
        from matplotlib import rc_context  # noqa: PLC0415
        from matplotlib.figure import Figure  # noqa: PLC0415  (takes long to load)
    except ImportError as error:
        raise NoLibraries(MISSING) from error
    kind = out.suffix[1:].lower()
    with rc_context({"svg.hashsalt": "dicast", "font.size": 9}):
        figure = Figure(figsize=(WIDTH_IN, HEIGHT_IN * len(plotted)), layout="constrained")
        for front, axis in zip(plotted, figure.subplots(len(plotted), squeeze=False)[:, 0], strict=True):
            _draw(front, axis, unit)
        with replacing(out, private=False) as file:
            figure.savefig(file, format=kind, metadata={"Date": None} if kind == "svg" else None)


def _draw(front: PanelFront, axis: Any, unit: str) -> None:
    costs, apparent = zip(*front.tried, strict=True)
    axis.scatter(costs, apparent, s=12, color="0.78", label="tried (as seen by the items that choose)", zorder=1)
    measured = [option for option in front.front if option.agreement.is_known]
    if measured:
        values = [option.agreement.value or 0.0 for option in measured]
        below = [value - (option.agreement.low or 0.0) for value, option in zip(values, measured, strict=True)]
        above = [(option.agreement.high or 0.0) - value for value, option in zip(values, measured, strict=True)]
        places = [option.cost for option in measured]
        label = "not beaten by a cheaper one (on other items, 95 %)"
        axis.errorbar(places, values, yerr=[below, above], fmt="o-", color="tab:blue", capsize=3, label=label, zorder=3)
        for option, place, value in zip(measured, places, values, strict=True):
            axis.annotate(
                printable(panel_name(option), MOST_LABELLED).replace("$", r"\$"), (place, value), xytext=(5, -12),
                textcoords="offset points", fontsize=8,
            )  # fmt: skip
    if front.person.is_known:
        axis.axhline(
            front.person.value, color="tab:orange", linestyle="--", linewidth=1, label="a person with the others"
        )
    axis.set_title(printable(front.dimension, MOST_LABELLED).replace("$", r"\$"), loc="left")
    axis.set_xlabel(f"cost of an item ({unit})")
    axis.set_ylabel(f"agreement with people ({front.measure})")
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(fontsize=8, frameon=False)
