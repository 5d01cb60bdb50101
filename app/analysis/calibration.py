"""Maps judges' scores to people's.

A calibration is learned on rated items and evaluated by cross-fitting: every item's calibrated score comes from the
other items. app/domain/calibration.py stores maps together with what they apply to.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from dicast.app.analysis.estimates import Floats, Ints, Result, Unknown
from dicast.app.analysis.means import Deviation, deviation, estimate, mean
from dicast.app.analysis.resampling import resample

Method = Literal["isotonic", "ordinal", "linear"]
FEWEST = 10
HALVES = 2
RESAMPLES = 200
MOST_FACTORS = 20
SMALLEST = 1e-9
WITH_MAP = "t, the map's error included"


@dataclass(frozen=True, slots=True)
class ScoreMap:
    """A piecewise linear map from a judge's scores to people's (x ascending), constant beyond the outermost points."""

    method: Method
    x: tuple[float, ...]
    y: tuple[float, ...]
    items: int

    def apply(self, scores: Floats) -> Floats:
        """Return the calibrated scores; NaN stays NaN."""
        return np.asarray(np.interp(scores, self.x, self.y))


@dataclass(frozen=True, slots=True)
class Gain:
    """The benefit of calibrating, on items that the map was not learned on: the root of the mean squared error against
    people before (`raw`) and after (`calibrated`), and by how much the mean squared error falls (`fall`)."""

    raw: float
    calibrated: float
    fall: Result


def learn(judge: Floats, people: Floats, method: Method) -> ScoreMap | Unknown:
    """Return the map that fits best, over the items with both scores.

    "isotonic" is the best map that never falls; "ordinal" maps each of the judge's scores to people's mean there, and
    may fall; "linear" is the least-squares line, over the observed range.
    """
    both = ~(np.isnan(judge) | np.isnan(people))
    x, y = judge[both], people[both]
    if len(x) < FEWEST:
        return Unknown(f"a calibration needs {FEWEST} rated items or more, and there are {len(x)}")
    if np.ptp(x) == 0:
        return Unknown("the judge gave every rated item the same score")
    levels, codes = np.unique(x, return_inverse=True)
    if method == "isotonic":
        from sklearn.isotonic import IsotonicRegression  # noqa: PLC0415  (takes a second of CPU time to load)

        fitted = IsotonicRegression(out_of_bounds="clip").fit(x, y).predict(levels)
    elif method == "ordinal":
        fitted = np.bincount(codes, weights=y) / np.bincount(codes)
    else:
        levels = levels[[0, -1]]
        slope, at_zero = np.polyfit(x, y, 1)
        fitted = slope * levels + at_zero
    return ScoreMap(method, tuple(map(float, levels)), tuple(map(float, fitted)), len(x))


def map_errors(
    judge: Floats, people: Floats, learned: ScoreMap, rng: np.random.Generator, clusters: Ints | None = None
) -> Floats:
    """Return how the map's points err together: a matrix (points x at most `MOST_FACTORS`) whose product with its
    transpose is their covariance.

    It is that of maps learned from resamples of the items, or of their `clusters`, widened by what fitting as many
    different values hides of the residuals. Of many points, the largest common errors are kept.
    """
    both = ~(np.isnan(judge) | np.isnan(people))
    x, y = judge[both], people[both]
    piece = np.arange(len(x)) if clusters is None else np.unique(clusters[both], return_inverse=True)[1]
    count, points = int(piece.max()) + 1, np.array(learned.x)
    drawn = []
    for weights in resample(count, RESAMPLES, rng):
        times = weights[piece].astype(np.int64)
        redrawn = learn(np.repeat(x, times), np.repeat(y, times), learned.method)
        if isinstance(redrawn, ScoreMap):
            drawn.append(_line(redrawn, points) if learned.method == "linear" else redrawn.apply(points))
    if len(drawn) < 2:
        return np.zeros((len(points), 0))
    values = 2 if learned.method == "linear" else len(np.unique(learned.y))
    apart = np.array(drawn) - np.mean(drawn, axis=0)
    _, sizes, common = np.linalg.svd(apart / np.sqrt(len(drawn) - 1), full_matrices=False)
    large = sizes[:MOST_FACTORS] > SMALLEST
    factors = (common[:MOST_FACTORS] * sizes[:MOST_FACTORS, None])[large].T
    return np.asarray(factors * np.sqrt(count / max(count - values, 1)))


def _line(learned: ScoreMap, points: Floats) -> Floats:
    """Return the line's values at these points, also beyond the outermost scores that it was learned from."""
    (x, other), (y, at_other) = learned.x, learned.y
    return np.asarray(y + (points - x) * (at_other - y) / (other - x))


def calibrated_mean(
    scores: Floats, learned: ScoreMap, errors: Floats | None, *,
    clusters: Ints | None = None, bounds: tuple[float, float] | None = None,
) -> Result:  # fmt: skip
    """Return the mean of the calibrated scores. With the map's `errors` (`map_errors`) the interval is that of people's
    mean of items like those that the map was learned on: both errors count, with Welch's degrees of freedom."""
    present = ~np.isnan(scores)
    calibrated = learned.apply(scores[present])
    pieces = None if clusters is None else clusters[present]
    if errors is None or not len(calibrated):
        return mean(calibrated, clusters=pieces, bounds=bounds)
    of_scores = deviation(calibrated, pieces)
    points = np.eye(len(learned.x))
    weights = np.array([np.interp(scores[present], learned.x, point).mean() for point in points])
    of_map = float(np.sqrt(((weights @ errors) ** 2).sum()))
    error = float(np.hypot(of_scores.error, of_map))
    if error <= SMALLEST:
        return mean(calibrated, clusters=pieces, bounds=bounds)
    parts = of_scores.error**4 / max(of_scores.pieces - 1, 1) + of_map**4 / max(learned.items - 1, 1)
    summary = Deviation(of_scores.value, error, of_scores.pieces)
    return estimate(summary, degrees=error**4 / parts, items=of_scores.pieces, method=WITH_MAP, bounds=bounds)


def cross_fitted(
    judge: Floats, people: Floats, method: Method, rng: np.random.Generator, *, folds: int = 5
) -> Floats | Unknown:
    """Return each item's score from a calibration learned without it; unrated items get that of all rated ones."""
    whole = learn(judge, people, method)
    if isinstance(whole, Unknown):
        return whole
    result = whole.apply(judge)
    rated = np.flatnonzero(~(np.isnan(judge) | np.isnan(people)))
    for part in np.array_split(rng.permutation(rated), min(folds, len(rated))):
        others = people.copy()
        others[part] = np.nan
        fold_map = learn(judge, others, method)
        if isinstance(fold_map, Unknown):
            return fold_map
        result[part] = fold_map.apply(judge[part])
    return result


def gain(judge: Floats, people: Floats, method: Method, rng: np.random.Generator) -> Gain | Unknown:
    """Return the benefit of calibrating, by cross-fitting on two halves: each rated item by the map of the other
    half."""
    mended = cross_fitted(judge, people, method, rng, folds=HALVES)
    if isinstance(mended, Unknown):
        return mended
    rated = ~(np.isnan(judge) | np.isnan(people))
    before, after = (judge - people)[rated] ** 2, (mended - people)[rated] ** 2
    return Gain(float(np.sqrt(before.mean())), float(np.sqrt(after.mean())), mean(before - after))
