"""Stops as soon as the answer is known: a question that is fed page by page and says when it is answered.

One may look after every page: the intervals are confidence sequences (betting.py). All answers a question ever gives
are wrong with probability 1 - `confidence` at most, provided the items come in random order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from dicast.app.statistics.arrays import Floats
from dicast.app.statistics.betting import Capital, needed, sequence
from dicast.app.statistics.estimates import CONFIDENCE, Estimate, Result, Unknown

State = Literal["yes", "no", "known", "not yet", "spent"]


@dataclass(frozen=True, slots=True)
class AtLeast:
    """Asks whether the mean is at least this much."""

    threshold: float


@dataclass(frozen=True, slots=True)
class BetterBy:
    """Asks whether the mean of A is above that of B by at least this much; fed with the differences A - B
    (`differences_of`)."""

    threshold: float


@dataclass(frozen=True, slots=True)
class NoWiderThan:
    """Asks for the mean, to an interval no wider than this."""

    width: float


Question = AtLeast | BetterBy | NoWiderThan


@dataclass(frozen=True, slots=True)
class Answer:
    """The state of a question after `items` scores; `missing` more items had none.

    "yes" or "no" answer a threshold, "known" a width; "spent" means that the items or the budget ran out first.
    """

    state: State
    items: int
    missing: int

    @property
    def final(self) -> bool:
        """Whether no further page is needed."""
        return self.state != "not yet"


class Inquiry:
    """A question about items whose scores lie between `low` and `high`, of which `population` exist.

    Feed it the pages in the random order in which the items were drawn. Without a population the question is about
    where the items come from; with one it is about these items, and when all have been fed the answer is exact. An item
    without a score (NaN) leaves the population. `most` items is the budget.
    """

    def __init__(
        self, question: Question, low: float, high: float, population: int | None = None, most: int | None = None,
        confidence: float = CONFIDENCE,
    ) -> None:  # fmt: skip
        if not low < high:
            raise ValueError(f"scores need a range, got {low} to {high}")
        if isinstance(question, BetterBy):
            low, high = low - high, high - low
        self.question = question
        self.population = population
        self.most = most
        self.confidence = confidence
        self._low, self._size = low, high - low
        self._scores: list[Floats] = []
        self._items = self._missing = 0
        self._answer: Answer | None = None
        self._capital: Capital | None = None
        if not isinstance(question, NoWiderThan) and not low <= question.threshold <= high:
            raise ValueError(f"the threshold {question.threshold:g} lies outside {low:g} to {high:g}")

    def feed(self, page: Floats) -> Answer:
        """Return the answer after one more page. A final answer stays, whatever comes after it.

        Raises ValueError for scores outside the range, and for more items than there are.
        """
        scores = self._scaled(page[~np.isnan(page)])
        self._missing += len(page) - len(scores)
        self._items += len(scores)
        self._scores.append(scores)
        if self.population is not None and self._items + self._missing > self.population:
            raise ValueError(f"more items than the {self.population} there are")
        current = Answer(self._state(), self._items, self._missing)
        if self._answer is None or not self._answer.final:
            self._answer = current
        return self._answer

    def interval(self) -> Result:
        """Return the mean of the scores so far, with an interval that holds however often one looks."""
        if self._items == 0:
            return Unknown("no item has a score yet")
        scores = np.concatenate(self._scores)
        low, high = sequence(scores, self._scorable, self.confidence)
        if low > high:
            return Unknown("the scores contradict each other, as if their order were not random")
        value, low, high = (self._low + self._size * part for part in (float(scores.mean()), low, high))
        return Estimate(value, low, high, self._items, "betting", self.confidence)

    @property
    def _scorable(self) -> int | None:
        return None if self.population is None else self.population - self._missing

    def _scaled(self, scores: Floats) -> Floats:
        scaled = (scores - self._low) / self._size
        if not ((scaled >= 0) & (scaled <= 1)).all():
            raise ValueError(f"scores lie between {self._low:g} and {self._low + self._size:g}")
        return np.asarray(scaled)

    def _state(self) -> State:
        if self._items == self._scorable:
            return self._exact()
        if isinstance(self.question, NoWiderThan):
            estimate = self.interval()
            narrow_enough = isinstance(estimate, Estimate) and estimate.width <= self.question.width
        else:
            capital = self._bet((self.question.threshold - self._low) / self._size)
            if capital.above >= needed(self.confidence):
                return "yes"
            if capital.below >= needed(self.confidence):
                return "no"
            narrow_enough = False
        if narrow_enough:
            return "known"
        return "spent" if self.most is not None and self._items + self._missing >= self.most else "not yet"

    def _bet(self, supposed: float) -> Capital:
        """Return the capital after all scores; it starts anew if items without a score have changed the population."""
        if self._capital is not None and self._capital.population == self._scorable:
            self._capital.feed(self._scores[-1])
        else:
            self._capital = Capital(supposed, self._scorable)
            self._capital.feed(np.concatenate(self._scores))
        return self._capital

    def _exact(self) -> State:
        if isinstance(self.question, NoWiderThan):
            return "known"
        if self._items == 0:
            return "spent"
        mean = self._low + self._size * float(np.concatenate(self._scores).mean())
        # A mean that should be the threshold may miss it by rounding.
        return "yes" if mean >= self.question.threshold - 1e-9 * self._size else "no"


def differences_of(a: Floats, b: Floats) -> Floats:
    """Return the differences that `BetterBy` is fed with: of the same items, or of items of A and B drawn
    independently."""
    return np.asarray(a - b)
