"""A job's question is looked at in a thread, while the event loop goes on reading the job's score board."""

from __future__ import annotations

import asyncio
import threading

import numpy as np
import pytest

from dicast.app.domain.scoreboard import mark_of
from dicast.app.ledger.keys import PageRef
from dicast.app.pipeline import question as inquiring
from dicast.app.pipeline.question import JobQuestions
from tests.ledger.bench import a_job

ITEMS = 400


async def judged(bench, job, first, count):
    """So many more items have their scores."""
    ref = PageRef(job.id, job.incarnation, 0, first)
    await bench.asyncs.hset(bench.one.keys.job(job.id), "page:0", first)
    results = dict.fromkeys(range(first, first + count), b'{"opinion":{}}')
    marks = [(number, mark_of(1 + number % 5, 1)) for number in results]
    assert await bench.one.open_page(ref, first, count, "{}", 1, {}, results, marks=marks) == 0


class HeldLook:
    """`answered`, which goes on when it may; numpy has a view of the scores meanwhile, as it has while it computes."""

    def __init__(self, answered):
        self.begun, self.may_end, self.scores, self._answered = threading.Event(), threading.Event(), [], answered

    def __call__(self, job, question, scores, **more):
        view = np.asarray(scores)
        self.scores.append(len(view))
        self.begun.set()
        assert self.may_end.wait(20)
        assert len(view) == len(scores) == self.scores[-1], "what is looked at stays as it is"
        return self._answered(job, question, scores, **more)


@pytest.mark.parametrize("how", ["check", "report_answer"])
async def test_scores_come_in_while_a_look_at_the_question_takes_its_time(bench, monkeypatch, how):
    """The array could not grow while numpy had a view of it: five such failures cancelled the job."""
    held = HeldLook(inquiring.answer_question)
    monkeypatch.setattr(inquiring, "answer_question", held)
    dimensions = [{"id": "d0", "instructions": "how good?", "scale": {"min": 1, "max": 5}}]
    spec = a_job("q", items=ITEMS).model_dump()
    spec = type(a_job()).model_validate({**spec, "dimensions": dimensions, "question": {"width": 0.02}})
    bench.submit(spec)
    await bench.one.start("q", 5)
    job = await bench.one.job("q")
    inquiries = JobQuestions(bench.one)
    await judged(bench, job, 0, 100)
    looking = asyncio.ensure_future(getattr(inquiries, how)(job))
    await asyncio.to_thread(held.begun.wait, 20)
    try:
        await judged(bench, job, 100, 200)
        assert await inquiries.reach(job, job.lanes[0], 10) > 300, "the scores that came meanwhile count"
    finally:
        held.may_end.set()
    found = await looking
    assert held.scores == [100]
    if how == "check":
        assert found == (False, False)
        await inquiries.check(job)
        assert held.scores == [100, 300]
    else:
        assert (found.state, found.items) == ("open", 100)
