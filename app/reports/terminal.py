"""A report as it is printed in a terminal.

80 columns suffice, wider terminals show more, and without a terminal it is plain.

All text from models and callers is shown by `printable` and given to rich as `Text`, so that neither markup nor escapes
in it have any effect.

Scales in words (labels, preferences, checklists) have a part of the table of their own, and `print_heat_map` shows
judges against dimensions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.style import Style
from rich.table import Table
from rich.text import Text

from dicast.app.domain.concluding import conclude, counts_of
from dicast.app.domain.conclusions import Conclusions, Counts, JudgeRow, Mark
from dicast.app.domain.figure import interval_text
from dicast.app.domain.opinion import ErrorGroup, ErrorReason, EvaluationError
from dicast.app.domain.report import AgentReport, DimensionReport, Report, ReportDimension
from dicast.app.domain.text import counted, percent, printable
from dicast.app.reports import formats

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
    names = {"preference": "A or B", "checklist": f"{len(dimension.questions)} yes/no", "criteria": "0..100 %"}
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


MAX_ROWS = 60
MAX_JUDGE_COLUMNS = 6
REASONS_SHOWN = 3
_ANSWER_MAX = 600
_REASON_MAX = 600
MAX_BARS = 10

_BARS = "▁▂▃▄▅▆▇█"
_BARS_ASCII = ".:-=+*#@"
_GAP = 2
_NAME_MAX = 24
_JUDGE_MAX = 10
_MODEL_MIN = 12

# A rule under the head and over the foot, and nothing else.
_RULED = box.Box("    \n    \n ── \n    \n    \n ── \n    \n    \n")
_RULED_ASCII = box.Box("    \n    \n -- \n    \n    \n -- \n    \n    \n", ascii=True)


def print_report(report: Report, console: Console) -> None:
    """Print the report to `console`, in its full width."""
    console.print(ReportView(report))


def bars(histogram: Mapping[int, int], low: int, high: int, ramp: str = _BARS, none: str = "·") -> str:
    """Draw a histogram over the scale from `low` to `high`, one character for each score, or for each tenth of a long
    scale.

    The most frequent score has the highest step of the ramp; every score that occurs has at least the lowest one.
    """
    width = high - low + 1
    bins = min(width, MAX_BARS)
    counts = [0] * bins
    for score, count in histogram.items():
        counts[(score - low) * bins // width] += count
    top = max(counts)
    return "".join(ramp[-(-count * len(ramp) // top) - 1] if count else none for count in counts)


class _Column:
    """One column of the table of dimensions: its cells, and the cell of the last row."""

    def __init__(self, title: str, cells: list[Text], total: Text | None = None) -> None:
        self.title, self.cells, self.total = Text(title), cells, total or Text()
        self.width = max(cell.cell_len for cell in (self.title, self.total, *cells))


@dataclass(frozen=True, slots=True)
class TableStyle:
    """How texts, bars and tables are drawn on this console."""

    ascii_only: bool

    def show(self, text: str, limit: int = 200) -> Text:
        """Return any text on one line, at most `limit` characters wide on the screen."""
        ellipsis = "..." if self.ascii_only else "…"
        cleaned = printable(text, limit, ellipsis)
        if self.ascii_only:
            cleaned = cleaned.encode("ascii", "backslashreplace").decode()
        whole = Text(cleaned)
        if whole.cell_len > limit:
            whole.truncate(max(0, limit - len(ellipsis)), overflow="crop")
            whole.append(ellipsis)
        return whole

    def bars(self, histogram: Mapping[int, int], low: int, high: int) -> Text:
        ramp, none = (_BARS_ASCII, " ") if self.ascii_only else (_BARS, "·")
        return Text(bars(histogram, low, high, ramp, none), style="cyan")

    def table(self, *, footer: bool = False) -> Table:
        ruled = _RULED_ASCII if self.ascii_only else _RULED
        # The box's own divider is the other half of the gap.
        return Table(box=ruled, show_edge=False, pad_edge=False, padding=(0, _GAP - 1, 0, 0), show_footer=footer)


class ReportView:
    """A rich renderable of one report."""

    def __init__(self, report: Report) -> None:
        self._report = report

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        report, style = self._report, TableStyle(options.ascii_only)
        yield from _head(report, style)
        if report.answer is not None:
            yield style.show(report.answer.sentence(), _ANSWER_MAX)
        if report.unpublished:
            yield Text("What was judged was drawn at random, in random order.", style="dim")
        for stop in report.stopped[:MAX_ROWS]:
            yield Text.assemble(("Stopped asking: ", "bold red"), style.show(stop.reason, _REASON_MAX))
        for change in report.went_online[:MAX_ROWS]:
            yield Text.assemble(("Went online: ", "bold yellow"), style.show(change.reason, _REASON_MAX))
        for parameter in report.dropped[:MAX_ROWS]:
            yield Text.assemble(("Parameter left out: ", "bold yellow"), style.show(parameter.reason, _REASON_MAX))
        for row in [row for row in report.by_agent if row.as_written][:MAX_ROWS]:
            yield Text.assemble(("Scores as written: ", "bold yellow"), style.show(row.as_written_told, _REASON_MAX))
        yield Text()
        dimensions = _dimensions(report, style, options.max_width)
        yield dimensions
        yield _more(len(report.dimensions), "dimensions")
        yield from label_table(report.by_dimension[:MAX_ROWS], style)
        for part in report.by_dimension[:MAX_ROWS]:
            if part.criteria is not None:
                yield style.show(f"{part.dimension.name or part.dimension.id}: {part.criteria.sentence}", _REASON_MAX)
        yield _judges(report, style, options.max_width)
        yield _more(len(report.agents), "judges")
        if report.errors:
            yield _errors(report.errors, style)
            yield Text()
        yield _legend(report, style, differ=any(str(column.header) == "differ" for column in dimensions.columns))


def _more(count: int, what: str) -> Text:
    return Text(f"and {count - MAX_ROWS:,} more {what}, see report.json\n" if count > MAX_ROWS else "", style="dim")


def _head(report: Report, style: TableStyle) -> Iterator[Text]:
    mark = {"completed": "bold green", "cancelled": "bold yellow"}[report.status]
    job, project = style.show(report.job_id), style.show(report.project)
    yield Text.assemble(("Job ", "bold"), (job.plain, "bold"), "  project ", project, "  ", (report.status, mark))
    judgements = counts_of(report)
    parts = [f"{judgements.scored:,} of {counted(judgements.planned, 'judgement')} scored"]
    if judgements.failed:
        parts.append(f"{judgements.failed:,} failed")
    if judgements.spared:
        parts.append(f"{judgements.spared:,} spared")
    if judgements.missing:
        parts.append(f"{judgements.missing:,} never made")
    if judgements.probes:
        parts.append(f"{judgements.probes:,} more judgements for probes")
    if report.cached:
        parts.append(f"{report.cached:,} taken from the cache, the oldest of {(report.cached_since or '')[:10]}")
    yield Text(", ".join(parts) + f", in {formats.duration(report.wall_s)}", style="red" if report.failed else "")
    counts = [
        counted(report.calls, "call"),
        counted(report.retries, "retry", "retries"),
        counted(report.requeues, "requeue"),
        counted(report.timeouts, "timeout"),
        f"{judgements.input_tokens:,} tokens in",
        f"{judgements.output_tokens:,} out",
    ]
    if report.calls_without_answer:
        unknown = counted(report.calls_without_answer, "call")
        counts.append(f"{unknown} without an answer (cost unknown)")
    if report.possible_double_charges:
        counts.append(counted(report.possible_double_charges, "possible double charge"))
    if report.moved_online:
        counts.append(f"{counted(report.moved_online, 'unit')} moved from a batch to online calls")
    if report.calls_unreported:
        more = counted(report.calls_unreported, "more call")
        counts.append(f"up to {more} of interrupted workers may have reached the provider")
    yield Text(", ".join(counts), style="dim")
    if partial := report.cost.partial():
        yield Text(partial, style="yellow")
    if cost := report.cost.sentence():
        yield Text(f"cost: {cost}", style="dim")
    if report.quote is not None and (before := report.quote.beside_bill()):
        yield Text(f"{before}; {report.quote.calls_sentence()}", style="dim")


def _dimensions(report: Report, style: TableStyle, width: int) -> Table:
    rows = report.by_dimension[:MAX_ROWS]
    whole = [style.show(r.dimension.name or r.dimension.id) for r in rows]
    widest = max(len("Dimension"), *(name.cell_len for name in whole))
    columns = _fitting(report, rows, style, width - min(widest, _NAME_MAX))
    name_width = min(widest, max(_NAME_MAX, width - sum(column.width + _GAP for column in columns)))
    names = [style.show(name.plain, name_width) for name in whole]
    table = style.table(footer=True)
    table.add_column("Dimension", Text("overall"), no_wrap=True, min_width=name_width)
    for column in columns:
        table.add_column(column.title, column.total, justify="right", no_wrap=True, min_width=column.width)
    for i, name in enumerate(names):
        table.add_row(name, *(column.cells[i] for column in columns))
    return table


def _fitting(report: Report, rows: list[DimensionReport], style: TableStyle, room: int) -> list[_Column]:
    """Return the columns that fit into `room` characters; the least important ones are left out first."""
    mean = _Column("mean", [Text(_number(r.scores.mean)) for r in rows], Text(_percent(report.overall)))
    failures = _Column("failed", [_failures(r.scores.failures) for r in rows], _failures(report.failed))
    scale = _Column("scale", [Text(scale_name(r.dimension)) for r in rows])
    spread = _Column(
        "spread",
        [style.bars(r.scores.histogram, r.dimension.scale_min, r.dimension.scale_max) for r in rows],
    )
    sd = _Column("sd", [Text(_number(r.scores.sd)) for r in rows])
    differ = _Column("differ", [Text(_number(r.mean_difference)) for r in rows])
    panel = _Column("panel", [Text(_number(r.panel.mean if r.panel is not None else None)) for r in rows])
    panels = [panel] if any(r.panel is not None for r in rows) else []
    judges: list[_Column] = []
    if 1 < len(report.agents) <= MAX_JUDGE_COLUMNS and all(r.by_judge for r in rows):
        for i, agent in enumerate(report.by_agent):
            title = style.show(agent.agent.name, _JUDGE_MAX).plain
            means = [Text(_number(r.by_judge[i].mean)) for r in rows]
            judges.append(_Column(title, means, Text(_percent(agent.overall))))
    selected = {mean, failures}
    room -= mean.width + failures.width + 2 * _GAP
    for group in (panels, [spread], judges, [sd], [differ] if len(report.agents) > 1 else [], [scale]):
        needed = sum(column.width + _GAP for column in group)
        if needed <= room:
            room -= needed
            selected.update(group)
    return [column for column in (scale, mean, *panels, sd, spread, differ, *judges, failures) if column in selected]


def _judges(report: Report, style: TableStyle, width: int) -> Table:
    rows = [_judge_row(report, row, style) for row in report.by_agent[:MAX_ROWS]]
    titles = ("Judge", "overall", "mean", "sd", "spread", "failed")
    widths = [max(len(title), *(row[i].cell_len for row in rows)) for i, title in enumerate(titles)]
    room = width - sum(widths) - _GAP * len(widths)
    table = style.table()
    for title, least in zip(titles, widths, strict=True):
        table.add_column(title, justify="left" if title == "Judge" else "right", no_wrap=True, min_width=least)
    if room >= _MODEL_MIN:
        table.add_column("model", no_wrap=True)
        for row, agent in zip(rows, report.by_agent, strict=False):
            row.append(style.show(_models(agent), room))
    for row in rows:
        table.add_row(*row)
    return table


def _models(row: AgentReport) -> str:
    """Name the models that answered; if none did, or the report does not say, the model that was requested."""
    if not row.models:
        return f"{row.agent.model or ''}{' (no answer)' if row.failures else ''}".strip()
    if len(row.models) == 1:
        return next(iter(row.models))
    return ", ".join(f"{model} ({count:,})" for model, count in row.models.items())


def _judge_row(report: Report, row: AgentReport, style: TableStyle) -> list[Text]:
    scores, scale = row.scores, report.dimensions[0]
    return [
        style.show(f"{row.agent.name} (chief)" if row.agent.chief else row.agent.name, _NAME_MAX),
        Text(_percent(row.overall)),
        Text(_number(scores.mean if scores else None)),
        Text(_number(scores.sd if scores else None)),
        style.bars(scores.histogram, scale.scale_min, scale.scale_max) if scores else Text("-"),
        _failures(row.failures),
    ]


def _errors(errors: list[ErrorGroup], style: TableStyle) -> Table:
    kinds = max(6, *(len(group.kind) for group in errors))
    counts = max(5, *(len(f"{group.count:,}") for group in errors))
    table = style.table()
    table.add_column("Errors", no_wrap=True, style="red", min_width=kinds)
    table.add_column("count", justify="right", no_wrap=True, min_width=counts)
    table.add_column("why, and where first", overflow="fold")
    for group in errors:
        reasons = group.reasons or [_alone(example, group.count) for example in group.examples[:1]]
        for i, reason in enumerate(reasons[:REASONS_SHOWN]):
            where = ", ".join((reason.judge, reason.criterion_id, reason.item_id))
            table.add_row(
                group.kind.value if i == 0 else "",
                f"{reason.count:,}",
                style.show(f"{reason.text} ({where})", _REASON_MAX),
            )
        if others := group.count - sum(reason.count for reason in reasons[:REASONS_SHOWN]):
            table.add_row("", f"{others:,}", Text("for other reasons, see errors.jsonl", style="dim"))
    return table


def _alone(example: EvaluationError, count: int) -> ErrorReason:
    """Return the reason for an error in a report that was written before reasons were distinguished."""
    return ErrorReason(
        status_code=example.status_code, message=example.message, count=count,
        judge=example.judge, criterion_id=example.criterion_id, item_id=example.item_id,
    )  # fmt: skip


def _legend(report: Report, style: TableStyle, *, differ: bool) -> Table:
    table = Table.grid(padding=(0, _GAP, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row("Results", style.show(report.files.directory, 4096))
    table.add_row("", Text("opinions.parquet, opinions.jsonl, errors.jsonl, report.json", style="dim"))
    table.add_row("overall", Text("weighted place between the ends of the scales, 0 % to 100 %", style="dim"))
    if differ:
        sampled = f" (from {percent(report.agreement_share, 1)} of the texts)" if report.agreement_share < 1 else ""
        note = f"how far two judges of the same text lie apart on average{sampled}"
        table.add_row("differ", Text(note, style="dim"))
    if report.spared:
        note = "units that the panel did not need: texts on which all judges were asked count more in means and judges"
        table.add_row("spared", Text(note, style="dim"))
    if any(row.panel is not None for row in report.by_dimension):
        note = "the mean of the panel's scores, one an item, as the job combines its judges"
        table.add_row("panel", Text(note, style="dim"))
    return table


def _number(value: float | None) -> str:
    return formats.number(value, unknown="-")


def _percent(value: float | None) -> str:
    return "-" if value is None else percent(value)


def _failures(count: int) -> Text:
    return Text(f"{count:,}", style="red" if count else "dim")


MOST_CHARTS, MOST_MARKS = 6, 8
SENTENCES = 3
"""Of each kind, where a terminal shows the conclusions first; report.html has all."""
_LABEL, _BAR_MAX = 8, 40
_SENTENCE_MAX = 600
HEALTH = {"good": "bold green", "partial": "bold yellow", "bad": "bold red"}
ADVICE = {"use": "green", "calibrate": "yellow", "drop": "bold red", "unknown": "dim"}


def print_conclusions(report: Report, console: Console) -> None:
    """Print what follows from the report: which is best, whom to trust, what failed, what to do, and then charts and
    the judges."""
    console.print(ConclusionsView(report, conclude(report)))


class ConclusionsView:
    """A rich renderable of a report's conclusions, in 80 columns or more."""

    def __init__(self, report: Report, conclusions: Conclusions) -> None:
        self._report, self._conclusions = report, conclusions

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        conclusions, style, report = self._conclusions, TableStyle(options.ascii_only), self._report
        yield Text.assemble(
            (style.show(report.job_id).plain, "bold"), "  ", (conclusions.badge, HEALTH[conclusions.health])
        )
        yield Text(facts(report, conclusions.counts), style="dim")
        yield Text()
        for n, line in enumerate(conclusions.best[:SENTENCES]):
            yield Text(style.show(line, _SENTENCE_MAX).plain, style="" if n else "bold")
        yield Text()
        steps = [f"{step.text}  {step.command}".rstrip() for step in conclusions.actions]
        yield _labelled({"Trust": conclusions.trust, "Failed": conclusions.failures, "Do now": steps}, style)
        yield Text()
        if conclusions.charts:
            yield from _charts(conclusions, style, options.max_width)
        if conclusions.judges:
            yield _advice(conclusions.judges, {agent.name for agent in report.agents if agent.chief}, style)
            yield Text()
        if conclusions.failed:
            yield _failed(conclusions, style)
        yield Text() if conclusions.failed else Text("", end="")
        yield Text.assemble(("Results  ", "dim"), style.show(report.files.directory, 4096))
        yield Text(f"All figures: dicast report {report.job_id} --all", style="dim")


