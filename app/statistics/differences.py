"""How far one score lies from another: bias, and the limits of agreement.

Limits of agreement: J. M. Bland and D. G. Altman, "Statistical methods for assessing agreement between two methods of
clinical measurement", Lancet 327 (1986), 307-310. About 95 % of the differences lie between them.

Their intervals are studentized bootstrap ones (B. Efron and R. J. Tibshirani, "An Introduction to the Bootstrap"
(1993), section 12.5): a limit far out errs together with its own standard error, which a symmetric interval misses.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from app.statistics.arrays import Floats, Ints
from app.statistics.estimates import CONFIDENCE, Estimate, Result, Unknown
from app.statistics.resampling import EDGE, FEWEST_ITEMS, MOST_ITEMS, RESAMPLES, resample

LIMIT = 1.96


@dataclass(frozen=True, slots=True)
class Differences:
    """The mean of x - y, and the limits between which 95 % of the differences lie, each with its own interval."""

    bias: Result
    lower_limit: Result
    upper_limit: Result


def differences(x: Floats, y: Floats, rng: np.random.Generator, *, item: Ints | None = None) -> Differences:
    """Bias and limits of agreement of `x` against `y`; pairs where either is NaN are left out.

    `item` gives the item of each pair, where several pairs belong to one: they are drawn together.
    """
    both = ~(np.isnan(x) | np.isnan(y))
    apart = (x - y)[both]
    scored, row = np.unique((np.arange(len(x)) if item is None else item)[both], return_inverse=True)
    if len(scored) < FEWEST_ITEMS:
        unknown = Unknown(f"an interval needs {FEWEST_ITEMS} items or more, and {len(scored)} were scored by both")
        return Differences(unknown, unknown, unknown)
    if np.ptp(apart) < EDGE:
        unknown = Unknown(f"all {len(apart)} differences are {apart[0]:.3g}, which leaves nothing to draw one from")
        return Differences(unknown, unknown, unknown)
    middle = float(apart.mean())
    sums = _sums(apart - middle, row)
    used = sums[np.sort(rng.choice(len(sums), MOST_ITEMS, replace=False))] if len(sums) > MOST_ITEMS else sums
    drawn = resample(len(used), RESAMPLES, rng) @ used
    return Differences(*(_limit(middle, places, sums, used, drawn) for places in (0.0, -LIMIT, LIMIT)))


def limits(sums: Floats, places: float) -> tuple[Floats, Floats]:
    """The mean difference and `places` standard deviations, with its standard error, from each row of sums.

    The error follows from each item's influence on mean and variance, squared and summed over the items.
    """
    n, s, q, ss, qq, nn, sq, sn, qn, items = sums.T
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = s / n
        variance = (q / n - mean**2).clip(0)
        spread = np.sqrt(variance)
        a, b = 1 - places * mean / spread, places / (2 * spread)
        c = -mean + b * (mean**2 - variance)
        squares = a * a * ss + b * b * qq + c * c * nn + 2 * (a * b * sq + a * c * sn + b * c * qn)
        error = np.sqrt(squares.clip(0) * items / (items - 1)) / n
        return mean + places * spread * np.sqrt(n / (n - 1)), error


def _sums(apart: Floats, row: Ints) -> Floats:
    """Each item's number, sum and sum of squares of the differences, and the products of these (items x 10)."""
    n, s, q = (np.bincount(row, weights=w) for w in (np.ones(len(apart)), apart, apart**2))
    return np.stack([n, s, q, s * s, q * q, n * n, s * q, s * n, q * n, np.ones(len(n))], axis=1)


def _limit(middle: float, places: float, sums: Floats, used: Floats, drawn: Floats) -> Result:
    value, error = (float(part[0]) for part in limits(sums.sum(axis=0, keepdims=True), places))
    centre = limits(used.sum(axis=0, keepdims=True), places)[0]
    values, errors = limits(drawn, places)
    with np.errstate(divide="ignore", invalid="ignore"):
        off = (values - centre) / errors
    off = off[np.isfinite(off)]
    if len(off) < RESAMPLES * CONFIDENCE or error < EDGE:
        return Unknown("it rests on so few differing scores that some resamples have none")
    low, high = np.quantile(off, [(1 + CONFIDENCE) / 2, (1 - CONFIDENCE) / 2])
    value += middle
    return Estimate(value, value - float(low) * error, value - float(high) * error, len(sums), "bootstrap by item")
