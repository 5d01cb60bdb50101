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
from dicast.app.domain.board import Scoreboard
from dicast.app.domain.plan import Lane
from dicast.app.domain.question import PAGE, JobAnswer, next_look
from dicast.app.ledger.ledger import Ledger
from dicast.app.ledger.records import JobRecord, OpenQuestion
from dicast.app.pipeline.record import retry_until_available
from dicast.app.reports.assessing import MISSING, NoLibraries

READ_TOGETHER = 400
KEPT_JOBS = 32


class Look(NamedTuple):
    """The result of a check: whether the job's question is `answered`, and whether to `finish` the job now because no
    unit is open."""

    answered: bool = False
    finish: bool = False


@dataclass
class _Seen:
    """The panel's scores of the first items of a job, NaN where an item has none. Extended on the event loop only."""

    scores: array[float] = field(default_factory=lambda: array("d"))
    next_look: int = PAGE

    def copied(self) -> array[float]:
        """Return a copy of the scores for use in a thread: an array of which numpy holds a view cannot grow."""
        return self.scores[:]


class Inquiries:
    """Answers the questions of jobs on one event loop."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._seen: dict[tuple[str, str, int], _Seen] = {}

    async def look(self, job: JobRecord) -> Look:
        """Answer the job's question if enough has been judged. Does nothing for a job without a question, or whose
        question was answered before it was resumed. Raises `NoLibraries`."""
        asked = await self._open(job)
        if asked is None:
            return Look()
        seen = await self._advanced(job)
        count, enough = len(seen.scores), _reachable(job, asked)
        spent = count >= enough or asked.calls >= (_most(job) or math.inf)
        if count < seen.next_look and not spent:
            return Look()
        seen.next_look = next_look(count)
        answer = await asyncio.to_thread(answered, job, asked, seen.copied(), spent=spent)
        if answer.state == "open" or count == job.items:  # everything is judged: the job ends like any other
            return Look()
        text, attempt = answer.model_dump_json().encode(), self._ledger.attempt()
        stands, finish = await retry_until_available(lambda: self._ledger.answer(job, text, attempt))
        if stands:
            logs.question_answered(job=job.id, state=answer.state, items=count)
        return Look(True, finish)

    async def reach(self, job: JobRecord, lane: Lane, ahead: int) -> int | None:
        """Return the position up to which a lane may be planned, where `ahead` units keep its pool busy; None means to
        its end."""
        asked = await self._open(job)
        if asked is None:
            return None
        seen = len((await self._advanced(job)).scores)
        items = min(_reachable(job, asked), seen + PAGE + math.ceil(2 * ahead / lane.units_per_item))
        return items * lane.units_per_item

    async def told(self, job: JobRecord) -> JobAnswer | None:
        """Return the answer for the report, or None for a job without a question. Raises `NoLibraries`."""
        if job.spec.question is None:
            return None
        asked = await self._ledger.question_state(job.id)
        found = JobAnswer.model_validate_json(asked.stored_answer) if asked.stored_answer is not None else None
        if found is not None and found.state != "spent":
            return found
        scores = (await self._advanced(job)).copied()
        return await asyncio.to_thread(answered, job, asked, scores, spent=found is not None, ended=True)

    async def _open(self, job: JobRecord) -> OpenQuestion | None:
        if job.spec.question is None:
            return None
        asked = await self._ledger.question_state(job.id)
        return asked if asked.stored_answer is None else None

    async def _advanced(self, job: JobRecord) -> _Seen:
        """Read the scores of items that have been judged since the last call, and return all."""
        key = job.id, job.incarnation, job.resumed
        seen = self._seen.setdefault(key, _Seen())
        while len(self._seen) > KEPT_JOBS:
            del self._seen[next(iter(self._seen))]
        while (first := len(seen.scores)) < job.items:
            board = await self._ledger.scoreboard(job, first, min(READ_TOGETHER, job.items - first))
            new = _complete(job, board)
            if len(seen.scores) == first:  # no concurrent call has extended it meanwhile
                seen.scores.extend(new)
            if len(new) < READ_TOGETHER:
                break
        return seen


def _reachable(job: JobRecord, asked: OpenQuestion) -> int:
    """Return how many of the first items may be judged for the question."""
    most = _most(job)
    calls = sum(lane.units_per_item // lane.stride for lane in job.lanes)
    items = job.items if asked.pairs is None else 2 * asked.pairs
    return items if most is None else min(items, max(1, most // calls))


def _most(job: JobRecord) -> int | None:
    return job.spec.question.most_calls if job.spec.question is not None else None


def _complete(job: JobRecord, board: Scoreboard) -> list[float]:
    """Return the panel's scores of the board's first items, up to the first item with an open unit."""
    agents, dimension = range(len(job.spec.agents)), job.spec.question_dimension
    rule = job.spec.panel_of(job.spec.dimensions[dimension])
    scores = []
    for item in range(board.first_item, board.first_item + board.items):
        if not board.has_ended(item, agents):
            break
        given: Mapping[str, float] = {
            job.spec.agents[agent].name: fmean(own) for agent in agents if (own := board.scores(item, agent, dimension))
        }
        score = rule.combined(given)
        scores.append(math.nan if score is None else score)
    return scores


def answered(
    job: JobRecord, asked: OpenQuestion, scores: array[float], *, spent: bool, ended: bool = False
) -> JobAnswer:
    """Return the answer that these scores of the first items give to the job's question. Blocks. Raises
    `NoLibraries`."""
    require_libraries()
    from dicast.app.assessment.inquiry import answer_of  # noqa: PLC0415  (takes long to load)

    assert job.spec.question is not None
    dimension = job.spec.dimensions[job.spec.question_dimension]
    passes = job.spec.panel_of(dimension).threshold is not None  # then the panel says 1 or 0
    bounds = (0, 1) if passes else (dimension.scale.min, dimension.scale.max)
    population = job.items if asked.pairs is None else asked.pairs
    return answer_of(job.spec.question, dimension.id, bounds, scores, population, spent=spent, ended=ended)


def require_libraries() -> None:
    """Raise `NoLibraries` if this process cannot answer questions."""
    if not can_answer():
        raise NoLibraries(f"a job's question needs them: {MISSING}")


def can_answer() -> bool:
    """Whether this process has the library that questions need. Statistics need more libraries."""
    return find_spec("numpy") is not None
