"""Estimates people's mean of all items, from judges' scores of all and people's of some.

Prediction-powered inference with power tuning: A. N. Angelopoulos, J. C. Duchi and T. Zrnic, "PPI++: efficient
prediction-powered inference" (arXiv 2311.01453), for means and whatever is one: shares over a threshold, win rates,
differences of two systems. The judges' mean over all items is corrected by how far they were off on the rated items;
their weight is the one that makes the interval narrowest, so that useless judges do no harm.

It is valid however biased the judges are, on one condition: which items people rated is a random choice, or one with
known probabilities (sampling.py), given as `probabilities`. It estimates the population that the items are drawn from,
as do the intervals of people's ratings alone, which stand beside it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dicast.app.analysis.estimates import Bools, Estimate, Floats, Result, Unknown
from dicast.app.analysis.means import FEWEST, Deviation, bounded_mean, deviation, estimate, is_small

MOST_LEVERAGE = 0.9
ROUNDING = 1e-20
"""Variances below this share of another one are rounding errors of zero."""
ALL_RATED = "people rated every judged item"
TOO_FEW = "ratings are too few, or too near an end of the scale, for judges' scores to make them more exact"


@dataclass(frozen=True, slots=True)
class Powered:
    """People's mean of all items: from both, and from people's ratings alone.

    `judges_weight` is how far the value moves if the judges' mean moves by 1: 0 for judges without information. `saved`
    is the factor by which people would have had to rate more items for an interval as narrow without the judges: 1
    means that they saved none. If people rated every item there is nothing to save, and the weight is 0.
    """

    both: Result
    people_alone: Result
    judges_weight: float
    saved: float | Unknown


@dataclass(frozen=True, slots=True)
class _Fit:
    """The two estimators of one sample, with their degrees of freedom."""

    both: Deviation
    alone: Deviation
    weight: float
    rated: int
    degrees: float
    unrated: int


def powered_mean(
    judges: Floats,
    people: Floats,
    *,
    probabilities: Floats | None = None,
    bounds: tuple[float, float] | None = None,
    weight: float | None = None,
) -> Powered:
    """Return people's mean of all items. `judges` and `people` have one number per item, `people` NaN for unrated ones.

    `probabilities` is how likely each item was to be rated; without them all are equally likely. `bounds` are the ends
    of the scale, as for `means.mean`: where ratings are few, or near an end, both estimates are then that of people's
    ratings alone, by `bounded_mean`. `weight` fixes the judges' weight instead of tuning it.
    """
    if bounds is not None and probabilities is None:
        rated = people[~np.isnan(judges) & ~np.isnan(people)]
        if len(rated) >= FEWEST and is_small(deviation(rated), bounds):
            return _alone(rated, bounds, int((~np.isnan(judges)).sum()))
    fitted = _fit(judges, people, probabilities, weight)
    if isinstance(fitted, Unknown):
        return _nothing(fitted)
    if bounds is not None and probabilities is None and not bounds[0] < fitted.both.value < bounds[1]:
        return _alone(people[~np.isnan(judges) & ~np.isnan(people)], bounds, len(judges))
    return _powered(fitted, bounds)


def _alone(rated: Floats, bounds: tuple[float, float], judged: int) -> Powered:
    """Return what people's ratings say without the judges."""
    found = bounded_mean(rated, bounds)
    return Powered(found, found, 0.0, Unknown(ALL_RATED if len(rated) == judged else TOO_FEW))


def powered_share(judges: Floats, people: Floats, threshold: float, *, probabilities: Floats | None = None) -> Powered:
    """Return the share of items to which people would give `threshold` or more.

    Judges' plain scores predict it, because a judge that is a point too strict would be no help at the same threshold.
    """
    over = np.where(np.isnan(people), np.nan, people >= threshold)
    return powered_mean(judges, over, probabilities=probabilities, bounds=(0.0, 1.0))


def powered_win_rate(judges: Floats, people: Floats, *, probabilities: Floats | None = None) -> Powered:
    """Return how often people would prefer A: 1 where A won, 0 where B did, 0.5 for a tie."""
    return powered_mean(judges, people, probabilities=probabilities, bounds=(0.0, 1.0))


