"""The two results of a statistic: a value with its interval, or the reason why it cannot be given.

Type aliases for numpy arrays.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

import numpy as np
import numpy.typing as npt

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value, and an interval that holds the truth with probability `confidence`.

    All three numbers are finite and low <= high. The value usually lies between them, but need not: an interval that
    corrects a bias may leave it out. `items` is the number of items it rests on, `method` how the interval was made.
    """

    value: float
    low: float
    high: float
    items: int
    method: str
    confidence: float = CONFIDENCE

    def __post_init__(self) -> None:
        if not (isfinite(self.value) and isfinite(self.low) and isfinite(self.high)):
            raise ValueError(f"an estimate has finite numbers, got {self.value}, {self.low}, {self.high}")
        if self.low > self.high:
            raise ValueError(f"the interval ends before it starts: {self.low} > {self.high}")

    @property
    def width(self) -> float:
        return self.high - self.low

    def holds(self, truth: float) -> bool:
        """Return whether the interval contains `truth`, its ends included."""
        return self.low <= truth <= self.high


@dataclass(frozen=True, slots=True)
class Unknown:
    """A value that cannot be given. `reason` continues the sentence "cannot be said, because ..."."""

    reason: str

    def __str__(self) -> str:
        return f"cannot be said, because {self.reason}"


Result = Estimate | Unknown


Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
