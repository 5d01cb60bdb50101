"""A loop that ends though nobody ended it."""

import asyncio
import threading
from concurrent.futures import Future

import pytest
from celery.worker import state as worker_state

from dicast.workers.system.supervision import (
    LoopFailures,
    RestartPolicy,
    end_worker,
    supervise,
    supervised_thread,
    watch,
)

AT_ONCE = RestartPolicy(failures=3, within_s=60, pause_first_s=0.0)


def test_the_pause_doubles_and_the_last_failure_gives_up():
    failures = LoopFailures(RestartPolicy(failures=5, within_s=60, pause_first_s=0.1, pause_max_s=0.5))
    assert [failures.add(now) for now in (0, 1, 2, 3, 59)] == [0.1, 0.2, 0.4, 0.5, None]


def test_failures_long_ago_do_not_count():
    failures = LoopFailures(RestartPolicy(failures=2, within_s=60))
    assert [failures.add(now) for now in (0, 60, 119)] == [0.1, 0.1, None]


def told(caplog):
    return [(r.event, getattr(r, "loop", None)) for r in caplog.records if hasattr(r, "event")]


@pytest.mark.parametrize("error", [ValueError("odd"), SystemExit(3), asyncio.CancelledError()], ids=repr)
async def test_a_loop_that_fails_is_told_of_and_goes_on(error, caplog):
    """A stray cancellation, of something that the loop waited for, is no cancellation of the loop."""
    errors, again = [error], asyncio.Event()

    async def run():
        if errors:
            raise errors.pop()
        again.set()
        await asyncio.Event().wait()

    task = supervise("ear", run, policy=AT_ONCE)
    await asyncio.wait_for(again.wait(), 5)
    assert (told(caplog), task.get_name()) == ([("loop_failed", "ear")], "ear")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_loop_that_returns_is_not_started_again(caplog):
    runs = []

    async def run():
        runs.append(1)

    await supervise("see-off", run)
    assert (runs, told(caplog)) == ([1], [])


async def test_a_loop_that_fails_again_and_again_is_given_up():
    given_up = []

    async def run():
        raise ValueError("odd")

    await supervise("gate", run, policy=AT_ONCE, give_up=given_up.append)
    assert given_up == ["gate fails again and again: ValueError('odd')"]


async def test_a_failure_during_the_pause_is_one_of_the_loop():
    """Whatever is thrown into the task, wherever it waits."""
    given_up, failed = [], asyncio.Event()

    async def run():
        failed.set()
        raise ValueError("odd")

    patience = RestartPolicy(failures=2, pause_first_s=60)
    task = supervise("gate", run, policy=patience, give_up=given_up.append)
    await failed.wait()
    await asyncio.sleep(0)
    task._fut_waiter.set_exception(KeyError("thrown"))
    await asyncio.wait_for(task, 5)
    assert given_up == ["gate fails again and again: KeyError('thrown')"]


def test_a_thread_that_fails_is_told_of_goes_on_and_is_given_up(caplog):
    errors = [SystemExit(), ValueError("odd"), MemoryError()]
    given_up, slept = [], []

    def run():
        raise errors.pop(0)

    patience = RestartPolicy(failures=3, within_s=60)
    thread = supervised_thread(
        "beacon", run, policy=patience, give_up=given_up.append, clock=lambda: 0.0, sleep=slept.append
    )
    assert (thread.name, thread.daemon) == ("beacon", True)
    thread.start()
    thread.join(5)
    assert (slept, given_up) == ([0.1, 0.2], ["beacon fails again and again: MemoryError()"])
    assert told(caplog) == [("loop_failed", "beacon")] * 3


def test_a_worker_whose_loop_is_given_up_ends_with_a_word(monkeypatch, caplog):
    monkeypatch.setattr(worker_state, "should_stop", None)
    end_worker("the beacon fails again and again")
    assert worker_state.should_stop == 1
    assert [(r.event, r.reason) for r in caplog.records] == [("worker_ends", "the beacon fails again and again")]


async def test_what_nobody_awaits_is_told_of_when_it_fails(caplog):
    failed = []

    async def decide():
        raise ValueError("odd")

    task = asyncio.ensure_future(decide())
    watch(task, "decision", failed.append)
    await asyncio.wait({task})
    await asyncio.sleep(0)
    assert (told(caplog), failed) == ([("loop_failed", "decision")], ["decision failed: ValueError('odd')"])


def test_a_future_of_another_thread_is_watched_too(caplog):
    fine, cancelled, bad = Future(), Future(), Future()
    for future in (fine, cancelled, bad):
        watch(future, "services")
    fine.set_result(None)
    cancelled.cancel()
    other = threading.Thread(target=lambda: bad.set_exception(OSError("full")))
    other.start()
    other.join(5)
    assert told(caplog) == [("loop_failed", "services")]
