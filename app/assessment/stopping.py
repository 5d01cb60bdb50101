"""Jobs that ended when their question was answered: what was judged is a random sample whose size depended on its
scores.

The means of such a sample are unbiased for all items. But an interval for a sample of fixed size is not quite valid
for a sample that ended because of what it said. For what was asked, the question's own interval is reported, which is
valid however often one looks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dicast.app.assessment.scores import DimensionScores, JobScores, Stopped
from dicast.app.domain.figure import Figure
from dicast.app.domain.judge_statistics import GroupDifference, GroupStatistics, RaterStatistics, StoppedEarly
from dicast.app.domain.question import JobAnswer, Question

METHOD = "confidence sequence by betting"


def stopped_early(job: JobScores) -> StoppedEarly | None:
    """Return what the report says of the job's early end, None if all of it was judged."""
    if job.stopped is None:
        return None
    answer = job.stopped.answer
    return StoppedEarly(
        question=answer.question,
        dimension=_dimension(answer),
        judged=job.items,
        items=job.stopped.items,
        known=_known(answer),
        summary=list(_words(job, job.stopped)),
    )


def with_sequence(job: JobScores, of: DimensionScores, voices: Sequence[RaterStatistics]) -> list[RaterStatistics]:
    """Return the raters; if the question was about the mean of this dimension, the panel's mean is replaced by the
    question's answer."""
    told = list(voices)
    asked = _asked(job, of)
    if asked is not None and (asked.mean_at_least is not None or asked.width is not None):
        assert job.stopped is not None
        told[-1] = told[-1].model_copy(update={"mean": _known(job.stopped.answer)})
    return told


def with_asked_difference(job: JobScores, of: DimensionScores, groups: GroupStatistics) -> GroupStatistics:
    """Return the groups; if the question was about the difference of two of them, that difference is replaced by the
    question's answer."""
    asked = _asked(job, of)
    if asked is None or asked.difference is None or asked.difference.by != groups.by:
        return groups
    assert job.stopped is not None
    known, (first, second) = _known(job.stopped.answer), asked.difference.of
    found = []
    for one in groups.differences:
        if (one.first, one.second) == (first, second):
            found.append(GroupDifference(first=first, second=second, difference=known, p=None))
        elif (one.first, one.second) == (second, first):
            found.append(GroupDifference(first=second, second=first, difference=_turned(known), p=None))
        else:
            found.append(one)
    return groups.model_copy(update={"differences": found})


def _asked(job: JobScores, of: DimensionScores) -> Question | None:
    """Return the question, if it was about this dimension's scores as the statistics use them."""
    if job.stopped is None or of.dimension.panel.threshold is not None:  # then the question is about verdicts
        return None
    asked = job.stopped.answer.asked
    return asked if asked is not None and asked.dimension == of.dimension.id else None


def _dimension(answer: JobAnswer) -> str:
    return (answer.asked.dimension or "") if answer.asked is not None else ""


def _known(answer: JobAnswer) -> Figure:
    if answer.value is None or answer.low is None or answer.high is None:
        return Figure.unknown("nothing that the question is about has a score")
    return Figure(
        value=answer.value, low=answer.low, high=answer.high, confidence=answer.confidence, items=answer.items,
        method=METHOD,
    )  # fmt: skip


def _turned(found: Figure) -> Figure:
    if found.value is None or found.low is None or found.high is None:
        return found
    return found.model_copy(update={"value": -found.value, "low": -found.high, "high": -found.low})


def _words(job: JobScores, stopped: Stopped) -> Iterator[str]:
    asked = stopped.answer.asked
    judged = f"The job ended when its question was answered: {job.items:,} of {stopped.items:,} items are judged"
    if asked is not None and asked.difference is not None:
        first, second = asked.difference.of
        yield (
            f"{judged}, as many of {first} as of {second}, drawn at random and in random order. They stand for those "
            "two groups, and for all items only where these are the two halves of them."
        )
    else:
        yield f"{judged}, drawn at random and in random order: their means are estimates of those of all items."
    yield (
        "When to stop was decided by the scores. The interval of what was asked holds however often one looks "
        f"({100 * stopped.answer.confidence:g} %); the other intervals are those of samples whose size is fixed "
        "beforehand, and where they go with what was asked they hold somewhat less often than they say."
    )
