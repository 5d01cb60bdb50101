"""Stops as soon as the answer is known: a question that is fed page by page and says when it is answered.

One may look after every page: the intervals are confidence sequences, which hold however often one looks. All answers
a question ever gives are wrong with probability 1 - `confidence` at most, provided the items come in random order.

The capital process of I. Waudby-Smith and A. Ramdas, "Estimating means of bounded random variables by betting", Journal
of the Royal Statistical Society B 86 (2024), 1-27: for a supposed mean m a gambler bets on each next score at odds that
are fair if m is right, and never goes into debt. If m is right, the capital reaches 1/a with probability a at most,
whenever one looks; an m against which it was reached is excluded. Here the capital is spread over several fixed
fractions of what may be staked; half of the error is for bets on more than m and half for bets on less.

Items drawn at random without replacement from `population` ones (their section 5) narrow it further: the odds follow
from the items that remain. Their random order is the only condition.

`answer_of` answers a job's question from its scores so far. `drift_rank` and `drift_evidence` tell whether a judge that
scores the same items again and again has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from dicast.app.analysis.estimates import CONFIDENCE, Estimate, Floats, Result, Unknown
from dicast.app.domain.question import JobAnswer, Question, State

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


def interim_mean(scores: Floats, bounds: tuple[float, float], population: int) -> Result:
    """Return the mean of these scores, one an item, between `bounds`, with the interval of the mean of all `population`
    items, whose order must be random. The interval holds however often one looks; after all items it is exact."""
    low, size = bounds[0], bounds[1] - bounds[0]
    value = float(scores.mean())
    if len(scores) == population:
        return Estimate(value, value, value, population, "all items")
    lowest, highest = sequence(((scores - low) / size).clip(0.0, 1.0), population)
    if lowest > highest:
        return Unknown("the scores contradict each other, as if their order were not random")
    return Estimate(value, low + size * lowest, low + size * highest, len(scores), "betting")


InquiryState = Literal["yes", "no", "known", "not yet", "spent"]


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


Goal = AtLeast | BetterBy | NoWiderThan


@dataclass(frozen=True, slots=True)
class Answer:
    """The state of a question after `items` scores; `missing` more items had none.

    "yes" or "no" answer a threshold, "known" a width; "spent" means that the items or the budget ran out first.
    """

    state: InquiryState
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
        self, question: Goal, low: float, high: float, population: int | None = None, most: int | None = None,
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

    def _state(self) -> InquiryState:
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

    def _exact(self) -> InquiryState:
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


def answer_of(
    question: Question, dimension: str, bounds: tuple[int, int], scores: Sequence[float], population: int, *,
    spent: bool = False, ended: bool = False,
) -> JobAnswer:  # fmt: skip
    """Return the answer after these scores of the first items in random order, of `population` in all.

    A missing score is NaN. For a difference, `population` counts pairs, whose items alternate in `scores`. `spent`
    says that no more calls may be made; `ended`, that no more scores will come, so that the interval is reported
    whatever it is.
    """
    values = _question_values(question, np.asarray(scores, float))
    missing = int(np.isnan(values).sum())
    inquiry = _inquiry(question, bounds, population - missing)
    state = inquiry.feed(values[~np.isnan(values)]).state
    none_scored = missing == len(values)
    answer_state: State = ("spent" if spent else "open") if state == "not yet" or none_scored else state
    interval = inquiry.interval() if answer_state != "open" or ended else None
    estimate = interval if isinstance(interval, Estimate) else None
    return JobAnswer(
        question=question.sentence(dimension),
        state=answer_state,
        value=estimate.value if estimate else None,
        low=estimate.low if estimate else None,
        high=estimate.high if estimate else None,
        confidence=question.confidence,
        items=len(values) - missing,
        missing=missing,
        population=population,
        asked=question.model_copy(update={"dimension": dimension}),
    )


def _question_values(question: Question, scores: Floats) -> Floats:
    """Return the values that the question is about: scores, whether they are high enough, or differences of pairs."""
    if question.share is not None:
        enough = (scores >= question.share.at_least_score).astype(float)
        return np.where(np.isnan(scores), np.nan, enough)
    if question.difference is not None:
        pairs = len(scores) // 2
        return differences_of(scores[0 : 2 * pairs : 2], scores[1 : 2 * pairs : 2])
    return scores


def _inquiry(question: Question, bounds: tuple[int, int], population: int) -> Inquiry:
    low, high = bounds
    goal: Goal
    if question.share is not None:
        goal, low, high = AtLeast(question.share.share_at_least), 0, 1
    elif question.difference is not None:
        goal = BetterBy(question.difference.at_least)
    elif question.mean_at_least is not None:
        goal = AtLeast(question.mean_at_least)
    else:
        goal = NoWiderThan(question.width or 0.0)
    return Inquiry(goal, low, high, population, confidence=question.confidence)


TILTS = np.array([-4.0, -2.0, 2.0, 4.0])
"""How strongly one bets on low (below 0) and on high ranks."""
START_EVERY = 20
FIRST_START = 0.5
"""The share of the capital that is staked from the first judgement on; the rest begins later."""
DRIFT_ERROR = 0.05
"""The probability that a judge who has not changed is ever said to have changed."""


def drift_rank(before: Sequence[float], score: float, chance: float) -> float:
    """Return the rank of a new score of an item among that item's own scores `before` and itself, between 0 and 1; ties
    are broken by `chance`, a uniform number.

    While the judge stays the same, an item's scores are exchangeable, so these ranks are independent and uniform
    whatever the scores' distribution (a smoothed conformal p-value: V. Vovk, I. Nouretdinov and A. Gammerman, "Testing
    exchangeability on-line", ICML 2003). That the items differ, and are judged repeatedly, makes no difference.
    """
    earlier = np.asarray(before, dtype=np.float64)
    below, ties = int((earlier < score - NEARLY).sum()), int((np.abs(earlier - score) <= NEARLY).sum()) + 1
    return (below + chance * ties) / (len(earlier) + 1)


def drift_evidence(ranks: Floats) -> Floats:
    """Return the evidence of a change after each rank: the capital of a gambler who starts with 1.

    Each bet is fair if ranks are uniform, so the capital is a martingale and reaches 1/a with probability a at most,
    however often and for however long one looks (J. Ville, 1939): a conformal test martingale. Bets multiply by
    t exp(t rank) / (exp(t) - 1) for each tilt t. Half of the capital bets from the first judgement on, and the rest
    from each 20th, with weights that fall as j^-1.1, so that a later change is found, too: a mixture over when the
    change began (V. Vovk, "Testing randomness online", Statistical Science 36 (2021), 595-611).
    """
    count = len(ranks)
    gains = np.log(TILTS / np.expm1(TILTS)) + TILTS * ranks[:, None]
    earned = np.concatenate([np.zeros((1, len(TILTS))), np.cumsum(gains, axis=0)])
    evidence, waiting = np.zeros(count), 1.0
    for number, start in enumerate(range(0, count, START_EVERY)):
        weight = FIRST_START if number == 0 else (1 - FIRST_START) * number**-LATER / LATER_SUM
        waiting -= weight
        evidence[:start] += weight
        evidence[start:] += weight * np.exp(_log_mean((earned[start + 1 :] - earned[start]).T[None])[0])
    return evidence + waiting


LATER = 1.1
LATER_SUM = 10.5844484649508
"""The sum of j^-1.1 over all j >= 1 (Riemann's zeta function)."""
