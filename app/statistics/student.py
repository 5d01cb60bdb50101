"""Student's t distribution, by scipy's special functions: loading `scipy.stats` takes half a second of CPU time."""

from __future__ import annotations

from scipy import special


def below(t: float, degrees: float) -> float:
    """Return the probability of a value below `t`."""
    return float(special.stdtr(degrees, t))


def quantile(p: float, degrees: float) -> float:
    """Return the value below which the share `p` lies."""
    return float(special.stdtrit(degrees, p))


def two_sided_p(t: float, degrees: float) -> float:
    """Return the probability of a value at least as far from 0 as `t`, on either side."""
    return 2 * below(-abs(t), degrees)
