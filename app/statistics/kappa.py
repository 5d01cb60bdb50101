"""Cohen's weighted kappa of two raters, and Fleiss' kappa of many, each with the base rate beside it.

Kappa falls when nearly all items belong to one level, however well people agree: read it beside the base rate, the
share of the commonest level. The values come from scikit-learn and statsmodels; the sums serve the resamples.
"""
# ruff: noqa: PLC0415  (these libraries take a second of CPU time to load)

from __future__ import annotations

from typing import Literal

import numpy as np

from dicast.app.statistics.arrays import Floats, Ints
from dicast.app.statistics.estimates import Result, Unknown
from dicast.app.statistics.resampling import Sums, interval, pairs, rows

Weighting = Literal["none", "linear", "quadratic"]


def cohen(
    x: Floats, y: Floats, levels: Floats, weighting: Weighting, rng: np.random.Generator, *, item: Ints | None = None
) -> Result:
    """Return Cohen's kappa of pairs of scores; a disagreement counts by its distance in places among `levels`
    (ascending).

    `linear` and `quadratic` are for levels with an order, `none` for labels. Pairs where either is NaN are left out.
    `item` gives the item of each pair, if several pairs belong to one.
    """
    both = ~(np.isnan(x) | np.isnan(y))
    item = np.arange(len(x)) if item is None else item
    scored = np.unique(item[both])
    if len(scored) < 3:
        return Unknown(f"only {len(scored)} items were scored by both")
    cx, cy = codes(x[both], levels), codes(y[both], levels)
    if cx is None or cy is None:
        return Unknown("some scores are none of the scale's levels, as a mean is: kappa counts levels")
    if len(np.union1d(cx, cy)) == 1:
        return Unknown("everybody gave every item the same score")
    from sklearn.metrics import cohen_kappa_score

    name = None if weighting == "none" else weighting
    value = float(cohen_kappa_score(cx, cy, weights=name, labels=np.arange(len(levels))))
    penalty = penalties(len(levels), weighting)
    statistic = pairs(lambda a, b: cohen_sums(a, b, penalty), cx, cy, np.searchsorted(scored, item[both]))
    return interval(value, len(scored), statistic, rng, shape="correlation")


def fleiss(matrix: Floats, levels: Floats, rng: np.random.Generator) -> Result:
    """Return Fleiss' kappa over the items (rows) that all raters (columns) scored; the levels have no order."""
    whole = matrix[~np.isnan(matrix).any(axis=1)]
    if matrix.shape[1] < 2:
        return Unknown("there is only one rater")
    if len(whole) < 3:
        return Unknown(f"only {len(whole)} items were scored by all {matrix.shape[1]} raters")
    coded = codes(whole, levels)
    if coded is None:
        return Unknown("some scores are none of the scale's levels, as a mean is: kappa counts levels")
    if np.ptp(coded) == 0:
        return Unknown("everybody gave every item the same score")
    from statsmodels.stats.inter_rater import fleiss_kappa

    counts = np.stack([(coded == level).sum(axis=1) for level in range(len(levels))], axis=1)
    value = float(fleiss_kappa(counts))
    statistic = rows(fleiss_sums, counts.astype(np.float64))
    return interval(value, len(whole), statistic, rng, shape="correlation")


def base_rate(scores: Floats) -> float:
    """Return the share of the commonest score among all scores; NaN without any."""
    present = scores[~np.isnan(scores)]
    return float(np.unique(present, return_counts=True)[1].max() / present.size) if present.size else float("nan")


def codes(scores: Floats, levels: Floats) -> Ints | None:
    """Return each score's place among `levels`; None if one of them is no level."""
    places = np.searchsorted(levels, scores).clip(0, len(levels) - 1)
    return places.astype(np.int64) if np.array_equal(levels[places], scores) else None


def penalties(levels: int, weighting: Weighting) -> Floats:
    """Return the penalty of a disagreement between two levels (levels x levels); 0 on the diagonal."""
    apart = np.abs(np.subtract.outer(np.arange(levels), np.arange(levels))).astype(np.float64)
    return {"none": (apart > 0).astype(np.float64), "linear": apart, "quadratic": apart**2}[weighting]


def cohen_sums(x: Ints, y: Ints, penalty: Floats) -> Sums:
    size = len(penalty)
    levels = np.eye(size)

    def evaluate(sums: Floats) -> Floats:
        n, observed, given_x, given_y = sums[:, 0], sums[:, 1], sums[:, 2 : 2 + size], sums[:, 2 + size :]
        by_chance = ((given_x @ penalty) * given_y).sum(axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(1 - observed * n / by_chance)

    return Sums(np.column_stack([np.ones(len(x)), penalty[x, y], levels[x], levels[y]]), evaluate)


def fleiss_sums(counts: Floats) -> Sums:
    """Return Fleiss' kappa as sums, from how many raters gave an item each level (items x levels)."""
    raters = counts[0].sum()
    agreeing = (counts * (counts - 1)).sum(axis=1) / (raters * (raters - 1))

    def evaluate(sums: Floats) -> Floats:
        n = sums[:, :1]
        by_chance = ((sums[:, 2:] / (n * raters)) ** 2).sum(axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray((sums[:, 1] / n[:, 0] - by_chance) / (1 - by_chance))

    return Sums(np.column_stack([np.ones(len(counts)), agreeing, counts]), evaluate)
