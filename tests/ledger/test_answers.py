"""A job's question is answered once; nothing is published afterwards, and what is open ends as usual."""

import asyncio

from dicast.app.ledger.keys import PageRef
from dicast.app.ledger.records import JobState
from tests.ledger.bench import a_job, claim, record

YES, NO = b'{"state":"yes"}', b'{"state":"no"}'


def state(bench):
    return bench.redis.hget(bench.one.keys.job("j"), "state")


async def to_the_end(bench, ref):
    claims = [await claim(bench.one, ref, position) for position in range(4)]
    await record(bench.one, ref, *claims)
    return await bench.one.close_page(ref, 1)


async def test_what_is_open_ends_and_nothing_more_is_published(bench):
    ref = await bench.started(a_job(items=9), cursor='{"position": 4}')
    job = await bench.one.job("j")
    first, second = await asyncio.gather(bench.one.answer(job, YES), bench.two.answer(job, NO))
    assert sorted([first, second]) == [(False, False), (True, False)]
    answer = (await bench.one.question_state("j")).stored_answer
    assert answer == (YES if first[0] else NO).decode()
    assert await bench.one.open_page(ref._replace(page=1), 4, 4, "", 1, {}) == -1
    assert (await bench.one.lane("j", 0)).cursor == ""
    assert bench.redis.hget(bench.one.keys.job("j"), "stopped:0") == '{"position": 4}'
    assert state(bench) == JobState.RUNNING
    assert await to_the_end(bench, ref) == (True, False)
    assert (state(bench), (await bench.one.progress("j"))["outcome"]) == (JobState.FINISHING, "completed")


async def test_with_nothing_open_the_job_is_to_be_finished(bench):
    ref = await bench.started(a_job(items=9), cursor='{"position": 4}')
    assert await to_the_end(bench, ref) == (False, False), "the last unit has asked for planning"
    job = await bench.one.job("j")
    assert await bench.one.answer(job, YES, "a") == await bench.one.answer(job, YES, "a") == (True, True)
    assert state(bench) == JobState.FINISHING
    assert "j" in bench.redis.zrange(bench.one.keys.unfinished, 0, -1), "should the message that finishes it get lost"


async def test_a_job_that_does_not_run_is_not_answered(bench):
    ref = await bench.started(a_job(items=9), cursor='{"position": 4}')
    job = await bench.one.job("j")
    bench.redis.hset(bench.one.keys.job("j"), "incarnation", "another")
    assert await bench.one.answer(job, YES) == (False, False)
    bench.redis.hset(bench.one.keys.job("j"), "incarnation", ref.incarnation)
    bench.client.cancel("j")
    assert await bench.one.answer(job, YES) == (False, False)
    assert (await bench.one.question_state("j")).stored_answer is None


async def test_an_answer_can_be_cancelled_and_a_resumed_job_goes_on_without_another(bench):
    ref = await bench.started(a_job(items=9), cursor='{"position": 4}')
    job = await bench.one.job("j")
    assert (await bench.one.answer(job, YES))[0]
    assert bench.client.cancel("j") == (JobState.RUNNING, False)
    assert await to_the_end(bench, ref) == (True, False)
    assert await bench.one.complete("j", ref.incarnation, b"{}", 60)
    assert state(bench) == JobState.CANCELLED
    bench.client.resume("j")
    assert not await bench.one.has_open_question("j")
    await bench.one.start("j", 5, 1)
    assert await bench.one.answer(await bench.one.job("j"), NO) == (False, False)
    assert (await bench.one.question_state("j")).stored_answer == YES.decode()
    assert "stopped:0" not in await bench.one.progress("j")
    again = PageRef("j", ref.incarnation, 0, (await bench.one.lane("j", 0)).page)
    assert await bench.one.open_page(again, 0, 4, "", 1, {}) == 4
