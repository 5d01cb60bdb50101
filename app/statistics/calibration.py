"""Judges' scores mapped to people's, and kept with what they hold for.

A calibration is learned on rated items and judged by cross-fitting: every item's calibrated score comes from the other
items. It is a plain dict that JSON can hold, bound to the hashes of judge, model, prompt and rubric: with another
prompt the same judge gives other scores, and the old map would mislead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from sklearn.isotonic import IsotonicRegression

from dicast.app.statistics.arrays import Floats
from dicast.app.statistics.estimates import Unknown

Method = Literal["isotonic", "ordinal", "linear"]
VERSION = 1
FEWEST = 10


@dataclass(frozen=True, slots=True)
class Binding:
    """The hashes of what a calibration holds for."""

    judge: str
    model: str
    prompt: str
    rubric: str


class CalibrationMismatch(ValueError):
    """A calibration was made for something else. `differing` names what differs: judge, model, prompt or rubric."""

    def __init__(self, differing: tuple[str, ...]) -> None:
        super().__init__(f"the calibration was made with another {', '.join(differing)}")
        self.differing = differing


@dataclass(frozen=True, slots=True)
class Calibration:
    """A map from a judge's scores to people's: straight lines between the points (x ascending), level beyond them."""

    method: Method
    x: tuple[float, ...]
    y: tuple[float, ...]
    items: int

    def apply(self, scores: Floats) -> Floats:
        """The calibrated scores; NaN stays NaN."""
        return np.asarray(np.interp(scores, self.x, self.y))

    def as_dict(self, binding: Binding) -> dict[str, Any]:
        """The calibration for keeping, with what it holds for."""
        return {"version": VERSION, "made_for": asdict(binding), **asdict(self), "x": list(self.x), "y": list(self.y)}


def from_dict(kept: Mapping[str, Any], binding: Binding) -> Calibration:
    """The calibration that was kept. `CalibrationMismatch` if it was made for another judge, model, prompt or rubric.

    ValueError if it is no calibration of this version.
    """
    if kept.get("version") != VERSION or not {"made_for", "method", "x", "y", "items"} <= kept.keys():
        raise ValueError(f"this is no calibration of version {VERSION}")
    differing = tuple(name for name, value in asdict(binding).items() if kept["made_for"].get(name) != value)
    if differing:
        raise CalibrationMismatch(differing)
    return Calibration(kept["method"], tuple(kept["x"]), tuple(kept["y"]), kept["items"])


def learn(judge: Floats, people: Floats, method: Method) -> Calibration | Unknown:
    """The map that fits best, over the items with both scores.

    "isotonic" is the best map that never falls; "ordinal" gives each of the judge's scores people's mean there, and
    may fall; "linear" is the least-squares line, over the range that was seen.
    """
    both = ~(np.isnan(judge) | np.isnan(people))
    x, y = judge[both], people[both]
    if len(x) < FEWEST:
        return Unknown(f"a calibration needs {FEWEST} rated items or more, and there are {len(x)}")
    if np.ptp(x) == 0:
        return Unknown("the judge gave every rated item the same score")
    levels, codes = np.unique(x, return_inverse=True)
    if method == "isotonic":
        fitted = IsotonicRegression(out_of_bounds="clip").fit(x, y).predict(levels)
    elif method == "ordinal":
        fitted = np.bincount(codes, weights=y) / np.bincount(codes)
    else:
        levels = levels[[0, -1]]
        slope, at_zero = np.polyfit(x, y, 1)
        fitted = slope * levels + at_zero
    return Calibration(method, tuple(map(float, levels)), tuple(map(float, fitted)), len(x))


def cross_fitted(
    judge: Floats, people: Floats, method: Method, rng: np.random.Generator, *, folds: int = 5
) -> Floats | Unknown:
    """Each item's score from a calibration that was learned without it; unrated items get that of all rated ones."""
    whole = learn(judge, people, method)
    if isinstance(whole, Unknown):
        return whole
    result = whole.apply(judge)
    rated = np.flatnonzero(~(np.isnan(judge) | np.isnan(people)))
    for part in np.array_split(rng.permutation(rated), min(folds, len(rated))):
        others = people.copy()
        others[part] = np.nan
        found = learn(judge, others, method)
        if isinstance(found, Unknown):
            return found
        result[part] = found.apply(judge[part])
    return result
