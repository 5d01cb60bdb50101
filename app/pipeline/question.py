"""Answers a job's question from what has been judged so far, and limits planning until the next check.

What counts is the panel's score of each item, in the random order in which items are judged, up to the first item with
an open unit: items that take long must not be left out. Everything is read from the score board, so every process sees
the same, and the check may be made at any time and by several processes at once. The first answer stands.
"""

from __future__ import annotations

import asyncio
import math
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from statistics import fmean
from typing import NamedTuple

from dicast.app import logs
from dicast.app.analysis import MISSING, NoLibraries
from dicast.app.domain.plan import Lane
from dicast.app.domain.question import PAGE, JobAnswer, next_look
from dicast.app.domain.scoreboard import Scoreboard
from dicast.app.ledger.ledger import Ledger
from dicast.app.ledger.records import JobRecord, OpenQuestion
from dicast.app.pipeline.record import retry_until_available

READ_TOGETHER = 400
KEPT_JOBS = 32


class QuestionCheck(NamedTuple):
    """The result of a check. `is_answered`: the job's question has its answer. `finish`: the job is to be finished now,
    because no unit is open."""

    is_answered: bool = False
    finish: bool = False


@dataclass
class _JudgedScores:
    """The panel's scores of the first items of a job, NaN where an item has none. Extended on the event loop only."""

    scores: array[float] = field(default_factory=lambda: array("d"))
    next_check: int = PAGE

    def copied(self) -> array[float]:
        """Return a copy of the scores for use in a thread: an array of which numpy holds a view cannot grow."""
        return self.scores[:]


class JobQuestions:
    """Answers the questions of jobs on one event loop."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._judged: dict[tuple[str, str, int], _JudgedScores] = {}

    async def check(self, job: JobRecord) -> QuestionCheck:
        """Answer the job's question if enough has been judged. Does nothing for a job without a question, or whose
        question was answered before it was resumed. Raises `NoLibraries`."""
        question = await self._open_question(job)
        if question is None:
            return QuestionCheck()
        judged = await self._read_scores(job)
        count, enough = len(judged.scores), _reachable(job, question)
        spent = count >= enough or question.calls >= (_most(job) or math.inf)
        if count < judged.next_check and not spent:
            return QuestionCheck()
        judged.next_check = next_look(count)
        job_answer = await asyncio.to_thread(answer_question, job, question, judged.copied(), spent=spent)
        if job_answer.state == "open" or count == job.items:  # everything is judged: the job ends like any other
            return QuestionCheck()
        text, attempt = job_answer.model_dump_json().encode(), self._ledger.attempt()
        stands, finish = await retry_until_available(lambda: self._ledger.answer(job, text, attempt))
        if stands:
            logs.question_answered(job=job.id, state=job_answer.state, items=count)
        return QuestionCheck(True, finish)

    async def reach(self, job: JobRecord, lane: Lane, ahead: int) -> int | None:
        """Return the position up to which a lane may be planned, where `ahead` units keep its pool busy; None means to
        its end."""
        question = await self._open_question(job)
        if question is None:
            return None
        judged_items = len((await self._read_scores(job)).scores)
        items = min(_reachable(job, question), judged_items + PAGE + math.ceil(2 * ahead / lane.units_per_item))
        return items * lane.units_per_item

    async def report_answer(self, job: JobRecord) -> JobAnswer | None:
        """Return the answer for the report, or None for a job without a question. Raises `NoLibraries`."""
        if job.spec.question is None:
            return None
        question = await self._ledger.question_state(job.id)
        stored_answer = (
            JobAnswer.model_validate_json(question.stored_answer) if question.stored_answer is not None else None
        )
        if stored_answer is not None and stored_answer.state != "spent":
            return stored_answer
        scores = (await self._read_scores(job)).copied()
        return await asyncio.to_thread(
            answer_question, job, question, scores, spent=stored_answer is not None, ended=True
        )

    async def _open_question(self, job: JobRecord) -> OpenQuestion | None:
        if job.spec.question is None:
            return None
        question = await self._ledger.question_state(job.id)
        return question if question.stored_answer is None else None

    async def _read_scores(self, job: JobRecord) -> _JudgedScores:
        """Read the scores of items that have been judged since the last call, and return all."""
        key = job.id, job.incarnation, job.resumed
        judged = self._judged.setdefault(key, _JudgedScores())
        while len(self._judged) > KEPT_JOBS:
            del self._judged[next(iter(self._judged))]
        while (first := len(judged.scores)) < job.items:
            board = await self._ledger.scoreboard(job, first, min(READ_TOGETHER, job.items - first))
            new = _complete_scores(job, board)
            if len(judged.scores) == first:  # no concurrent call has extended it meanwhile
                judged.scores.extend(new)
            if len(new) < READ_TOGETHER:
                break
        return judged


def _reachable(job: JobRecord, question: OpenQuestion) -> int:
    """Return how many of the first items may be judged for the question."""
    most = _most(job)
    calls = sum(lane.units_per_item // lane.stride for lane in job.lanes)
    items = job.items if question.pairs is None else 2 * question.pairs
    return items if most is None else min(items, max(1, most // calls))


def _most(job: JobRecord) -> int | None:
    return job.spec.question.most_calls if job.spec.question is not None else None


def _complete_scores(job: JobRecord, board: Scoreboard) -> list[float]:
    """Return the panel's scores of the board's first items, up to the first item with an open unit."""
    agents, dimension = range(len(job.spec.agents)), job.spec.question_dimension
    rule = job.spec.panel_of(job.spec.dimensions[dimension])
    scores = []
    for item in range(board.first_item, board.first_item + board.items):
        if not board.has_ended(item, agents):
            break
        scores_by_agent: Mapping[str, float] = {
            job.spec.agents[agent].name: fmean(replicate_scores)
            for agent in agents
            if (replicate_scores := board.scores(item, agent, dimension))
        }
        score = rule.combined(scores_by_agent)
        scores.append(math.nan if score is None else score)
    return scores


def answer_question(
    job: JobRecord, question: OpenQuestion, scores: array[float], *, spent: bool, ended: bool = False
) -> JobAnswer:
    """Return the answer that these scores of the first items give to the job's question. Blocks. Raises
    `NoLibraries`."""
    require_libraries()
    from dicast.app.analysis.sequences import answer_of  # noqa: PLC0415  (takes long to load)

    assert job.spec.question is not None
    dimension = job.spec.dimensions[job.spec.question_dimension]
    passes = job.spec.panel_of(dimension).threshold is not None  # then the panel says 1 or 0
    bounds = (0, 1) if passes else (dimension.scale.min, dimension.scale.max)
    population = job.items if question.pairs is None else question.pairs
    return answer_of(job.spec.question, dimension.id, bounds, scores, population, spent=spent, ended=ended)


def require_libraries() -> None:
    """Raise `NoLibraries` if this process cannot answer questions."""
    if not can_answer():
        raise NoLibraries(f"a job's question needs them: {MISSING}")


def can_answer() -> bool:
    """Whether this process has the library that questions need. Statistics need more libraries."""
    return find_spec("numpy") is not None
