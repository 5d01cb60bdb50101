"""Confidence sequences for the mean of bounded scores: intervals that hold however often one looks.

The capital process of I. Waudby-Smith and A. Ramdas, "Estimating means of bounded random variables by betting", Journal
of the Royal Statistical Society B 86 (2024), 1-27: for a supposed mean m a gambler bets on each next score at odds that
are fair if m is right, and never goes into debt. If m is right, the capital reaches 1/a with probability a at most,
whenever one looks; an m against which it was reached is excluded. Here the capital is spread over several fixed
fractions of what may be staked; half of the error is for bets on more than m and half for bets on less.

Items drawn at random without replacement from `population` ones (their section 5) narrow it further: the odds follow
from the items that remain. Their random order is the only condition.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dicast.app.statistics.arrays import Floats
from dicast.app.statistics.estimates import CONFIDENCE

FRACTIONS = np.linspace(0.2, 0.99, 10) ** 2
NEARLY = 1e-12
TOGETHER = 16_384
"""The number of scores that are bet on at once: each takes some 500 bytes meanwhile."""
HALVINGS = 30


class Capital:
    """The capital won by bets against the mean `supposed`, on scores between 0 and 1, from a population of this size or
    an infinite one.

    `above` and `below` are the largest logarithms so far of the capital that bet on a mean above and below it.
    """

    def __init__(self, supposed: float, population: int | None = None) -> None:
        self.supposed = supposed
        self.population = population
        self.above = self.below = 0.0
        self._count = 0
        self._sum = 0.0
        self._stakes = np.zeros((2, len(FRACTIONS)))

    def feed(self, scores: Floats) -> None:
        """Bet on the next scores, in order. Raises ValueError beyond the population."""
        for first in range(0, len(scores), TOGETHER):
            self._feed(scores[first : first + TOGETHER])

    def _feed(self, scores: Floats) -> None:
        fair = self._fair(scores)
        expected = fair.clip(NEARLY, 1 - NEARLY)
        # Both bets as what a whole stake would gain: -1 at the worst possible score.
        gains = np.stack([scores / expected - 1, (1 - scores) / (1 - expected) - 1])
        earned = self._stakes[:, :, None] + np.cumsum(np.log1p(FRACTIONS[None, :, None] * gains[:, None, :]), axis=2)
        self._stakes = earned[:, :, -1]
        capital = _log_mean(earned)
        # What is left cannot have a mean below 0 or above 1: then the supposed mean is impossible.
        capital[0, fair < -NEARLY] = capital[1, fair > 1 + NEARLY] = np.inf
        self.above, self.below = max(self.above, capital[0].max()), max(self.below, capital[1].max())
        self._count += len(scores)
        self._sum += float(scores.sum())
        if self.population is not None:
            rest = self.population * self.supposed - self._sum
            self.above = np.inf if rest < -NEARLY * self.population else self.above
            self.below = np.inf if rest > self.population - self._count + NEARLY * self.population else self.below

    def _fair(self, scores: Floats) -> Floats:
        """Return the mean of the remaining scores before each score, if the supposed mean is right."""
        if self.population is None:
            return np.full(len(scores), self.supposed)
        remaining = self.population - self._count - np.arange(len(scores))
        if remaining[-1] < 1:
            raise ValueError(f"more scores than the {self.population} items there are")
        before = self._sum + np.cumsum(scores) - scores
        return np.asarray((self.population * self.supposed - before) / remaining)


def _log_mean(logs: Floats) -> Floats:
    """Return the logarithm of the mean over the second axis, without overflow."""
    largest = logs.max(axis=1)
    return np.asarray(largest + np.log(np.exp(logs - largest[:, None]).mean(axis=1)))


def needed(confidence: float = CONFIDENCE) -> float:
    """Return the logarithm of the capital that excludes a supposed mean, on one side."""
    return float(np.log(2 / (1 - confidence)))


def sequence(scores: Floats, population: int | None = None, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Return the interval of the mean after these scores between 0 and 1, in the order they were drawn.

    It is the intersection of the intervals after fewer of them. It may be empty (its ends crossed) by bad luck, which
    is as likely, over all times together, as that it is wrong.
    """
    enough = needed(confidence)

    def capital(supposed: float) -> Capital:
        bets = Capital(supposed, population)
        bets.feed(scores)
        return bets

    # The larger the supposed mean, the less a bet on more than it earns: halving finds where that is not enough.
    low = _first(lambda m: capital(m).above < enough)
    high = 1 - _first(lambda m: capital(1 - m).below < enough)
    return low, high


def _first(possible: Callable[[float], bool]) -> float:
    """Return the lowest possible value in [0, 1], rounded down; every value above a possible one must be possible."""
    if possible(0.0):
        return 0.0
    out, within = 0.0, 1.0
    for _ in range(HALVINGS):
        middle = (out + within) / 2
        out, within = (out, middle) if possible(middle) else (middle, within)
    return out