def facts(report: Report, counts: Counts) -> str:
    """Return in a line how much was judged by how many."""
    parts = [f"{counts.scored:,} of {counted(counts.planned, 'judgement')} scored"]
    if report.statistics is not None and report.statistics.items:
        parts.insert(0, counted(report.statistics.items, "item"))
    parts += [counted(len(report.agents), "judge"), counted(len(report.dimensions), "dimension")]
    if counts.probes:
        parts.append(f"{counts.probes:,} more judgements for probes")
    roads = {agent.road for agent in report.agents} - {"online"}
    phrases = sorted("batch or online" if road == "auto" else road for road in roads)
    parts += [f"by {' and '.join(phrases)}"] if phrases else []
    bill = f"; {report.bill()}" if report.bill() else ""
    return f"{', '.join(parts)}, in {formats.duration(report.wall_s)}{bill}"


def _labelled(parts: Mapping[str, Sequence[str]], style: TableStyle) -> Table:
    table = Table.grid(padding=(0, 1, 0, 0))
    table.add_column(no_wrap=True, min_width=_LABEL, style="bold dim")
    table.add_column(overflow="fold")
    for label, lines in parts.items():
        for n, line in enumerate(lines[: SENTENCES + 1]):
            table.add_row("" if n else label, style.show(line, _SENTENCE_MAX))
        if len(lines) > SENTENCES + 1:
            table.add_row("", Text(f"and {len(lines) - SENTENCES - 1} more, see report.html", style="dim"))
    return table


