"""The sections of the HTML report as plain data of bounded size for its template."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from dicast.app.domain import standings
from dicast.app.domain.concluding import conclude, counts_of
from dicast.app.domain.conclusions import Chart, JudgeRow
from dicast.app.domain.judge_statistics import DimensionStatistics
from dicast.app.domain.plan import Road
from dicast.app.domain.quote import Quote
from dicast.app.domain.report import DimensionReport, JudgeCell, Report, ReportDimension
from dicast.app.domain.text import counted, joined
from dicast.app.reports import formats
from dicast.app.reports.html import plots
from dicast.app.reports.html.items import ChosenItem, ChosenItems

MOST_DIMENSIONS, MOST_JUDGES = 40, 60
MOST_PLOTTED = 12
MOST_GROUPS, MOST_DIFFERENCES = 30, 20
MOST_REASONS = 5
SHADES = 10
MOST_BARS = 40
ARGUMENT_CHARS, QUOTE_CHARS, QUOTES = 500, 200, 2
ITEM_CHARS, ITEM_LINES = 2000, 40


MOST_CHARTS_SHOWN, MOST_JUDGES_SHOWN, MOST_FAILURES = 8, 12, 12
SENTENCE_CHARS = 600


def opening(report: Report) -> dict[str, Any]:
    """Return what the report begins with: its conclusions in sentences, charts, and a table of judges and one of
    failures."""
    conclusions = conclude(report)
    counts = conclusions.counts
    scored = f"{counts.scored:,} of {counted(counts.planned, 'judgement')}"
    parts = [counted(len(report.agents), "judge"), counted(len(report.dimensions), "dimension"), scored]
    if report.statistics is not None and report.statistics.items:
        parts.insert(0, counted(report.statistics.items, "item"))
    bill = f"; {report.bill()}" if report.bill() else ""
    return {
        "badge": conclusions.badge, "health": conclusions.health,
        "facts": formats.one_line(f"{', '.join(parts)}, in {formats.duration(report.wall_s)}{bill}", SENTENCE_CHARS),
        "best": _lines(conclusions.best), "trust": _lines(conclusions.trust),
        "failures": _lines(conclusions.failures),
        "actions": [
            {"text": formats.one_line(step.text, SENTENCE_CHARS), "command": formats.one_line(step.command)}
            for step in conclusions.actions
        ],
        "heading": HEADINGS[conclusions.subject],
        "basis": f"{'People’s' if conclusions.opinion == 'people' else 'The judges’'} opinion, with 95 % intervals",
        "charts": [_chart(chart) for chart in conclusions.charts[:MOST_CHARTS_SHOWN]],
        "more_charts": max(0, len(conclusions.charts) - MOST_CHARTS_SHOWN),
        "judges": [_judge(row) for row in shown_judges(conclusions.judges)],
        "more_judges": max(0, len(conclusions.judges) - MOST_JUDGES_SHOWN),
        "rated": any(row.agreement.is_known for row in conclusions.judges),
        "failed": [
            (
                formats.name(row.judge) or "–", row.cause, f"{row.count:,}", formats.one_line(row.message, 160),
                row.remedy,
            )
            for row in conclusions.failed[:MOST_FAILURES]
        ],
    }  # fmt: skip


HEADINGS = {
    "systems": "Systems", "scores": "Scores", "pairs": "Systems", "rankings": "Candidates", "labels": "Labels",
    "nothing": "",
}  # fmt: skip


def shown_judges(rows: Sequence[JudgeRow], most: int = MOST_JUDGES_SHOWN) -> list[JudgeRow]:
    """Return the rows that fit: those to drop first, and the panel last."""
    if len(rows) <= most:
        return list(rows)
    order = {"drop": 0, "calibrate": 1, "unknown": 2, "use": 3}
    judges = sorted((row for row in rows if row.kind == "judge"), key=lambda row: order[row.advice])
    panel = [row for row in rows if row.kind == "panel"]
    return judges[: most - len(panel)] + panel


def _lines(sentences: Sequence[str]) -> list[str]:
    return [formats.one_line(line, SENTENCE_CHARS) for line in sentences]


def _chart(chart: Chart) -> dict[str, str]:
    heading = formats.name(chart.title)
    rows = [
        plots.Dot(formats.name(mark.name), mark.place, mark.low, mark.high, mark.text, mark.leads)
        for mark in chart.rows
    ]  # fmt: skip
    drawing = plots.dots(rows, chart.axis, chart.ticks, f"{heading}, {chart.unit}, with 95 % intervals")
    return {"title": heading, "plot": drawing, "note": formats.one_line(chart.note)}


def _judge(row: JudgeRow) -> dict[str, str]:
    """Return a row of the table of judges."""
    at, person = row.agreement, row.person
    plot = ""
    if at.value is not None and at.low is not None and at.high is not None:
        behind = (person.low, person.high) if person.low is not None and person.high is not None else None
        plot = plots.band(at.value, (at.low, at.high), behind, f"Agreement of {formats.name(row.name)} with people")
    noise = row.noise.value if row.noise is not None else None
    return {
        "name": formats.name(row.name), "model": formats.name(row.model), "plot": plot,
        "agreement": formats.number(at.value) if at.is_known else "–", "bias": formats.one_line(row.bias) or "–",
        "noise": f"; agrees with itself at {noise:.2f}" if noise is not None else "",
        "failed": f"{row.failed:,}" if row.failed else "–", "advice": row.advice,
        "reason": formats.one_line("; ".join([row.reason, *row.probes])),
    }  # fmt: skip


def skip_reason(report: Report) -> str:
    """Return in a clause why an escalating panel did not need later judges."""
    rules = [dimension.panel.escalate for dimension in report.dimensions]
    reasons = dict.fromkeys(rule.skips_when for rule in rules if rule is not None)
    return f"the judges before {' or '.join(reasons) or 'had settled the outcome'}"


def title(dimension: ReportDimension) -> str:
    """Return the dimension's name, or its id if it has none."""
    return formats.name(standings.title(dimension))


