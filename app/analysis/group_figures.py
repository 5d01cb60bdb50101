"""Compares what is judged: groups of items, the contestants of pairs and lists, and labels by how common they are.

Groups are those of a column of the items' metadata (systems, models, languages). A quality gate decides by two of their
figures: a mean with its interval, and the difference from another run with its p-value. Of pairs, `preferences` tells
who wins against whom; of lists, `rankings` tells how far judges and people rank alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from dicast.app.analysis import estimates as student
from dicast.app.analysis import groups
from dicast.app.analysis.agreement import jackknifed_correlation
from dicast.app.analysis.combining import combine_mean
from dicast.app.analysis.estimates import Bools, Estimate, Floats, Ints, Unknown
from dicast.app.analysis.groups import Groups, compare_groups, equal_means_p
from dicast.app.analysis.means import FEWEST, SMALLEST, Deviation, deviation, estimate, mean
from dicast.app.analysis.powered import (
    FEWEST_OF_GROUP,
    Powered,
    RaterSpread,
    for_raters_alike,
    powered_groups,
    powered_win_rate,
    rater_spread,
)
from dicast.app.analysis.preferences import bradley_terry, likely_strengths, share_of_wins, win_rate
from dicast.app.analysis.raters import NOBODY_RATED
from dicast.app.analysis.scores import DimensionScores, Extremes, JobScores, Labels, extremes, figure
from dicast.app.domain.figure import Figure
from dicast.app.domain.judge_statistics import (
    AgreementInGroup,
    Contestant,
    GroupAgreement,
    GroupDifference,
    GroupMean,
    GroupStatistics,
    LabelShare,
    Meeting,
    PreferenceStatistics,
    RankingAgreement,
    WinRate,
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


MOST_CONTESTANTS = 50
MOST_MEETING = 20
"""With more contestants, the table of meetings is longer than anybody reads."""
NOBODY_NAMED = "the job keeps no metadata candidate_a and candidate_b, or system_a and system_b, of its pairs"


class ContestantStatistics(NamedTuple):
    """The fields of `PreferenceStatistics` with these names."""

    rates: list[WinRate]
    meetings: list[Meeting]
    contestants: list[Contestant]
    reason: str | None


class _Pairs(NamedTuple):
    """The pairs: who met whom (codes), whether the first won (ties count half), and the cluster of each pair."""

    names: list[str]
    a: Ints
    b: Ints
    wins: Floats
    piece: Ints


def contestant_statistics(job: JobScores, wins: Floats, rng: np.random.Generator) -> ContestantStatistics:
    """Compute the statistics from the panel's choices, one a pair: 1 where A wins, 0 where B does, 0.5 for a tie.

    They tell how often each contestant wins, against whom, and which is the best. Where comparisons are few or
    one-sided, the uncertainty is reported: shares of wins with Wilson's interval, and strengths with a prior, with the
    reason why the comparisons alone rank nobody.
    """
    if job.sides is None:
        return ContestantStatistics([], [], [], NOBODY_NAMED)
    first, second = job.sides
    names = sorted({*first.names, *second.names})
    if len(names) > MOST_CONTESTANTS:
        return ContestantStatistics(
            [], [], [], f"{len(names)} were compared, and {MOST_CONTESTANTS} at most are ranked"
        )
    complete = (first.codes >= 0) & (second.codes >= 0) & ~np.isnan(wins)
    a = np.searchsorted(names, np.array([*first.names, ""])[first.codes[complete]])
    b = np.searchsorted(names, np.array([*second.names, ""])[second.codes[complete]])
    apart = a != b
    pairs = _Pairs(names, a[apart], b[apart], wins[complete][apart], _pieces(job, len(names))[complete][apart])
    contestants, reason = _ranked(pairs, rng)
    return ContestantStatistics(_rates(pairs), _meetings(pairs), contestants, reason)


def _rates(pairs: _Pairs) -> list[WinRate]:
    """Return each contestant's share of wins against all others, the best first."""
    ranked = []
    for code, name in enumerate(pairs.names):
        wins = np.concatenate([pairs.wins[pairs.a == code], 1 - pairs.wins[pairs.b == code]])
        piece = np.concatenate([pairs.piece[pairs.a == code], pairs.piece[pairs.b == code]])
        if len(wins):
            ranked.append((float(wins.mean()), WinRate(name=name, pairs=len(wins), wins=_share(wins, piece))))
    return [rate for _, rate in sorted(ranked, key=lambda entry: (-entry[0], entry[1].name))]


