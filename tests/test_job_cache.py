"""What a process knows of the jobs whose units it judges."""

import asyncio

import pytest

from app.job_cache import JOBS_KEPT, JobCache


class Store:
    """Answers when it is told to."""

    epoch = 1

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
    return JobCache(store.job, lambda: store.epoch)


async def asked(cache, times=1, job="j"):
    tasks = [asyncio.ensure_future(cache.get(job)) for _ in range(times)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return tasks


async def test_a_job_is_read_once_for_all_who_ask_meanwhile(cache, store):
    first, *others = await asked(cache, 100)
    first.cancel()
    [read] = store.reads
    read.set_result("the job")
    assert await asyncio.gather(*others) == ["the job"] * 99
    assert await cache.get("j") == "the job"
    assert len(store.reads) == 1


@pytest.mark.parametrize("answer", [None, ConnectionError()])
async def test_a_job_that_was_not_there_is_asked_for_again(cache, store, answer):
    [task] = await asked(cache)
    if answer is None:
        store.reads[0].set_result(None)
        assert await task is None
    else:
        store.reads[0].set_exception(answer)
        with pytest.raises(ConnectionError):
            await task
    [again] = await asked(cache)
    store.reads[1].set_result("the job")
    assert await again == "the job"


async def test_what_was_read_before_a_flush_is_not_given_after_it(cache, store):
    [before] = await asked(cache)
    store.epoch = 2
    [after] = await asked(cache)
    old, new = store.reads
    new.set_result("the new one")
    assert await after == "the new one"
    old.set_result("the old one")
    assert await before == "the old one"
    assert await cache.get("j") == "the new one"


async def test_the_oldest_jobs_are_forgotten(cache, store):
    for number in range(JOBS_KEPT + 1):
        [task] = await asked(cache, job=f"j{number}")
        store.reads[-1].set_result(number + 1)
        await task
    assert await cache.get("j1") == 2
    await asked(cache, job="j0")
    assert len(store.reads) == JOBS_KEPT + 2
