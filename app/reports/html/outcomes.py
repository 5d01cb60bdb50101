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
    dimensions_of,
    not_asked_since,
    title,
)

MOST_CONTESTANTS = 50
MOST_BARS = 30
MOST_MEETINGS = 200
MOST_RANKS = 5
PEOPLE = ("people, with the judges’ help", "people’s ratings alone")


def answer(report: Report) -> dict[str, Any] | None:
    """Return the section on the job's question: what is known of the answer, and what it took."""
    found = report.answer
    if found is None:
        return None
    asked = report.units - report.unpublished
    facts = [
        ("items that were looked at", f"{found.items:,} of {found.population:,}"),
        ("calls not needed", f"{found.calls_saved:,}"),
        ("units asked", f"{asked:,} of {report.units:,} ({words.percent(asked / report.units)})"),
    ]
    if found.missing:
        facts.append(("items without a score", f"{found.missing:,}"))
    plot = ""
    if found.value is not None and found.low is not None and found.high is not None and plots.available():
        told = f"What is known, with an interval of {100 * found.confidence:g} % that holds however often one looked"
        plot = plots.whiskers([plots.Whisker("answer", found.value, found.low, found.high)], told, "value")
    stopped = report.statistics.stopped if report.statistics else None
    limits = [words.shown(line, 600) for line in stopped.summary] if stopped else []
    return {"told": words.shown(found.sentence(), 600), "limits": limits, "facts": facts, "plot": plot}


def labels(report: Report) -> list[dict[str, Any]]:
    """Return, for each dimension with labels (preferences are labels, too), how often each judge gave each of them."""
    shares = {of.dimension: of.shares for of in dimensions_of(report)}
    return [
        _labels(of, shares.get(of.dimension.id, []))
        for of in report.by_dimension[:MOST_PLOTTED]
        if of.labels and of.scores.n
    ]


def _labels(of: DimensionReport, shares: Sequence[LabelShare]) -> dict[str, Any]:
    name, total = title(of.dimension), of.scores.n
    known = sorted(of.labels.items(), key=lambda pair: -pair[1])
    told = [f"{words.name(label)} {words.percent(count / total)}" for label, count in known[:6] if count]
    rest = sum(1 for _, count in known[6:] if count)
    judges = [cell for cell in of.by_judge if cell.n][:MOST_BARS]
    rated = any(one.people.is_known or one.people_alone.is_known for one in shares)
    return {
        "title": f"{'Choices' if of.dimension.kind == 'preference' else 'Labels'} in {name}",
        "told": f"Of {words.count(total, 'score')} in {name}: {words.listed(told)}"
        + (f", and {words.count(rest, 'other label')}." if rest else "."),
        "plot": _drawn(f"Labels in {name} by judge", [words.name(label) for label in of.labels], [
            plots.PartedBar(words.name(cell.judge), tuple(cell.labels.values())) for cell in judges
        ]),
        "heads": ["Judge", *map(words.name, of.labels)],
        "rows": [_counted(cell) for cell in judges],
        "share_heads": ["Label", "judges", *(PEOPLE if rated else ())],
        "shares": [
            (words.name(one.label), *map(_share, (one.judges, *((one.people, one.people_alone) if rated else ()))))
            for one in shares
        ],
    }  # fmt: skip


def _counted(cell: JudgeCell) -> tuple[str, ...]:
    told = (f"{count:,} ({words.percent(count / cell.n)})" for count in cell.labels.values())
    return (words.name(cell.judge), *told)


def checklists(report: Report) -> list[dict[str, Any]]:
    """Return, for each checklist, how often each question was answered with yes."""
    found = []
    for of in report.by_dimension[:MOST_PLOTTED]:
        asked = [one for one in of.questions if one.n]
        if not asked:
            continue
        name, least = title(of.dimension), min(asked, key=lambda one: one.yes / one.n)
        found.append({
            "title": name,
            "told": f"In {name} the question with the fewest yes is “{words.shown(least.question, 200)}”: "
            f"{words.percent(least.yes / least.n)} of {words.count(least.n, 'opinion')}.",
            "plot": _drawn(f"Answers to the questions of {name}", ["yes", "no"], [
                plots.PartedBar(f"{n}. {words.shown(one.question, 40)}", (one.yes, one.n - one.yes))
                for n, one in enumerate(asked, 1)
            ]),
            "rows": [
                (f"{n}. {words.shown(one.question, 200)}", f"{one.yes:,}", f"{one.n:,}", words.percent(one.yes / one.n))
                for n, one in enumerate(asked, 1)
            ],
        })  # fmt: skip
    return found


def preferences(report: Report) -> list[dict[str, Any]]:
    """Return, for each dimension of pairs, how often A wins, according to judges and people, and which contestant is
    best."""
    names = {d.id: title(d) for d in report.dimensions}
    return [
        {
            **_preference(name, of.preferences),
            **_rivals(name, of.preferences),
            "places": _places(of),
            "orders": _orders(of.preferences),
        }
        for of in dimensions_of(report)
        for name in [names.get(of.dimension, words.name(of.dimension))]
        if of.preferences is not None
    ]


