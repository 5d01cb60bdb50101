"""Pearson, Spearman and Kendall (tau-b) between two scores of the same items, with bootstrap intervals.

The values come from scipy; the sums below serve only the resamples.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
import scipy

from dicast.app.statistics.arrays import Floats, Ints
from dicast.app.statistics.estimates import Result, Unknown
from dicast.app.statistics.resampling import Sums, interval, pairs

Kind = Literal["pearson", "spearman", "kendall"]
MOST_LEVELS = 30


def correlation(x: Floats, y: Floats, kind: Kind, rng: np.random.Generator, *, item: Ints | None = None) -> Result:
    """Return the correlation of pairs of scores; pairs where either is NaN are left out.

    `item` gives the item of each pair, if several pairs belong to one: they are drawn together.
    """
    both = ~(np.isnan(x) | np.isnan(y))
    item = np.arange(len(x)) if item is None else item
    x, y, scored = x[both], y[both], np.unique(item[both])
    if len(scored) < 3:
        return Unknown(f"only {len(scored)} items were scored by both")
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        return Unknown("one side gave every item the same score")
    value = _value(kind, x, y)
    statistic = pairs(_SUMS[kind], x, y, np.searchsorted(scored, item[both]))
    return interval(value, len(scored), statistic, rng, shape="correlation")


def _value(kind: Kind, x: Floats, y: Floats) -> float:
    function = {"pearson": scipy.stats.pearsonr, "spearman": scipy.stats.spearmanr, "kendall": scipy.stats.kendalltau}[
        kind
    ]
    return float(function(x, y).statistic)


def pearson_sums(x: Floats, y: Floats) -> Sums:
    x, y = x - x.mean(), y - y.mean()

    def evaluate(sums: Floats) -> Floats:
        mx, my, xx, yy, xy = (sums[:, 1:] / sums[:, :1]).T
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray((xy - mx * my) / np.sqrt((xx - mx * mx) * (yy - my * my)))

    return Sums(np.stack([np.ones(len(x)), x, y, x * x, y * y, x * y], axis=1), evaluate)


def spearman_sums(x: Floats, y: Floats) -> Sums:
    """Return Pearson's correlation of the midranks, which follow from how often each pair of scores was drawn."""
    member, xs, ys = _cells(x, y)
    ranks_x, ranks_y = _midranks(xs), _midranks(ys)

    def evaluate(counts: Floats) -> Floats:
        middle = (counts.sum(axis=1, keepdims=True) + 1) / 2
        rx, ry = ranks_x(counts) - middle, ranks_y(counts) - middle
        wx, wy = counts * rx, counts * ry
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray((wx * ry).sum(axis=1) / np.sqrt((wx * rx).sum(axis=1) * (wy * ry).sum(axis=1)))

    return Sums(member, evaluate, symmetric=True)


def kendall_sums(x: Floats, y: Floats) -> Sums:
    """Return tau-b as a quadratic form in how often each pair of scores was drawn."""
    member, xs, ys = _cells(x, y)
    sign_x, sign_y = np.sign(np.subtract.outer(xs, xs)), np.sign(np.subtract.outer(ys, ys))
    forms = sign_x * sign_y, np.abs(sign_x), np.abs(sign_y)

    def evaluate(counts: Floats) -> Floats:
        concordance, pairs_x, pairs_y = (((counts @ form) * counts).sum(axis=1) for form in forms)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(concordance / np.sqrt(pairs_x * pairs_y))

    return Sums(member, evaluate, symmetric=True)


def _cells(x: Floats, y: Floats) -> tuple[Floats, Floats, Floats]:
    """Return the membership of each pair in the distinct pairs of scores (0 or 1), and the two scores of each distinct
    pair."""
    distinct, codes = np.unique(np.stack([_coarse(x), _coarse(y)], axis=1), axis=0, return_inverse=True)
    member = np.zeros((len(x), len(distinct)))
    member[np.arange(len(x)), codes.ravel()] = 1
    return member, distinct[:, 0], distinct[:, 1]


def _coarse(x: Floats) -> Floats:
    """Return the scores, or for many levels their ranks in `MOST_LEVELS` steps, which suffice for the spread of a rank
    statistic."""
    levels, codes = np.unique(x, return_inverse=True)
    if len(levels) <= MOST_LEVELS:
        return x
    below = np.cumsum(np.bincount(codes))[codes]
    return np.floor((below - 1) * MOST_LEVELS / len(x))


def _midranks(values: Floats) -> Callable[[Floats], Floats]:
    levels, codes = np.unique(values, return_inverse=True)
    member = np.zeros((len(values), len(levels)))
    member[np.arange(len(values)), codes] = 1

    def ranks(counts: Floats) -> Floats:
        margin = counts @ member
        return np.asarray((np.cumsum(margin, axis=1) - (margin - 1) / 2)[:, codes])

    return ranks


_SUMS: dict[Kind, Callable[[Floats, Floats], Sums]] = {
    "pearson": pearson_sums,
    "spearman": spearman_sums,
    "kendall": kendall_sums,
}
