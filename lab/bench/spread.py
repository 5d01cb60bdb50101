"""Median and range of a few runs, and how they are printed."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import NamedTuple


class Spread(NamedTuple):
    low: float
    mid: float
    high: float

    def __str__(self) -> str:
        """`mid (low-high)`, with three significant digits of the median; the range is left out where it is none."""
        digits = 0 if abs(self.mid) >= 100 or self == (0, 0, 0) else 1 if abs(self.mid) >= 10 else 2
        if all(float(value).is_integer() for value in self):
            digits = 0
        low, mid, high = (f"{value:.{digits}f}" for value in self)
        return mid if low == high else f"{mid} ({low}–{high})"


def spread(values: Sequence[float]) -> Spread:
    """Of at least one value."""
    return Spread(min(values), statistics.median(values), max(values))
