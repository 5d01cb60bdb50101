"""Maps judges' scores to people's.

A calibration is learned on rated items and evaluated by cross-fitting: every item's calibrated score comes from the
other items. app/domain/calibration.py stores maps together with what they apply to.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from dicast.app.analysis.estimates import Floats, Result, Unknown
from dicast.app.analysis.means import mean

Method = Literal["isotonic", "ordinal", "linear"]
FEWEST = 10
HALVES = 2


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
