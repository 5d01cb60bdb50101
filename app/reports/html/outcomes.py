"""The sections of the HTML report on what a job was for: the answer to its question, labels, checklists, preferences,
rankings, and the units that an escalating panel saved. Each is None or empty if the job has nothing of the kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dicast.app.domain.figure import Figure
from dicast.app.domain.judge_statistics import DimensionStatistics, LabelShare, PreferenceStatistics
from dicast.app.domain.report import DimensionReport, JudgeCell, Report
from dicast.app.reports.html import plots, words
from dicast.app.reports.html.sections import (
    MOST_DIMENSIONS,
    MOST_JUDGES,
    MOST_PLOTTED,
    shown_statistics,
    skip_reason,
    title,
)

MOST_CONTESTANTS = 50
MOST_BARS = 30
MOST_MEETINGS = 200
MOST_RANKS = 5
PEOPLE = ("people, with the judges’ help", "people’s ratings alone")


def answer_section(report: Report) -> dict[str, Any] | None:
    """Return the section on the job's question: what is known of the answer, and what it took."""
    job_answer = report.answer
    if job_answer is None:
        return None
    asked_units = report.units - report.unpublished
    facts = [
        ("items that were looked at", f"{job_answer.items:,} of {job_answer.population:,}"),
        ("calls not needed", f"{job_answer.calls_saved:,}"),
        ("units asked", f"{asked_units:,} of {report.units:,} ({words.percent(asked_units / report.units)})"),
    ]
    if job_answer.missing:
        facts.append(("items without a score", f"{job_answer.missing:,}"))
    plot = ""
    if (
        job_answer.value is not None
        and job_answer.low is not None
        and job_answer.high is not None
        and plots.available()
    ):
        caption = (
            f"What is known, with an interval of {100 * job_answer.confidence:g} % that holds however often one looked"
        )
        plot = plots.whiskers(
            [plots.Whisker("answer", job_answer.value, job_answer.low, job_answer.high)], caption, "value"
        )
    stopped = report.statistics.stopped if report.statistics else None
    limits = [words.one_line(line, 600) for line in stopped.summary] if stopped else []
    return {"told": words.one_line(job_answer.sentence(), 600), "limits": limits, "facts": facts, "plot": plot}


def labels(report: Report) -> list[dict[str, Any]]:
    """Return, for each dimension with labels (preferences are labels, too), how often each judge gave each of them."""
    shares = {statistics.dimension: statistics.shares for statistics in shown_statistics(report)}
    return [
        _labels(row, shares.get(row.dimension.id, []))
        for row in report.by_dimension[:MOST_PLOTTED]
        if row.labels and row.scores.n
    ]


def _labels(row: DimensionReport, shares: Sequence[LabelShare]) -> dict[str, Any]:
    name, total = title(row.dimension), row.scores.n
    by_count = sorted(row.labels.items(), key=lambda pair: -pair[1])
    largest = [f"{words.name(label)} {words.percent(count / total)}" for label, count in by_count[:6] if count]
    rest = sum(1 for _, count in by_count[6:] if count)
    judges = [cell for cell in row.by_judge if cell.n][:MOST_BARS]
    rated = any(share.people.is_known or share.people_alone.is_known for share in shares)
    return {
        "title": f"{'Choices' if row.dimension.kind == 'preference' else 'Labels'} in {name}",
        "told": f"Of {words.count(total, 'score')} in {name}: {words.joined(largest)}"
        + (f", and {words.count(rest, 'other label')}." if rest else "."),
        "plot": _stacked_plot(f"Labels in {name} by judge", [words.name(label) for label in row.labels], [
            plots.StackedBar(words.name(cell.judge), tuple(cell.labels.values())) for cell in judges
        ]),
        "heads": ["Judge", *map(words.name, row.labels)],
        "rows": [_label_row(cell) for cell in judges],
        "share_heads": ["Label", "judges", *(PEOPLE if rated else ())],
        "shares": [
            (words.name(share.label),
             *map(_share, (share.judges, *((share.people, share.people_alone) if rated else ()))))
            for share in shares
        ],
    }  # fmt: skip


