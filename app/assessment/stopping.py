"""Jobs that ended when their question was answered: what was judged is a random sample whose size depended on its
scores.

The means of such a sample are unbiased for all items. But an interval for a sample of fixed size is not quite valid
for a sample that ended because of what it said. For what was asked, the question's own interval is reported, which is
valid however often one looks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dicast.app.assessment.scores import DimensionScores, JobScores, StoppedJob
from dicast.app.domain.figure import Figure
from dicast.app.domain.judge_statistics import GroupDifference, GroupStatistics, RaterStatistics, StoppedEarly
from dicast.app.domain.question import JobAnswer, Question

METHOD = "confidence sequence by betting"


def stopped_early(job: JobScores) -> StoppedEarly | None:
    """Return what the report says of the job's early end, None if all of it was judged."""
    if job.stopped is None:
        return None
    job_answer = job.stopped.job_answer
    return StoppedEarly(
        question=job_answer.question,
        dimension=_question_dimension(job_answer),
        judged=job.items,
        items=job.stopped.items,
        known=_answer_figure(job_answer),
        summary=list(_words(job, job.stopped)),
    )


def with_sequence(
    job: JobScores, dimension: DimensionScores, raters: Sequence[RaterStatistics]
) -> list[RaterStatistics]:
    """Return the raters; if the question was about the mean of this dimension, the panel's mean is replaced by the
    question's answer."""
    adjusted = list(raters)
    question = _question_of(job, dimension)
    if question is not None and (question.mean_at_least is not None or question.width is not None):
        assert job.stopped is not None
        adjusted[-1] = adjusted[-1].model_copy(update={"mean": _answer_figure(job.stopped.job_answer)})
    return adjusted


def with_difference(job: JobScores, dimension: DimensionScores, groups: GroupStatistics) -> GroupStatistics:
    """Return the groups; if the question was about the difference of two of them, that difference is replaced by the
    question's answer."""
    question = _question_of(job, dimension)
    if question is None or question.difference is None or question.difference.by != groups.by:
        return groups
    assert job.stopped is not None
    figure, (first, second) = _answer_figure(job.stopped.job_answer), question.difference.of
    differences = []
    for difference in groups.differences:
        if (difference.first, difference.second) == (first, second):
            differences.append(GroupDifference(first=first, second=second, difference=figure, p=None))
        elif (difference.first, difference.second) == (second, first):
            differences.append(GroupDifference(first=second, second=first, difference=_negated(figure), p=None))
        else:
            differences.append(difference)
    return groups.model_copy(update={"differences": differences})


def _question_of(job: JobScores, dimension: DimensionScores) -> Question | None:
    """Return the question, if it was about this dimension's scores as the statistics use them."""
    if job.stopped is None or dimension.spec.panel.threshold is not None:  # then the question is about verdicts
        return None
    question = job.stopped.job_answer.asked
    return question if question is not None and question.dimension == dimension.spec.id else None


def _question_dimension(answer: JobAnswer) -> str:
    return (answer.asked.dimension or "") if answer.asked is not None else ""


def _answer_figure(answer: JobAnswer) -> Figure:
    if answer.value is None or answer.low is None or answer.high is None:
        return Figure.unknown("nothing that the question is about has a score")
    return Figure(
        value=answer.value, low=answer.low, high=answer.high, confidence=answer.confidence, items=answer.items,
        method=METHOD,
    )  # fmt: skip


def _negated(figure: Figure) -> Figure:
    if figure.value is None or figure.low is None or figure.high is None:
        return figure
    return figure.model_copy(update={"value": -figure.value, "low": -figure.high, "high": -figure.low})


def _words(job: JobScores, stopped: StoppedJob) -> Iterator[str]:
    question = stopped.job_answer.asked
    judged = f"The job ended when its question was answered: {job.items:,} of {stopped.items:,} items are judged"
    if question is not None and question.difference is not None:
        first, second = question.difference.of
        yield (
            f"{judged}, as many of {first} as of {second}, drawn at random and in random order. They stand for those "
            "two groups, and for all items only where these are the two halves of them."
        )
    else:
        yield f"{judged}, drawn at random and in random order: their means are estimates of those of all items."
    yield (
        "When to stop was decided by the scores. The interval of what was asked holds however often one looks "
        f"({100 * stopped.job_answer.confidence:g} %); the other intervals are those of samples whose size is fixed "
        "beforehand, and where they go with what was asked they hold somewhat less often than they say."
    )
