"""The section of the HTML report on how far the judges can be trusted: agreement, calibration, probes and groups."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import sqrt
from typing import Any

from dicast.app.domain.figure import Figure
from dicast.app.domain.judge_statistics import DimensionStatistics, GroupStatistics, RaterStatistics
from dicast.app.domain.report import Report, ReportDimension
from dicast.app.reports.html import plots, words
from dicast.app.reports.html.sections import MOST_DIFFERENCES, MOST_GROUPS, MOST_PLOTTED, shown_statistics, title

MOST_RATERS = 12
MOST_PROBES = 60
MOST_WORDS = 30
FEWEST_IN_A_POINT = 3
SIDE = 1.96
MOST_RANKS = 5
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
        "reason": words.one_line(reason),
        "unknowable": [words.one_line(line) for line in job_statistics.unknowable]
        if job_statistics is not None
        else [],
        "dimensions": [
            _dimension(statistics, names.get(statistics.dimension)) for statistics in shown_statistics(report)
        ],
        "more": max(0, len(job_statistics.dimensions) - MOST_PLOTTED) if job_statistics is not None else 0,
    }


def _dimension(statistics: DimensionStatistics, dimension: ReportDimension | None) -> dict[str, Any]:
    name = title(dimension) if dimension is not None else words.name(statistics.dimension)
    rated = f"{statistics.rated_items:,} items rated by {words.count(len(statistics.raters), 'person', 'people')}"
    return {
        "title": name,
        "rated": rated if statistics.rated_items else "nobody has rated it",
        "summary": [words.one_line(line, 600) for line in statistics.summary[:MOST_WORDS]],
        "voices": [_rater_row(rater) for rater in _raters(statistics)],
        "agreement": _agreement(statistics, name),
        "calibration": _calibration(statistics, name),
        "bias": _bias(statistics, name),
        "probes": [
            (words.name(probe.voice), probe.title, words.figure(probe.effect), words.chance(probe.p))
            for probe in statistics.probes[:MOST_PROBES]
        ],
        "probes_plot": _probes(statistics, name),
        "calibrated": [
            (
                words.name(rater.name) if rater.kind == "judge" else "the panel",
                words.figure(rater.calibrated),
                words.figure(rater.raw),
                words.figure(rater.bias),
                words.count(rater.learned_on, "item"),
            )
            for rater in statistics.calibrated[:MOST_RATERS]
        ],
        "calibrated_plot": _calibrated(statistics, name),
        "groups": [_group(group, name) for group in statistics.groups],
        "independent": words.figure(statistics.independent, 1) if len(statistics.voices) > 2 else "",
        "among": [
            (who, words.figure(among.alpha), words.figure(among.icc_single), words.percent(among.base_rate))
            for who, among in (("judges", statistics.judges), ("people", statistics.people))
            if among is not None
        ],
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
        _name(rater), words.figure(rater.pearson), words.figure(rater.kappa), words.figure(rater.bias),
        words.percent(rater.base_rate), words.percent(rater.missing),
    )  # fmt: skip


def _name(rater: RaterStatistics) -> str:
    name = {"panel": "the panel", "people": "a person"}.get(rater.kind) or words.name(rater.name)
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
            f"{probe.title}, {words.name(probe.voice)}"[:NAMED], at.value, at.low, at.high, second=probe.tried
        )
        for probe in statistics.probes[:MOST_PROBES]
        if (at := probe.effect).value is not None and at.low is not None and at.high is not None
    ]
    if not whiskers or not plots.available():
        return ""
    return plots.whiskers(whiskers, f"What probes found in {name}, with 95 % intervals", "points more", zero=0.0)


def _calibrated(statistics: DimensionStatistics, name: str) -> str:
    whiskers = [
        plots.Whisker(f"{words.name(rater.name)}, {kind}", at.value, at.low, at.high, second=kind == "raw")
        for rater in statistics.calibrated[:MOST_RATERS]
        for kind, at in (("raw", rater.raw), ("calibrated", rater.calibrated))
        if at.value is not None and at.low is not None and at.high is not None
    ]
    if not whiskers or not plots.available():
        return ""
    return plots.whiskers(whiskers, f"Means in {name} before and after calibration, with 95 % intervals", "mean")


def _group(group: GroupStatistics, name: str) -> dict[str, Any]:
    means = group.means[:MOST_GROUPS]
    whiskers = [
        plots.Whisker(words.one_line(entry.name, 40), entry.mean.value, entry.mean.low, entry.mean.high)
        for entry in means
        if entry.mean.value is not None and entry.mean.low is not None and entry.mean.high is not None
    ]
    caption = f"Mean of {name} by {words.name(group.by)}, with 95 % intervals"
    return {
        "by": words.name(group.by),
        "reason": words.one_line(group.reason) if group.reason is not None else "",
        "plot": plots.whiskers(whiskers, caption, "mean") if whiskers and plots.available() else "",
        "wins": any(entry.wins is not None for entry in means),
        "means": [
            (
                words.name(entry.name), f"{entry.items:,}", words.figure(entry.mean), words.figure(entry.people),
                words.percent(entry.ranks[0]) if entry.ranks else "–",
                *([words.figure(entry.wins)] if any(other.wins is not None for other in means) else ()),
            )
            for entry in means
        ],
        "ranked": min(MOST_RANKS, *(len(entry.ranks or ()) for entry in means)) if len(means) > 1 else 0,
        "ranks": [
            (words.name(entry.name), *(words.percent(chance) for chance in entry.ranks[:MOST_RANKS]))
            for entry in means
            if entry.ranks
        ] if len(means) > 1 else [],
        "differences": [
            (words.name(pair.first), words.name(pair.second), words.figure(pair.difference), words.chance(pair.p))
            for pair in group.differences[:MOST_DIFFERENCES]
        ],
        "more": max(0, len(group.differences) - MOST_DIFFERENCES),
    }  # fmt: skip
