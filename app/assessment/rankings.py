"""Measures how far a rater orders the candidates of lists as people do, where lists were ranked by their pairs.

Kendall's tau-b of a list and a person is taken over the pairs that both compared, so neither needs a full order; where
preferences follow from two orders and all pairs are compared, it is the tau of these orders. Intervals are clustered
by list.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from dicast.app.assessment.figures import figure
from dicast.app.assessment.scores import DimensionScores, JobScores
from dicast.app.domain.judge_statistics import RankingAgreement
from dicast.app.statistics.arrays import Floats, Ints
from dicast.app.statistics.combining import combine_mean
from dicast.app.statistics.means import mean


def rankings(
    job: JobScores, dimension: DimensionScores, rater_scores: Mapping[str, Floats]
) -> Iterator[RankingAgreement]:
    """Yield the agreement of each rater (one preference a pair) with people, and of a person with the other people.
    Yields nothing if no lists were ranked, or nobody has rated any of their pairs."""
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
