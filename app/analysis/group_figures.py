"""Figures of groups of items by a column of their metadata (systems, models, languages), and those of a quality gate.

A quality gate decides by two of them: a mean with its interval, and the difference from another run with its p-value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dicast.app.analysis import estimates as student
from dicast.app.analysis import groups
from dicast.app.analysis.estimates import Bools, Estimate, Floats, Ints, Unknown
from dicast.app.analysis.groups import Groups, compare_groups
from dicast.app.analysis.means import FEWEST, SMALLEST, deviation, mean
from dicast.app.analysis.powered import FEWEST_OF_GROUP, powered_groups
from dicast.app.analysis.preferences import win_rate
from dicast.app.analysis.raters import NOBODY_RATED
from dicast.app.analysis.scores import DimensionScores, JobScores, Labels, figure
from dicast.app.domain.figure import Figure
from dicast.app.domain.judge_statistics import GroupDifference, GroupMean, GroupStatistics
from dicast.app.domain.quality_gate import LEVEL

MOST_GROUPS = 20


def group_statistics(
    job: JobScores, dimension: DimensionScores, panel: Floats, by: str, rng: np.random.Generator
) -> GroupStatistics:
    """Compare the groups of one column by the panel's scores (one an item) and, from both, by people's: means by rank,
    and differences whose p-values are not corrected yet."""
    labels = job.groups[by]
    cluster, clusters = job.cluster if job.cluster is not None else ("item", np.arange(job.items))
    inside = (labels.codes >= 0) & ~np.isnan(panel)
    present = np.unique(labels.codes[inside])
    if len(present) < 2:
        return GroupStatistics(by=by, cluster=cluster, reason=f"only {len(present)} of its values has scored items")
    if len(present) > MOST_GROUPS:
        return GroupStatistics(
            by=by, cluster=cluster, reason=f"it has {len(present)} values, and {MOST_GROUPS} at most are compared"
        )
    # By number, so that the library's order is that of the codes.
    names = np.array([f"{code:09d}" for code in range(len(labels.names))])
    comparison = compare_groups(
        panel[inside], names[labels.codes[inside]], clusters[inside], rng, bounds=dimension.bounds
    )
    people, reason = _peoples_groups(dimension, panel, names, labels, inside, clusters, rng)
    return GroupStatistics(
        by=by,
        cluster=cluster,
        means=_means(comparison, people, labels, dimension, panel, job.cluster),
        differences=_differences(comparison, labels),
        people_differences=[] if people is None else _differences(people, labels),
        people_reason=reason,
    )


def _differences(comparison: Groups, labels: Labels) -> list[GroupDifference]:
    """Return the differences with p-values that are not corrected yet."""
    return [
        GroupDifference(
            first=labels.names[int(d.first)], second=labels.names[int(d.second)],
            difference=figure(d.difference), p=d.uncorrected,
        )
        for d in comparison.differences
    ]  # fmt: skip


def _peoples_groups(
    dimension: DimensionScores, panel: Floats, names: Any, labels: Labels, inside: Bools, clusters: Ints,
    rng: np.random.Generator,
) -> tuple[Groups | None, str | None]:  # fmt: skip
    """Compare the groups by what people would have said of them, or say why that is not possible."""
    people, items = dimension.people, len(panel)
    if not people.raters:
        return None, NOBODY_RATED
    if people.flaw is not None:
        return None, people.flaw
    chances = people.chances(items)
    found = powered_groups(
        panel[inside], people.means(items)[inside], names[labels.codes[inside]], clusters[inside], rng,
        probabilities=None if chances is None else chances[inside], bounds=dimension.bounds,
    )  # fmt: skip
    if all(isinstance(difference.difference, Unknown) for difference in found.differences):
        few = f"people have rated {FEWEST_OF_GROUP} items or more, not all alike, of fewer than two groups"
        return found, few
    return found, None


def _means(
    comparison: Groups, people: Groups | None, labels: Labels, dimension: DimensionScores, panel: Floats,
    cluster: tuple[str, Ints] | None,
) -> list[GroupMean]:  # fmt: skip
    means = []
    for place, (name, result) in enumerate(zip(comparison.names, comparison.means, strict=True)):
        mask = (labels.codes == int(name)) & ~np.isnan(panel)
        means.append(
            GroupMean(
                name=labels.names[int(name)],
                items=int(mask.sum()),
                mean=figure(result),
                people=_peoples_mean(people, dimension, place),
                wins=_wins(mask, dimension, panel, cluster),
                ranks=comparison.ranks[place].tolist() if comparison.ranks is not None else None,
                people_ranks=people.ranks[place].tolist() if people is not None and people.ranks is not None else None,
            )
        )
    return sorted(means, key=lambda group: (-(sort_value(group.mean)), group.name))


def _peoples_mean(people: Groups | None, dimension: DimensionScores, place: int) -> Figure | None:
    if people is not None:
        return figure(people.means[place])
    return Figure.unknown(dimension.people.flaw) if dimension.people.flaw is not None else None


def _wins(mask: Bools, dimension: DimensionScores, panel: Floats, cluster: tuple[str, Ints] | None) -> Figure | None:
    if dimension.spec.kind != "preference":
        return None
    choices = np.sign(panel[mask]) / 2 + 0.5
    return figure(win_rate(choices, None if cluster is None else cluster[1][mask]))


def sort_value(figure: Figure) -> float:
    """Return a sort key: an unknown mean comes last."""
    return figure.value if figure.value is not None else float("-inf")


POWER = 0.8


@dataclass(frozen=True, slots=True)
class Drop:
    """The movement of scores between two runs.

    `moved` is the mean difference with its interval. `p` is how likely chance alone makes it look as bad if no more
    than the tolerated shift was lost. `detectable` is the smallest further loss that would be detected in four of five
    cases.
    """

    moved: Figure
    p: float | None
    detectable: float | None


def panel_mean(scores: Sequence[float], bounds: tuple[float, float], clusters: Sequence[int] | None = None) -> Figure:
    """Return the mean of the panel's scores of all items."""
    cluster_codes = None if clusters is None else np.asarray(clusters, dtype=np.int64)
    return figure(mean(np.asarray(scores, dtype=float), clusters=cluster_codes, bounds=bounds))


def drop(before: Sequence[float], after: Sequence[float], shift: float, clusters: Sequence[int] | None = None) -> Drop:
    """Compare the same items' scores in two runs by Student's t; `p` is one-sided, for a loss of more than `shift`."""
    moved = np.asarray(after, dtype=float) - np.asarray(before, dtype=float)
    cluster_codes = None if clusters is None else np.asarray(clusters, dtype=np.int64)
    if len(moved) < FEWEST:
        return Drop(Figure.unknown(f"the runs share {len(moved)} items, and {FEWEST} are needed"), None, None)
    estimate = deviation(moved, cluster_codes)
    if estimate.error <= SMALLEST:
        same = Estimate(estimate.value, estimate.value, estimate.value, len(moved), "all alike")
        return Drop(figure(same), 0.0 if estimate.value < -shift else 1.0, 0.0)
    degrees = max(1, estimate.pieces - 1)
    p = student.below((estimate.value + shift) / estimate.error, degrees)
    detectable = (student.quantile(1 - LEVEL, degrees) + student.quantile(POWER, degrees)) * estimate.error
    return Drop(figure(mean(moved, clusters=cluster_codes)), p, detectable)


def holm(p: Sequence[float]) -> list[float]:
    """Return the p-values, corrected for their number by Holm."""
    return [float(value) for value in groups.holm(np.array(p))]
