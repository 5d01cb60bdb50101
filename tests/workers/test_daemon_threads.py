"""Threads that run calls in order and never keep a process."""

import subprocess
import sys
import threading

import pytest

from dicast.workers.system.supervision import DaemonThreads
from tests.workers.pool_harness import DEADLINE_S, ROOT


def test_calls_run_side_by_side_up_to_the_limit():
    threads, barrier = DaemonThreads(3, "t"), threading.Barrier(3)
    together = [threads.submit(barrier.wait, DEADLINE_S) for _ in range(3)]
    assert sorted(call.result(DEADLINE_S) for call in together) == [0, 1, 2]
    names = {threads.submit(lambda: threading.current_thread().name).result(DEADLINE_S) for _ in range(20)}
    assert names <= {"t_0", "t_1", "t_2"}


def test_calls_beyond_the_limit_wait_in_order():
    threads, go, order = DaemonThreads(1, "t"), threading.Event(), []
    threads.submit(go.wait, DEADLINE_S)
    calls = [threads.submit(order.append, n) for n in range(5)]
    assert calls.pop(2).cancel()
    assert order == []
    go.set()
    for call in calls:
        call.result(DEADLINE_S)
    assert order == [0, 1, 3, 4]


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3)])
def test_errors_come_back(error):
    def fail():
        raise error

    threads = DaemonThreads(1, "t")
    assert threads.submit(fail).exception(DEADLINE_S) is error
    assert threads.submit(int, "7").result(DEADLINE_S) == 7


def test_closed_threads_take_no_calls_and_can_drop_those_that_wait():
    threads, go = DaemonThreads(1, "t"), threading.Event()
    running, waiting = threads.submit(go.wait, DEADLINE_S), threads.submit(int)
    while not running.running():
        threading.Event().wait(0.001)
    threads.shutdown(cancel_futures=True)
    assert waiting.cancelled()
    with pytest.raises(RuntimeError, match="closed"):
        threads.submit(int)
    go.set()
    assert running.result(DEADLINE_S)


def test_a_call_that_never_ends_does_not_keep_the_process():
    script = """
import threading
from dicast.workers.system.supervision import DaemonThreads
started = threading.Event()
DaemonThreads(1, "t").submit(lambda: (started.set(), threading.Event().wait()))
started.wait()
"""
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True, timeout=DEADLINE_S)
