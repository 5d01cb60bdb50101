"""What a judge adds for something, such as length, beside people's score of the same text.

A judge who uses less of the scale than people do is nearer to its middle on good and on bad texts. If long texts are
better, the difference from people then falls with length, although the judge sees nothing in length. So a judge's
score is compared with people's *calibrated to the judge*: score = a + b * people + effect * x. People's mean is a
noisy measure of what they think of a text, which would draw b towards 0 and leave a part of it in the effect, so the
noise's variance, from how far raters of the same text lie apart, is taken out (errors in variables: W. A. Fuller,
"Measurement Error Models" (1987), section 2.2). Intervals are by the jackknife over items and Student's t.

Where no text has two raters, the noise is unknown, and b lies between the slopes of the two regressions, of the judge
by people and of people by the judge (C. Frisch, "Statistical Confluence Analysis" (1934)). The interval then holds the
effects at both, and p is the larger one.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dicast.app.analysis import estimates as student
from dicast.app.analysis.combining import combine_mean
from dicast.app.analysis.estimates import CONFIDENCE, Estimate, Floats, Result, Unknown

FEWEST_PAIRS = 10
LEAST_RELIABILITY = 0.25
SMALLEST = 1e-9
METHOD = "errors in variables, jackknife by item"
BOUNDED = "between the two regressions, jackknife by item"

_Slope = Callable[["_Moments"], Floats]


class _Moments:
    """Sums of squares and products about the line by x, each without one item in turn (and, first, without none)."""

    def __init__(self, x: Floats, y: Floats, people: Floats) -> None:
        ratings = (~np.isnan(people)).sum(axis=1)
        mean = combine_mean(people)
        within, self.lost = _within_items(people - mean[:, None])
        columns = np.stack([
            np.ones(len(x)), x, y, mean, x * x, x * y, x * mean, y * y, y * mean, mean * mean, within,
            ratings - 1.0, 1 / ratings,
        ])  # fmt: skip
        whole = columns.sum(axis=1, keepdims=True)
        n, sx, sy, sm, sxx, sxy, sxm, syy, sym, smm, ss, freedom, shares = np.hstack([whole, whole - columns])
        self.xx, self.xy, self.xm = sxx - sx * sx / n, sxy - sx * sy / n, sxm - sx * sm / n
        self.yy = syy - sy * sy / n - self.xy**2 / self.xx
        self.ym = sym - sy * sm / n - self.xy * self.xm / self.xx
        self.mm = smm - sm * sm / n - self.xm**2 / self.xx
        self.pairs = float(freedom[0]) - self.lost
        self.noise = ss / np.maximum(freedom - self.lost, 1) * shares * (n - 2) / n

    def effect(self, slope: Floats) -> Floats:
        return np.asarray((self.xy - slope * self.xm) / self.xx)


def _within_items(apart: Floats) -> tuple[Floats, int]:
    """Return each item's sum of squares of its raters' differences from their mean, raters' own strictness taken out,
    and how many degrees of freedom that takes."""
    shared = (~np.isnan(apart)).sum(axis=1) > 1
    strictness = np.zeros(apart.shape[1])
    for rater in range(apart.shape[1]):
        of_rater = apart[shared, rater]
        if (~np.isnan(of_rater)).any():
            strictness[rater] = np.nanmean(of_rater)
    squares = np.nansum((apart - strictness) ** 2, axis=1)
    return np.where(shared, squares, 0.0), max(0, int((strictness != 0).sum()) - 1)


def effect_beside_people(x: Floats, judge: Floats, people: Floats) -> tuple[Result, float | None]:
    """Return what the judge adds per unit of `x`, and its p. `judge` and `x` have one number an item and none missing,
    `people` (items x raters) one rating an item at the least."""
    moments = _Moments(x, judge, people)
    if moments.mm[0] <= SMALLEST:
        return Unknown("people's scores go with it alone, or are all the same"), None
    if moments.pairs < FEWEST_PAIRS:
        return _between(moments, len(x))
    true = moments.mm - moments.noise
    if true[0] < LEAST_RELIABILITY * moments.mm[0]:
        return Unknown("people agree too little on what they rated to say what a text deserves"), None
    return _tested(moments.effect(moments.ym / np.where(np.abs(true) > SMALLEST, true, np.nan)), len(x), METHOD)


def _between(moments: _Moments, items: int) -> tuple[Result, float | None]:
    """Return the effect for all slopes between those of the two regressions."""
    if abs(moments.ym[0]) <= SMALLEST:
        return Unknown("no text has two raters, and the judge does not go with the one there is"), None
    ends = [
        _tested(moments.effect(slope), items, BOUNDED) for slope in (moments.ym / moments.mm, moments.yy / moments.ym)
    ]
    (one, p), (other, other_p) = ends
    if not (isinstance(one, Estimate) and isinstance(other, Estimate) and p is not None and other_p is not None):
        return (one if isinstance(one, Unknown) else other), None
    middle = float(moments.effect(np.sign(moments.ym) * np.sqrt(moments.yy / moments.mm))[0])
    joint = Estimate(middle, min(one.low, other.low), max(one.high, other.high), items, BOUNDED)
    return joint, max(p, other_p) if one.value * other.value > 0 else 1.0


def _tested(effects: Floats, items: int, method: str) -> tuple[Result, float | None]:
    value, without = float(effects[0]), effects[1:]
    error = float(np.sqrt((items - 1) / items * ((without - without.mean()) ** 2).sum()))
    if not np.isfinite(error) or error <= SMALLEST:
        return Unknown("the rated items leave nothing to draw an interval from"), None
    reach = student.quantile((1 + CONFIDENCE) / 2, items - 3) * error
    return Estimate(value, value - reach, value + reach, items, method), student.two_sided_p(value / error, items - 3)
