"""The execution pool: `async def` tasks on one event loop, `def` tasks in a few threads, Celery's tracer as it is.

    app.conf.worker_pool = "dicast.workers.runtime.pool:TaskPool"

Threads: the *hub* (Celery's main thread) receives messages; the *loop* runs tracers and bodies, each task in a greenlet
of its own (`loop_bridge.py`). Every callback of Celery's `Request` (accepted, succeeded, failed, timed out, and
with them acknowledgements and events) is called on the hub, in order, as by Celery's prefork pool: so the worker's
state has one writer, and the loop writes to no broker socket.

Slots: at most `limit` tasks (`-c`) run at once, and as many more as `spare` allows, at most `THREADS` of them `def`
tasks; others wait in order of arrival.

A loop that dies, or does not turn for `STALL_LIMIT_S`, stops the worker with exit code 1; the messages that were not
acknowledged go back to their queues.

Calls that other threads post to the hub, Celery's main thread; they are made in order.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import itertools
import logging
import queue
import socket
import sys
import threading
import traceback
from collections import OrderedDict, deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from billiard.einfo import ExceptionInfo
from celery.concurrency.base import BasePool
from celery.exceptions import ImproperlyConfigured
from celery.platforms import EX_FAILURE
from celery.utils import threads as celery_threads
from celery.worker import state as worker_state
from celery.worker.request import Request

from dicast.workers.runtime.loop_bridge import (
    await_,
    close_loop_resources,
    in_task_greenlet,
    loop_resource,
    off_loop,
    on_loop_close,
)
from dicast.workers.runtime.task_run import CANCEL_GRACE_S, Callbacks, TaskAborted, TaskRun, Turnstile, adopt
from dicast.workers.system.host import collect_rarely, keep_imports
from dicast.workers.system.supervision import DaemonThreads, supervise

__all__ = ["TaskAborted", "TaskPool", "await_", "in_task_greenlet", "loop_resource", "off_loop", "on_loop_close"]

MakeCall = Callable[[Callable[..., Any], tuple[Any, ...]], None]

WAKE_WITHIN_S = 0.01
"""How long a call may wait for others before the hub is woken, since one turn of it costs as much as a call."""

_CLOSED = None
"""The end marker behind the last call."""


class HubCalls:
    """A queue of calls; `call(function, arguments)` makes one. `put`, `close` and `wake` may be called on any thread,
    `put_soon` on that of `loop`, all other methods on the hub's."""

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


logger = logging.getLogger(__name__)

T = TypeVar("T")

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
