"""How far one score lies from another: bias, and the limits of agreement.

Limits of agreement: J. M. Bland and D. G. Altman, "Statistical methods for assessing agreement between two methods of
clinical measurement", Lancet 327 (1986), 307-310. About 95 % of the differences lie between them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dicast.app.statistics.arrays import Floats, Ints
from dicast.app.statistics.estimates import Result, Unknown
from dicast.app.statistics.resampling import Sums, interval, pairs

LIMIT = 1.96


@dataclass(frozen=True, slots=True)
class Differences:
    """The mean of x - y, and the limits between which 95 % of the differences lie, each with its own interval."""

    bias: Result
    lower_limit: Result
    upper_limit: Result


def differences(x: Floats, y: Floats, rng: np.random.Generator, *, item: Ints | None = None) -> Differences:
    """Return bias and limits of agreement of `x` against `y`; pairs where either is NaN are left out.

    `item` gives the item of each pair, if several pairs belong to one: they are drawn together.
    """
    both = ~(np.isnan(x) | np.isnan(y))
    apart = (x - y)[both]
    scored, row = np.unique((np.arange(len(x)) if item is None else item)[both], return_inverse=True)
    if len(scored) < 3:
        unknown = Unknown(f"only {len(scored)} items were scored by both")
        return Differences(unknown, unknown, unknown)

    def limit(places: float) -> Result:
        value = float(apart.mean() + places * apart.std(ddof=1))
        statistic = pairs(lambda difference, _: limit_sums(difference, places), apart, apart, row)
        return interval(value, len(scored), statistic, rng, shape="difference")

    return Differences(limit(0.0), limit(-LIMIT), limit(LIMIT))


def limit_sums(apart: Floats, places: float) -> Sums:
    """Return the mean of the differences plus `places` standard deviations."""
    middle = apart.mean()

    def evaluate(sums: Floats) -> Floats:
        n, mean, squares = sums[:, 0], sums[:, 1] / sums[:, 0], sums[:, 2] / sums[:, 0]
        return np.asarray(middle + mean + places * np.sqrt((squares - mean**2).clip(0) * n / (n - 1)))

    return Sums(np.stack([np.ones(len(apart)), apart - middle, (apart - middle) ** 2], axis=1), evaluate)
