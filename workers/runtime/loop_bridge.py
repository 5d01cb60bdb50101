"""The bridge between Celery's synchronous code and the event loop of the execution pool.

Celery's tracer is synchronous; the bodies of `async def` tasks are not. The pool runs tracer and body of one task in
one *task greenlet*, which an asyncio task drives. Code in a task greenlet may wait for anything awaitable with
`await_`, from however deep a call of ordinary functions: the greenlet is suspended, the loop goes on.

Resources that belong to a loop, such as connection pools, are made once per loop by `loop_resource` and closed before
the loop stops.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import logging
import types
from collections.abc import Awaitable, Callable, Generator
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import greenlet

from dicast.workers.system.supervision import DaemonThreads

__all__ = ["await_", "close_loop_resources", "in_task_greenlet", "loop_resource", "off_loop", "on_loop_close"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

OFF_LOOP_THREADS = 8
CLOSE_TIMEOUT_S = 5.0
"""How long the closing of one resource may take."""


class TaskGreenlet(greenlet.greenlet):  # type: ignore[misc]
    """Runs `target()`, which may use `await_`. To be awaited once, on a loop's thread.

    `interruption` translates an exception that the loop throws in (a cancellation) to the one that `target` sees.
    """

    def __init__(
        self,
        target: Callable[[], Any],
        interruption: Callable[[BaseException], BaseException] = lambda exception: exception,
    ) -> None:
        super().__init__(target)
        # The asyncio task that drives the greenlet has entered its own context; one context is entered only once.
        self.gr_context = contextvars.copy_context()
        self._interruption = interruption

    def __await__(self) -> Generator[Any, Any, Any]:
        result = self.switch()
        while not self.dead:
            try:
                value = yield result
            except BaseException as exception:  # noqa: BLE001  (passed on)
                result = self.throw(self._interruption(exception))
            else:
                result = self.switch(value)
        return result


def in_task_greenlet() -> bool:
    """Return whether the caller runs in a task greenlet and may use `await_`.

    False in the asyncio tasks that a body starts beside itself (`create_task`, `TaskGroup`, `gather` of coroutines).
    """
    return isinstance(greenlet.getcurrent(), TaskGreenlet)


def await_(awaitable: Awaitable[T]) -> T:
    """Wait for `awaitable` while the loop goes on; returns its result or raises its exception.

    Only in a task greenlet; elsewhere it raises RuntimeError and the awaitable is not started.
    """
    current = greenlet.getcurrent()
    if not isinstance(current, TaskGreenlet):
        if inspect.iscoroutine(awaitable):
            awaitable.close()
        raise RuntimeError("await_ works only in a task greenlet; elsewhere use await")
    coroutine = awaitable if isinstance(awaitable, types.CoroutineType) else _wait(awaitable)
    resume: Callable[[Any], Any] = coroutine.send
    argument: Any = None
    while True:
        try:
            waits_for = resume(argument)
        except StopIteration as stop:
            result: T = stop.value
            return result
        try:
            argument = current.parent.switch(waits_for)
            resume = coroutine.send
        except BaseException as exception:  # noqa: BLE001  (passed on)
            argument = exception
            resume = coroutine.throw


async def _wait(awaitable: Awaitable[T]) -> T:
    return await awaitable


def off_loop(function: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
    """Call a blocking function: from a task greenlet in a helper thread while the loop goes on, elsewhere directly.

    The function sees the caller's context variables, but not its current Celery task. A cancelled caller goes on
    without the function's result; the function itself runs to its end.
    """
    if not in_task_greenlet():
        return function(*args, **kwargs)
    call = functools.partial(contextvars.copy_context().run, function, *args, **kwargs)
    return await_(asyncio.get_running_loop().run_in_executor(_helpers(), call))


_closers: WeakKeyDictionary[asyncio.AbstractEventLoop, list[Callable[[], Awaitable[None]]]] = WeakKeyDictionary()


def on_loop_close(close: Callable[[], Awaitable[None]]) -> None:
    """Have `close` awaited before the running loop stops, the last registered first."""
    _closers.setdefault(asyncio.get_running_loop(), []).append(close)


def loop_resource(factory: Callable[[], T], close: Callable[[T], Awaitable[None]]) -> Callable[[], T]:
    """Return a function that returns the running loop's own object, made by `factory` on first use and closed with the
    loop."""
    resources: WeakKeyDictionary[asyncio.AbstractEventLoop, T] = WeakKeyDictionary()

    def get() -> T:
        loop = asyncio.get_running_loop()
        if loop not in resources:
            resource = resources[loop] = factory()

            async def forget_and_close() -> None:
                del resources[loop]
                await close(resource)

            on_loop_close(forget_and_close)
        return resources[loop]

    return get


async def close_loop_resources() -> None:
    """Close the resources of the running loop. The owner of the loop calls this; the execution pool does so by itself.

    If one fails or takes longer than `CLOSE_TIMEOUT_S`, that is logged, and the others are closed all the same.
    """
    closers = _closers.pop(asyncio.get_running_loop(), [])
    for close in reversed(closers):
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await close()
        except Exception:  # the others are to be closed all the same
            logger.exception("a resource of the event loop could not be closed")


async def _dismiss(threads: DaemonThreads) -> None:
    threads.shutdown(cancel_futures=True)


_helpers = loop_resource(lambda: DaemonThreads(OFF_LOOP_THREADS, "off-loop"), _dismiss)
