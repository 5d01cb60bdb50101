"""Sections of the HTML report on what a job was for, and on how far its judges can be trusted.

The former are the answer to its question, labels, checklists, preferences, rankings, and the units that an escalating
panel saved: each is None or empty if the job has nothing of the kind. The latter (`trust`) is agreement, calibration,
probes and groups.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import sqrt
from typing import Any

from dicast.app.domain.figure import Figure, share_text
from dicast.app.domain.judge_statistics import (
    DesignStudy,
    DimensionStatistics,
    GroupDifference,
    GroupMean,
    GroupStatistics,
    LabelShare,
    PreferenceStatistics,
    RaterStatistics,
    VarianceComponents,
)
from dicast.app.domain.report import DimensionReport, JudgeCell, Report, ReportDimension
from dicast.app.domain.text import counted, joined
from dicast.app.reports import formats
from dicast.app.reports.html import plots
from dicast.app.reports.html.sections import (
    MOST_DIFFERENCES,
    MOST_DIMENSIONS,
    MOST_GROUPS,
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
        ("units asked", f"{asked_units:,} of {report.units:,} ({formats.percent(asked_units / report.units)})"),
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
    limits = [formats.one_line(line, 600) for line in stopped.summary] if stopped else []
    return {"told": formats.one_line(job_answer.sentence(), 600), "limits": limits, "facts": facts, "plot": plot}


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
    largest = [f"{formats.name(label)} {formats.percent(count / total)}" for label, count in by_count[:6] if count]
    rest = sum(1 for _, count in by_count[6:] if count)
    judges = [cell for cell in row.by_judge if cell.n][:MOST_BARS]
    rated = any(share.people.is_known or share.people_alone.is_known for share in shares)
    return {
        "title": f"{'Choices' if row.dimension.kind == 'preference' else 'Labels'} in {name}",
        "told": f"Of {counted(total, 'score')} in {name}: {joined(largest)}"
        + (f", and {counted(rest, 'other label')}." if rest else "."),
        "plot": _stacked_plot(f"Labels in {name} by judge", [formats.name(label) for label in row.labels], [
            plots.StackedBar(formats.name(cell.judge), tuple(cell.labels.values())) for cell in judges
        ], ordered=row.dimension.kind == "labels" and row.dimension.ordered),
        "heads": ["Judge", *map(formats.name, row.labels)],
        "rows": [_label_row(cell) for cell in judges],
        "share_heads": ["Label", "judges", *(PEOPLE if rated else ())],
        "shares": [
            (formats.name(share.label),
             *map(_share, (share.judges, *((share.people, share.people_alone) if rated else ()))))
            for share in shares
        ],
    }  # fmt: skip


def _label_row(cell: JudgeCell) -> tuple[str, ...]:
    cells = (f"{count:,} ({formats.percent(count / cell.n)})" for count in cell.labels.values())
    return (formats.name(cell.judge), *cells)


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
            "told": f"In {name} the question with the fewest yes is “{formats.one_line(least.question, 200)}”: "
            f"{formats.percent(least.yes / least.n)} of {counted(least.n, 'opinion')}.",
            "plot": _stacked_plot(f"Answers to the questions of {name}", ["yes", "no"], [
                plots.StackedBar(f"{n}. {formats.one_line(share.question, 40)}", (share.yes, share.n - share.yes))
                for n, share in enumerate(with_answers, 1)
            ]),
            "rows": [
                (f"{n}. {formats.one_line(share.question, 200)}", f"{share.yes:,}", f"{share.n:,}",
                 formats.percent(share.yes / share.n))
                for n, share in enumerate(with_answers, 1)
            ],
        })  # fmt: skip
    return sections


def criteria(report: Report) -> list[tuple[str, str]]:
    """Return what was found of items' own criteria, by the dimensions that ask for them."""
    return [(title(row.dimension), row.criteria.sentence) for row in report.by_dimension if row.criteria is not None]


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
        for name in [names.get(statistics.dimension, formats.name(statistics.dimension))]
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
            formats.name(contestant.name), contestant.strength.value, contestant.strength.low, contestant.strength.high
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
            f"In the judges’ opinion {formats.name(first.name)} comes first of "
            f"{counted(len(pairs.contestants), 'contestant')}"
            + (f", with a probability of {formats.percent(first.ranks[0])} of being the best." if first.ranks else ".")
        )
    return {
        "title": name,
        "told": lines,
        "squares": " Squares: people." if rated else "",
        "reason": formats.one_line(pairs.reason) if pairs.reason else "",
        "plot": _whisker_plot(wins, f"How often A wins in {name}, in percent, with 95 % intervals", "percent", 50.0),
        "rows": [(label, _share(figure)) for label, figure in raters],
        "strengths": _whisker_plot(
            strengths, f"Strength of each contestant in {name}, with 95 % intervals", "strength (log odds)", 0.0
        ),
        "ranks": min(MOST_RANKS, len(best[0].ranks)) if best else 0,
        "contestants": [
            (
                formats.name(contestant.name), formats.figure(contestant.strength),
                *(formats.percent(chance) for chance in contestant.ranks[:MOST_RANKS]),
            )
            for contestant in best
        ],
        "more": max(0, len(pairs.contestants) - MOST_CONTESTANTS),
    }  # fmt: skip


