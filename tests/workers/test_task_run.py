"""Runs and slots of a pool in the test's own process, without a worker around it."""

import asyncio
import gc
import threading
from concurrent.futures import CancelledError

import pytest
from celery import Celery
from celery.exceptions import ImproperlyConfigured, Reject
from celery.utils import threads as celery_threads
from celery.worker import state as worker_state
from kombu.exceptions import OperationalError
from redis.exceptions import ConnectionError as StoreConnectionError

import dicast.workers.runtime.pool
from dicast.workers.runtime.pool import PASSES_PER_TURN, TaskPool, Turnstile, on_loop_close
from tests.workers.pool_harness import DEADLINE_S, until

app = Celery("runs", set_as_current=False)


class Meeting:
    """Where a body and its test meet: events that both sides of the loop can wait for."""

    def __init__(self):
        self.started, self.go, self.ended = threading.Semaphore(0), asyncio.Event(), threading.Semaphore(0)


@app.task
async def meet(meeting):
    meeting.started.release()
    try:
        await meeting.go.wait()
    finally:
        meeting.ended.release()
    return "done"


@app.task
async def never_give_in(meeting):
    meeting.started.release()
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            meeting.ended.release()


@app.task
async def child_never_gives_in(meeting):
    """asyncio cancels the child in place of the body, and waits for it."""

    async def child():
        while not meeting.go.is_set():
            try:
                await meeting.go.wait()
            except asyncio.CancelledError:
                meeting.ended.release()

    meeting.started.release()
    await asyncio.create_task(child())


@app.task
def block(meeting, go):
    meeting.started.release()
    assert go.wait(DEADLINE_S)


@app.task(acks_late=True)
async def unrecordable():
    return object()


def trace(name, *args):
    """In place of Celery's tracer."""
    result = app.tasks[name].run(*args)
    if name == unrecordable.name:
        raise OSError("the store is away")
    return result


class Told:
    """What a request is told of its run."""

    def __init__(self):
        self.accepted, self.outcomes, self.errors, self.timeouts = [], [], [], []

    def apply(self, pool, task, *args, **options):
        return pool.apply_async(
            trace,
            args=(task.name, *args),
            accept_callback=lambda pid, time: self.accepted.append(pid),
            callback=self.outcomes.append,
            error_callback=self.errors.append,
            timeout_callback=lambda soft, limit: self.timeouts.append((soft, limit)),
            correlation_id="an-id",
            **options,
        )


@pytest.fixture
def make_pool(monkeypatch):
    monkeypatch.setattr(dicast.workers.runtime.pool, "CANCEL_GRACE_S", 0.05)
    monkeypatch.setattr(dicast.workers.runtime.pool, "CANCEL_GRACE_S", 0.05)
    monkeypatch.setattr(dicast.workers.runtime.pool, "REQUEUE_DELAY_S", 0.0)
    pools = []

    def make(limit):
        pool = TaskPool(limit, app=app)
        pool.start()
        pools.append(pool)
        return pool

    yield make
    for pool in pools:
        pool.terminate()
        pool.stop()
    gc.unfreeze()


def heard(semaphore):
    assert semaphore.acquire(timeout=DEADLINE_S)


def test_slots_count_from_the_moment_a_task_is_given_to_the_pool(make_pool):
    pool, meeting, told = make_pool(2), Meeting(), Told()
    assert pool.free_slots() == 2
    for free in (1, 0, 0):
        told.apply(pool, meet, meeting)
        assert pool.free_slots() == free
    pool.grow(2)
    assert pool.free_slots() == 1
    pool.loop.call_soon_threadsafe(meeting.go.set)
    until(lambda: told.outcomes == ["done"] * 3, "all done")
    until(lambda: pool.free_slots() == 4, "all free")


@pytest.mark.parametrize("task", [never_give_in, child_never_gives_in], ids=lambda task: task.name)
def test_a_body_that_does_not_end_is_abandoned(make_pool, caplog, task):
    pool, meeting, told = make_pool(1), Meeting(), Told()
    told.apply(pool, task, meeting, timeout=0.01)
    heard(meeting.started)
    heard(meeting.ended)  # it refuses to end
    until(lambda: pool.free_slots() == 1, "the slot is free")
    assert told.timeouts == [(False, 0.01)]
    assert told.outcomes == told.errors == []
    assert "abandoned" in caplog.text

    after = Meeting()
    after.go.set()
    told.apply(pool, meet, after)
    until(lambda: told.outcomes == ["done"], "the pool goes on")
    pool.loop.call_soon_threadsafe(meeting.go.set)


def test_a_task_terminated_before_it_starts_is_accepted_but_never_runs(make_pool):
    pool, meeting, told = make_pool(1), Meeting(), Told()
    told.apply(pool, meet, meeting)
    heard(meeting.started)
    waiting = Told()
    waiting.apply(pool, meet, meeting).terminate(15)
    until(lambda: waiting.accepted, "accepted, so that Celery can settle its message")
    pool.loop.call_soon_threadsafe(meeting.go.set)
    until(lambda: told.outcomes == ["done"], "the other is done")
    until(lambda: pool.free_slots() == 1, "the slot is free")
    assert waiting.outcomes == waiting.errors == []
    assert not meeting.started.acquire(blocking=False)


