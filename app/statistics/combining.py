"""Combines several judges' opinions of one item into one score.

All functions take items (rows) x judges (columns), NaN where an opinion is missing, and return one number per item, NaN
without any opinion.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import scipy

from dicast.app.statistics.arrays import Floats

TRIMMED_SHARE = 0.2
RIDGE = 1e-6


def combine_mean(scores: Floats) -> Floats:
    return weighted_mean(scores, np.ones(scores.shape[1]))


def combine_median(scores: Floats) -> Floats:
    """Return the middle score; of an even number the mean of the two in the middle."""
    return _each_row(scores, np.nanmedian)


def combine_trimmed(scores: Floats, share: float = TRIMMED_SHARE) -> Floats:
    """Return the mean without the lowest and highest `share` of an item's scores each, but at least one each of three
    or more.

    With one or two scores it is their mean.
    """
    result = np.full(len(scores), np.nan)
    counts = (~np.isnan(scores)).sum(axis=1)
    for count in np.unique(counts[counts > 0]):
        rows = counts == count
        ordered = np.sort(scores[rows], axis=1)[:, :count]
        cut = max(int(count * share), 1) if count > 2 else 0
        result[rows] = ordered[:, cut : count - cut].mean(axis=1)
    return result


def combine_majority(scores: Floats) -> Floats:
    """Return the commonest score; of several equally common ones the middle one, the lower of two in the middle."""

    def most(row: Floats) -> float:
        levels, counts = np.unique(row[~np.isnan(row)], return_counts=True)
        tied = levels[counts == counts.max()]
        return float(tied[(len(tied) - 1) // 2])

    return np.array([most(row) if not np.isnan(row).all() else np.nan for row in scores])


def combine_worst(scores: Floats) -> Floats:
    """Return the lowest score: one judge that finds a fault is enough."""
    return _each_row(scores, np.nanmin)


def weighted_mean(scores: Floats, weights: Floats) -> Floats:
    """Return the mean with one weight per judge (0 or more, not all 0); a missing opinion's weight goes to the
    others."""
    if len(weights) != scores.shape[1] or not (np.isfinite(weights) & (weights >= 0)).all() or weights.sum() == 0:
        raise ValueError("weights are finite numbers, 0 or more, one a judge, and not all 0")
    present = ~np.isnan(scores)
    total = present @ weights
    sums = np.where(present, scores, 0.0) @ weights
    return np.asarray(np.divide(sums, total, out=np.full(len(scores), np.nan), where=total > 0))


def learned_weights(scores: Floats, people: Floats) -> Floats:
    """Return weights, 0 or more with sum 1, for which the mean of the judges' deviations best follows people's.

    They come from non-negative least squares on the deviations from each judge's own mean, so a judge's bias has no
    effect here. They rest on items with all opinions and a rating; they are equal if these teach nothing. Use them on
    other items than those they were learned on.
    """
    judges = scores.shape[1]
    equal = np.full(judges, 1 / judges)
    usable = ~(np.isnan(scores).any(axis=1) | np.isnan(people))
    if usable.sum() <= judges:
        return equal
    x, y = scores[usable] - scores[usable].mean(axis=0), people[usable] - people[usable].mean()
    weights = _least_squares(x, y)
    return weights / weights.sum() if weights.sum() > RIDGE else equal


def _least_squares(x: Floats, y: Floats) -> Floats:

    # A little is added to the diagonal: two judges who say the same share their weight.
    ridge = np.sqrt(RIDGE * (x**2).sum()) * np.eye(x.shape[1])
    return np.asarray(scipy.optimize.nnls(np.vstack([x, ridge]), np.concatenate([y, np.zeros(x.shape[1])]))[0])


def _each_row(scores: Floats, function: Callable[..., Floats]) -> Floats:
    result = np.full(len(scores), np.nan)
    rows = ~np.isnan(scores).all(axis=1)
    if rows.any():
        result[rows] = function(scores[rows], axis=1)
    return result


COMBINATIONS: dict[str, Callable[[Floats], Floats]] = {
    "mean": combine_mean,
    "median": combine_median,
    "trimmed": combine_trimmed,
    "majority": combine_majority,
    "worst": combine_worst,
}
"""The combinations without parameters, by name."""