def _share(wins: Floats, piece: Ints) -> Figure:
    rate = win_rate(wins, piece)
    return figure(share_of_wins(wins) if isinstance(rate, Unknown) else rate)


def _meetings(pairs: _Pairs) -> list[Meeting]:
    if len(pairs.names) > MOST_MEETING:
        return []
    meetings = []
    for first, second in combinations(range(len(pairs.names)), 2):
        there, back = (pairs.a == first) & (pairs.b == second), (pairs.a == second) & (pairs.b == first)
        wins = np.concatenate([pairs.wins[there], 1 - pairs.wins[back]])
        piece = np.concatenate([pairs.piece[there], pairs.piece[back]])
        if len(wins):
            share = _share(wins, piece)
            meetings.append(Meeting(first=pairs.names[first], second=pairs.names[second], pairs=len(wins), wins=share))
    return meetings


def _ranked(pairs: _Pairs, rng: np.random.Generator) -> tuple[list[Contestant], str | None]:
    """Return the contestants, best first, and the reason if they could be ranked only with the help of a prior."""
    codes = np.array([f"{at:06d}" for at in range(len(pairs.names))])
    strengths = bradley_terry(codes[pairs.a], codes[pairs.b], pairs.wins, pairs.piece, rng)
    reason = strengths.reason if isinstance(strengths, Unknown) else None
    if isinstance(strengths, Unknown):
        strengths = likely_strengths(codes[pairs.a], codes[pairs.b], pairs.wins, rng)
    if isinstance(strengths, Unknown):
        return [], strengths.reason
    contestants = [
        Contestant(name=pairs.names[int(code)], strength=figure(strength), ranks=ranks.tolist())
        for code, strength, ranks in zip(strengths.names, strengths.strengths, strengths.ranks, strict=True)
    ]
    return sorted(contestants, key=lambda contestant: (-(contestant.strength.value or 0.0), contestant.name)), reason


def _pieces(job: JobScores, contestants: int) -> Ints:
    """Return the clusters of the comparisons: their lists, if there are enough of them. Otherwise each comparison is
    a cluster of its own, and the result holds for these very texts only."""
    lists = job.lists
    many = lists is not None and len(np.unique(lists)) >= max(FEWEST, contestants)
    return lists if many and lists is not None else np.arange(job.items)


def rankings(
    job: JobScores, dimension: DimensionScores, rater_scores: Mapping[str, Floats]
) -> Iterator[RankingAgreement]:
    """Yield the agreement of each rater (one preference a pair) with people, and of a person with the other people.
    Yields nothing if no lists were ranked, or nobody has rated any of their pairs.

    The lists are those that were ranked by comparing their pairs. Kendall's tau-b of a list and a person is taken over
    the pairs that both compared, so neither needs a full order; where preferences follow from two orders and all pairs
    are compared, it is the tau of these orders. Intervals are clustered by list.
    """
    people = dimension.people
    if job.lists is None or not people.raters:
        return
    lists, preferred = np.unique(job.lists[people.rated], return_inverse=True)[1], np.sign(people.scores)
    for name, scores in rater_scores.items():
        yield _agreement(name, np.sign(scores[people.rated])[:, None], preferred, lists)
    raters = np.arange(len(people.raters))
    first, second = (side.ravel() for side in np.meshgrid(raters, raters))
    if len(raters) > 1:
        apart = first != second
        yield _agreement("a person", preferred[:, first[apart]], preferred[:, second[apart]], lists)


def _agreement(name: str, first: Floats, second: Floats, lists: Ints) -> RankingAgreement:
    """Compare the columns of `first` with those of `second`, or the only column of `first` with each of them."""
    first = np.broadcast_to(first, second.shape)
    both = ~(np.isnan(first) | np.isnan(second))
    x, y = np.where(both, first, 0.0), np.where(both, second, 0.0)
    size = int(lists.max()) + 1
    agree, of_x, of_y = (
        np.stack([np.bincount(lists, weights=column, minlength=size) for column in products.T], axis=1)
        for products in (x * y, x * x, y * y)
    )
    defined = (of_x > 0) & (of_y > 0)
    tau = np.divide(agree, np.sqrt(of_x * of_y), out=np.full_like(agree, np.nan), where=defined)
    decided = both & (y != 0)
    same = np.where(decided, x == y, np.nan)
    clusters = np.repeat(lists, second.shape[1])
    return RankingAgreement(
        name=name,
        lists=int((~np.isnan(tau)).any(axis=1).sum()),
        pairs=int(decided.any(axis=1).sum()),
        tau=figure(mean(combine_mean(tau), bounds=(-1.0, 1.0))),
        agreeing=figure(mean(same.ravel(), clusters=clusters, bounds=(0.0, 1.0))),
    )


