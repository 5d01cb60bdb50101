"""Student's t distribution, by scipy's special functions: loading `scipy.stats` takes half a second of CPU time.

The least-squares line through pairs of numbers, with errors that may differ from pair to pair.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import special

from dicast.app.analysis.estimates import CONFIDENCE, Floats


def below(t: float, degrees: float) -> float:
    """Return the probability of a value below `t`."""
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
