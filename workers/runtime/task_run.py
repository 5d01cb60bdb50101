"""One run of one task in the execution pool, from its start to the one callback that settles its message.

Ends of a run, by what comes out of Celery's tracer:

1. the outcome: passed to Celery's `on_success`, whatever the outcome says;
2. an exception: a message that is acknowledged late goes back to its queue after `REQUEUE_DELAY_S`, so that it is
   neither lost nor spins; any other is recorded as failed. If waiting cannot mend it (the result store is not just
   away), the message is the cause: after `UNRECORDED_MAX` times here it is given up;
3. another BaseException (`sys.exit()` in the body): the task failed with `TaskAborted`; the worker goes on;
4. its cancellation by revoke, hard time limit or cold shutdown: nothing more, Celery has settled the message then. A
   body that outlives its cancellation by `CANCEL_GRACE_S` is abandoned: its slot is free and nobody waits for it.

`def` tasks run in threads and cannot be interrupted: time limits do not apply to them, and a revoked one runs to its
end, as in Celery's own thread pool.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import os
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from dataclasses import dataclass
from time import monotonic
from typing import Any, Protocol, TypeVar

import greenlet
from billiard.einfo import ExceptionInfo
from billiard.exceptions import WorkerLostError
from celery.exceptions import Reject, SoftTimeLimitExceeded
from kombu.exceptions import OperationalError

from dicast.workers.runtime.loop_bridge import TaskGreenlet, await_
from dicast.workers.store.connection import is_passing
from dicast.workers.system import private

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
    """One run. All methods but `terminate` belong to the loop's thread."""

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
