"""The figures that a gate decides by: a mean with its interval, and the difference from another run with its
p-value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dicast.app.assessment.figures import figure
from dicast.app.domain.figure import Figure
from dicast.app.domain.gate import LEVEL
from dicast.app.statistics import groups, student
from dicast.app.statistics.means import FEWEST, SMALLEST, deviation, mean

POWER = 0.8


@dataclass(frozen=True, slots=True)
class Drop:
    """The movement of scores between two runs.

    `moved` is the mean difference with its interval. `p` is how likely chance alone makes it look as bad if no more
    than the tolerated shift was lost. `detectable` is the smallest further loss that would be detected in four of five
    cases.
    """

    moved: Figure
    p: float | None
    detectable: float | None


def panel_mean(scores: Sequence[float], bounds: tuple[float, float], clusters: Sequence[int] | None = None) -> Figure:
    """Return the mean of the panel's scores of all items."""
    cluster_codes = None if clusters is None else np.asarray(clusters, dtype=np.int64)
    return figure(mean(np.asarray(scores, dtype=float), clusters=cluster_codes, bounds=bounds))


def drop(before: Sequence[float], after: Sequence[float], shift: float, clusters: Sequence[int] | None = None) -> Drop:
    """Compare the same items' scores in two runs by Student's t; `p` is one-sided, for a loss of more than `shift`."""
    moved = np.asarray(after, dtype=float) - np.asarray(before, dtype=float)
    cluster_codes = None if clusters is None else np.asarray(clusters, dtype=np.int64)
    if len(moved) < FEWEST:
        return Drop(Figure.unknown(f"the runs share {len(moved)} items, and {FEWEST} are needed"), None, None)
    estimate = deviation(moved, cluster_codes)
    if estimate.error <= SMALLEST:
        same = Figure(
            value=estimate.value, low=estimate.value, high=estimate.value, items=len(moved), method="all alike"
        )
        return Drop(same, 0.0 if estimate.value < -shift else 1.0, 0.0)
    degrees = max(1, estimate.pieces - 1)
    p = student.below((estimate.value + shift) / estimate.error, degrees)
    detectable = (student.quantile(1 - LEVEL, degrees) + student.quantile(POWER, degrees)) * estimate.error
    return Drop(figure(mean(moved, clusters=cluster_codes)), p, detectable)


def holm(p: Sequence[float]) -> list[float]:
    """Return the p-values, corrected for their number by Holm."""
    return [float(value) for value in groups.holm(np.array(p))]