def scale(dimension: ReportDimension) -> str:
    """Describe the scale: `1–5`, with the first and the last label if it has labels, which are numbered from the
    lower end on."""
    ends = f"{dimension.scale_min}{' to ' if dimension.scale_min < 0 else '–'}{dimension.scale_max}"
    if not dimension.labels:
        return ends
    label_range = f"{formats.one_line(dimension.labels[0], 30)} to {formats.one_line(dimension.labels[-1], 30)}"
    return f"{ends}, {label_range}" if dimension.ordered else f"{counted(len(dimension.labels), 'label')}, no order"


def _cell(mean: float | None, cell: JudgeCell | None) -> str:
    """Format a mean; for labels without an order, the commonest label and its share."""
    if mean is not None or cell is None or not cell.n or not cell.labels:
        return formats.number(mean)
    label, count = max(cell.labels.items(), key=lambda pair: pair[1])
    return f"{formats.one_line(label, 30)} {formats.percent(count / cell.n)}"


def place(mean: float | None, dimension: ReportDimension) -> float | None:
    """Return where a mean lies between the ends of the scale, from 0 to 1."""
    return None if mean is None else (mean - dimension.scale_min) / (dimension.scale_max - dimension.scale_min)


def shade(share: float | None) -> str:
    """Return the CSS class of a cell of the heat map."""
    return "none" if share is None else f"heat-{min(SHADES, max(0, round(SHADES * share)))}"


def heat_map(report: Report) -> dict[str, Any]:
    """Return means with judges as rows and dimensions as columns, and the shade of each cell."""
    dimensions = report.by_dimension[:MOST_DIMENSIONS]
    cells: list[dict[str, JudgeCell]] = [{cell.judge: cell for cell in column.by_judge} for column in dimensions]
    rows = []
    for agent in report.by_agent[:MOST_JUDGES]:
        row = []
        for column, by_judge in zip(dimensions, cells, strict=True):
            cell = by_judge.get(agent.agent.name)
            mean = cell.mean if cell is not None else None
            row.append({"text": _cell(mean, cell), "shade": shade(place(mean, column.dimension))})
        rows.append({"name": formats.name(agent.agent.name), "cells": row, "overall": formats.percent(agent.overall)})
    return {
        "dimensions": [title(column.dimension) for column in dimensions],
        "scales": [scale(column.dimension) for column in dimensions],
        "rows": rows,
        "all": [
            {"text": formats.number(column.scores.mean), "shade": shade(place(column.scores.mean, column.dimension))}
            for column in dimensions
        ],
        "overall": formats.percent(report.overall),
        "more": _more(report),
    }  # fmt: skip


