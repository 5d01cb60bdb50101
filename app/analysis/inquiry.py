"""Answers a job's question from the scores so far."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dicast.app.analysis.estimates import Estimate, Floats
from dicast.app.analysis.sequences import AtLeast, BetterBy, Inquiry, NoWiderThan, differences_of
from dicast.app.domain.question import JobAnswer, Question, State


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
    goal: AtLeast | BetterBy | NoWiderThan
    if question.share is not None:
        goal, low, high = AtLeast(question.share.share_at_least), 0, 1
    elif question.difference is not None:
        goal = BetterBy(question.difference.at_least)
    elif question.mean_at_least is not None:
        goal = AtLeast(question.mean_at_least)
    else:
        goal = NoWiderThan(question.width or 0.0)
    return Inquiry(goal, low, high, population, confidence=question.confidence)