def powered_difference(
    judges: tuple[Floats, Floats],
    people: tuple[Floats, Floats],
    *,
    paired: bool,
    probabilities: tuple[Floats, Floats] | None = None,
) -> Powered:
    """Return people's mean of system A less that of system B. Paired systems answered the same items, row by row.

    A pair counts as rated if both of its answers are. For paired items only the first probabilities are read: how
    likely the pair was to be rated.
    """
    if paired:
        chances = None if probabilities is None else probabilities[0]
        return powered_mean(judges[0] - judges[1], people[0] - people[1], probabilities=chances)
    fits = [
        _fit(judges[side], people[side], None if probabilities is None else probabilities[side], None)
        for side in (0, 1)
    ]
    for fitted in fits:
        if isinstance(fitted, Unknown):
            return _nothing(fitted)
    a, b = (fitted for fitted in fits if isinstance(fitted, _Fit))
    apart = _Fit(
        a.both.minus(b.both),
        a.alone.minus(b.alone),
        (a.weight + b.weight) / 2,
        min(a.rated, b.rated),
        min(a.degrees, b.degrees),
        a.unrated + b.unrated,
    )
    return _powered(apart, None)


def _fit(judges: Floats, people: Floats, probabilities: Floats | None, weight: float | None) -> _Fit | Unknown:
    usable = ~np.isnan(judges)
    rated = usable & ~np.isnan(people)
    if rated.sum() < FEWEST:
        return Unknown(f"people rated {rated.sum()} of the judged items, and it needs {FEWEST} or more")
    chances = np.full(len(judges), rated.sum() / usable.sum()) if probabilities is None else probabilities
    if not ((chances[rated] > 0) & (chances[rated] <= 1)).all():
        return Unknown("a rated item had no known probability of being rated")
    y, f, shares = people[rated], judges[rated], 1 / chances[rated]
    if np.ptp(y) == 0:
        return Unknown(f"people gave all {len(y)} rated items the same score")
    is_rated = rated[usable]
    alone = deviation(y, None, shares)
    tuned = _tuned(judges[usable], y, f, is_rated, shares) if weight is None else weight
    residual = deviation(y - tuned * f, None, shares)
    value = tuned * float(judges[usable].mean()) + residual.value
    # Each item's influence on the value: what the judges say of it, and, if it is rated, how far they are off there.
    # The latter as if the item had been left out of the mean and of the weight it is compared with (the jackknife):
    # with few ratings, and the more with unlike weights, a residual is smaller than the error it stands for.
    influence = tuned * (judges[usable] - judges[usable].mean()) / usable.sum()
    share = shares / shares.sum()
    lever = share * (1 + (_leverage(f, share) if weight is None and tuned else 0.0))
    influence[is_rated] += share / (1 - lever.clip(max=MOST_LEVERAGE)) * (y - tuned * f - residual.value)
    pieces = 1 / float((share**2).sum())
    error = float(np.sqrt((influence**2).sum() * (pieces - 1) / pieces))
    return _Fit(Deviation(value, error, len(y)), alone, tuned, len(y), pieces - 1, int((~is_rated).sum()))


def _leverage(f: Floats, share: Floats) -> Floats:
    """Return the weight of a rated item's judgement in the judges' weight, as a multiple of its share."""
    apart = (f - np.average(f, weights=share)) ** 2
    return np.asarray(apart / np.average(apart, weights=share))


def _tuned(all_judged: Floats, y: Floats, f: Floats, is_rated: Bools, shares: Floats) -> float:
    """Return the weight that minimises the variance of the influences, between 0 and the largest that can help."""
    if np.ptp(f) == 0 or np.ptp(all_judged) == 0:
        return 0.0
    share = shares / shares.sum()
    influence = np.zeros(len(all_judged))
    influence[is_rated] = share * (y - np.average(y, weights=shares))
    pull = (all_judged - all_judged.mean()) / len(all_judged)
    pull[is_rated] -= share * (f - np.average(f, weights=shares))
    power, reference = float((pull**2).sum()), float(((share * (f - f.mean())) ** 2).sum())
    if power <= ROUNDING * reference:  # all were rated: the judges' mean of all is that of the rated
        return 0.0
    return float(max(-(influence * pull).sum() / power, 0.0))


def _powered(fitted: _Fit, bounds: tuple[float, float] | None) -> Powered:
    both = estimate(fitted.both, degrees=fitted.degrees, items=fitted.rated, method="PPI++", bounds=bounds)
    alone = estimate(fitted.alone, degrees=fitted.degrees, items=fitted.rated, method="t", bounds=bounds)
    saved: float | Unknown = Unknown("one of the intervals is not known")
    if not fitted.unrated:
        saved = Unknown(ALL_RATED)
    elif isinstance(both, Estimate) and isinstance(alone, Estimate):
        saved = (fitted.alone.error / fitted.both.error) ** 2
    return Powered(both, alone, fitted.weight, saved)


def _nothing(reason: Unknown) -> Powered:
    return Powered(reason, reason, 0.0, reason)