def _more(report: Report) -> str:
    counts = (
        (len(report.by_dimension), MOST_DIMENSIONS, "dimensions"), (len(report.by_agent), MOST_JUDGES, "judges"),
    )  # fmt: skip
    hidden = [f"{total - most:,} more {what}" for total, most, what in counts if total > most]
    return f"and {joined(hidden)}, which report.json has" if hidden else ""


def distributions(report: Report) -> dict[str, Any]:
    """Return how often each score occurs in each dimension, as a plot and as tables."""
    histograms = [_histogram(row) for row in report.by_dimension[:MOST_DIMENSIONS] if row.scores.n]
    drawn = histograms[:MOST_PLOTTED]
    caption = "How often each score was given, by dimension"
    return {
        "plot": plots.histograms(drawn, caption) if drawn and plots.available() else "",
        "tables": [
            {"title": bars.title, "rows": list(zip(bars.labels, (f"{n:,}" for n in bars.counts), strict=True))}
            for bars in histograms
        ],
        "facts": [
            (
                title(row.dimension), scale(row.dimension), f"{row.scores.n:,}",
                formats.number(row.scores.mean), formats.number(row.panel.mean if row.panel else None),
                formats.number(row.scores.sd), formats.number(row.scores.median), formats.number(row.mean_difference),
                f"{row.scores.failures:,}",
            )
            for row in report.by_dimension[:MOST_DIMENSIONS]
        ],
    }  # fmt: skip


