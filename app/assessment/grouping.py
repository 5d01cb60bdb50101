"""Compares groups of items that a column of their metadata makes: systems, models, languages."""

from __future__ import annotations

import numpy as np

from dicast.app.assessment.figures import figure
from dicast.app.assessment.scores import DimensionScores, JobScores, Labels
from dicast.app.domain.figure import Figure
from dicast.app.domain.judge_statistics import GroupDifference, GroupMean, GroupStatistics
from dicast.app.statistics.arrays import Bools, Floats, Ints
from dicast.app.statistics.groups import Groups, compare_groups
from dicast.app.statistics.powered import powered_mean
from dicast.app.statistics.preferences import win_rate

MOST_GROUPS = 20
CLUSTERED = "intervals with people's help take the items for independent, and these are clustered"


def group_statistics(
    job: JobScores, dimension: DimensionScores, panel: Floats, by: str, rng: np.random.Generator
) -> GroupStatistics:
    """Compare the groups of one column by the panel's scores (one an item): means by rank, differences, and people's
    means."""
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
    return GroupStatistics(
        by=by, cluster=cluster, means=_means(comparison, labels, dimension, panel, job.cluster),
        differences=[
            GroupDifference(
                first=labels.names[int(d.first)], second=labels.names[int(d.second)],
                difference=figure(d.difference), p=d.p,
            )
            for d in comparison.differences
        ],
    )  # fmt: skip


def _means(
    comparison: Groups, labels: Labels, dimension: DimensionScores, panel: Floats, cluster: tuple[str, Ints] | None
) -> list[GroupMean]:
    means = []
    for place, (name, result) in enumerate(zip(comparison.names, comparison.means, strict=True)):
        mask = (labels.codes == int(name)) & ~np.isnan(panel)
        means.append(
            GroupMean(
                name=labels.names[int(name)],
                items=int(mask.sum()),
                mean=figure(result),
                people=_people(mask, dimension, panel, clustered=cluster is not None),
                wins=_wins(mask, dimension, panel, cluster),
                ranks=comparison.ranks[place].tolist() if comparison.ranks is not None else None,
            )
        )
    return sorted(means, key=lambda group: (-(sort_value(group.mean)), group.name))


def _wins(mask: Bools, dimension: DimensionScores, panel: Floats, cluster: tuple[str, Ints] | None) -> Figure | None:
    if dimension.spec.kind != "preference":
        return None
    choices = np.sign(panel[mask]) / 2 + 0.5
    return figure(win_rate(choices, None if cluster is None else cluster[1][mask]))


def sort_value(figure: Figure) -> float:
    """Return a sort key: an unknown mean comes last."""
    return figure.value if figure.value is not None else float("-inf")


def _people(mask: Bools, dimension: DimensionScores, panel: Floats, *, clustered: bool) -> Figure | None:
    """Estimate what people would have said of one group."""
    if not dimension.people.raters:
        return None
    if clustered or dimension.people.flaw is not None:
        return Figure.unknown(dimension.people.flaw or CLUSTERED)
    items = len(panel)
    chances = dimension.people.chances(items)
    powered = powered_mean(
        panel[mask], dimension.people.means(items)[mask], probabilities=None if chances is None else chances[mask],
        bounds=dimension.bounds,
    )  # fmt: skip
    return figure(powered.both)
