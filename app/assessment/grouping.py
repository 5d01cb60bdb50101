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


def grouped(job: JobScores, of: DimensionScores, panel: Floats, by: str, rng: np.random.Generator) -> GroupStatistics:
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
    found = compare_groups(panel[inside], names[labels.codes[inside]], clusters[inside], rng, bounds=of.bounds)
    return GroupStatistics(
        by=by, cluster=cluster, means=_means(found, labels, of, panel, job.cluster),
        differences=[
            GroupDifference(
                first=labels.names[int(d.first)], second=labels.names[int(d.second)],
                difference=figure(d.difference), p=d.p,
            )
            for d in found.differences
        ],
    )  # fmt: skip


def _means(
    found: Groups, labels: Labels, of: DimensionScores, panel: Floats, cluster: tuple[str, Ints] | None
) -> list[GroupMean]:
    means = []
    for place, (name, result) in enumerate(zip(found.names, found.means, strict=True)):
        own = (labels.codes == int(name)) & ~np.isnan(panel)
        means.append(
            GroupMean(
                name=labels.names[int(name)],
                items=int(own.sum()),
                mean=figure(result),
                people=_people(own, of, panel, clustered=cluster is not None),
                wins=_wins(own, of, panel, cluster),
                ranks=found.ranks[place].tolist() if found.ranks is not None else None,
            )
        )
    return sorted(means, key=lambda group: (-(panel_mean(group.mean)), group.name))


def _wins(own: Bools, of: DimensionScores, panel: Floats, cluster: tuple[str, Ints] | None) -> Figure | None:
    if of.dimension.kind != "preference":
        return None
    choices = np.sign(panel[own]) / 2 + 0.5
    return figure(win_rate(choices, None if cluster is None else cluster[1][own]))


def panel_mean(found: Figure) -> float:
    """Return a sort key: an unknown mean comes last."""
    return found.value if found.value is not None else float("-inf")


def _people(own: Bools, of: DimensionScores, panel: Floats, *, clustered: bool) -> Figure | None:
    """Estimate what people would have said of one group."""
    if not of.people.raters:
        return None
    if clustered or of.people.flaw is not None:
        return Figure.unknown(of.people.flaw or CLUSTERED)
    items = len(panel)
    chances = of.people.chances(items)
    found = powered_mean(
        panel[own], of.people.means(items)[own], probabilities=None if chances is None else chances[own],
        bounds=of.bounds,
    )  # fmt: skip
    return figure(found.both)