def _histogram(row: DimensionReport) -> plots.Histogram:
    low, width = row.dimension.scale_min, row.dimension.scale_max - row.dimension.scale_min + 1
    bins = min(width, MOST_BARS)
    counts = [0] * bins
    for score, times in row.scores.histogram.items():
        counts[(score - low) * bins // width] += times
    first = [low + -(-at * width // bins) for at in range(bins + 1)]
    ranges = [str(start) if after - start == 1 else f"{start}–{after - 1}" for start, after in pairwise(first)]
    labels = [formats.name(label) for label in row.dimension.labels] if len(row.dimension.labels) == bins else ranges
    return plots.Histogram(title(row.dimension), low, counts, labels)


def judged_items(report: Report, chosen: Sequence[ChosenItem]) -> list[dict[str, Any]]:
    """Return items with their judges' opinions, cut to what fits on a page."""
    dimensions = {d.id: d for d in report.dimensions}
    return [
        {
            "id": formats.one_line(item.item_id, 200),
            "place": formats.percent(item.place),
            "dimension": title(dimensions[item.dimension]),
            "apart": formats.percent(item.apart) if item.apart is not None else None,
            "more": item.more,
            "texts": [(name, paragraphs(text)) for name, text in item.texts],
            "opinions": [_opinion(row, dimensions[row["criterion_id"]]) for row in item.opinions],
        }
        for item in chosen
    ]


def paragraphs(text: str) -> list[str]:
    """Return the first lines of a text, each without characters that move or reorder what is read."""
    cut = text[:ITEM_CHARS] + ("…" if len(text) > ITEM_CHARS else "")
    return [formats.one_line(line, ITEM_CHARS) for line in cut.splitlines() if line.strip()][:ITEM_LINES]


def _opinion(row: dict[str, Any], dimension: ReportDimension) -> dict[str, Any]:
    score = row["score"]
    return {
        "judge": formats.name(row["judge"]),
        "dimension": title(dimension),
        "score": _score(score, dimension),
        "shade": "none" if dimension.nominal else shade(place(score, dimension)),
        "argument": formats.one_line(row["argument"] or "", ARGUMENT_CHARS),
        "dissent": formats.one_line(row.get("dissent") or "", ARGUMENT_CHARS),
        "quotes": [formats.one_line(quote, QUOTE_CHARS) for quote in (row["cited_evidence"] or ())[:QUOTES]],
    }


def _score(score: float | None, dimension: ReportDimension) -> str:
    """Format a score in terms of its scale: as a label, or as a number and the highest score."""
    if score is None:
        return "–"
    if 0 <= int(score) - dimension.scale_min < len(dimension.labels):
        return formats.name(dimension.labels[int(score) - dimension.scale_min])
    number = score if isinstance(score, int) else f"{score:.4g}"
    return f"{number} of {dimension.scale_max}"


def trouble(report: Report) -> list[dict[str, Any]]:
    """Return the errors by kind, with their commonest reasons."""
    return [
        {
            "kind": group.kind.value,
            "count": f"{group.count:,}",
            "reasons": [
                {
                    "count": f"{reason.count:,}",
                    "text": formats.one_line(reason.text),
                    "where": ", ".join(map(formats.name, (reason.judge, reason.criterion_id, reason.item_id))),
                }
                for reason in group.reasons[:MOST_REASONS]
            ],
        }
        for group in report.errors
    ]


def spent(report: Report) -> list[tuple[str, str]]:
    """Return what the job cost in time, calls and tokens."""
    counts = counts_of(report)
    share = counts.input_tokens + counts.output_tokens
    return [
        ("wall time", formats.duration(report.wall_s)),
        ("calls", f"{report.calls:,}"),
        *([("cost", report.cost.sentence())] if report.cost.sums or report.cost.unpriced else []),
        *([("quoted before", before)] if report.quote is not None and (before := _quoted(report.quote)) else []),
        ("tokens in", f"{counts.input_tokens:,}"),
        ("tokens out", f"{counts.output_tokens:,}"),
        ("tokens a scored unit", formats.number(share / report.scored if report.scored else None, 0)),
        ("retries", f"{report.retries:,}"),
        ("requeues after a rate limit", f"{report.requeues:,}"),
        ("timeouts", f"{report.timeouts:,}"),
        ("calls without an answer, whose cost is unknown", f"{report.calls_without_answer:,}"),
        ("possible double charges", f"{report.possible_double_charges:,}"),
        ("at most so many more calls, of interrupted workers", f"{report.calls_unreported:,}"),
    ]


def _quoted(quote: Quote) -> str:
    """Return what the job was to take, for whoever compares it with what it took."""
    return formats.one_line("; ".join(filter(None, (quote.calls_sentence(), quote.beside_bill()))), SENTENCE_CHARS)


def _by(road: Road) -> str:
    """Return how questions got to a pool, where they were not asked online."""
    return {"online": "", "batch": ", by batches", "flex": ", by flex", "auto": ", by batches or online"}[road]


def setup(report: Report) -> dict[str, Any]:
    """Return what is needed to run the same job again."""
    return {
        "judges": [
            {
                "name": formats.name(row.agent.name),
                "pool": formats.name(row.agent.pool or "default") + _by(row.agent.road),
                "model": formats.name(row.agent.model or "the pool's"),
                "answered": ", ".join(f"{formats.name(model)} ({n:,})" for model, n in list(row.models.items())[:5]),
            }
            for row in report.by_agent[:MOST_JUDGES]
        ],
        "dimensions": [
            {
                "id": formats.name(d.id),
                "scale": scale(d),
                "weight": f"{d.weight:g}",
                "panel": d.panel.combine,
                "version": formats.name(d.version) or "–",
                "rubric": formats.name(d.rubric) or "–",
            }
            for d in report.dimensions[:MOST_DIMENSIONS]
        ],
        "more": _more(report),
    }  # fmt: skip


def shown_statistics(report: Report) -> Sequence[DimensionStatistics]:
    """Return the statistics of the dimensions that are shown."""
    statistics = report.statistics
    return statistics.dimensions[:MOST_PLOTTED] if statistics is not None and statistics.state == "computed" else ()


def choices(report: Report, choice: ChosenItems | None) -> dict[str, Any]:
    """Return the items that deserve attention; `there` is false if the job's opinions cannot be read."""
    if choice is None:
        return {"there": False, "worst": [], "disputed": []}
    return {
        "there": True,
        "worst": judged_items(report, choice.worst),
        "disputed": judged_items(report, choice.disputed),
    }