def _charts(of: Conclusions, style: TableStyle, width: int) -> Iterator[RenderableType]:
    """Yield a row for each mark: its name, a dot on its interval, and the figures."""
    heading = (
        f"In {'people' if of.opinion == 'people' else 'the judges'}'{'s' if of.opinion == 'people' else ''} opinion"
    )
    marks = [mark for chart in of.charts[:MOST_CHARTS] for mark in chart.rows[:MOST_MARKS]]
    widest = max([len(heading), *(style.show(mark.name, _NAME_MAX).cell_len for mark in marks)])
    bar = max(10, min(_BAR_MAX, width - widest - max((len(mark.text) for mark in marks), default=0) - 2 * _GAP))
    table = style.table()
    table.add_column(heading, no_wrap=True, min_width=widest)
    table.add_column("with 95 % intervals" if any(mark.low is not None for mark in marks) else "", min_width=bar)
    table.add_column("", no_wrap=True)
    for chart in of.charts[:MOST_CHARTS]:
        table.add_row(Text(style.show(chart.title, _NAME_MAX).plain, style="bold"), style.show(chart.note, bar), "")
        for mark in chart.rows[:MOST_MARKS]:
            drawing = Text(_whisker(mark, chart.axis, bar, style), "cyan" if mark.leads else "", no_wrap=True)
            table.add_row(style.show(mark.name, _NAME_MAX), drawing, style.show(mark.text, _NAME_MAX))
    yield table
    if len(of.charts) > MOST_CHARTS:
        yield Text(f"and {len(of.charts) - MOST_CHARTS:,} more dimensions, see report.html", style="dim")
    yield Text()


