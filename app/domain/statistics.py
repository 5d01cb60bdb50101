"""Exact statistics of whole-number scores, gathered one score at a time.

Scores are whole numbers on a scale of at most 1001 values, so a histogram is complete: mean, median and deviation
follow from it exactly (up to one final rounding), and memory does not grow with the number of scores.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, Field


class ScoreStatistics(BaseModel):
    """Statistics of a group of scores. `failures` counts opinions without a score, which enter nothing else.

    The figures are None without scores, for labels without an order, and for `sd` (of a sample, n - 1) with fewer than
    two scores.
    """

    model_config = ConfigDict(defer_build=True, frozen=True)

    n: int
    failures: int
    mean: float | None
    median: float | None
    sd: float | None
    min: int | None
    max: int | None
    histogram: dict[int, int] = Field(description="score -> how often, ascending, without zeros")


def describe(histogram: Mapping[int, int], failures: int = 0, *, nominal: bool = False) -> ScoreStatistics:
    """Return the statistics of the scores that `histogram` counts; for `nominal` scores only how often each occurs."""
    counts = {score: histogram[score] for score in sorted(histogram) if histogram[score]}
    n = sum(counts.values())
    if not n or nominal:
        return ScoreStatistics(
            n=n, failures=failures, mean=None, median=None, sd=None, min=None, max=None, histogram=counts
        )
    total = sum(score * count for score, count in counts.items())
    squares = sum(score * score * count for score, count in counts.items())
    return ScoreStatistics(
        n=n,
        failures=failures,
        mean=total / n,
        median=(_ranked(counts, (n - 1) // 2) + _ranked(counts, n // 2)) / 2,
        # In whole numbers up to the root, so that nothing cancels however far the scale lies from zero.
        sd=math.sqrt((n * squares - total * total) / (n * (n - 1))) if n > 1 else None,
        min=min(counts),
        max=max(counts),
        histogram=counts,
    )


def _ranked(counts: Mapping[int, int], rank: int) -> int:
    """Return the score at index `rank` (from 0) of the sorted scores; `counts` is ascending."""
    for score, count in counts.items():
        rank -= count
        if rank < 0:
            return score
    raise IndexError("rank beyond the number of scores")


@dataclass(slots=True)
class Tally:
    """The scores of one judge on one criterion."""

    histogram: Counter[int] = field(default_factory=Counter)
    failures: int = 0

    def add(self, score: int | None) -> None:
        if score is None:
            self.failures += 1
        else:
            self.histogram[score] += 1

    def describe(self, *, nominal: bool = False) -> ScoreStatistics:
        return describe(self.histogram, self.failures, nominal=nominal)


def merged(tallies: Iterable[Tally]) -> Tally:
    """Return one tally of the scores of several."""
    whole = Tally()
    for tally in tallies:
        whole.histogram.update(tally.histogram)
        whole.failures += tally.failures
    return whole


class Weighted(NamedTuple):
    """A group of scores on one scale, and its weight."""

    histogram: Mapping[int, int]
    scale_min: int
    scale_max: int
    weight: float


def weighted_position(groups: Iterable[Weighted]) -> float | None:
    """Return where the scores lie between the ends of their scales, 0 to 1, weighted:

        sum_d w_d * (mean_d - min_d) / (max_d - min_d)  /  sum_d w_d

    over the groups d that have a score. It is None if there is none, or if all that have one weigh nothing.
    """
    reached, weights = 0.0, 0.0
    for histogram, scale_min, scale_max, weight in groups:
        if n := sum(histogram.values()):
            above = sum((score - scale_min) * count for score, count in histogram.items())
            reached += weight * (above / (n * (scale_max - scale_min)))
            weights += weight
    return reached / weights if weights else None


class Disagreement(NamedTuple):
    """The distance between judges on one criterion: the mean over `pairs` of |difference| in units of the scale, or for
    labels without an order the share of the pairs that differ."""

    mean_difference: float
    pairs: int


class PairwiseDifferences:
    """Measures how far the judges of the same text lie apart, from a bounded sample of the texts.

    A pair is two scores of different judges for one item, replicate and criterion. At most `capacity` scores are
    stored. Beyond that, items are sampled by a threshold on the hash of (item, replicate), which halves until the rest
    fits (adaptive sampling after Wegman): whether an item is in depends on nothing but its id and the whole set, so the
    result does not depend on the order of scores. It is exact as long as `share` is 1.
    """

    def __init__(self, capacity: int = 100_000, nominal: Collection[str] = ()) -> None:
        """`nominal` are the criteria whose labels have no order."""
        self._capacity, self._nominal = capacity, frozenset(nominal)
        self._score_count = 0
        self._threshold = 1 << 64
        self._texts: dict[tuple[str, int], tuple[int, dict[str, list[int]]]] = {}

    @property
    def share(self) -> float:
        """The share of the texts that is expected in the sample."""
        return self._threshold / (1 << 64)

    def add(self, item_id: str, replicate: int, criterion_id: str, score: int) -> None:
        """Count one judge's score; each judge scores a text and criterion at most once."""
        text = (item_id, replicate)
        entry = self._texts.get(text)
        if entry is None:
            hashed = _hash(text)
            if hashed >= self._threshold:
                return
            entry = self._texts[text] = (hashed, {})
        entry[1].setdefault(criterion_id, []).append(score)
        self._score_count += 1
        while self._score_count > self._capacity:
            self._halve()

    def _halve(self) -> None:
        self._threshold //= 2
        for text, (hashed, scores) in list(self._texts.items()):
            if hashed >= self._threshold:
                self._score_count -= sum(map(len, scores.values()))
                del self._texts[text]

    def by_criterion(self) -> dict[str, Disagreement]:
        """Return the disagreement on each criterion for which at least one text has two judges' scores."""
        differences: Counter[str] = Counter()
        pairs: Counter[str] = Counter()
        for _, scores_by_criterion in self._texts.values():
            for criterion_id, scores in scores_by_criterion.items():
                k = len(scores)
                pairs[criterion_id] += k * (k - 1) // 2
                if criterion_id in self._nominal:
                    alike = sum(n * (n - 1) // 2 for n in Counter(scores).values())
                    differences[criterion_id] += k * (k - 1) // 2 - alike
                    continue
                # The i-th smallest of k is subtracted from k - 1 - i larger ones and has i smaller ones subtracted.
                differences[criterion_id] += sum(x * (2 * i - k + 1) for i, x in enumerate(sorted(scores)))
        return {c: Disagreement(differences[c] / n, n) for c, n in pairs.items() if n}


def _hash(text: tuple[str, int]) -> int:
    item_id, replicate = text
    data = f"{replicate}|{item_id}".encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest())
