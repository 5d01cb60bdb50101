"""Criteria that an item brings itself, and the score that a judge's answers to them make.

A criterion is a statement about what is judged, and is met or not. Its points are below 0 where it states a fault. The
score is that of HealthBench (R. K. Arora et al., "HealthBench: Evaluating Large Language Models Towards Improved Human
Health", 2025, arXiv 2505.08775; `calculate_score` in the code published with it): the points of the criteria that are
met, divided by the sum of all points above 0. That share may lie below 0. HealthBench cuts its mean over many items to
0..1, and not the share of an item; here each item's score is cut, since a scale has ends. Opinions keep the share as it
is, so that the report tells HealthBench's mean, too.

A criterion without an answer is neither met nor missed: it makes the share an interval, whose middle is the score.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Annotated, NamedTuple

from pydantic import AfterValidator, Field, StringConstraints

from dicast.app.domain.text import Strict, Text

MAX_CRITERIA = 100
MAX_CRITERION_CHARS = 10_000
MIN_POINTS, MAX_POINTS = 0.001, 1_000_000
WHOLE = 100
"""The score of an item that attains all points: scores are percentages."""
DECIMALS = 6


def _worth_something(points: float) -> float:
    if abs(points) < MIN_POINTS:
        raise ValueError(f"must be at least {MIN_POINTS} above or below 0, got {points:g}")
    return points


class Criterion(Strict):
    """One statement that a judge finds met or not, and the points that it brings if it is met."""

    text: Annotated[Text, StringConstraints(max_length=MAX_CRITERION_CHARS)]
    points: Annotated[
        float, Field(ge=-MAX_POINTS, le=MAX_POINTS, allow_inf_nan=False), AfterValidator(_worth_something)
    ] = Field(description="below 0 for a fault; never 0")


class Attained(NamedTuple):
    """The lowest and the highest share of the attainable points that answers allow, not cut to 0..1; both are the same
    if every criterion has an answer."""

    low: float
    high: float

    @property
    def score(self) -> int:
        """The score: the middle of both ends, each cut to 0..1, in whole percent (halves up)."""
        low, high = (min(max(end, 0.0), 1.0) for end in self)
        return math.floor(round(WHOLE * (low + high) / 2, DECIMALS) + 0.5)


def attained(points: Sequence[float], answers: Sequence[bool | None]) -> Attained:
    """Return what the answers attain of `points`, of which one at least is above 0; None is a criterion without an
    answer. Shares have six decimals. Raises ValueError if there are more of one than of the other."""
    sure = [worth for worth, is_met in zip(points, answers, strict=True) if is_met]
    open_ones = [worth for worth, is_met in zip(points, answers, strict=True) if is_met is None]
    whole = math.fsum(worth for worth in points if worth > 0)
    low = math.fsum([*sure, *(worth for worth in open_ones if worth < 0)]) / whole
    high = math.fsum([*sure, *(worth for worth in open_ones if worth > 0)]) / whole
    return Attained(round(low, DECIMALS), round(high, DECIMALS))


def check_criteria(criteria: Iterable[Criterion]) -> None:
    """Raise ValueError if no criterion has points above 0: nothing could be attained."""
    points = [criterion.points for criterion in criteria]
    if max(points) < 0:
        raise ValueError(f"criteria: one at least needs points above 0, got {', '.join(f'{p:g}' for p in points[:10])}")