def _rivals(name: str, statistics: PreferenceStatistics) -> dict[str, Any]:
    """Return how often each contestant wins, and against whom."""
    rates = [
        plots.Whisker(formats.name(rate.name), 100 * at.value, 100 * at.low, 100 * at.high)
        for rate in statistics.rates[:MOST_BARS]
        if (at := rate.wins).value is not None and at.low is not None and at.high is not None
    ]
    return {
        "rates_plot": _whisker_plot(
            rates, f"How often each wins in {name}, in percent, with 95 % intervals", "percent", 50.0
        ),
        "rates": [
            (formats.name(rate.name), f"{rate.pairs:,}", _share(rate.wins))
            for rate in statistics.rates[:MOST_CONTESTANTS]
        ],
        "meetings": [
            (formats.name(meeting.first), formats.name(meeting.second), f"{meeting.pairs:,}", _share(meeting.wins))
            for meeting in statistics.meetings[:MOST_MEETINGS]
        ],
    }


def _position_rows(statistics: DimensionStatistics) -> list[tuple[str, str, str, str]]:
    """Return for each rater whether it matters which text is shown first."""
    return [
        (formats.name(probe.voice), _share(probe.first), _share(probe.moved), formats.chance(probe.p))
        for probe in statistics.probes
        if probe.probe == "position"
    ][:MOST_BARS]


def _ranking_rows(statistics: PreferenceStatistics) -> list[tuple[str, str, str, str, str]]:
    """Return how far each rater orders the candidates of lists as people do."""
    return [
        (
            formats.name(ranking.name),
            f"{ranking.lists:,}",
            f"{ranking.pairs:,}",
            formats.figure(ranking.tau),
            _share(ranking.agreeing),
        )
        for ranking in statistics.rankings[:MOST_BARS]
    ]


def skipped_section(report: Report) -> dict[str, Any] | None:
    """Return the section on the units that an escalating panel did not need."""
    if not report.spared:
        return None
    share = formats.percent(report.spared / report.units, 1)
    text = (
        f"{counted(report.spared, 'unit')} of {report.units:,} ({share}) were not asked, since "
        f"{skip_reason(report)}; {counted(report.calls, 'call')} brought the others."
    )
    rows = report.by_agent[:MOST_JUDGES]
    bars = [
        plots.StackedBar(formats.name(row.agent.name), (row.n, row.spared, row.failures)) for row in rows[:MOST_BARS]
    ]
    return {
        "told": text,
        "plot": _stacked_plot("Units of each judge", ["scored", "not needed", "failed"], bars),
        "rows": [
            (formats.name(row.agent.name), f"{row.n:,}", f"{row.spared:,}", f"{row.failures:,}",
             formats.percent(row.spared / max(1, row.n + row.spared + row.failures)))
            for row in rows
        ],
        "dimensions": [
            (title(row.dimension), f"{row.scores.n:,}", f"{row.spared:,}")
            for row in report.by_dimension[:MOST_DIMENSIONS]
            if row.spared
        ],
    }  # fmt: skip


def _stacked_plot(
    caption: str, names: Sequence[str], bars: Sequence[plots.StackedBar], *, ordered: bool = False
) -> str:  # fmt: skip
    if not bars or len(names) > plots.MOST_TONES or not plots.available():
        return ""
    return plots.stacked(bars, names, caption, ordered=ordered)


def _whisker_plot(values: Sequence[plots.Whisker], caption: str, axis: str, line: float) -> str:
    return plots.whiskers(values, caption, axis, zero=line) if values and plots.available() else ""


