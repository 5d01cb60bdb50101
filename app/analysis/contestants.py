"""Statistics of comparisons and labels: who wins against whom, rankings of lists, how common each label is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import NamedTuple

import numpy as np

from dicast.app.analysis.combining import combine_mean
from dicast.app.analysis.estimates import Floats, Ints, Unknown
from dicast.app.analysis.means import FEWEST, mean
from dicast.app.analysis.powered import Powered, RaterSpread, for_raters_alike, powered_win_rate, rater_spread
from dicast.app.analysis.preferences import bradley_terry, likely_strengths, share_of_wins, win_rate
from dicast.app.analysis.raters import NOBODY_RATED
from dicast.app.analysis.scores import DimensionScores, JobScores, figure
from dicast.app.domain.figure import Figure
from dicast.app.domain.judge_statistics import (
    Contestant,
    LabelShare,
    Meeting,
    PreferenceStatistics,
    RankingAgreement,
    WinRate,
)

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
