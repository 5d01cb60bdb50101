"""Which scores count for a job's question: those of the first items, up to the first that is open."""

from __future__ import annotations

import math

import pytest

from dicast.app.domain.job import EvaluationJob
from dicast.app.domain.plan import lanes
from dicast.app.domain.scoreboard import ENDED, MARK_BYTES, OPEN, Scoreboard, mark_of
from dicast.app.ledger.records import JobRecord
from dicast.app.pipeline.question import _complete_scores
from tests.ledger.bench import a_job

ITEMS = 4


def asked_job() -> JobRecord:
    fields = a_job(items=ITEMS, agents=2, dimensions=1).model_dump(exclude_unset=True)
    job = EvaluationJob.model_validate({**fields, "question": {"width": 0.5}})
    return JobRecord("j", job, lanes([("p",)] * 2, 1, 1, [False] * 2), 2 * ITEMS, 5, None, "n")


def board_of(job: JobRecord, *marks: tuple[int, int], first: int = 0) -> Scoreboard:
    data = b"".join(bytes(divmod(mark, 128)) for of_item in marks for mark in of_item)
    assert len(data) == len(marks) * job.layout.units_per_item * MARK_BYTES
    return Scoreboard(job.layout, [1], first, len(marks), data)


def scored(score: int) -> int:
    return mark_of(score, 1)


@pytest.mark.parametrize("first", [0, 3])
@pytest.mark.parametrize("unit", [0, 1])
def test_an_item_that_takes_long_holds_back_those_behind_it(unit: int, first: int) -> None:
    """Or what is slow to judge, say because it is long, would count less than what is quick."""
    job = asked_job()
    slow = [scored(9), scored(9)]
    slow[unit] = OPEN
    quick = (scored(5), scored(5))
    board = board_of(job, (scored(2), scored(4)), (scored(4), scored(4)), (slow[0], slow[1]), quick, quick, first=first)
    assert _complete_scores(job, board) == [3.0, 4.0]


def test_an_item_that_no_judge_has_scored_keeps_its_place() -> None:
    job = asked_job()
    board = board_of(job, (scored(2), ENDED), (ENDED, ENDED), (scored(5), scored(7)), (OPEN, OPEN))
    first, second, third = _complete_scores(job, board)
    assert (first, third) == (2.0, 6.0)
    assert math.isnan(second)