def _share(figure: Figure | None) -> str:
    """Format a share as `62 % (55 to 69)`, or return why it is unknown."""
    return (figure is not None and share_text(figure)) or formats.figure(figure)


MOST_RATERS = 12
MOST_PROBES = 60
MOST_AGREEMENTS = 60
MOST_WORDS = 30
FEWEST_IN_A_POINT = 3
SIDE = 1.96
NAMED = 60


def trust(report: Report) -> dict[str, Any]:
    """Return all that is known of the judges, or the reason why it is unknown."""
    job_statistics = report.statistics
    names = {d.id: d for d in report.dimensions}
    reason = (
        ""
        if job_statistics is None or job_statistics.state == "computed"
        else (job_statistics.reason or "nobody knows why")
    )
    return {
        "computed": job_statistics is not None and job_statistics.state == "computed",
        "rated": job_statistics is not None and job_statistics.rated,
        "reason": formats.one_line(reason),
        "unknowable": [formats.one_line(line) for line in job_statistics.unknowable]
        if job_statistics is not None
        else [],
        "dimensions": [
            _dimension(statistics, names.get(statistics.dimension)) for statistics in shown_statistics(report)
        ],
        "more": max(0, len(job_statistics.dimensions) - MOST_PLOTTED) if job_statistics is not None else 0,
        "variance": [_variance(job_statistics.components, "all dimensions")]
        if job_statistics is not None and job_statistics.components is not None
        else [],
    }


def _dimension(statistics: DimensionStatistics, dimension: ReportDimension | None) -> dict[str, Any]:
    name = title(dimension) if dimension is not None else formats.name(statistics.dimension)
    rated = f"{statistics.rated_items:,} items rated by {counted(len(statistics.raters), 'person', 'people')}"
    return {
        "title": name,
        "rated": rated if statistics.rated_items else "nobody has rated it",
        "summary": [formats.one_line(line, 600) for line in statistics.summary[:MOST_WORDS]],
        "voices": [_rater_row(rater) for rater in _raters(statistics)],
        "agreement": _agreement(statistics, name),
        "calibration": _calibration(statistics, name),
        "bias": _bias(statistics, name),
        "probes": [
            (formats.name(probe.voice), probe.title, formats.figure(probe.effect), formats.chance(probe.p))
            for probe in statistics.probes[:MOST_PROBES]
        ],
        "probes_plot": _probes(statistics, name),
        "calibrated": [
            (
                formats.name(rater.name) if rater.kind == "judge" else "the panel",
                formats.figure(rater.calibrated),
                formats.figure(rater.raw),
                formats.figure(rater.bias),
                counted(rater.learned_on, "item"),
            )
            for rater in statistics.calibrated[:MOST_RATERS]
        ],
        "calibrated_plot": _calibrated(statistics, name),
        "groups": [_group(group, name) for group in statistics.groups],
        "independent": formats.figure(statistics.independent, 1) if len(statistics.voices) > 2 else "",
        "among": [
            (who, formats.figure(among.alpha), formats.figure(among.icc_single), formats.percent(among.base_rate))
            for who, among in (("judges", statistics.judges), ("people", statistics.people))
            if among is not None
        ],
        "variance": [_variance(components, name) for components in statistics.components],
    }


def _raters(statistics: DimensionStatistics) -> list[RaterStatistics]:
    """Return the statistics of the judges, the panel, and a person, if people have rated."""
    return (
        [*statistics.voices[: MOST_RATERS - 1], *statistics.voices[MOST_RATERS - 1 :][-1:], statistics.person]
        if statistics.person
        else []
    )


def _rater_row(rater: RaterStatistics) -> tuple[str, ...]:
    return (
        _name(rater), formats.figure(rater.pearson), formats.figure(rater.kappa), formats.figure(rater.bias),
        formats.percent(rater.base_rate), formats.percent(rater.missing),
    )  # fmt: skip


def _name(rater: RaterStatistics) -> str:
    name = {"panel": "the panel", "people": "a person"}.get(rater.kind) or formats.name(rater.name)
    return f"{name} (audit)" if rater.audited else name


def _whiskers_of(raters: Sequence[RaterStatistics], field: str) -> Iterator[plots.Whisker]:
    for rater in raters:
        figure: Figure = getattr(rater, field)
        if figure.value is not None and figure.low is not None and figure.high is not None:
            yield plots.Whisker(_name(rater), figure.value, figure.low, figure.high, second=rater.kind == "people")


