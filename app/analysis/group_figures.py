"""Figures of groups of items by a column of their metadata (systems, models, languages), and those of a quality gate.

A quality gate decides by two of them: a mean with its interval, and the difference from another run with its p-value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dicast.app.analysis import estimates as student
from dicast.app.analysis import groups
from dicast.app.analysis.agreement import jackknifed_correlation
from dicast.app.analysis.combining import combine_mean
from dicast.app.analysis.estimates import Bools, Estimate, Floats, Ints, Unknown
from dicast.app.analysis.groups import Groups, compare_groups, equal_means_p
from dicast.app.analysis.means import FEWEST, SMALLEST, Deviation, deviation, estimate, mean
from dicast.app.analysis.powered import FEWEST_OF_GROUP, for_raters_alike, powered_groups
from dicast.app.analysis.preferences import win_rate
from dicast.app.analysis.raters import NOBODY_RATED
from dicast.app.analysis.scores import DimensionScores, Extremes, JobScores, Labels, extremes, figure
from dicast.app.domain.figure import Figure
from dicast.app.domain.judge_statistics import (
    AgreementInGroup,
    GroupAgreement,
    GroupDifference,
    GroupMean,
    GroupStatistics,
    WorstCase,
)
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
    means = _means(comparison, people, labels, dimension, panel, job.cluster)
    differences, peoples = _differences(comparison, labels), [] if people is None else _differences(people, labels)
    if (extreme := extremes(job, dimension)) is not None:
        means = [_with_extremes(mean, extreme, labels.codes == labels.names.index(mean.name)) for mean in means]
        of_panel = {mean.name: (mean.mean.value, mean.worst_case) for mean in means}
        differences = [_apart_at_worst(pair, of_panel) for pair in differences]
        of_people = {
            mean.name: (None if mean.people is None else mean.people.value, mean.people_worst_case) for mean in means
        }
        peoples = [_apart_at_worst(pair, of_people) for pair in peoples]
    return GroupStatistics(
        by=by, cluster=cluster, means=means, differences=differences, people_differences=peoples, people_reason=reason,
        agreement=list(_agreement_by_group(job, dimension, panel, labels)),
    )  # fmt: skip


def _agreement_by_group(
    job: JobScores, dimension: DimensionScores, panel: Floats, labels: Labels
) -> Iterator[GroupAgreement]:
    """Yield for each judge who was asked everywhere, and the panel, how far it follows people in each group that has
    enough ratings; nothing if fewer than two have. The p-values are not corrected yet."""
    people, rated = dimension.people, dimension.people.rated
    if not people.raters:
        return
    voices = {name: dimension.judges[:, at] for at, name in enumerate(job.judges) if dimension.asked_everywhere[at]}
    if len(job.judges) > 1:
        voices["panel"] = panel
    truth = combine_mean(people.scores)
    for name, scores in voices.items():
        agreement = group_agreement(
            name, scores[rated], truth, labels.codes[rated], labels.names, dimension.rated_clusters
        )
        if agreement is not None:
            yield agreement


def group_agreement(
    voice: str, scores: Floats, people: Floats, codes: Ints, names: Sequence[str], clusters: Ints | None
) -> GroupAgreement | None:
    """Return how far a rater's scores of the rated items agree with people's means in each group; None if fewer than
    two groups have enough items. The p-values are not corrected yet."""
    apart, groups, correlations, biases = scores - people, [], [], []
    for code, group in enumerate(names):
        inside = (codes == code) & ~np.isnan(apart)
        pieces = None if clusters is None else clusters[inside]
        z = jackknifed_correlation(scores[inside], people[inside], pieces)
        if z is None:
            continue
        off = deviation(apart[inside], pieces)
        correlations.append(z)
        biases.append(off)
        bias = estimate(off, degrees=off.pieces - 1, items=off.pieces, method="t")
        groups.append(AgreementInGroup(name=group, voice=voice, pearson=figure(_of_z(z)), bias=figure(bias)))
    if len(groups) < 2:
        return None
    return GroupAgreement(
        voice=voice,
        groups=groups,
        pearson_p=equal_means_p(correlations),
        bias_p=equal_means_p(biases) if all(off.error > SMALLEST for off in biases) else None,
    )


def _of_z(z: Deviation) -> Estimate:
    reach = student.quantile((1 + student.CONFIDENCE) / 2, z.pieces - 1) * z.error
    value, low, high = np.tanh([z.value, z.value - reach, z.value + reach]).tolist()
    return Estimate(value, low, high, z.pieces, "jackknife on Fisher's scale")


def _with_extremes(mean: GroupMean, extreme: Extremes, inside: Bools) -> GroupMean:
    at_worst = {
        "worst_case": extreme.worst_case(inside),
        "people_worst_case": extreme.peoples_worst_case(mean.people, inside),
    }
    return mean.model_copy(update=at_worst)


def _apart_at_worst(
    pair: GroupDifference, groups: Mapping[str, tuple[float | None, WorstCase | None]]
) -> GroupDifference:
    """Return the difference with its bounds: one group at its worst and the other at its best."""
    ends, missing = [], 0
    for name in (pair.first, pair.second):
        value, worst = groups[name]
        if value is None:
            return pair
        ends.append((value, value) if worst is None else (worst.low, worst.high))
        missing += 0 if worst is None else worst.missing
    if not missing:
        return pair
    worst_case = WorstCase(low=ends[0][0] - ends[1][1], high=ends[0][1] - ends[1][0], missing=missing)
    return pair.model_copy(update={"worst_case": worst_case})


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
        return figure(for_raters_alike(people.means[place], dimension.rater_spread, dimension.bounds))
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
