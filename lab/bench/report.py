"""Runs to tables. Pure: what was measured goes in, Markdown comes out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lab.bench.spread import Spread, spread

Run = Mapping[str, Any]


@dataclass(frozen=True)
class Column:
    """One figure of a run, how its column is headed, and what is better: 1 more, -1 less, 0 neither."""

    figure: str
    heading: str
    better: int = 0


@dataclass(frozen=True)
class Section:
    """One case, and who was to be measured in it, in order. `columns` none: all figures, as lines. `rows`: the table's
    are these cases (name -> label) of the one contender."""

    case: str
    title: str
    about: str
    command: str
    labels: Mapping[str, str]
    columns: Sequence[Column]
    plot: str = ""
    rows: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Goal:
    """What a figure of one contender is to be: `at_least` this, or at most. With a `rival`, so many times its own, or
    so much `over` it, round by round where both have as many runs, else of the medians."""

    case: str
    contender: str
    figure: str
    heading: str
    bound: float
    at_least: bool = False
    rival: str = ""
    over: bool = False


def summary(runs: Iterable[Run], case: str, contender: str) -> dict[str, Spread]:
    """Median and range of every number that all runs of one contender in one case have; empty without runs."""
    figures = [run["figures"] for run in runs if run["case"] == case and run["contender"] == contender]
    shared = [name for name in (figures[0] if figures else ()) if all(name in other for other in figures)]
    return {name: spread([float(found[name]) for found in figures]) for name in shared}


def table(runs: Sequence[Run], section: Section) -> list[str]:
    """One row a contender that has runs, or a case; a figure that it has not is a dash."""
    heads = ["", "runs", "load", *(column.heading for column in section.columns)]
    lines = [_row(heads), _row(["---", *["--:"] * (len(heads) - 1)])]
    for case, contender, label in _rows(section):
        found = summary(runs, case, contender)
        if found:
            loads = _loads(runs, case, contender)
            cells = [str(found[column.figure]) if column.figure in found else "–" for column in section.columns]
            lines.append(_row([label, str(len(loads)), str(spread(loads)), *cells]))
    return lines


def _rows(section: Section) -> list[tuple[str, str, str]]:
    """Case, contender, label."""
    if section.rows:
        return [(case, contender, label) for case, label in section.rows.items() for contender in section.labels]
    return [(section.case, contender, label) for contender, label in section.labels.items()]


def listing(runs: Sequence[Run], section: Section) -> list[str]:
    """All figures of the one contender of a case, and under what load and at which commit they were measured."""
    lines = [_row(["figure", "median (range)"]), _row(["---", "--:"])]
    for contender in section.labels:
        mine = [run for run in runs if run["case"] == section.case and run["contender"] == contender]
        lines += [_row([name, str(found)]) for name, found in summary(mine, section.case, contender).items()]
        lines.append(_row(["load", str(spread(_loads(mine, section.case, contender)))]))
        commits = dict.fromkeys(run["commit"] for run in mine if "commit" in run)
        if commits:
            lines.append(_row(["commit", ", ".join(commits)]))
    return lines


def glance(runs: Sequence[Run], goals: Sequence[Goal]) -> list[str]:
    """One row for each goal whose case was measured; by the median it is met or not."""
    lines = [_row(["", "goal", "measured", "met", "case", "load"]), _row(["---", "--:", "--:", "---", "---", "--:"])]
    for goal in goals:
        found = _measured(runs, goal)
        if found is not None:
            met = found.mid >= goal.bound if goal.at_least else found.mid <= goal.bound
            bound = f"{'≥' if goal.at_least else '≤'} {goal.bound:g}"
            load = spread(_loads(runs, goal.case, goal.contender))
            lines.append(_row([goal.heading, bound, str(found), "yes" if met else "**no**", goal.case, str(load)]))
    return lines if len(lines) > 2 else []


def _measured(runs: Sequence[Run], goal: Goal) -> Spread | None:
    found = summary(runs, goal.case, goal.contender).get(goal.figure)
    if found is None or not goal.rival:
        return found
    theirs = summary(runs, goal.case, goal.rival).get(goal.figure)
    if theirs is None:
        return None
    ours, others = (_each(runs, goal, who) for who in (goal.contender, goal.rival))
    if len(ours) != len(others):
        ours, others = [found.mid], [theirs.mid]
    if not goal.over and not all(others):
        return None
    return spread([mine - other if goal.over else mine / other for mine, other in zip(ours, others, strict=True)])


def _each(runs: Sequence[Run], goal: Goal, contender: str) -> list[float]:
    """A goal's figure in each run of a contender, in the order of the rounds."""
    mine = [run for run in runs if run["case"] == goal.case and run["contender"] == contender]
    return [float(run["figures"][goal.figure]) for run in sorted(mine, key=lambda run: str(run["at"]))]


def losses(runs: Sequence[Run], section: Section, ours: str) -> list[str]:
    """Of each figure that can be better or worse, who beats the best of `ours` (a prefix of names) by the median; one
    line, or none."""
    found = {name: summary(runs, section.case, name) for name in section.labels}
    parts = []
    for column in section.columns:
        mids = {name: column.better * of[column.figure].mid for name, of in found.items() if column.figure in of}
        mine = [mid for name, mid in mids.items() if name.startswith(ours)]
        better = [section.labels[name] for name, mid in mids.items() if mine and mid > max(mine)]
        if better:
            parts.append(f"**{column.heading}**: {'; '.join(better)}")
    return [f"* {section.title}. {'. '.join(parts)}."] if parts else []


def versions(runs: Iterable[Run]) -> dict[str, list[str]]:
    """Who ran on the same packages, by what they said these are; the last word counts."""
    found: dict[str, dict[str, str]] = {}
    for run in runs:
        found.setdefault(run["contender"], {}).update(run["versions"])
    shared: dict[str, list[str]] = {}
    for contender, packages in found.items():
        if packages:
            names = ", ".join(f"{name} {number}" for name, number in packages.items())
            shared.setdefault(names, []).append(contender)
    return shared


def markdown(
    runs: Sequence[Run], sections: Sequence[Section], goals: Sequence[Goal] = (),
    *, head: str, machine: str, about: str, foot: str, ours: str,
) -> str:  # fmt: skip
    """The whole page. Sections without runs are left out; `ours` begins the names of those whom the page is about."""
    dates = sorted(run["at"][:10] for run in runs)
    when = dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"
    lines = [head.strip(), "", f"Measured on {when}: {machine}.", ""]
    seen = glance(runs, goals)
    if seen:
        lines += ["## At a glance", "", *seen, ""]
    lines += [about.strip(), ""]
    for section in sections:
        if not any(summary(runs, case, contender) for case, contender, _ in _rows(section)):
            continue
        lines += [f"## {section.title}", "", section.about, "", f"`{section.command}`", ""]
        lines += table(runs, section) if section.columns else listing(runs, section)
        if section.plot:
            lines += ["", f"![{section.title}]({section.plot})"]
        lines.append("")
    lost = [line for section in sections for line in losses(runs, section, ours)]
    if lost:
        lines += ["## Where Dicast is beaten", "", "Who has the better median, whatever else they lose:", "", *lost, ""]
    lines += ["## Versions", "", _row(["packages", "contenders"]), _row(["---", "---"])]
    lines += [_row([packages, ", ".join(contenders)]) for packages, contenders in versions(runs).items()]
    return "\n".join([*lines, "", foot.strip(), ""])


def _loads(runs: Sequence[Run], case: str, contender: str) -> list[float]:
    return [run["load"] for run in runs if run["case"] == case and run["contender"] == contender]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
