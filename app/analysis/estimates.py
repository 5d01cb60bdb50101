"""The two results of a statistic: a value with its interval, or the reason why it cannot be given.

Beside them stand what they are computed with: types of arrays, Student's t distribution, and the least-squares line.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import special

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value, and an interval that holds the truth with probability `confidence`.

    All three numbers are finite and low <= high. The value usually lies between them, but need not: an interval that
    corrects a bias may leave it out. `items` is the number of items it rests on, `method` how the interval was made.
    """

    value: float
    low: float
    high: float
    items: int
    method: str
    confidence: float = CONFIDENCE

    def __post_init__(self) -> None:
        if not (isfinite(self.value) and isfinite(self.low) and isfinite(self.high)):
            raise ValueError(f"an estimate has finite numbers, got {self.value}, {self.low}, {self.high}")
        if self.low > self.high:
            raise ValueError(f"the interval ends before it starts: {self.low} > {self.high}")

    @property
    def width(self) -> float:
        return self.high - self.low

    def holds(self, truth: float) -> bool:
        """Return whether the interval contains `truth`, its ends included."""
        return self.low <= truth <= self.high


@dataclass(frozen=True, slots=True)
class Unknown:
    """A value that cannot be given. `reason` continues the sentence "cannot be said, because ..."."""

    reason: str

    def __str__(self) -> str:
        return f"cannot be said, because {self.reason}"


Result = Estimate | Unknown
"""What statistics return. Reports hold it as a `Figure`, which `scores.figure` makes of it."""


Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


def below(t: float, degrees: float) -> float:
    """Return the probability of a value below `t`.

    It is Student's t distribution, by scipy's special functions: loading `scipy.stats` takes half a second of CPU time.
    """
    return float(special.stdtr(degrees, t))


def quantile(p: float, degrees: float) -> float:
    """Return the value below which the share `p` lies."""
    return float(special.stdtrit(degrees, p))


def two_sided_p(t: float, degrees: float) -> float:
    """Return the probability of a value at least as far from 0 as `t`, on either side."""
    return 2 * below(-abs(t), degrees)


class Slope(NamedTuple):
    """A line's slope with its interval, and the p-value against a level line."""

    value: float
    low: float
    high: float
    p: float


def slope(x: Floats, y: Floats) -> Slope:
    """Return the slope of `y` by `x`, with heteroscedasticity-consistent errors (HC3) and Student's t. Neither may be
    constant."""
    from statsmodels.regression.linear_model import OLS  # noqa: PLC0415  (takes a second of CPU time to load)

    fit = OLS(y, np.column_stack([np.ones(len(x)), x])).fit(cov_type="HC3", use_t=True)
    low, high = fit.conf_int(1 - CONFIDENCE)[1]
    return Slope(float(fit.params[1]), float(low), float(high), float(fit.pvalues[1]))
