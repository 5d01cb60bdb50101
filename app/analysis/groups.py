"""Means of groups such as systems, models or languages, their differences and their ranks.

Scores of one item (by several judges, or of several systems) belong to one cluster: every interval here is clustered by
item. An item that several groups share makes their difference a paired one, because its cluster counts for both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt
from scipy import special

from dicast.app.analysis import estimates as student
from dicast.app.analysis.estimates import Floats, Ints, Result, Unknown
from dicast.app.analysis.means import FEWEST, SMALLEST, Deviation, estimate, is_small
from dicast.app.analysis.means import mean as mean_of

DRAWS = 10_000


@dataclass(frozen=True, slots=True)
class Difference:
    """The mean of `first` less that of `second`; `p` is corrected for all pairs by Holm, None if it is unknown.

    The interval is that of this pair alone, and so is `uncorrected`, its p-value.
    """

    first: str
    second: str
    difference: Result
    p: float | None
    uncorrected: float | None


@dataclass(frozen=True, slots=True)
class Groups:
    """Names, the mean of each, all pairs' differences, and the probability that each group (row) has each rank
    (column).

    Rank 1 is the highest mean. The rows and columns of `ranks` sum to 1; it is None if a mean is unknown.
    """

    names: tuple[str, ...]
    means: tuple[Result, ...]
    differences: tuple[Difference, ...]
    ranks: Floats | None


def compare_groups(
    scores: Floats,
    groups: npt.ArrayLike,
    items: npt.ArrayLike,
    rng: np.random.Generator,
    *,
    bounds: tuple[float, float] | None = None,
) -> Groups:
    """Compare the groups of these scores (one score, group and item per row; NaN scores are left out), by name.

    `bounds` are the scale's ends: with them the means' intervals are better near an end (`means.mean`).
    """
    present = ~np.isnan(scores)
    names, group = np.unique(np.asarray(groups)[present].astype(str), return_inverse=True)
    cluster = np.unique(np.asarray(items)[present], return_inverse=True)[1]
    scores = scores[present]
    count = int(cluster.max()) + 1 if len(cluster) else 0
    values = np.zeros(len(names))
    influence = np.zeros((count, len(names)))
    pieces = np.zeros(len(names), dtype=np.int64)
    for at in range(len(names)):
        members = group == at
        values[at] = scores[members].mean()
        influence[:, at] = (
            np.bincount(cluster[members], weights=scores[members] - values[at], minlength=count) / members.sum()
        )
        pieces[at] = len(np.unique(cluster[members]))
    influence *= np.sqrt(pieces / np.maximum(pieces - 1, 1))
    errors = np.sqrt((influence**2).sum(axis=0))
    means = []
    for at, (value, error, n) in enumerate(zip(values.tolist(), errors.tolist(), pieces.tolist(), strict=True)):
        summary, members = Deviation(value, error, n), group == at
        result = estimate(summary, degrees=n - 1, items=n, method="t by item", bounds=bounds)
        if bounds is not None and is_small(summary, bounds):
            result = mean_of(scores[members], clusters=cluster[members], bounds=bounds)
        means.append(result)
    all_known = all(not isinstance(result, Unknown) for result in means) and bool((errors > SMALLEST).all())
    return Groups(
        tuple(map(str, names)),
        tuple(means),
        differences_of_groups(tuple(map(str, names)), values, influence, pieces, method="t by item"),
        rank_probabilities(values, influence.T @ influence, rng) if all_known and len(names) else None,
    )


def rank_probabilities(values: Floats, covariance: Floats, rng: np.random.Generator) -> Floats:
    """Return the probability that each value (row) has each rank (column; 1st is the highest), if their errors are
    normal."""
    drawn = rng.multivariate_normal(values, covariance, DRAWS, method="eigh")
    places = (-drawn).argsort(axis=1).argsort(axis=1)
    return np.stack([(places == rank).mean(axis=0) for rank in range(len(values))], axis=1)


def holm(p: Floats) -> Floats:
    """Return p-values corrected for their number by the step-down method of S. Holm (Scandinavian Journal of Statistics
    6, 1979, 65-70).

    The function of statsmodels collects all garbage at every call, which takes a hundred times as long.
    """
    order = np.argsort(p)
    stepped = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)).clip(max=1.0)
    corrected = np.empty(len(p))
    corrected[order] = stepped
    return corrected


def differences_of_groups(
    names: tuple[str, ...], values: Floats, influence: Floats, pieces: Floats | Ints, *, method: str
) -> tuple[Difference, ...]:
    """Return all pairs' differences. `influence` is how far each cluster (row) moves each value (column), and `pieces`
    how many independent scores each value rests on."""
    results, raw = [], []
    for a, b in combinations(range(len(names)), 2):
        apart = influence[:, a] - influence[:, b]
        error = float(np.sqrt((apart**2).sum()))
        degrees = _degrees(influence[:, a], influence[:, b], float(pieces[a]), float(pieces[b]))
        items = int(min(pieces[a], pieces[b]))
        difference = float(values[a] - values[b])
        result = estimate(Deviation(difference, error, items), degrees=degrees, items=items, method=method)
        results.append((names[a], names[b], result))
        raw.append(np.nan if isinstance(result, Unknown) else student.two_sided_p(difference / error, degrees))
    p = np.array(raw)
    is_known = ~np.isnan(p)
    corrected = np.full(len(p), np.nan)
    corrected[is_known] = holm(p[is_known])
    return tuple(
        Difference(*found, *((float(after), float(before)) if known else (None, None)))
        for found, before, after, known in zip(results, p, corrected, is_known, strict=True)
    )


def equal_means_p(values: Sequence[Deviation]) -> float:
    """Return the p-value of "all values are equal", which may have unlike errors: the test of B. L. Welch (Biometrika
    38 (1951), 330-336). Values whose errors go the same way, such as those of shared clusters, make it cautious."""
    value, error, pieces = (np.array(column, dtype=np.float64) for column in zip(*(
        (one.value, one.error, one.pieces) for one in values
    ), strict=True))  # fmt: skip
    count, weight = len(value), error**-2
    share = weight / weight.sum()
    between = float((weight * (value - share @ value) ** 2).sum()) / (count - 1)
    uncertain = float(((1 - share) ** 2 / (pieces - 1)).sum())
    statistic = between / (1 + 2 * (count - 2) / (count**2 - 1) * uncertain)
    return float(special.fdtrc(count - 1, (count**2 - 1) / (3 * uncertain), statistic))


def _degrees(a: Floats, b: Floats, items_a: float, items_b: float) -> float:
    """Return the difference's degrees of freedom: the items less one if both groups share them, Welch's if they share
    none."""
    if items_a < FEWEST or items_b < FEWEST:
        return 1.0
    var_a, var_b = float((a**2).sum()), float((b**2).sum())
    if max(var_a, var_b) <= SMALLEST**2:
        return 1.0
    welch = (var_a + var_b) ** 2 / (var_a**2 / (items_a - 1) + var_b**2 / (items_b - 1))
    shared = bool(((a != 0) & (b != 0)).any())
    return min(items_a, items_b) - 1.0 if shared else welch
