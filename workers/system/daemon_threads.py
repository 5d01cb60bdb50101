"""Threads that do not keep a process from exiting.

The interpreter joins the threads of `concurrent.futures.ThreadPoolExecutor` before it exits, so that one call to a
server that never answers keeps a stopped worker alive for ever.
"""

from __future__ import annotations

import functools
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class DaemonThreads(Executor):
    """At most `limit` daemon threads, started as they are needed; calls beyond that wait in order."""

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