def _agreement(statistics: DimensionStatistics, name: str) -> str:
    whiskers = list(_whiskers_of(_raters(statistics), "pearson"))
    if not whiskers or not plots.available():
        return ""
    caption = f"Correlation with people in {name}, with 95 % intervals; a person beside the judges"
    return plots.whiskers(whiskers, caption, "correlation with people")


def _bias(statistics: DimensionStatistics, name: str) -> str:
    whiskers = [whisker for whisker in _whiskers_of(_raters(statistics), "bias") if not whisker.second]
    if not whiskers or not plots.available():
        return ""
    caption = f"How far each judge scores above or below people in {name}, with 95 % intervals"
    return plots.whiskers(whiskers, caption, "points above people", zero=0.0)


def _calibration(statistics: DimensionStatistics, name: str) -> str:
    """Plot, for each score that a judge gives, the mean that a person gives the same items."""
    curves = [
        plots.Curve(_name(rater), points)
        for rater in _raters(statistics)
        if rater.kind != "people" and len(points := calibration(rater, statistics.scale_min)) > 1
    ][:6]
    if not curves or not plots.available():
        return ""
    caption = f"What a person gives on average where a judge gives a score, in {name}, with 95 % intervals"
    return plots.curves(curves, caption, ("judge's score", "person's mean"))


def calibration(rater: RaterStatistics, lowest: int) -> list[tuple[float, float, float, float]]:
    """Return (judge's score, person's mean, low, high) for each score that the judge gave to at least
    `FEWEST_IN_A_POINT` items."""
    points = []
    for at, row in enumerate(rater.confusion or ()):
        n = sum(row)
        if n < FEWEST_IN_A_POINT:
            continue
        mean = sum(times * (lowest + column) for column, times in enumerate(row)) / n
        squares = sum(times * (lowest + column - mean) ** 2 for column, times in enumerate(row))
        side = SIDE * sqrt(squares / (n - 1) / n)
        top = lowest + len(row) - 1
        points.append((float(lowest + at), mean, max(lowest, mean - side), min(top, mean + side)))
    return points


def _probes(statistics: DimensionStatistics, name: str) -> str:
    whiskers = [
        plots.Whisker(
            f"{probe.title}, {formats.name(probe.voice)}"[:NAMED], at.value, at.low, at.high, second=probe.tried
        )
        for probe in statistics.probes[:MOST_PROBES]
        if (at := probe.effect).value is not None and at.low is not None and at.high is not None
    ]
    if not whiskers or not plots.available():
        return ""
    return plots.whiskers(whiskers, f"What probes found in {name}, with 95 % intervals", "points more", zero=0.0)


def _calibrated(statistics: DimensionStatistics, name: str) -> str:
    whiskers = [
        plots.Whisker(f"{formats.name(rater.name)}, {kind}", at.value, at.low, at.high, second=kind == "raw")
        for rater in statistics.calibrated[:MOST_RATERS]
        for kind, at in (("raw", rater.raw), ("calibrated", rater.calibrated))
        if at.value is not None and at.low is not None and at.high is not None
    ]
    if not whiskers or not plots.available():
        return ""
    return plots.whiskers(whiskers, f"Means in {name} before and after calibration, with 95 % intervals", "mean")


def _group(group: GroupStatistics, name: str) -> dict[str, Any]:
    """Return what people would say of the groups, and the panel's own means and differences beside it."""
    means = group.means[:MOST_GROUPS]
    rated = any(entry.people is not None and entry.people.is_known for entry in means)
    whiskers = [
        plots.Whisker(f"{formats.one_line(entry.name, 40)}{whose}", at.value, at.low, at.high, second=second)
        for entry in means
        for at, second, whose in ((entry.people, True, ", people"), (entry.mean, False, ", panel" if rated else ""))
        if at is not None and at.value is not None and at.low is not None and at.high is not None
    ]
    caption = f"Mean of {name} by {formats.name(group.by)}, with 95 % intervals"
    wins = any(entry.wins is not None for entry in means)
    return {
        "by": formats.name(group.by),
        "reason": formats.one_line(group.reason) if group.reason is not None else "",
        "rated": rated,
        "plot": plots.whiskers(whiskers, caption, "mean") if whiskers and plots.available() else "",
        "wins": wins,
        "means": [
            (
                formats.name(entry.name), f"{entry.items:,}",
                formats.figure(entry.people), formats.percent(entry.people_ranks[0]) if entry.people_ranks else "–",
                formats.figure(entry.mean), formats.percent(entry.ranks[0]) if entry.ranks else "–",
                *([formats.figure(entry.wins)] if wins else ()),
            )
            for entry in means
        ],
        "ranked": min(MOST_RANKS, *(len(entry.ranks or ()) for entry in means)) if len(means) > 1 else 0,
        "people_ranks": _ranks(means, [entry.people_ranks for entry in means]),
        "ranks": _ranks(means, [entry.ranks for entry in means]),
        "people_differences": _differences(group.people_differences),
        "people_more": max(0, len(group.people_differences) - MOST_DIFFERENCES),
        "differences": _differences(group.differences),
        "more": max(0, len(group.differences) - MOST_DIFFERENCES),
        **_agreement_by_group(group),
    }  # fmt: skip