def label_shares(dimension: DimensionScores) -> list[LabelShare]:
    """Return for each label the share of opinions that give it, and the share that people would give it; empty
    without labels."""
    if dimension.spec.kind != "labels":
        return []
    shares = []
    labels, ratings = dimension.labels[:, dimension.asked_everywhere], dimension.people.scores
    for score, label in enumerate(dimension.spec.labels, dimension.spec.scale_min):
        judged, people = _share_of(labels, score), _all_items(dimension, _share_of(dimension.people.scores, score))
        with_help = _powered(dimension, judged, people)
        spread = _spread(dimension, np.where(np.isnan(ratings), np.nan, ratings == score), judged)
        shares.append(
            LabelShare(
                label=label,
                judges=figure(mean(judged, clusters=dimension.clusters, bounds=(0.0, 1.0))),
                people=_powered_figure(dimension, with_help, "both", spread),
                people_alone=_powered_figure(dimension, with_help, "people_alone", spread),
            )
        )
    return shares


def preferences(
    job: JobScores, dimension: DimensionScores, panel: Floats, raters: Mapping[str, Floats], rng: np.random.Generator
) -> PreferenceStatistics | None:
    """Return how often A is preferred, by the panel's scores (one an item), and how far all raters rank as people do.
    Returns None if scores are no preferences."""
    if dimension.spec.kind != "preference":
        return None
    wins = _choices(panel)
    people = _all_items(dimension, _of_rows(_choices(dimension.people.scores)))
    with_help, spread = _powered(dimension, wins, people), _spread(dimension, _choices(dimension.people.scores), wins)
    standings = contestant_statistics(job, wins, rng)
    return PreferenceStatistics(
        wins=figure(win_rate(wins, dimension.clusters)),
        ties=figure(
            mean(np.where(np.isnan(wins), np.nan, wins == 0.5), clusters=dimension.clusters, bounds=(0.0, 1.0))
        ),
        people=_powered_figure(dimension, with_help, "both", spread),
        people_alone=_powered_figure(dimension, with_help, "people_alone", spread),
        rates=standings.rates,
        meetings=standings.meetings,
        contestants=standings.contestants,
        rankings=list(rankings(job, dimension, raters)),
        reason=standings.reason,
    )


def _choices(scores: Floats) -> Floats:
    """Return 1 where A is preferred, 0 where B is, and 0.5 for a tie."""
    return np.sign(scores) / 2 + 0.5


def _share_of(scores: Floats, score: int) -> Floats:
    """Return for each row the share of its scores that equal this one, NaN for a row without any."""
    return _of_rows(np.where(np.isnan(scores), np.nan, scores == score))


def _of_rows(scores: Floats) -> Floats:
    return combine_mean(scores) if scores.shape[1] else np.full(len(scores), np.nan)


def _all_items(dimension: DimensionScores, of_rated: Floats) -> Floats:
    result = np.full(len(dimension.scores), np.nan)
    if dimension.people.raters:
        result[dimension.people.rated] = of_rated
    return result


def _spread(dimension: DimensionScores, ratings: Floats, judged: Floats) -> RaterSpread | None:
    """Return how far raters differ in these numbers of their ratings; None where intervals speak of these raters."""
    if "raters" in dimension.these or not dimension.people.raters:
        return None
    return rater_spread(ratings, judged[dimension.people.rated])


def _powered(dimension: DimensionScores, judged: Floats, people: Floats) -> Powered | None:
    if not dimension.people.raters or dimension.people.flaw is not None:
        return None
    chances, finite = dimension.people.chances(len(judged)), "items" in dimension.these
    return powered_win_rate(judged, people, probabilities=chances, clusters=dimension.clusters, finite=finite)


def _powered_figure(
    dimension: DimensionScores, powered: Powered | None, which: str, spread: RaterSpread | None
) -> Figure:
    if powered is None:
        return Figure.unknown(dimension.people.flaw or NOBODY_RATED)
    return figure(for_raters_alike(getattr(powered, which), spread, (0.0, 1.0)))
