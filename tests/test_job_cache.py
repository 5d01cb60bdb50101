"""What a process knows of the jobs whose units it judges."""

import asyncio
from typing import NamedTuple

import pytest
from redis.exceptions import ResponseError

from dicast.app.pipeline.record import JOBS_KEPT, JobCache


class Job(NamedTuple):
    name: str
    incarnation: str = "now"


THE_JOB = Job("the job")


class Store:
    """Answers when it is told to."""

    def __init__(self):
        self.reads = []

    async def job(self, job_id):
        answer = asyncio.get_running_loop().create_future()
        self.reads.append(answer)
        return await answer


@pytest.fixture
def store():
    return Store()


@pytest.fixture
def cache(store):
    return JobCache(store)


async def asked(cache, times=1, job="j", incarnation="now"):
    tasks = [asyncio.ensure_future(cache.get(job, incarnation)) for _ in range(times)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return tasks


async def test_a_job_is_read_once_for_all_who_ask_meanwhile(cache, store):
    first, *others = await asked(cache, 100)
    first.cancel()
    [read] = store.reads
    read.set_result(THE_JOB)
    assert await asyncio.gather(*others) == [THE_JOB] * 99
    assert await cache.get("j", "now") == THE_JOB
    assert len(store.reads) == 1


@pytest.mark.parametrize("answer", [None, ResponseError("ERR")])
async def test_a_job_that_was_not_there_is_asked_for_again(cache, store, answer):
    [task] = await asked(cache)
    if answer is None:
        store.reads[0].set_result(None)
        assert await task is None
    else:
        store.reads[0].set_exception(answer)
        with pytest.raises(ResponseError):
            await task
    [again] = await asked(cache)
    store.reads[1].set_result(THE_JOB)
    assert await again == THE_JOB


async def test_each_job_of_an_id_is_itself(cache, store):
    """Used again after a flush or past its retention, an id means another job: with other dimensions, perhaps."""
    old, new = Job("the old one", "then"), Job("the new one")
    [before] = await asked(cache, incarnation="then")
    store.reads[0].set_result(old)
    assert await before == old
    [after] = await asked(cache)
    store.reads[1].set_result(new)
    assert await after == new
    assert await cache.get("j", "now") == new
    [late] = await asked(cache, incarnation="later")
    store.reads[2].set_result(new)
    assert await late is None


async def test_the_oldest_jobs_are_forgotten(cache, store):
    for number in range(JOBS_KEPT + 1):
        [task] = await asked(cache, job=f"j{number}")
        store.reads[-1].set_result(Job(f"j{number}"))
        await task
    assert await cache.get("j1", "now") == Job("j1")
    await asked(cache, job="j0")
    assert len(store.reads) == JOBS_KEPT + 2
