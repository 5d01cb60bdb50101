"""The supervisor for every loop of a worker: a loop that fails is logged and started again.

    supervise("gate sim", gate.run)                  # a task of the running event loop
    supervised_thread("beacon", beacon.renew)        # a daemon thread, to be started by the caller
    watch(asyncio.ensure_future(decide()), "...")    # a task that nobody awaits: its failure is logged

A loop handles temporary errors (workers/store/connection.py) and those that concern one message or one job. Any other
error is a fault of this program: it is logged with the loop's name, event `loop_failed`, and the loop starts again
after a pause that doubles. One that fails again and again ends the worker, event `worker_ends`, exit code 1: a worker
with a beacon and a dead loop would look healthy, and stand still.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

from celery.platforms import EX_FAILURE
from celery.worker import state as worker_state

T = TypeVar("T")

logger = logging.getLogger(__name__)

AnyFuture = asyncio.Future[Any] | concurrent.futures.Future[Any]


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """A loop is given up at its `failures`-th failure within `within_s`; before, it is started again after a pause of
    `pause_first_s`, twice as long each time, and never longer than `pause_max_s`."""

    failures: int = 5
    within_s: float = 60.0
    pause_first_s: float = 0.1
    pause_max_s: float = 2.0


RESTARTS = RestartPolicy()


class LoopFailures:
    """The failures of one loop. `now` is monotonic time in seconds."""

    def __init__(self, policy: RestartPolicy = RESTARTS) -> None:
        self._policy = policy
        self._at: deque[float] = deque()

    def add(self, now: float) -> float | None:
        """Count a failure; returns the pause after it, s, or None if the loop is given up."""
        policy = self._policy
        self._at.append(now)
        while self._at[0] <= now - policy.within_s:
            self._at.popleft()
        if len(self._at) >= policy.failures:
            return None
        return min(policy.pause_max_s, policy.pause_first_s * 2.0 ** (len(self._at) - 1))


def end_worker(reason: str) -> None:
    """Have Celery stop this worker with exit code 1, from any thread: open calls end and are recorded first."""
    logger.critical("the worker stops: %s", reason, extra={"event": "worker_ends", "reason": reason})
    worker_state.should_stop = EX_FAILURE


def supervise(
    name: str, run: Callable[[], Awaitable[None]], *, policy: RestartPolicy = RESTARTS,
    give_up: Callable[[str], None] = end_worker,
) -> asyncio.Task[None]:  # fmt: skip
    """Return a task of the running loop that awaits `run()`, again after each failure, until it returns or is
    cancelled."""
    return asyncio.get_running_loop().create_task(_supervised(name, run, LoopFailures(policy), give_up), name=name)


async def _supervised(
    name: str, run: Callable[[], Awaitable[None]], failures: LoopFailures, give_up: Callable[[str], None]
) -> None:
    task, pause_s = asyncio.current_task(), 0.0
    assert task is not None
    while True:
        try:
            if pause_s:
                await asyncio.sleep(pause_s)
            return await run()
        except asyncio.CancelledError as error:
            if task.cancelling():
                raise
            failure: BaseException = error  # of something that was awaited, and that others have cancelled
        except (Exception, SystemExit) as error:  # noqa: BLE001  (logged, and counted)
            failure = error
        pause = _failed(name, failure, failures.add(asyncio.get_running_loop().time()), give_up)
        if pause is None:
            return None
        pause_s = pause


def supervised_thread(
    name: str, run: Callable[[], None], *, policy: RestartPolicy = RESTARTS,
    give_up: Callable[[str], None] = end_worker, clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] = time.sleep,
) -> threading.Thread:  # fmt: skip
    """Return a daemon thread, not started, that calls `run()`, again after each failure, until it returns."""
    failures = LoopFailures(policy)

    def serve() -> None:
        while True:
            try:
                return run()
            except BaseException as error:  # noqa: BLE001  (logged, and counted)
                pause_s = _failed(name, error, failures.add(clock()), give_up)
                if pause_s is None:
                    return None
            sleep(pause_s)

    return threading.Thread(target=serve, name=name, daemon=True)


def log_thread_failures() -> None:
    """Log exceptions that end a thread, in this process."""

    def hook(args: threading.ExceptHookArgs) -> None:
        name = args.thread.name if args.thread is not None else "a thread"
        if args.exc_value is not None:
            _log_failure("%s failed", name, args.exc_value)

    threading.excepthook = hook


def watch(future: AnyFuture, name: str, failed: Callable[[str], None] | None = None) -> None:
    """Log the failure of a future that nobody awaits, and call `failed` with it. A cancelled one has not failed."""
    _watched.add(future)

    def done(ended: AnyFuture) -> None:
        _watched.discard(ended)
        error = None if ended.cancelled() else ended.exception()
        if error is not None:
            _log_failure("%s failed", name, error)
            if failed is not None:
                failed(f"{name} failed: {error!r}")

    future.add_done_callback(done)


_watched: set[AnyFuture] = set()
"""An event loop holds its tasks weakly; without a reference here a task may vanish before it ends."""


def _failed(name: str, error: BaseException, pause_s: float | None, give_up: Callable[[str], None]) -> float | None:
    _log_failure("%s failed" if pause_s is None else "%s failed and is started again", name, error)
    if pause_s is None:
        give_up(f"{name} fails again and again: {error!r}")
    return pause_s


def _log_failure(message: str, name: str, error: BaseException) -> None:
    logger.error(message, name, exc_info=error, extra={"event": "loop_failed", "loop": name})


P = ParamSpec("P")


class DaemonThreads(Executor):
    """At most `limit` daemon threads, started as they are needed; calls beyond that wait in order.

    They do not keep a process from exiting. The interpreter joins the threads of
    `concurrent.futures.ThreadPoolExecutor` before it exits, so that one call to a server that never answers keeps a
    stopped worker alive for ever.
    """

    def __init__(self, limit: int, name: str) -> None:
        self._limit, self._name = limit, name
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._lock = threading.Lock()
        self._started = 0
        self._closed = False

    def submit(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        with self._lock:
            if self._closed:
                raise RuntimeError(f"the threads {self._name} are closed")
            self._calls.put((future, functools.partial(function, *args, **kwargs)))
            if not self._idle.acquire(blocking=False) and self._started < self._limit:
                threading.Thread(target=self._serve, name=f"{self._name}_{self._started}", daemon=True).start()
                self._started += 1
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accept no more calls. Never waits, whatever `wait` says; submitted calls are made or cancelled."""
        with self._lock:
            self._closed = True
            while cancel_futures:
                try:
                    call = self._calls.get_nowait()
                except queue.Empty:
                    break
                if call is not None:
                    call[0].cancel()
            for _ in range(self._started):
                self._calls.put(None)

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None:
            future, function = call
            if future.set_running_or_notify_cancel():
                try:
                    result = function()
                except BaseException as error:  # noqa: BLE001  (raised in the caller)
                    future.set_exception(error)
                else:
                    future.set_result(result)
            del call, future, function  # or they would live until the next call
            self._idle.release()
