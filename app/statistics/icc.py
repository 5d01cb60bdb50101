"""Intraclass correlation, two-way random effects, absolute agreement: ICC(2,1) of one rater, ICC(2,k) of their mean.

After P. E. Shrout and J. L. Fleiss, "Intraclass correlations: uses in assessing rater reliability", Psychological
Bulletin 86 (1979), 420-428. They need every item rated by every rater: others are left out.
"""

from __future__ import annotations

import numpy as np

from app.statistics.arrays import Floats
from app.statistics.estimates import Result, Unknown
from app.statistics.resampling import OfWeights, interval


def icc(matrix: Floats, rng: np.random.Generator, *, of_mean: bool = False) -> Result:
    """ICC(2,1), or with `of_mean` ICC(2,k), over the items (rows) that all raters (columns) scored."""
    raters = matrix.shape[1]
    whole = matrix[~np.isnan(matrix).any(axis=1)]
    if raters < 2:
        return Unknown("there is only one rater")
    if len(whole) < 3:
        return Unknown(f"only {len(whole)} items were scored by all {raters} raters")
    if np.ptp(whole) == 0:
        return Unknown("everybody gave every item the same score")
    value = float(weighted_icc(whole, of_mean=of_mean)(np.ones((1, len(whole))))[0])
    return interval(value, (whole,), lambda chosen: weighted_icc(chosen, of_mean=of_mean), rng, shape="correlation")


def weighted_icc(matrix: Floats, *, of_mean: bool) -> OfWeights:
    matrix = matrix - matrix.mean()
    k = matrix.shape[1]
    means = matrix.mean(axis=1)
    columns = np.column_stack([means**2, (matrix**2).sum(axis=1), matrix])

    def of(weights: Floats) -> Floats:
        n = weights.sum(axis=1)
        sums = weights @ columns
        column_means = sums[:, 2:] / n[:, None]
        correction = n * k * column_means.mean(axis=1) ** 2
        rows = k * sums[:, 0] - correction
        raters = n * (column_means**2).sum(axis=1) - correction
        error = (sums[:, 1] - correction - rows - raters) / ((n - 1) * (k - 1))
        rows, raters = rows / (n - 1), raters / (k - 1)
        with np.errstate(divide="ignore", invalid="ignore"):
            if of_mean:
                return np.asarray((rows - error) / (rows + (raters - error) / n))
            return np.asarray((rows - error) / (rows + (k - 1) * error + k * (raters - error) / n))

    return of