def test_a_lost_connection_forgets_what_has_not_started(make_pool):
    pool, meeting, running, waiting = make_pool(1), Meeting(), Told(), Told()
    running.apply(pool, meet, meeting)
    waiting.apply(pool, meet, meeting)
    heard(meeting.started)
    pool.flush()
    pool.loop.call_soon_threadsafe(meeting.go.set)
    until(lambda: running.outcomes == ["done"], "what ran is done")
    until(lambda: pool.free_slots() == 1, "forgotten")
    assert waiting.accepted == []


def test_threads_are_few_and_leave_slots_to_others(make_pool, monkeypatch):
    monkeypatch.setattr(dicast.workers.runtime.pool, "THREADS", 2)
    pool, meeting, told, go = make_pool(4), Meeting(), Told(), threading.Event()
    for _ in range(3):
        told.apply(pool, block, meeting, go)
    heard(meeting.started)
    heard(meeting.started)
    quick = Meeting()
    quick.go.set()
    told.apply(pool, meet, quick)
    until(lambda: told.outcomes == ["done"], "passed those that wait for a thread")
    assert not meeting.started.acquire(blocking=False)
    go.set()
    heard(meeting.started)
    until(lambda: len(told.outcomes) == 4, "all done")


def test_time_limits_do_not_strike_threads(make_pool):
    pool, meeting, told, go = make_pool(1), Meeting(), Told(), threading.Event()
    told.apply(pool, block, meeting, go, timeout=0.01, soft_timeout=0.01)
    heard(meeting.started)
    beat = pool.submit(asyncio.sleep(0.05))
    beat.result(DEADLINE_S)
    assert told.timeouts == []
    go.set()
    until(lambda: told.outcomes == [None], "done")


def test_an_outcome_that_cannot_be_recorded_is_rejected_for_another_run(make_pool):
    pool, told = make_pool(1), Told()
    told.apply(pool, unrecordable)
    until(lambda: told.errors, "told")
    error = told.errors[0].exception
    error = getattr(error, "exc", error)
    assert isinstance(error, Reject)
    assert error.requeue
    assert told.outcomes == []


@pytest.mark.parametrize(
    "error, requeued", [(TypeError("after ** must be a mapping, not int"), [True, True, False]),
                        (StoreConnectionError("away"), [True] * 3), (OperationalError("away"), [True] * 3)],
)  # fmt: skip
def test_a_message_whose_outcome_can_never_be_recorded_is_given_up(make_pool, monkeypatch, error, requeued):
    """As of a body of three numbers, which was put back each second for ever. A store that is away is waited for."""

    def trace(*_):
        raise error

    monkeypatch.setattr("tests.workers.test_task_run.trace", trace)
    pool, told = make_pool(1), Told()
    for n in range(len(requeued)):
        told.apply(pool, unrecordable)
        until(lambda n=n: len(told.errors) > n, "told")
    errors = [getattr(info.exception, "exc", info.exception) for info in told.errors]
    assert [rejected.requeue for rejected in errors] == requeued


def test_coroutines_beside_the_tasks_end_after_them_and_before_what_they_use(make_pool):
    pool, meeting, told, order = make_pool(1), Meeting(), Told(), []

    async def close():
        order.append("closed")

    async def service():
        on_loop_close(close)
        try:
            await asyncio.Event().wait()
        finally:
            order.append("service ended")

    serving = pool.submit(service())
    told.apply(pool, meet, meeting)
    heard(meeting.started)
    pool.loop.call_soon_threadsafe(meeting.go.set)
    pool.stop()
    assert told.outcomes == ["done"]
    assert order == ["service ended", "closed"]
    with pytest.raises(CancelledError):
        serving.result(0)
    assert pool.loop.is_closed()


def test_a_cold_stop_waits_for_nobody(make_pool, monkeypatch):
    """Celery cancels the tasks it knows to be running; one may have started that it has not heard of yet."""
    pool, meeting, told = make_pool(1), Meeting(), Told()
    told.apply(pool, meet, meeting)
    heard(meeting.started)
    monkeypatch.setattr(worker_state, "should_terminate", True)
    pool.stop()
    heard(meeting.ended)
    assert told.outcomes == told.errors == []


def test_fast_locals_are_refused(monkeypatch):
    monkeypatch.setattr(celery_threads, "USE_FAST_LOCALS", "1")
    with pytest.raises(ImproperlyConfigured, match="USE_FAST_LOCALS"):
        TaskPool(1, app=app).start()


async def test_turnstile_lets_few_pass_in_a_turn():
    turn, passed = 0, []
    turnstile = Turnstile(asyncio.get_running_loop())

    async def come():
        await turnstile.pass_()
        passed.append(turn)

    comers = [asyncio.create_task(come()) for _ in range(10 * PASSES_PER_TURN)]
    while not all(comer.done() for comer in comers):
        turn += 1
        await asyncio.sleep(0)
        assert turn < 1000
    assert max(passed.count(t) for t in passed) <= 2 * PASSES_PER_TURN
    await asyncio.gather(*comers)


async def test_turnstile_is_not_held_up_by_those_who_gave_up():
    turnstile = Turnstile(asyncio.get_running_loop())
    comers = [asyncio.create_task(turnstile.pass_()) for _ in range(3 * PASSES_PER_TURN)]
    await asyncio.sleep(0)
    for comer in comers[: 2 * PASSES_PER_TURN]:
        comer.cancel()
    async with asyncio.timeout(DEADLINE_S):
        await asyncio.gather(*comers, return_exceptions=True)
        await turnstile.pass_()
