"""Renders templates in a process of its own, which is bounded from outside.

A template comes from whoever may submit a job. Its language counts its own work and ends at the same place on every
machine (app/domain/template.py). That is the first bound, and the one that a job's author meets. This is the second
one, for what the counts overlook. The process that renders knows no secrets, may start no process and write no file. A
rendering has `CPU_S` of CPU time, `MEMORY_BYTES` of address space (more for a large item) and `WALL_S` of time; one
that takes more ends with a `TemplateError` that names the item and the bound. The loop and the threads of the server or
worker that asked go on meanwhile: they wait for a socket.

One process renders for a whole worker, or for all requests of a server, one rendering after the other. It is started
when it is first needed, ends when it has been idle for `IDLE_S` or has grown, and is started anew for whoever waits. If
it ends for a reason that is not the template's, as when the kernel is out of memory, the rendering that it was at is
tried once more.

The protocol: a frame is its length, four bytes, and a JSON document. Requests are answered in their order.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import json
import math
import os
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from dicast.app.domain.item import Item
from dicast.app.domain.material import TemplateError
from dicast.errors import DicastError

CPU_S = 5
"""Some ten times what the counts of the language allow on a slow machine."""
MEMORY_BYTES = 256 * 2**20
"""Address space, with the interpreter's own 40 MiB."""
MEMORY_FACTOR = 128
"""More of it for each byte of a request."""
WALL_S = 30.0
OUTPUT_BYTES = 16 * 2**20
OUTPUT_FACTOR = 64
"""More output for each byte of a request."""
IDLE_S = 120.0
GROWN_BYTES = 128 * 2**20
"""Address space with which a process ends after its answer: what the allocator keeps would count for the next one."""
_LENGTH = struct.Struct("!I")
_ENVIRONMENT = ("PATH", "PYTHONPATH", "PYTHONHOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "VIRTUAL_ENV")


class RendererUnavailable(DicastError):
    """No process for templates can be started; it may be possible later."""

    problem = "not-ready"


class Trial(NamedTuple):
    """The result of a template on an item: why it does not fit, None if it does, and the work that it took."""

    error: str | None
    work: int


class _Reply(NamedTuple):
    """The answer of the process: lines if they were requested, why the template does not fit, or which bound it met."""

    lines: list[str] | None = None
    work: int = 0
    error: str | None = None
    bound: str | None = None

    def why(self, name: str | None) -> str | None:
        """Return why there are no lines for the item of this name."""
        return self.error if self.bound is None else _with_item_name(name, self.bound)


class _Ended(Exception):
    """The process has ended. `why` is set if the current rendering caused it; `renewed` if it ended normally and only
    has to be started again."""

    def __init__(self, why: str | None, *, renewed: bool) -> None:
        super().__init__(why)
        self.why, self.renewed = why, renewed


# ---------------------------------------------------------------------- for the worker's loop
class AsyncRenderer:
    """Renders for one event loop; any number of callers may wait at once."""

    def __init__(self) -> None:
        self._link: _Link | None = None
        self._starting = asyncio.Lock()

    async def lines(self, source: str, item: Item, nonce: str) -> list[str]:
        """Render the item's material by the template (`dicast.app.domain.template.rendered`). Raises `TemplateError` or
        `RendererUnavailable`."""
        request = _request(source, item, nonce)
        failures = 0
        while True:
            link = await self._living()
            try:
                return _lines(await link.ask(request), item)
            except _Ended as ended:
                failures += not ended.renewed
                if ended.why is not None or failures == 2:
                    raise _killed(item.id, ended) from None

    async def _living(self) -> _Link:
        async with self._starting:
            if self._link is None or self._link.ended:
                child = _Child()
                loop = asyncio.get_running_loop()
                _, self._link = await loop.create_unix_connection(lambda: _Link(child), sock=child.socket)
            return self._link

    def close(self) -> None:
        """End the process. Callers that wait for it get a `TemplateError`."""
        if self._link is not None:
            self._link.kill("the worker has stopped")


class _Link(asyncio.Protocol):
    """The event loop's connection to a process, with the requests that are not answered yet, in order."""

    def __init__(self, child: _Child) -> None:
        self._child = child
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[asyncio.Future[_Reply], int]] = deque()
        self._buffer = bytearray()
        self._begun = self._loop.time()
        self._why: str | None = None
        self._transport: Any = None
        self._watch = self._loop.call_later(WALL_S, self._check_time)
        self.ended = False

    async def ask(self, request: bytes) -> _Reply:
        """Send a request and wait for its answer. Raises `_Ended`."""
        if self.ended:
            raise _Ended(None, renewed=True)
        future: asyncio.Future[_Reply] = self._loop.create_future()
        if not self._waiting:
            self._begun = self._loop.time()
        self._waiting.append((future, _most_output(request)))
        self._transport.write(_LENGTH.pack(len(request)) + request)
        return await future

    def kill(self, why: str) -> None:
        """End the process; `why` goes to the caller that waits for its next answer."""
        self._why = self._why or why
        self.ended = True
        self._child.kill()
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while len(self._buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer)
            if not self._waiting or length > self._waiting[0][1]:
                self.kill(_TOO_MUCH)
                return
            end = _LENGTH.size + length
            if len(self._buffer) < end:
                return
            reply = _parse_reply(self._buffer[_LENGTH.size : end])
            del self._buffer[:end]
            future, _ = self._waiting.popleft()
            self._begun = self._loop.time()
            if not future.done():
                future.set_result(reply)

    def connection_lost(self, _: Exception | None) -> None:
        self.ended = True
        self._watch.cancel()
        with contextlib.suppress(OSError):  # a failed write ends a transport before it has read all answers
            while data := self._child.socket.recv(2**20):
                self.data_received(data)
        fault = _fault(self._child.end(), self._why)
        while self._waiting:
            future, _most = self._waiting.popleft()
            if not future.done():
                future.set_exception(fault)
            fault = _Ended(None, renewed=True)  # only the first was begun

    def _check_time(self) -> None:
        left_s = self._begun + WALL_S - self._loop.time() if self._waiting else WALL_S
        if left_s <= 0:
            self.kill(_TOO_LONG)
        else:
            self._watch = self._loop.call_later(left_s, self._check_time)


# ---------------------------------------------------------------------- for threads
class Renderer:
    """Renders for threads, one caller at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._child: _Child | None = None

    @property
    def pid(self) -> int | None:
        """The id of the process, None if there is none."""
        return None if self._child is None else self._child.pid

    def lines(self, source: str, item: Item, nonce: str) -> list[str]:
        """Render the item's material by the template. Raises as `AsyncRenderer.lines` does."""
        (reply,) = self._replies([(_request(source, item, nonce), item.id)])
        if isinstance(reply, _Ended):
            raise _killed(item.id, reply)
        return _lines(reply, item)

    def check(self, source: str) -> None:
        """Check that the template can be used at all. Raises `TemplateError` or `RendererUnavailable`."""
        (reply,) = self._replies([(_request(source), None)])
        if isinstance(reply, _Ended):
            raise _killed(None, reply)
        if (why := reply.why(None)) is not None:
            raise TemplateError(why)

    def trials(self, pairs: Sequence[tuple[str, Item]], nonce: str) -> list[Trial]:
        """Try each template on its item, and return the results in order. Raises `RendererUnavailable`.

        Pass a few dozen at a time, since other callers wait meanwhile.
        """
        requests = [(_request(source, item, nonce, lines=False), item.id) for source, item in pairs]
        return [
            Trial(str(_killed(name, reply)), 0) if isinstance(reply, _Ended) else Trial(reply.why(name), reply.work)
            for (_, name), reply in zip(requests, self._replies(requests), strict=True)
        ]

    def _replies(self, requests: Sequence[tuple[bytes, str | None]]) -> list[_Reply | _Ended]:
        replies: list[_Reply | _Ended] = []
        failures = 0
        with self._lock:
            while len(replies) < len(requests):
                child = self._child = self._child or _Child()
                try:
                    for request, _ in requests[len(replies) :]:
                        child.send(request)
                    while len(replies) < len(requests):
                        replies.append(child.receive(_most_output(requests[len(replies)][0])))
                        failures = 0
                except _Ended as ended:
                    self._child = None
                    failures += not ended.renewed
                    if ended.why is not None or failures == 2:
                        replies.append(ended)
                        failures = 0
        return replies

    def close(self) -> None:
        """End the process; it is started again if it is needed."""
        with self._lock:
            if self._child is not None:
                self._child.end()
                self._child = None


