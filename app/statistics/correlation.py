"""Pearson, Spearman and Kendall (tau-b) between two scores of the same items, with bootstrap intervals.

The values are scipy's; the weighted forms below serve the resamples alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
from scipy import stats

from app.statistics.arrays import Floats
from app.statistics.estimates import Result, Unknown
from app.statistics.resampling import OfWeights, interval

Kind = Literal["pearson", "spearman", "kendall"]


def correlation(x: Floats, y: Floats, kind: Kind, rng: np.random.Generator) -> Result:
    """The correlation of `x` and `y`, item by item; items where either is NaN are left out."""
    both = ~(np.isnan(x) | np.isnan(y))
    x, y = x[both], y[both]
    if len(x) < 3:
        return Unknown(f"only {len(x)} items were scored by both")
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        return Unknown("one side gave every item the same score")
    value = float(_VALUES[kind](x, y).statistic)
    return interval(value, (x, y), _WEIGHTED[kind], rng, shape="correlation")


def weighted_pearson(x: Floats, y: Floats) -> OfWeights:
    x, y = x - x.mean(), y - y.mean()
    columns = np.stack([x, y, x * x, y * y, x * y], axis=1)

    def of(weights: Floats) -> Floats:
        total = weights.sum(axis=1)
        mx, my, xx, yy, xy = (weights @ columns / total[:, None]).T
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray((xy - mx * my) / np.sqrt((xx - mx * mx) * (yy - my * my)))

    return of


def weighted_spearman(x: Floats, y: Floats) -> OfWeights:
    """Pearson of the midranks, which are drawn anew in each resample."""
    cell, xs, ys = _cells(x, y)
    ranks_x, ranks_y = _midranks(xs), _midranks(ys)

    def of(weights: Floats) -> Floats:
        counts = weights @ cell
        middle = (counts.sum(axis=1, keepdims=True) + 1) / 2
        rx, ry = ranks_x(counts) - middle, ranks_y(counts) - middle
        wx, wy = counts * rx, counts * ry
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray((wx * ry).sum(axis=1) / np.sqrt((wx * rx).sum(axis=1) * (wy * ry).sum(axis=1)))

    return of


def weighted_kendall(x: Floats, y: Floats) -> OfWeights:
    """tau-b as a quadratic form: the pairs' agreement in order, each pair weighted by both of its items."""
    cell, xs, ys = _cells(x, y)
    sign_x, sign_y = np.sign(np.subtract.outer(xs, xs)), np.sign(np.subtract.outer(ys, ys))
    agreement, apart_x, apart_y = sign_x * sign_y, np.abs(sign_x), np.abs(sign_y)

    def of(weights: Floats) -> Floats:
        counts = weights @ cell
        concordance, pairs_x, pairs_y = (
            ((counts @ pairs) * counts).sum(axis=1) for pairs in (agreement, apart_x, apart_y)
        )
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(concordance / np.sqrt(pairs_x * pairs_y))

    return of


def _cells(x: Floats, y: Floats) -> tuple[Floats, Floats, Floats]:
    """The distinct pairs of scores, and to which of them each item belongs (items x pairs, 0 or 1)."""
    pairs, codes = np.unique(np.stack([x, y], axis=1), axis=0, return_inverse=True)
    member = np.zeros((len(x), len(pairs)))
    member[np.arange(len(x)), codes.ravel()] = 1
    return member, pairs[:, 0], pairs[:, 1]


def _midranks(values: Floats) -> Callable[[Floats], Floats]:
    levels, codes = np.unique(values, return_inverse=True)
    member = np.zeros((len(values), len(levels)))
    member[np.arange(len(values)), codes] = 1

    def ranks(counts: Floats) -> Floats:
        margin = counts @ member
        return np.asarray((np.cumsum(margin, axis=1) - (margin - 1) / 2)[:, codes])

    return ranks


_VALUES = {"pearson": stats.pearsonr, "spearman": stats.spearmanr, "kendall": stats.kendalltau}
_WEIGHTED: dict[Kind, Callable[..., OfWeights]] = {
    "pearson": weighted_pearson,
    "spearman": weighted_spearman,
    "kendall": weighted_kendall,
}
