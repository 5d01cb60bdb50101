"""The section of the HTML report on how far the judges can be trusted: agreement, calibration, probes and groups."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import sqrt
from typing import Any

from dicast.app.domain.figure import Figure
from dicast.app.domain.judge_statistics import DimensionStatistics, GroupStatistics, RaterStatistics
from dicast.app.domain.report import Report, ReportDimension
from dicast.app.reports.html import plots, words
from dicast.app.reports.html.sections import MOST_DIFFERENCES, MOST_GROUPS, MOST_PLOTTED, dimensions_of, title

MOST_VOICES = 12
MOST_PROBES = 60
MOST_WORDS = 30
FEWEST_IN_A_POINT = 3
SIDE = 1.96
MOST_RANKS = 5
NAMED = 60


def trust(report: Report) -> dict[str, Any]:
    """Return all that is known of the judges, or the reason why it is unknown."""
    found = report.statistics
    names = {d.id: d for d in report.dimensions}
    reason = "" if found is None or found.state == "computed" else (found.reason or "nobody knows why")
    return {
        "computed": found is not None and found.state == "computed",
        "rated": found is not None and found.rated,
        "reason": words.shown(reason),
        "unknowable": [words.shown(line) for line in found.unknowable] if found is not None else [],
        "dimensions": [_dimension(of, names.get(of.dimension)) for of in dimensions_of(report)],
        "more": max(0, len(found.dimensions) - MOST_PLOTTED) if found is not None else 0,
    }


def _dimension(of: DimensionStatistics, known: ReportDimension | None) -> dict[str, Any]:
    name = title(known) if known is not None else words.name(of.dimension)
    rated = f"{of.rated_items:,} items rated by {words.count(len(of.raters), 'person', 'people')}"
    return {
        "title": name,
        "rated": rated if of.rated_items else "nobody has rated it",
        "summary": [words.shown(line, 600) for line in of.summary[:MOST_WORDS]],
        "voices": [_voice(voice) for voice in _voices(of)],
        "agreement": _agreement(of, name),
        "calibration": _calibration(of, name),
        "bias": _bias(of, name),
        "probes": [
            (words.name(probe.voice), probe.title, words.figure(probe.effect), words.chance(probe.p))
            for probe in of.probes[:MOST_PROBES]
        ],
        "probes_plot": _probes(of, name),
        "calibrated": [
            (
                words.name(voice.name) if voice.kind == "judge" else "the panel",
                words.figure(voice.calibrated),
                words.figure(voice.raw),
                words.figure(voice.bias),
                words.count(voice.learned_on, "item"),
            )
            for voice in of.calibrated[:MOST_VOICES]
        ],
        "calibrated_plot": _calibrated(of, name),
        "groups": [_group(group, name) for group in of.groups],
        "independent": words.figure(of.independent, 1) if len(of.voices) > 2 else "",
        "among": [
            (who, words.figure(among.alpha), words.figure(among.icc_single), words.percent(among.base_rate))
            for who, among in (("judges", of.judges), ("people", of.people))
            if among is not None
        ],
    }


def _voices(of: DimensionStatistics) -> list[RaterStatistics]:
    """Return the statistics of the judges, the panel, and a person, if people have rated."""
    return [*of.voices[: MOST_VOICES - 1], *of.voices[MOST_VOICES - 1 :][-1:], of.person] if of.person else []


def _voice(voice: RaterStatistics) -> tuple[str, ...]:
    return (
        _name(voice), words.figure(voice.pearson), words.figure(voice.kappa), words.figure(voice.bias),
        words.percent(voice.base_rate), words.percent(voice.missing),
    )  # fmt: skip


def _name(voice: RaterStatistics) -> str:
    named = {"panel": "the panel", "people": "a person"}.get(voice.kind) or words.name(voice.name)
    return f"{named} (audit)" if voice.audited else named


def _known(voices: Sequence[RaterStatistics], field: str) -> Iterator[plots.Whisker]:
    for voice in voices:
        found: Figure = getattr(voice, field)
        if found.value is not None and found.low is not None and found.high is not None:
            yield plots.Whisker(_name(voice), found.value, found.low, found.high, second=voice.kind == "people")


def _agreement(of: DimensionStatistics, name: str) -> str:
    found = list(_known(_voices(of), "pearson"))
    if not found or not plots.available():
        return ""
    told = f"Correlation with people in {name}, with 95 % intervals; a person beside the judges"
    return plots.whiskers(found, told, "correlation with people")


def _bias(of: DimensionStatistics, name: str) -> str:
    found = [one for one in _known(_voices(of), "bias") if not one.second]
    if not found or not plots.available():
        return ""
    told = f"How far each judge scores above or below people in {name}, with 95 % intervals"
    return plots.whiskers(found, told, "points above people", zero=0.0)


def _calibration(of: DimensionStatistics, name: str) -> str:
    """Plot, for each score that a judge gives, the mean that a person gives the same items."""
    found = [
        plots.Curve(_name(voice), points)
        for voice in _voices(of)
        if voice.kind != "people" and len(points := calibration(voice, of.scale_min)) > 1
    ][:6]
    if not found or not plots.available():
        return ""
    told = f"What a person gives on average where a judge gives a score, in {name}, with 95 % intervals"
    return plots.curves(found, told, ("judge's score", "person's mean"))


def calibration(voice: RaterStatistics, lowest: int) -> list[tuple[float, float, float, float]]:
    """Return (judge's score, person's mean, low, high) for each score that the judge gave to at least
    `FEWEST_IN_A_POINT` items."""
    found = []
    for at, row in enumerate(voice.confusion or ()):
        n = sum(row)
        if n < FEWEST_IN_A_POINT:
            continue
        mean = sum(times * (lowest + column) for column, times in enumerate(row)) / n
        squares = sum(times * (lowest + column - mean) ** 2 for column, times in enumerate(row))
        side = SIDE * sqrt(squares / (n - 1) / n)
        top = lowest + len(row) - 1
        found.append((float(lowest + at), mean, max(lowest, mean - side), min(top, mean + side)))
    return found


def _probes(of: DimensionStatistics, name: str) -> str:
    found = [
        plots.Whisker(
            f"{probe.title}, {words.name(probe.voice)}"[:NAMED], at.value, at.low, at.high, second=probe.tried
        )
        for probe in of.probes[:MOST_PROBES]
        if (at := probe.effect).value is not None and at.low is not None and at.high is not None
    ]
    if not found or not plots.available():
        return ""
    return plots.whiskers(found, f"What probes found in {name}, with 95 % intervals", "points more", zero=0.0)


def _calibrated(of: DimensionStatistics, name: str) -> str:
    found = [
        plots.Whisker(f"{words.name(voice.name)}, {told}", at.value, at.low, at.high, second=told == "raw")
        for voice in of.calibrated[:MOST_VOICES]
        for told, at in (("raw", voice.raw), ("calibrated", voice.calibrated))
        if at.value is not None and at.low is not None and at.high is not None
    ]
    if not found or not plots.available():
        return ""
    return plots.whiskers(found, f"Means in {name} before and after calibration, with 95 % intervals", "mean")


def _group(group: GroupStatistics, name: str) -> dict[str, Any]:
    means = group.means[:MOST_GROUPS]
    known = [
        plots.Whisker(words.shown(one.name, 40), one.mean.value, one.mean.low, one.mean.high)
        for one in means
        if one.mean.value is not None and one.mean.low is not None and one.mean.high is not None
    ]
    told = f"Mean of {name} by {words.name(group.by)}, with 95 % intervals"
    return {
        "by": words.name(group.by),
        "reason": words.shown(group.reason) if group.reason is not None else "",
        "plot": plots.whiskers(known, told, "mean") if known and plots.available() else "",
        "wins": any(one.wins is not None for one in means),
        "means": [
            (
                words.name(one.name), f"{one.items:,}", words.figure(one.mean), words.figure(one.people),
                words.percent(one.ranks[0]) if one.ranks else "–",
                *([words.figure(one.wins)] if any(other.wins is not None for other in means) else ()),
            )
            for one in means
        ],
        "ranked": min(MOST_RANKS, *(len(one.ranks or ()) for one in means)) if len(means) > 1 else 0,
        "ranks": [
            (words.name(one.name), *(words.percent(chance) for chance in one.ranks[:MOST_RANKS]))
            for one in means
            if one.ranks
        ] if len(means) > 1 else [],
        "differences": [
            (words.name(one.first), words.name(one.second), words.figure(one.difference), words.chance(one.p))
            for one in group.differences[:MOST_DIFFERENCES]
        ],
        "more": max(0, len(group.differences) - MOST_DIFFERENCES),
    }  # fmt: skip
