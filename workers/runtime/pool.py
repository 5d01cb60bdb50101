"""The execution pool: `async def` tasks on one event loop, `def` tasks in a few threads, Celery's tracer as it is.

    app.conf.worker_pool = "dicast.workers.runtime.pool:TaskPool"

Threads: the *hub* (Celery's main thread) receives messages; the *loop* runs tracers and bodies, each task in a greenlet
of its own (`loop_bridge.py`). Every callback of Celery's `Request` (accepted, succeeded, failed, timed out, and with
them acknowledgements and events) is called on the hub, in order, as by Celery's prefork pool: so the worker's state has
one writer, and the loop writes to no broker socket.

Slots: at most `limit` tasks (`-c`) run at once, and as many more as `spare` allows, at most `THREADS` of them `def`
tasks; others wait in order of arrival.

A loop that dies, or does not turn for `STALL_LIMIT_S`, stops the worker with exit code 1; the messages that were not
acknowledged go back to their queues.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import inspect
import itertools
import logging
import os
import queue
import socket
import sys
import threading
import traceback
from collections import OrderedDict, deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from dataclasses import dataclass
from time import monotonic
from typing import Any, Protocol, TypeVar

import greenlet
from billiard.einfo import ExceptionInfo
from billiard.exceptions import WorkerLostError
from celery.concurrency.base import BasePool
from celery.exceptions import ImproperlyConfigured, Reject, SoftTimeLimitExceeded
from celery.platforms import EX_FAILURE
from celery.utils import threads as celery_threads
from celery.worker import state as worker_state
from celery.worker.request import Request
from kombu.exceptions import OperationalError

from dicast.workers.runtime.loop_bridge import (
    TaskGreenlet,
    await_,
    close_loop_resources,
    in_task_greenlet,
    loop_resource,
    off_loop,
    on_loop_close,
)
from dicast.workers.store.connection import is_passing
from dicast.workers.system import private
from dicast.workers.system.host import collect_rarely, keep_imports
from dicast.workers.system.supervision import DaemonThreads, supervise

__all__ = ["TaskAborted", "TaskPool", "await_", "in_task_greenlet", "loop_resource", "off_loop", "on_loop_close"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

CANCEL_GRACE_S = 5.0
REQUEUE_DELAY_S = 1.0
UNRECORDED_MAX = 3
PASSES_PER_TURN = 16


class TaskAborted(Exception):
    """The body raised an unexpected BaseException: SystemExit, a stray CancelledError, ..."""


class _SoftTimeLimit(SoftTimeLimitExceeded, asyncio.CancelledError):  # type: ignore[misc]
    """The soft time limit as a body sees it. It is also a cancellation, so that task groups and timeouts clean up."""


@dataclass(frozen=True, slots=True)
class Callbacks:
    """The callbacks of Celery's `Request`. They are posted to the hub, never called on the loop."""

    accepted: Callable[[int, float], None]
    outcome: Callable[[Any], None]
    error: Callable[[ExceptionInfo], None]
    timeout: Callable[[bool, float], None]


class RunHost(Protocol):
    """What a run needs of its pool."""

    loop: asyncio.AbstractEventLoop
    threads: Executor
    turnstile: Turnstile

    def post(self, function: Callable[..., Any], *args: Any) -> None: ...
    def post_soon(self, function: Callable[..., Any], *args: Any) -> None: ...
    def ended(self, run: TaskRun) -> None: ...
    def unrecorded(self, label: str) -> int:
        """Count an outcome of the task `label` that could not be recorded; returns how many there were."""

    def end_message(self, settle: Callable[[ExceptionInfo], None], info: ExceptionInfo) -> None:
        """End a message whose outcome cannot be recorded; `settle` is its callback for errors. On the hub."""

    def cancel(self, run: TaskRun) -> None: ...