def _whisker(mark: Mark, axis: tuple[float, float], width: int, style: TableStyle) -> str:
    """Draw a dot and its interval in characters."""
    if mark.place is None:
        return ""

    def column(value: float) -> int:
        return max(0, min(width - 1, round((value - axis[0]) / (axis[1] - axis[0]) * (width - 1))))

    dot, line = ("o", "-") if style.ascii_only else ("●", "─")
    cells = [" "] * width
    if mark.low is not None and mark.high is not None:
        cells[column(mark.low) : column(mark.high) + 1] = line * (column(mark.high) - column(mark.low) + 1)
    cells[column(mark.place)] = dot
    return "".join(cells)


def _advice(rows: Sequence[JudgeRow], chiefs: Collection[str], style: TableStyle) -> Table:
    """Return a table of judges, and what to do with each."""
    fitting = rows[:MAX_ROWS]
    rated = any(row.agreement.is_known for row in fitting)
    table = style.table()
    table.add_column("Judge", no_wrap=True)
    if rated:
        table.add_column("follows people", justify="right", no_wrap=True)
    table.add_column("failed", justify="right", no_wrap=True)
    table.add_column("advice", overflow="fold")
    for row in fitting:
        detail = row.bias if row.advice == "calibrate" else row.reason.partition(" (")[0] if rated else row.reason
        advice = Text.assemble(
            (row.advice if row.advice != "unknown" else "not known", ADVICE[row.advice]), ": ", style.show(detail, 300)
        )
        agreement = [Text(interval_text(row.agreement, to="..") or "-")] if rated else []
        name = f"{row.name} (chief)" if row.name in chiefs else row.name
        table.add_row(style.show(name, _NAME_MAX), *agreement, _failures(row.failed), advice)
    return table


def _failed(of: Conclusions, style: TableStyle) -> Table:
    table = style.table()
    table.add_column("Failed", no_wrap=True, style="red")
    table.add_column("count", justify="right", no_wrap=True)
    table.add_column("why", overflow="fold")
    for row in of.failed[:MAX_BARS]:
        message = f" ({row.message})" if row.message else ""
        table.add_row(
            style.show(row.judge or "-", _NAME_MAX), f"{row.count:,}", style.show(f"{row.cause}{message}", 300)
        )
    return table


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