def _label_row(cell: JudgeCell) -> tuple[str, ...]:
    cells = (f"{count:,} ({words.percent(count / cell.n)})" for count in cell.labels.values())
    return (words.name(cell.judge), *cells)


def checklists(report: Report) -> list[dict[str, Any]]:
    """Return, for each checklist, how often each question was answered with yes."""
    sections = []
    for row in report.by_dimension[:MOST_PLOTTED]:
        with_answers = [share for share in row.questions if share.n]
        if not with_answers:
            continue
        name, least = title(row.dimension), min(with_answers, key=lambda share: share.yes / share.n)
        sections.append({
            "title": name,
            "told": f"In {name} the question with the fewest yes is “{words.one_line(least.question, 200)}”: "
            f"{words.percent(least.yes / least.n)} of {words.count(least.n, 'opinion')}.",
            "plot": _stacked_plot(f"Answers to the questions of {name}", ["yes", "no"], [
                plots.StackedBar(f"{n}. {words.one_line(share.question, 40)}", (share.yes, share.n - share.yes))
                for n, share in enumerate(with_answers, 1)
            ]),
            "rows": [
                (f"{n}. {words.one_line(share.question, 200)}", f"{share.yes:,}", f"{share.n:,}",
                 words.percent(share.yes / share.n))
                for n, share in enumerate(with_answers, 1)
            ],
        })  # fmt: skip
    return sections


def preferences(report: Report) -> list[dict[str, Any]]:
    """Return, for each dimension of pairs, how often A wins, according to judges and people, and which contestant is
    best."""
    names = {d.id: title(d) for d in report.dimensions}
    return [
        {
            **_preference(name, statistics.preferences),
            **_rivals(name, statistics.preferences),
            "places": _position_rows(statistics),
            "orders": _ranking_rows(statistics.preferences),
        }
        for statistics in shown_statistics(report)
        for name in [names.get(statistics.dimension, words.name(statistics.dimension))]
        if statistics.preferences is not None
    ]


def _preference(name: str, pairs: PreferenceStatistics) -> dict[str, Any]:
    people = [
        (f"A wins, by {who}", figure) for who, figure in zip(PEOPLE, (pairs.people, pairs.people_alone), strict=True)
    ]
    rated = any(figure.is_known for _, figure in people)
    raters = [("A wins, by the panel", pairs.wins), *(people if rated else ()), ("tie, by the panel", pairs.ties)]
    wins = [
        plots.Whisker(label, 100 * figure.value, 100 * figure.low, 100 * figure.high, second="people" in label)
        for label, figure in raters
        if figure.value is not None and figure.low is not None and figure.high is not None
    ]
    best = pairs.contestants[:MOST_CONTESTANTS]
    strengths = [
        plots.Whisker(
            words.name(contestant.name), contestant.strength.value, contestant.strength.low, contestant.strength.high
        )
        for contestant in best[:MOST_BARS]
        if contestant.strength.value is not None
        and contestant.strength.low is not None
        and contestant.strength.high is not None
    ]
    lines = [f"In {name}, A is preferred in {_share(pairs.wins)} of the pairs (ties count half); {_share(pairs.ties)} "
            "are ties."]  # fmt: skip
    if best and pairs.reason is None:
        first = best[0]
        lines.append(
            f"{words.name(first.name)} comes first of {words.count(len(pairs.contestants), 'contestant')}"
            + (f", with a probability of {words.percent(first.ranks[0])} of being the best." if first.ranks else ".")
        )
    return {
        "title": name,
        "told": lines,
        "squares": " Squares: people." if rated else "",
        "reason": words.one_line(pairs.reason) if pairs.reason else "",
        "plot": _whisker_plot(wins, f"How often A wins in {name}, in percent, with 95 % intervals", "percent", 50.0),
        "rows": [(label, _share(figure)) for label, figure in raters],
        "strengths": _whisker_plot(
            strengths, f"Strength of each contestant in {name}, with 95 % intervals", "strength (log odds)", 0.0
        ),
        "ranks": min(MOST_RANKS, len(best[0].ranks)) if best else 0,
        "contestants": [
            (
                words.name(contestant.name), words.figure(contestant.strength),
                *(words.percent(chance) for chance in contestant.ranks[:MOST_RANKS]),
            )
            for contestant in best
        ],
        "more": max(0, len(pairs.contestants) - MOST_CONTESTANTS),
    }  # fmt: skip