def _preference(name: str, found: PreferenceStatistics) -> dict[str, Any]:
    people = [(f"A wins, by {who}", of) for who, of in zip(PEOPLE, (found.people, found.people_alone), strict=True)]
    rated = any(of.is_known for _, of in people)
    voices = [("A wins, by the panel", found.wins), *(people if rated else ()), ("tie, by the panel", found.ties)]
    wins = [
        plots.Whisker(label, 100 * of.value, 100 * of.low, 100 * of.high, second="people" in label)
        for label, of in voices
        if of.value is not None and of.low is not None and of.high is not None
    ]
    best = found.contestants[:MOST_CONTESTANTS]
    strengths = [
        plots.Whisker(words.name(one.name), one.strength.value, one.strength.low, one.strength.high)
        for one in best[:MOST_BARS]
        if one.strength.value is not None and one.strength.low is not None and one.strength.high is not None
    ]
    told = [f"In {name}, A is preferred in {_share(found.wins)} of the pairs (ties count half); {_share(found.ties)} "
            "are ties."]  # fmt: skip
    if best and found.reason is None:
        first = best[0]
        told.append(
            f"{words.name(first.name)} comes first of {words.count(len(found.contestants), 'contestant')}"
            + (f", with a probability of {words.percent(first.ranks[0])} of being the best." if first.ranks else ".")
        )
    return {
        "title": name,
        "told": told,
        "squares": " Squares: people." if rated else "",
        "reason": words.shown(found.reason) if found.reason else "",
        "plot": _whiskers(wins, f"How often A wins in {name}, in percent, with 95 % intervals", "percent", 50.0),
        "rows": [(label, _share(of)) for label, of in voices],
        "strengths": _whiskers(
            strengths, f"Strength of each contestant in {name}, with 95 % intervals", "strength (log odds)", 0.0
        ),
        "ranks": min(MOST_RANKS, len(best[0].ranks)) if best else 0,
        "contestants": [
            (
                words.name(one.name), words.figure(one.strength),
                *(words.percent(chance) for chance in one.ranks[:MOST_RANKS]),
            )
            for one in best
        ],
        "more": max(0, len(found.contestants) - MOST_CONTESTANTS),
    }  # fmt: skip


def _rivals(name: str, found: PreferenceStatistics) -> dict[str, Any]:
    """Return how often each contestant wins, and against whom."""
    rates = [
        plots.Whisker(words.name(one.name), 100 * at.value, 100 * at.low, 100 * at.high)
        for one in found.rates[:MOST_BARS]
        if (at := one.wins).value is not None and at.low is not None and at.high is not None
    ]
    return {
        "rates_plot": _whiskers(
            rates, f"How often each wins in {name}, in percent, with 95 % intervals", "percent", 50.0
        ),
        "rates": [(words.name(one.name), f"{one.pairs:,}", _share(one.wins)) for one in found.rates[:MOST_CONTESTANTS]],
        "meetings": [
            (words.name(one.first), words.name(one.second), f"{one.pairs:,}", _share(one.wins))
            for one in found.meetings[:MOST_MEETINGS]
        ],
    }


def _places(of: DimensionStatistics) -> list[tuple[str, str, str, str]]:
    """Return for each rater whether it matters which text is shown first."""
    return [
        (words.name(probe.voice), _share(probe.first), _share(probe.moved), words.chance(probe.p))
        for probe in of.probes
        if probe.probe == "position"
    ][:MOST_BARS]


def _orders(found: PreferenceStatistics) -> list[tuple[str, str, str, str, str]]:
    """Return how far each rater orders the candidates of lists as people do."""
    return [
        (words.name(one.name), f"{one.lists:,}", f"{one.pairs:,}", words.figure(one.tau), _share(one.agreeing))
        for one in found.rankings[:MOST_BARS]
    ]


def spared(report: Report) -> dict[str, Any] | None:
    """Return the section on the units that an escalating panel did not need."""
    if not report.spared:
        return None
    share = words.percent(report.spared / report.units, 1)
    told = (
        f"{words.count(report.spared, 'unit')} of {report.units:,} ({share}) were not asked, since "
        f"{not_asked_since(report)}; {words.count(report.calls, 'call')} brought the others."
    )
    rows = report.by_agent[:MOST_JUDGES]
    bars = [plots.PartedBar(words.name(row.agent.name), (row.n, row.spared, row.failures)) for row in rows[:MOST_BARS]]
    return {
        "told": told,
        "plot": _drawn("Units of each judge", ["scored", "not needed", "failed"], bars),
        "rows": [
            (words.name(row.agent.name), f"{row.n:,}", f"{row.spared:,}", f"{row.failures:,}",
             words.percent(row.spared / max(1, row.n + row.spared + row.failures)))
            for row in rows
        ],
        "dimensions": [
            (title(of.dimension), f"{of.scores.n:,}", f"{of.spared:,}")
            for of in report.by_dimension[:MOST_DIMENSIONS]
            if of.spared
        ],
    }  # fmt: skip


def _drawn(told: str, names: Sequence[str], bars: Sequence[plots.PartedBar]) -> str:
    if not bars or len(names) > plots.MOST_TONES or not plots.available():
        return ""
    return plots.stacked(bars, names, told)


def _whiskers(found: Sequence[plots.Whisker], told: str, axis: str, line: float) -> str:
    return plots.whiskers(found, told, axis, zero=line) if found and plots.available() else ""


def _share(found: Figure | None) -> str:
    """Format a share as `62 % (55 % to 69 %)`, or return why it is unknown."""
    if found is None or found.value is None or found.low is None or found.high is None:
        return words.figure(found)
    return f"{words.percent(found.value)} ({words.percent(found.low)} to {words.percent(found.high)})"