def _agreement_by_group(group: GroupStatistics) -> dict[str, Any]:
    """Return how far each rater agrees with people in each group, and whether it does so equally in all of them."""
    rows = [
        (_voice(rater.voice), formats.name(entry.name), formats.figure(entry.pearson), formats.figure(entry.bias))
        for rater in group.agreement
        for entry in rater.groups
    ]
    return {
        "cluster": formats.name(group.cluster),
        "agreement": rows[:MOST_AGREEMENTS],
        "more_agreement": max(0, len(rows) - MOST_AGREEMENTS),
        "equal": [
            (_voice(rater.voice), formats.chance(rater.pearson_p), formats.chance(rater.bias_p))
            for rater in group.agreement[:MOST_AGREEMENTS]
        ],
    }


def _voice(name: str) -> str:
    return "the panel" if name == "panel" else formats.name(name)


_SOURCES = {
    "item": "items: some are better than others",
    "judge": "judges: some are stricter than others",
    "rater": "raters: some are stricter than others",
    "dimension": "dimensions: scores are higher in some",
    "item x judge": "items × judges: which items a judge likes",
    "residual": "residual: all else, such as chance",
}
_SCORES_OF = {
    "judges": ("the judges’ scores", "items with all scores; intervals are for items like these, and these judges"),
    "people": ("people’s ratings", "rated items; intervals are for items like these, and these raters"),
    "dimensions": (
        "the judges’ scores", "items with all scores; intervals are for items like these, these judges and dimensions"
    ),
}  # fmt: skip
"""Whose scores they are, and what their intervals speak of."""


def _variance(components: VarianceComponents, name: str) -> dict[str, Any]:
    """Return where the variance of scores comes from, and what other designs would be worth."""
    scores, population = _SCORES_OF[components.of]
    return {
        "scores": f"{scores} in {name}",
        "population": f"{components.items:,} {population}",
        "reason": formats.one_line(components.reason) if components.reason is not None else "",
        "sources": [
            (
                _SOURCES.get(part.source, part.source.replace(" x ", " × ")),
                formats.figure(part.variance), formats.percent(part.share),
            )
            for part in components.components
        ],
        "designs": [
            (
                _design(design, "rater" if components.of == "people" else "judge"),
                formats.number(design.generalizability), formats.number(design.dependability),
                formats.number(design.error_of_mean, 3),
            )
            for design in components.designs
        ],
    }  # fmt: skip


def _design(design: DesignStudy, source: str) -> str:
    replicates = f" × {counted(design.replicates, 'replicate')}" if source == "judge" else " an item"
    return f"{design.design}: {counted(design.sources, source)}{replicates}, {counted(design.items, 'item')}"


def _ranks(means: Sequence[GroupMean], ranks: Sequence[list[float] | None]) -> list[tuple[str, ...]]:
    """Return how likely each group has which rank, the likeliest first at the top; nothing of a single group."""
    rows = [(entry.name, chances) for entry, chances in zip(means, ranks, strict=True) if chances]
    if len(means) < 2:
        return []
    return [
        (formats.name(name), *(formats.percent(chance) for chance in chances[:MOST_RANKS]))
        for name, chances in sorted(rows, key=lambda row: -row[1][0])
    ]


def _differences(differences: Sequence[GroupDifference]) -> list[tuple[str, ...]]:
    return [
        (formats.name(pair.first), formats.name(pair.second), formats.figure(pair.difference), formats.chance(pair.p))
        for pair in differences[:MOST_DIFFERENCES]
    ]
