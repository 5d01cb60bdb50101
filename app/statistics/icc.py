"""Intraclass correlation, two-way random effects, absolute agreement: ICC(2,1) of one rater, ICC(2,k) of their mean.

After P. E. Shrout and J. L. Fleiss, "Intraclass correlations: uses in assessing rater reliability", Psychological
Bulletin 86 (1979), 420-428. They need every item rated by every rater: others are left out.
"""

from __future__ import annotations

import numpy as np

from dicast.app.statistics.arrays import Floats
from dicast.app.statistics.estimates import Result, Unknown
from dicast.app.statistics.resampling import Sums, interval, rows


def icc(matrix: Floats, rng: np.random.Generator, *, of_mean: bool = False) -> Result:
    """Return ICC(2,1), or with `of_mean` ICC(2,k), over the items (rows) that all raters (columns) scored."""
    raters = matrix.shape[1]
    whole = matrix[~np.isnan(matrix).any(axis=1)]
    if raters < 2:
        return Unknown("there is only one rater")
    if len(whole) < 3:
        return Unknown(f"only {len(whole)} items were scored by all {raters} raters")
    if np.ptp(whole) == 0:
        return Unknown("everybody gave every item the same score")
    value = icc_sums(whole, of_mean=of_mean).value
    statistic = rows(lambda chosen: icc_sums(chosen, of_mean=of_mean), whole)
    return interval(value, len(whole), statistic, rng, shape="correlation")


def icc_sums(matrix: Floats, *, of_mean: bool) -> Sums:
    matrix = matrix - matrix.mean()
    k = matrix.shape[1]

    def evaluate(sums: Floats) -> Floats:
        n, squared_means, squares = sums[:, 0], sums[:, 1], sums[:, 2]
        rater_means = sums[:, 3:] / n[:, None]
        correction = n * k * rater_means.mean(axis=1) ** 2
        targets = k * squared_means - correction
        raters = n * (rater_means**2).sum(axis=1) - correction
        error = (squares - correction - targets - raters) / ((n - 1) * (k - 1))
        targets, raters = targets / (n - 1), raters / (k - 1)
        rest = 0.0 if of_mean else (k - 1) * error
        share = 1 if of_mean else k
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray((targets - error) / (targets + rest + share * (raters - error) / n))

    return Sums(
        np.column_stack([np.ones(len(matrix)), matrix.mean(axis=1) ** 2, (matrix**2).sum(axis=1), matrix]), evaluate
    )