def _rivals(name: str, statistics: PreferenceStatistics) -> dict[str, Any]:
    """Return how often each contestant wins, and against whom."""
    rates = [
        plots.Whisker(words.name(rate.name), 100 * at.value, 100 * at.low, 100 * at.high)
        for rate in statistics.rates[:MOST_BARS]
        if (at := rate.wins).value is not None and at.low is not None and at.high is not None
    ]
    return {
        "rates_plot": _whisker_plot(
            rates, f"How often each wins in {name}, in percent, with 95 % intervals", "percent", 50.0
        ),
        "rates": [
            (words.name(rate.name), f"{rate.pairs:,}", _share(rate.wins))
            for rate in statistics.rates[:MOST_CONTESTANTS]
        ],
        "meetings": [
            (words.name(meeting.first), words.name(meeting.second), f"{meeting.pairs:,}", _share(meeting.wins))
            for meeting in statistics.meetings[:MOST_MEETINGS]
        ],
    }


def _position_rows(statistics: DimensionStatistics) -> list[tuple[str, str, str, str]]:
    """Return for each rater whether it matters which text is shown first."""
    return [
        (words.name(probe.voice), _share(probe.first), _share(probe.moved), words.chance(probe.p))
        for probe in statistics.probes
        if probe.probe == "position"
    ][:MOST_BARS]


def _ranking_rows(statistics: PreferenceStatistics) -> list[tuple[str, str, str, str, str]]:
    """Return how far each rater orders the candidates of lists as people do."""
    return [
        (
            words.name(ranking.name),
            f"{ranking.lists:,}",
            f"{ranking.pairs:,}",
            words.figure(ranking.tau),
            _share(ranking.agreeing),
        )
        for ranking in statistics.rankings[:MOST_BARS]
    ]


def skipped_section(report: Report) -> dict[str, Any] | None:
    """Return the section on the units that an escalating panel did not need."""
    if not report.spared:
        return None
    share = words.percent(report.spared / report.units, 1)
    text = (
        f"{words.count(report.spared, 'unit')} of {report.units:,} ({share}) were not asked, since "
        f"{skip_reason(report)}; {words.count(report.calls, 'call')} brought the others."
    )
    rows = report.by_agent[:MOST_JUDGES]
    bars = [plots.StackedBar(words.name(row.agent.name), (row.n, row.spared, row.failures)) for row in rows[:MOST_BARS]]
    return {
        "told": text,
        "plot": _stacked_plot("Units of each judge", ["scored", "not needed", "failed"], bars),
        "rows": [
            (words.name(row.agent.name), f"{row.n:,}", f"{row.spared:,}", f"{row.failures:,}",
             words.percent(row.spared / max(1, row.n + row.spared + row.failures)))
            for row in rows
        ],
        "dimensions": [
            (title(row.dimension), f"{row.scores.n:,}", f"{row.spared:,}")
            for row in report.by_dimension[:MOST_DIMENSIONS]
            if row.spared
        ],
    }  # fmt: skip


def _stacked_plot(caption: str, names: Sequence[str], bars: Sequence[plots.StackedBar]) -> str:
    if not bars or len(names) > plots.MOST_TONES or not plots.available():
        return ""
    return plots.stacked(bars, names, caption)


def _whisker_plot(values: Sequence[plots.Whisker], caption: str, axis: str, line: float) -> str:
    return plots.whiskers(values, caption, axis, zero=line) if values and plots.available() else ""


def _share(figure: Figure | None) -> str:
    """Format a share as `62 % (55 % to 69 %)`, or return why it is unknown."""
    if figure is None or figure.value is None or figure.low is None or figure.high is None:
        return words.figure(figure)
    return f"{words.percent(figure.value)} ({words.percent(figure.low)} to {words.percent(figure.high)})"