class TaskRun:
    """One run. All methods but `terminate` belong to the loop's thread.

    It is a run of one task in the execution pool, from its start to the one callback that settles its message. Ends of
    a run, by what comes out of Celery's tracer:

    1. the outcome: passed to Celery's `on_success`, whatever the outcome says;
    2. an exception: a message that is acknowledged late goes back to its queue after `REQUEUE_DELAY_S`, so that it is
       neither lost nor spins; any other is recorded as failed. If waiting cannot mend it (the result store is not just
       away), the message is the cause: after `UNRECORDED_MAX` times here it is given up;
    3. another BaseException (`sys.exit()` in the body): the task failed with `TaskAborted`; the worker goes on;
    4. its cancellation by revoke, hard time limit or cold shutdown: nothing more, Celery has settled the message then.
       A body that outlives its cancellation by `CANCEL_GRACE_S` is abandoned: its slot is free and nobody waits for it.

    `def` tasks run in threads and cannot be interrupted: time limits do not apply to them, and a revoked one runs to
    its end, as in Celery's own thread pool.
    """

    def __init__(
        self,
        host: RunHost,
        run_id: int,
        label: str,
        trace: Callable[[], Any],
        callbacks: Callbacks,
        *,
        threaded: bool,
        acks_late: bool,
        soft_s: float | None,
        hard_s: float | None,
    ) -> None:
        self.id, self.label, self.threaded = run_id, label, threaded
        self.dropped = False
        self.in_body = False
        self._host, self._trace, self._callbacks = host, trace, callbacks
        self._acks_late = acks_late
        self._soft_s, self._hard_s = (None, None) if threaded else (soft_s, hard_s)
        self._soft_due = False
        self._task: asyncio.Task[None] | None = None
        self._greenlet: _RunGreenlet | None = None
        self._timers: list[asyncio.TimerHandle] = []

    def terminate(self, signal: int | None = None) -> None:
        """Called by Celery from any thread, also for a task that has not started."""
        self._host.cancel(self)

    def start(self) -> None:
        self._host.post_soon(self._callbacks.accepted, os.getpid(), monotonic())
        self._task = self._host.loop.create_task(self._run(), name=self.label)

    def drop(self) -> None:
        """Cancel the run; nothing more is reported about it."""
        if self.dropped:
            return
        self.dropped = True
        if self._task is None:
            # Celery settles a revoked message when the pool accepts it, and this one never would be.
            self._host.post(self._callbacks.accepted, os.getpid(), monotonic())
            self._host.ended(self)
        elif not self.threaded:
            self._task.cancel()
            self._timers.append(self._host.loop.call_later(CANCEL_GRACE_S, self._abandon))

    async def body(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Await the body for the tracer, and translate cancellations into the tracer's terms."""
        self.in_body = True
        try:
            result = await coroutine
        except _SoftTimeLimit as limit:
            raise SoftTimeLimitExceeded(*limit.args) from None
        except asyncio.CancelledError as stray:
            if not self.dropped:
                raise TaskAborted("the body raised CancelledError, but nobody cancelled the task") from stray
            raise
        finally:
            self.in_body = False
            if self.dropped:  # also when the body swallowed its cancellation: what it returns comes too late
                raise asyncio.CancelledError
        await self._host.turnstile.pass_()
        return result

    async def _run(self) -> None:
        later = self._host.loop.call_later
        try:
            if self._hard_s:
                self._timers.append(later(self._hard_s, self._hard_limit, self._hard_s))
            if self._soft_s:
                self._timers.append(later(self._soft_s, self._soft_limit, self._soft_s))
            if self.threaded:
                outcome = await self._host.loop.run_in_executor(self._host.threads, self._trace)
            else:
                self._greenlet = _RunGreenlet(self)
                outcome = await self._greenlet
        except Exception as error:  # noqa: BLE001  (reported to Celery)
            self._not_recorded(error)
        except BaseException as error:  # noqa: BLE001  (reported to Celery)
            if not self.dropped:
                self._host.post(self._callbacks.error, _info(TaskAborted(f"the body raised {error!r}"), error))
        else:
            if not self.dropped:
                self._host.post_soon(self._callbacks.outcome, outcome)
        finally:
            self._end()

    def trace(self) -> Any:
        return self._trace()

    def interruption(self, exception: BaseException) -> BaseException:
        """Return the exception that the greenlet is to see for one that asyncio throws in."""
        if self._soft_due and not self.dropped and self._task is not None:
            self._soft_due = False
            self._task.uncancel()
            return _SoftTimeLimit(self._soft_s)
        return exception

    def _soft_limit(self, limit_s: float) -> None:
        # Once the body has ended, its outcome is being stored, and it is worth more than its punctuality.
        if self.in_body and not self.dropped and self._task is not None:
            self._host.post(self._callbacks.timeout, True, limit_s)
            self._soft_due = True
            self._task.cancel()

    def _hard_limit(self, limit_s: float) -> None:
        if not self.dropped:
            self._host.post(self._callbacks.timeout, False, limit_s)
            self.drop()

    def _abandon(self) -> None:
        logger.error("%s did not end within %s s of its cancellation: abandoned", self.label, CANCEL_GRACE_S)
        if self._greenlet is not None:
            try:
                self._greenlet.throw(greenlet.GreenletExit)
            except BaseException:  # a body may raise anything while it is thrown out; the slot is to be freed
                logger.exception("%s raised when it was abandoned", self.label)
        self._end()

    def _end(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._greenlet = None
        self._host.ended(self)

    def _not_recorded(self, error: Exception) -> None:
        logger.error("%s: its outcome could not be recorded: %r", self.label, error, exc_info=error)
        if self.dropped:
            return
        settle = self._callbacks.error
        passes = is_passing(error) or isinstance(error, OperationalError)
        if self._acks_late and not passes and self._host.unrecorded(self.label) >= UNRECORDED_MAX:
            self._host.post(self._host.end_message, settle, _info(Reject(error, requeue=False), error))
            return
        report = Reject(error, requeue=True) if self._acks_late else WorkerLostError(repr(error))
        self._host.loop.call_later(REQUEUE_DELAY_S, self._host.post, settle, _info(report, error))


class _RunGreenlet(TaskGreenlet):
    """The greenlet that tracer and body of one run share."""

    def __init__(self, run: TaskRun) -> None:
        super().__init__(run.trace, run.interruption)
        self.task_run = run


def _info(report: Exception, cause: BaseException) -> ExceptionInfo:
    try:
        raise report from cause
    except type(report):
        return ExceptionInfo()


def adopt(task: Any) -> bool:
    """Let an `async def` task drive its own coroutine when a run calls it; returns whether the task is one."""
    attribute = private.body_of(task)
    function = getattr(task, attribute)
    if not inspect.iscoroutinefunction(inspect.unwrap(function)):
        return False
    if not hasattr(function, "drives_coroutine"):

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            current = greenlet.getcurrent()
            # A body that calls another task as a function, `await other(...)`, gets its coroutine.
            if not isinstance(current, _RunGreenlet) or current.task_run.in_body or not inspect.iscoroutine(result):
                return result
            return await_(current.task_run.body(result))

        run.drives_coroutine = True  # type: ignore[attr-defined]
        setattr(task, attribute, run)
    return True


class Turnstile:
    """Lets `PASSES_PER_TURN` tasks pass in each turn of the loop.

    Calls often end together, and all tasks that are ready in one turn of the loop run before anything else does. So
    bodies hand their outcomes to the tracer a few at a time, and the loop stays punctual meanwhile.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._passed = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def pass_(self) -> None:
        if self._passed < PASSES_PER_TURN and not self._waiting:
            if self._passed == 0:
                self._loop.call_soon(self._next_turn)
            self._passed += 1
            return
        turn = self._loop.create_future()
        self._waiting.append(turn)
        await turn

    def _next_turn(self) -> None:
        self._passed = 0
        while self._waiting and self._passed < PASSES_PER_TURN:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                self._passed += 1
        if self._passed:
            self._loop.call_soon(self._next_turn)


MakeCall = Callable[[Callable[..., Any], tuple[Any, ...]], None]

WAKE_WITHIN_S = 0.01
"""How long a call may wait for others before the hub is woken, since one turn of it costs as much as a call."""

_CLOSED = None
"""The end marker behind the last call."""


class HubCalls:
    """A queue of calls; `call(function, arguments)` makes one. `put`, `close` and `wake` may be called on any thread,
    `put_soon` on that of `loop`, all other methods on the hub's.

    They are posted by other threads to the hub, Celery's main thread, and made in order.
    """

    def __init__(self, call: MakeCall, loop: asyncio.AbstractEventLoop) -> None:
        self._call, self._loop = call, loop
        self._has_hub = False
        self._calls: queue.SimpleQueue[tuple[Callable[..., Any], tuple[Any, ...]] | None] = queue.SimpleQueue()
        self._wake_asked = self._wake_due = False
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)

    def attach(self, hub: Any) -> None:
        """Register with the hub; once per connection to the broker, since the hub forgets its readers with a lost
        one."""
        self._has_hub = True
        # Not `hub.call_soon`: acknowledgements that a call asks for would wait for the next event, up to 1 s.
        hub.add_reader(self._reader, self.drain)

    def put(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Have `function(*arguments)` called on the hub, after all calls that were put before."""
        self._calls.put((function, arguments))
        if self._has_hub:
            self.wake()
        else:  # a broker that needs no hub: called in place, as by Celery's thread pool
            self.drain()

    def put_soon(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Like `put`, but within `WAKE_WITHIN_S`, together with other calls."""
        self._calls.put((function, arguments))
        if not self._has_hub:
            self.drain()
        elif not self._wake_due:
            self._wake_due = True
            self._loop.call_later(WAKE_WITHIN_S, self._wake_now)

    def _wake_now(self) -> None:
        self._wake_due = False
        self.wake()

    def close(self) -> None:
        """Mark the end: no call is put after this."""
        self._calls.put(_CLOSED)

    def wake(self) -> None:
        """Wake the hub."""
        if not self._wake_asked:
            self._wake_asked = True
            self._writer.send(b"\0")

    def drain(self) -> None:
        """Make the calls that have been put so far."""
        with contextlib.suppress(BlockingIOError):
            self._reader.recv(64)
        self._wake_asked = False
        while True:
            try:
                entry = self._calls.get_nowait()
            except queue.Empty:
                return
            if entry is _CLOSED:
                self.close()
                return
            self._call(*entry)

    def drain_until_closed(self) -> None:
        """Make all calls up to the end marker, waiting for them; may be entered again meanwhile."""
        for entry in iter(self._calls.get, _CLOSED):
            self._call(*entry)
        self.close()


THREADS = 16
BEAT_S = 0.1
WATCH_S = 1.0
STALL_WARNING_S = 5.0
STALL_LIMIT_S = 60.0

UNRECORDED_KEPT = 1000
"""How many messages with unrecorded outcomes are counted; the counts of older ones start anew."""


class TaskPool(BasePool):  # type: ignore[misc]
    """Celery's pool interface; `loop`, `submit` and `free_slots` are for the worker's other parts, on any thread."""

    limit: int
    loop: asyncio.AbstractEventLoop
    post: Callable[..., None]
    """`post(function, *arguments)`: have it called on the hub, after all that was posted before."""
    post_soon: Callable[..., None]
    """Like `post`, on the loop's thread, within a hundredth of a second; it costs less."""
    catch_up: Callable[[], None]
    """Make the posted calls now, so that Celery's state is up to date; on the hub."""
    body_can_be_buffer = True
    signal_safe = False
    slot_freed: Callable[[], None] = staticmethod(lambda: None)
    """Called on the loop whenever a task has ended."""
    spare: Callable[[int], int] = staticmethod(lambda _: 0)
    """Returns the slots in addition to `limit`, for work that `-c` does not count."""
    resized: Callable[[int], None] = staticmethod(lambda _: None)
    """Called on any thread with the new `limit` when that has changed."""
    give_up_on: Callable[[Any], None] | None = None
    """Called on the hub to end a request whose message comes back again and again. None: the failure is recorded, as by
    Celery itself."""

    # ------------------------------------------------------------------ Celery's interface, on the hub
    def on_start(self) -> None:
        if celery_threads.USE_FAST_LOCALS:
            raise ImproperlyConfigured("USE_FAST_LOCALS must not be set: the tasks of this pool share one thread")
        self._async_tasks = frozenset(name for name, task in self.app.tasks.items() if adopt(task))
        self.loop = _new_event_loop()
        self.threads = DaemonThreads(THREADS, "execution-pool-task")
        self.turnstile = Turnstile(self.loop)

        self._ids = itertools.count(1)
        self._runs: dict[int, TaskRun] = {}
        self._started: set[TaskRun] = set()
        self._waiting: deque[TaskRun] = deque()
        self._waiting_threaded: deque[TaskRun] = deque()

        self._hub_calls = calls = HubCalls(self._call, self.loop)
        self.post, self.post_soon, self.catch_up = calls.put, calls.put_soon, calls.drain

        self._unrecorded: OrderedDict[str, int] = OrderedDict()
        self._beats = self._missed_beats = 0
        self._lag_max_s = 0.0
        self._failure: str | None = None
        self._closing, self._all_ended = asyncio.Event(), asyncio.Event()
        collect_rarely()
        keep_imports()
        self._thread = threading.Thread(target=self._run_loop, name="execution-pool-loop", daemon=True)
        self._thread.start()

    def did_start_ok(self) -> bool:
        return self._thread.is_alive()

    def register_with_event_loop(self, hub: Any) -> None:
        """Register with the hub; once per connection to the broker, since the hub forgets its readers with a lost
        one."""
        self._hub_calls.attach(hub)
        hub.call_repeatedly(WATCH_S, self._watch)

    def on_apply(
        self,
        target: Callable[..., Any],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        callback: Any = None,
        accept_callback: Any = None,
        timeout: float | None = None,
        soft_timeout: float | None = None,
        timeout_callback: Any = None,
        error_callback: Any = None,
        correlation_id: str = "",
        **_: Any,
    ) -> TaskRun:
        """Queue one task; from any thread. Celery keeps a weak reference to the returned run."""
        name = args[0]
        run = TaskRun(
            self,
            next(self._ids),
            f"{name}[{correlation_id}]",
            functools.partial(target, *args, **(kwargs or {})),
            Callbacks(accept_callback, callback, error_callback, timeout_callback),
            threaded=name not in self._async_tasks,
            acks_late=bool(self.app.tasks[name].acks_late),
            soft_s=soft_timeout or self.options.get("soft_timeout"),
            hard_s=timeout or self.options.get("timeout"),
        )
        self._runs[run.id] = run
        self.loop.call_soon_threadsafe(self._enqueue, run)
        return run

    def terminate_job(self, pid: int, signal: int | None = None) -> None:
        """Do nothing: all runs have this process's pid, and Celery also calls `TaskRun.terminate`."""

    def cancel(self, run: TaskRun) -> None:
        """Cancel one run, from any thread."""
        self.loop.call_soon_threadsafe(self._drop, run)

    def flush(self) -> None:
        """Drop the tasks that have not started: their connection is lost, and another one delivers the messages
        again."""
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self._forget_waiting)

    def grow(self, n: int = 1) -> None:
        self._resize(self.limit + n)

    def shrink(self, n: int = 1) -> None:
        """Remove slots. Running tasks end by themselves, and one slot always stays."""
        self._resize(self.limit - n)

    def _resize(self, limit: int) -> None:
        self.limit = max(1, limit)
        self.resized(self.limit)
        self.loop.call_soon_threadsafe(self._resume)

    def on_stop(self) -> None:
        """Stop warmly: wait for the running tasks. A signal's handler may enter it again while it waits.

        In a cold shutdown Celery has cancelled the tasks that it knows to be accepted, and calls this, too.
        """
        if self._thread.is_alive():
            if worker_state.should_terminate:
                self.loop.call_soon_threadsafe(self._drop_all)
            self.loop.call_soon_threadsafe(self._close)
        self._hub_calls.drain_until_closed()
        if self._failure is None:
            self._thread.join()
        self.threads.shutdown(cancel_futures=True)

    def on_terminate(self) -> None:
        """Stop at once: cancel all tasks. The consumer puts their messages back when it closes its channels."""
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self._drop_all)
        self.on_stop()

    def _get_info(self) -> dict[str, Any]:
        running = len(self._started)
        return {
            **super()._get_info(),
            "slots": self.slots,
            "running": running,
            "waiting": max(0, len(self._runs) - running),
            "max-loop-lag-ms": round(self._lag_max_s * 1000),
        }

    def give_up(self) -> None:
        """Cancel all tasks, from any thread. Their messages stay unacknowledged, and are redelivered."""
        self.loop.call_soon_threadsafe(self._drop_all)

    # ------------------------------------------------------------------ for the worker's other parts, on any thread
    @property
    def slots(self) -> int:
        """The most tasks that run at once."""
        return self.limit + self.spare(self.limit)

    def free_slots(self) -> int:
        """Return the number of slots in which no task runs and for which none waits."""
        return max(0, self.slots - len(self._runs))

    @property
    def stalled(self) -> str:
        """A sentence about a loop that has not turned for long; '' if it turns."""
        stalled_s = self._missed_beats * WATCH_S
        return f"its event loop has not turned for {stalled_s:.0f} s" if stalled_s >= STALL_WARNING_S else ""

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Run a coroutine on the loop, beside the tasks. When the pool stops, it is cancelled after the last task."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    # ------------------------------------------------------------------ on the hub
    def _call(self, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        try:
            function(*args)
        except Exception:  # of one message; the hub serves all
            logger.exception("%r failed", function)
            request = getattr(function, "__self__", None)
            settles = getattr(function, "__name__", "") in ("on_success", "on_failure")
            if self.give_up_on is None or not settles or not isinstance(request, Request) or request.acknowledged:
                return
            try:
                self.give_up_on(request)
            except Exception:  # the hub serves all; this message comes back when the worker ends
                logger.exception("message %s stays unacknowledged", request.id)

    def end_message(self, settle: Callable[[ExceptionInfo], None], info: ExceptionInfo) -> None:
        request = getattr(settle, "__self__", None)
        if self.give_up_on is not None and isinstance(request, Request):
            self.give_up_on(request)
        else:
            settle(info)

    def _watch(self) -> None:
        """Count the checks in a row at which the loop had not turned. A process that was frozen for long counts one."""
        self.catch_up()
        beats, self._beats = self._beats, 0
        self._missed_beats = 0 if beats else self._missed_beats + 1
        stalled_s = self._missed_beats * WATCH_S
        if stalled_s in (STALL_WARNING_S, STALL_LIMIT_S):
            stack = sys._current_frames().get(self._thread.ident or 0)
            place = "".join(traceback.format_stack(stack)) if stack else "nowhere"
            logger.error("the event loop has not turned for %.0f s; it is at\n%s", stalled_s, place)
        if stalled_s >= STALL_LIMIT_S and self._failure is None:
            self._fail("the event loop stands still")
            self._hub_calls.close()

    def _fail(self, failure: str) -> None:
        self._failure = failure
        logger.critical("%s: the worker stops", failure)
        worker_state.should_stop = EX_FAILURE
        self._hub_calls.wake()

    # ------------------------------------------------------------------ on the loop
    def unrecorded(self, label: str) -> int:
        count = self._unrecorded[label] = self._unrecorded.pop(label, 0) + 1
        if len(self._unrecorded) > UNRECORDED_KEPT:
            self._unrecorded.popitem(last=False)
        return count

    def ended(self, run: TaskRun) -> None:
        """Free the run's slot; further calls have no effect."""
        if self._runs.pop(run.id, None) is not None:
            self._started.discard(run)
            self._fill()
            self.slot_freed()

    def _resume(self) -> None:
        self._fill()
        self.slot_freed()

    def _enqueue(self, run: TaskRun) -> None:
        if self._closing.is_set():
            self._runs.pop(run.id, None)
        else:
            (self._waiting_threaded if run.threaded else self._waiting).append(run)
            self._fill()

    def _fill(self) -> None:
        while len(self._started) < self.slots and (run := self._next()) is not None:
            if not run.dropped:
                self._started.add(run)
                run.start()
        if self._closing.is_set() and all(run.threaded and run.dropped for run in self._started):
            self._all_ended.set()

    def _next(self) -> TaskRun | None:
        """Return the run that has waited longest and can start; None if there is none."""
        startable = [self._waiting] if self._waiting else []
        if self._waiting_threaded and sum(run.threaded for run in self._started) < THREADS:
            startable.append(self._waiting_threaded)
        return min(startable, key=lambda waiting: waiting[0].id).popleft() if startable else None

    def _forget_waiting(self) -> None:
        for waiting in (self._waiting, self._waiting_threaded):
            while waiting:
                run = waiting.popleft()
                run.dropped = True
                del self._runs[run.id]

    def _close(self) -> None:
        self._forget_waiting()
        self._closing.set()
        self._fill()

    def _drop(self, run: TaskRun) -> None:
        run.drop()
        self._fill()

    def _drop_all(self) -> None:
        self._forget_waiting()
        for run in list(self._started):
            self._drop(run)

    def _run_loop(self) -> None:
        serving = self.loop.create_task(self._serve(), name="execution-pool")
        try:
            while not serving.done():
                try:
                    self.loop.run_until_complete(serving)
                except (SystemExit, KeyboardInterrupt) as error:  # asyncio lets these two through, and can go on
                    logger.error("an asyncio task raised %r: the loop goes on", error, exc_info=error)
        except BaseException as error:  # the hub has to learn of it, whatever it is
            logger.critical("the event loop died of %r", error, exc_info=error)
            self._fail("the event loop died")
        else:
            self.loop.close()
        finally:
            self._hub_calls.close()

    async def _serve(self) -> None:
        beat = supervise("loop-beat", self._beat)
        await self._all_ended.wait()
        beat.cancel()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        _, unfinished = await asyncio.wait(others, timeout=CANCEL_GRACE_S)
        if unfinished:
            logger.error(
                "left behind when the pool stopped: %s", ", ".join(sorted(task.get_name() for task in unfinished))
            )
        await close_loop_resources()
        await self.loop.shutdown_asyncgens()

    async def _beat(self) -> None:
        while True:
            due = self.loop.time() + BEAT_S
            await asyncio.sleep(BEAT_S)
            self._beats += 1
            self._lag_max_s = max(self._lag_max_s, self.loop.time() - due)


def _new_event_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop  # noqa: PLC0415  (not on every platform)
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop
