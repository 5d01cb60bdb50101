"""A TCP proxy that spoils connections on demand, in a process of its own.

    python -m lab.chaos.proxy TARGET        TARGET is host:port, or the path of a unix socket

The first line of output is the port. Each line of input is JSON, answered by one line "ok" when it is in force:

    {"delay_s": 0.2}           every piece arrives so much later, each way
    {"hold": ["up", "down"]}   bytes of these directions stay in the proxy until they are held no longer: a black hole,
                               or a one-way cut, as TCP shows it when packets are lost and sent again
    {"reset": true}            every connection is reset as soon as it carries data; new ones, too
    {"refuse": true}           every connection is reset at once
    {"lose": 0.2, "late_s": 2} of answers this share vanishes, and its connection is reset at once, or so much later:
                               what was asked has been done. Answers to a connection's greeting arrive
    {"cut": true}              the present connections are reset once
    {"target": "..."}          from now on new connections go there, and those that there are stay where they are

What a line does not name goes back to normal. "up" runs from the client to the target.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import socket
import struct
import sys
from dataclasses import dataclass, field
from typing import Any

PIECE = 65536
GREETINGS = (b"HELLO", b"AUTH", b"CLIENT", b"SELECT")
"""First words of what a Redis client says before it asks for anything."""
LINGER_NONE = struct.pack("ii", 1, 0)


@dataclass(slots=True)
class Manners:
    """How the proxy treats connections at present."""

    delay_s: float = 0.0
    hold: frozenset[str] = frozenset()
    reset: bool = False
    refuse: bool = False
    lose: float = 0.0
    late_s: float = 0.0
    changed: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(slots=True)
class Talk:
    """One connection through the proxy. `greets`: what its client said last was no question yet."""

    greets: bool = False


class Proxy:
    """Forwards every connection to `target` under the manners in force."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._manners = Manners()
        self._open: set[asyncio.StreamWriter] = set()

    async def listen(self) -> int:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=4096)
        return int(self._server.sockets[0].getsockname()[1])

    def obey(self, wish: dict[str, Any]) -> None:
        before, self._target = self._manners, wish.get("target", self._target)
        self._manners = Manners(
            float(wish.get("delay_s", 0)), frozenset(wish.get("hold", ())), bool(wish.get("reset")),
            bool(wish.get("refuse")), float(wish.get("lose", 0)), float(wish.get("late_s", 0)),
        )  # fmt: skip
        before.changed.set()
        if wish.get("cut") or wish.get("refuse"):
            for writer in list(self._open):
                _reset(writer)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._manners.refuse:
            _reset(writer)
            return
        self._open.add(writer)  # before its target answers: a connection that is being made can be cut, too
        try:
            host, _, port = self._target.rpartition(":")
            opening = (
                asyncio.open_unix_connection(self._target)
                if self._target.startswith("/")
                else asyncio.open_connection(host, int(port))
            )
            far_reader, far_writer = await opening
        except OSError:
            self._open.remove(writer)
            _reset(writer)
            return
        if writer.transport.is_closing():
            self._open.remove(writer)
            _reset(far_writer)
            return
        self._open.add(far_writer)
        talk = Talk()
        ways = [
            asyncio.ensure_future(self._carry("up", talk, reader, far_writer, writer)),
            asyncio.ensure_future(self._carry("down", talk, far_reader, writer, far_writer)),
        ]
        try:
            # A client that is gone must be gone for the target at once, whatever is on the way to it.
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            self._open -= {writer, far_writer}
            for end in (writer, far_writer):
                end.close()

    async def _carry(
        self, way: str, talk: Talk, reader: asyncio.StreamReader, writer: asyncio.StreamWriter,
        source: asyncio.StreamWriter,
    ) -> None:  # fmt: skip
        late: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        delivering = asyncio.ensure_future(self._deliver(way, late, writer))
        try:
            while piece := await reader.read(PIECE):
                if self._manners.reset:
                    _reset(source)
                    _reset(writer)
                    return
                if way == "up":
                    talk.greets = any(word in piece[:40].upper() for word in GREETINGS)
                elif not talk.greets and random.random() < self._manners.lose:
                    await asyncio.sleep(random.uniform(0, self._manners.late_s))
                    _reset(source)
                    _reset(writer)
                    return
                late.put_nowait((asyncio.get_running_loop().time() + self._manners.delay_s, piece))
            late.put_nowait((0.0, b""))
            await delivering
        except (ConnectionError, OSError):
            return
        finally:
            delivering.cancel()

    async def _deliver(self, way: str, late: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, OSError):
            while True:
                due, piece = await late.get()
                wait_s = due - asyncio.get_running_loop().time()
                if wait_s > 0:
                    await asyncio.sleep(wait_s)
                while way in self._manners.hold:
                    await self._manners.changed.wait()
                if not piece:
                    return
                writer.write(piece)
                await writer.drain()


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close with RST instead of FIN."""
    raw = writer.get_extra_info("socket")
    if raw is not None and raw.family != socket.AF_UNIX:
        with contextlib.suppress(OSError):
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_NONE)
    writer.transport.abort()


async def _main(target: str) -> None:
    proxy = Proxy(target)
    print(await proxy.listen(), flush=True)
    commands = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    while line := await commands.readline():
        proxy.obey(json.loads(line))
        print("ok", flush=True)


if __name__ == "__main__":
    import uvloop

    uvloop.run(_main(sys.argv[1]))
