"""Bootstrap intervals over items, for any statistic that can be computed with weighted items.

A resample of n items is a row of n whole weights that sum to n: how often each item was drawn. Whatever raters and
judges said of an item stays together, so their errors' dependence is kept. A statistic takes many rows at once, which
is what makes thousands of resamples cheap.

The interval is value +- t * (standard error), for correlations and the like on the scale of Fisher's z, where they are
closer to normal, and mapped back. The standard error is the bootstrap's, but never less than the jackknife's: with few
items the first errs to the low side, the second to the high one (B. Efron and C. Stein, "The jackknife estimate of
variance", Annals of Statistics 9 (1981), 586-596). The plain percentile interval holds the truth in 90 to 93 % of the
cases where this one does in 93 to 96 %, with 50 rated items on a skewed scale (`app.statistics.coverage`).

Above `MOST_ITEMS` items the standard error comes from a random part of them and shrinks with the root of their number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
from scipy import stats

from app.statistics.arrays import Floats
from app.statistics.estimates import CONFIDENCE, Estimate, Result, Unknown

RESAMPLES = 1000
MOST_ITEMS = 2000
FEWEST_ITEMS = 10
MOST_UNDEFINED = 0.05
EDGE = 1e-9  # Fisher's z of 1 is infinite

Shape = Literal["correlation", "difference"]
OfWeights = Callable[[Floats], Floats]
"""From weights (resamples x items) to the statistic of each resample; NaN where it is not defined."""


def interval(
    value: float,
    data: Sequence[Any],
    weighted: Callable[..., OfWeights],
    rng: np.random.Generator,
    *,
    shape: Shape,
) -> Result:
    """`value` with its interval. `weighted(*data)` gives the statistic as a function of the items' weights.

    `data` are arrays whose first axis is the items. `shape` says what the statistic is: a "correlation" cannot pass 1,
    a "difference" has no bounds. Unknown with fewer than `FEWEST_ITEMS` items, where the statistic is the same or not
    defined without some of them.
    """
    items = len(data[0])
    if items < FEWEST_ITEMS:
        return Unknown(f"an interval needs {FEWEST_ITEMS} items or more, and there are {items}")
    if not np.isfinite(value):
        return Unknown("it is not defined for these scores")
    chosen = np.sort(rng.choice(items, MOST_ITEMS, replace=False)) if items > MOST_ITEMS else np.arange(items)
    statistic = weighted(*(array[chosen] for array in data))
    used = len(chosen)
    drawn = _stretched(statistic(resample(used, RESAMPLES, rng)), shape)
    without = _stretched(statistic(1 - np.eye(used)), shape)
    defined = drawn[np.isfinite(drawn)]
    if len(defined) < (1 - MOST_UNDEFINED) * RESAMPLES or not np.isfinite(without).all():
        return Unknown("it rests on so few differing scores that some resamples have none")
    jackknife = np.sqrt((used - 1) / used * ((without - without.mean()) ** 2).sum())
    error = max(float(defined.std(ddof=1)), float(jackknife)) * np.sqrt(used / items)
    if error < EDGE:
        return Unknown(f"all {items} items say the same ({value:.3g}), which leaves nothing to draw an interval from")
    reach = float(stats.t.ppf((1 + CONFIDENCE) / 2, items - 1)) * error
    middle = _stretched(np.array([value]), shape)[0]
    low, high = _shrunk(np.array([middle - reach, middle + reach]), shape)
    return Estimate(value, float(low), float(high), items, "bootstrap by item")


def resample(items: int, times: int, rng: np.random.Generator) -> Floats:
    """`times` resamples of `items` items with replacement, as weights (times x items)."""
    drawn = rng.integers(0, items, (times, items)) + np.arange(times)[:, None] * items
    return np.bincount(drawn.ravel(), minlength=times * items).reshape(times, items).astype(np.float64)


def _stretched(values: Floats, shape: Shape) -> Floats:
    return np.arctanh(values.clip(EDGE - 1, 1 - EDGE)) if shape == "correlation" else values


def _shrunk(values: Floats, shape: Shape) -> Floats:
    return np.tanh(values) if shape == "correlation" else values