shared = Renderer()
"""The renderer of this process. Its child is started when something is first rendered."""
atexit.register(shared.close)


# ---------------------------------------------------------------------- the process
_TOO_LONG = f"the template took more than {WALL_S:g} s"
_TOO_MUCH = "the template wrote more than it may"


class _Child:
    """The process from outside. Raises `RendererUnavailable` if it cannot be started."""

    def __init__(self) -> None:
        ours, its = socket.socketpair()
        bounds = map(str, (CPU_S, MEMORY_BYTES, MEMORY_FACTOR, GROWN_BYTES))
        environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
        try:
            self._process = subprocess.Popen(  # noqa: S603  (our own command)
                [sys.executable, "-P", "-B", "-m", __name__, *bounds],
                stdin=its.fileno(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment,
                start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            ours.close()
            raise RendererUnavailable(f"no process for templates can be started: {error}") from error
        finally:
            its.close()
        self.socket = ours

    @property
    def pid(self) -> int:
        return int(self._process.pid)

    def send(self, request: bytes) -> None:
        """Send a request. Errors are ignored: `receive` reads earlier answers first, and then raises if it has
        ended."""
        self.socket.settimeout(WALL_S)
        with contextlib.suppress(OSError):
            self.socket.sendall(_LENGTH.pack(len(request)) + request)

    def receive(self, most: int) -> _Reply:
        """Return the next answer, of at most `most` bytes. Raises `_Ended`."""
        end = time.monotonic() + WALL_S
        try:
            (length,) = _LENGTH.unpack(self._read(_LENGTH.size, end))
            if length > most:
                raise self._ended(_TOO_MUCH)
            return _parse_reply(self._read(length, end))
        except TimeoutError:
            raise self._ended(_TOO_LONG) from None
        except (OSError, EOFError):
            raise self._ended(None) from None

    def _read(self, count: int, end: float) -> bytearray:
        received = bytearray()
        while len(received) < count:
            self.socket.settimeout(max(0.001, end - time.monotonic()))
            more = self.socket.recv(min(count - len(received), 2**20))
            if not more:
                raise EOFError
            received += more
        return received

    def _ended(self, why: str | None) -> _Ended:
        return _fault(self.end(), why)

    def kill(self) -> None:
        self._process.kill()

    def end(self) -> int:
        """Kill the process if it is alive, and return its exit code, which is negative if a signal ended it."""
        self._process.kill()
        self.socket.close()
        return self._process.wait()


def _fault(code: int, why: str | None) -> _Ended:
    """Return the reason for an exit code: `why` if we ended the process ourselves."""
    if why is None and code == 0:
        return _Ended(None, renewed=True)
    if why is None and code == -signal.SIGXCPU:
        why = f"the template took more than {CPU_S} s of CPU time"
    return _Ended(why, renewed=False)


def _killed(name: str | None, ended: _Ended) -> TemplateError:
    return TemplateError(_with_item_name(name, ended.why or "the process that renders it ended twice"))


def _request(source: str, item: Item | None = None, nonce: str = "", *, lines: bool = True) -> bytes:
    """Build a request. Without an item only the template is checked; without `lines` only whether it fits is answered.
    Raises `TemplateError`."""
    from dicast.app.domain.template import plain  # noqa: PLC0415  (few jobs need Jinja2)

    material = plain(item) if item is not None else None
    document = {"source": source, "item": material, "nonce": nonce, "lines": lines}
    try:
        return json.dumps(document, ensure_ascii=False).encode("utf-8", "surrogatepass")
    except (TypeError, ValueError, RecursionError) as error:
        name = f"item {item.id!r}: " if item is not None else ""
        raise TemplateError(f"{name}cannot be written as JSON: {error}"[:300]) from None


def _parse_reply(raw: bytes | bytearray) -> _Reply:
    document = json.loads(raw)
    return _Reply(**document)


def _lines(reply: _Reply, item: Item) -> list[str]:
    if reply.lines is None:
        raise TemplateError(reply.why(item.id))
    return reply.lines


def _with_item_name(name: str | None, why: str) -> str:
    return f"item {name!r}: {why}" if name is not None else why


def _most_output(request: bytes) -> int:
    return OUTPUT_BYTES + OUTPUT_FACTOR * len(request)


# ---------------------------------------------------------------------- within it
def serve(link: socket.socket, cpu_s: int, memory_bytes: int, memory_factor: int, grown_bytes: int) -> None:
    """Answer requests until the other end is closed, nothing has come for `IDLE_S`, or this process has grown."""
    from dicast.app.domain import template  # noqa: F401, PLC0415  (loaded before the limits hold)

    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # whoever started this ends it, by closing its end
        signal.signal(name, signal.SIG_IGN)
    for limit in (resource.RLIMIT_FSIZE, resource.RLIMIT_CORE, resource.RLIMIT_NPROC):
        resource.setrlimit(limit, (0, 0))
    own_size, page_bytes = os.open("/proc/self/statm", os.O_RDONLY), resource.getpagesize()
    while select.select([link], [], [], IDLE_S)[0]:
        header = _read_exactly(link, _LENGTH.size)
        if header is None or (request := _read_exactly(link, *_LENGTH.unpack(header))) is None:
            return
        _limit(resource.RLIMIT_CPU, math.ceil(time.process_time()) + cpu_s)
        most = memory_bytes + memory_factor * len(request)
        _limit(resource.RLIMIT_AS, most)
        reply = json.dumps(_respond(request, most)._asdict(), ensure_ascii=False).encode("utf-8", "surrogatepass")
        link.sendall(_LENGTH.pack(len(reply)) + reply)
        if int(os.pread(own_size, 64, 0).split()[0]) * page_bytes > grown_bytes:
            return


def _respond(request: bytes, memory_bytes: int) -> _Reply:
    from dicast.app.domain.template import arranged, check_template  # noqa: PLC0415

    try:
        document = json.loads(request)
        if document["item"] is None:
            check_template(document["source"])
            return _Reply()
        lines, work = arranged(document["source"], document["item"], document["nonce"])
        return _Reply(lines if document["lines"] else None, work)
    except TemplateError as error:
        return _Reply(error=str(error))
    except MemoryError:
        return _Reply(bound=f"the template took more than {memory_bytes >> 20} MiB of memory")
    except RecursionError:
        return _Reply(bound="it is nested too deeply for a template")


def _limit(kind: int, soft: int) -> None:
    hard = resource.getrlimit(kind)[1]
    resource.setrlimit(kind, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))


def _read_exactly(link: socket.socket, count: int) -> bytes | None:
    """Read exactly `count` bytes; return None if the other end was closed before."""
    received = bytearray()
    while len(received) < count:
        more = link.recv(min(count - len(received), 2**20))
        if not more:
            return None
        received += more
    return bytes(received)


if __name__ == "__main__":
    serve(socket.socket(fileno=0), *map(int, sys.argv[1:]))
