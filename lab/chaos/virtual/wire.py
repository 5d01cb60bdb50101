"""The wire between a node and the store, under redis-py's own connections, pools and retries.

What a client writes at once is a parcel. It travels, and may be late, refused, obeyed in part, obeyed without an
answer, or obeyed twice; what follows, redis-py and the product decide.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import hiredis
import redis
from redis._parsers import BaseParser
from redis.asyncio.connection import AbstractConnection
from redis.connection import HiredisRespSerializer
from redis.driver_info import DriverInfo
from redis.exceptions import ConnectionError as StoreConnectionError

from dicast.workers.store.connection import CONNECT_TIMEOUT_S
from lab.chaos.virtual.server import Command, split
from lab.chaos.virtual.world import World

PACKER = HiredisRespSerializer()
"""What redis-py packs with where it does not wait for sockets itself: the same bytes, and quicker."""
DRIVER = DriverInfo()
"""Each connection would read the version of redis-py from its files."""
READ_ONLY = b"-READONLY You can't write against a read only replica.\r\n"
READS = frozenset(
    {b"GET", b"HGET", b"HMGET", b"HGETALL", b"HLEN", b"EXISTS", b"SMEMBERS", b"ZRANGE", b"TIME", b"SCRIPT", b"PING"}
)


class VirtualHost(Protocol):
    """Whose wire it is: a node, to which nothing is delivered any more once it is dead."""

    name: str
    alive: bool
    cut_until: float

    def soon(self, act: Callable[[], object]) -> None:
        """Act on the node's loop, when that turns next."""


class Line:
    """One connection from its beginning to its end, as a writer of bytes."""

    def __init__(self, link: VirtualLink) -> None:
        self._link, self._world, self._host = link, link.world, link.node
        self._reader = link.reader
        self._primary = self._world.primary
        self.transport = self

    # ------------------------------------------------------------------ as asyncio's StreamWriter
    def writelines(self, pieces: Iterable[bytes]) -> None:
        if not self._host.alive:  # its coroutines are thrown away, and would clean up
            return
        parcel = split(b"".join(pieces))
        self._world.later(self._world.wire_s(), lambda: self._arrive(parcel))

    async def drain(self) -> None: ...

    def close(self) -> None: ...

    async def wait_closed(self) -> None: ...

    def get_extra_info(self, _: str) -> None: ...

    # ------------------------------------------------------------------ what travels
    def _arrive(self, parcel: list[Command]) -> None:
        world = self._world
        if world.now < world.stalled_until:  # the server's kernel takes it, and answers when the server wakes
            world.at(world.stalled_until, lambda: self._arrive(parcel))
            return
        if self._primary < world.broken_before:
            self._deliver(self._reader.feed_eof)
            return
        fate = world.fate(self._host, parcel)
        if fate.refused_s:
            self._link.refused_until = world.now + fate.refused_s
        replies = self._obey(parcel if fate.applied is None else _in_whole(parcel[: fate.applied]))
        if fate.answered:
            world.later(world.wire_s(), lambda: self._deliver(lambda: self._reader.feed_data(replies)))
        else:
            world.later(fate.broken_s, lambda: self._deliver(self._reader.feed_eof))
        if fate.echo_s is not None:
            world.later(fate.echo_s, lambda: self._echo(parcel))

    def _echo(self, parcel: list[Command]) -> None:
        self._world.echoed += parcel
        self._obey(parcel)

    def _obey(self, parcel: list[Command]) -> bytes:
        if self._primary == self._world.primary:
            return self._world.obey(parcel)
        # The server behind this connection is none that may write any more.
        pieces = [[command] for command in parcel]
        return b"".join(self._world.obey(p) if p[0][0].upper() in READS else READ_ONLY for p in pieces)

    def _deliver(self, act: Callable[[], object]) -> None:
        self._host.soon(act)


def _in_whole(commands: list[Command]) -> list[Command]:
    """What a server obeys of commands whose connection breaks after them: of a transaction that was not ended
    nothing."""
    words = [command[0].upper() for command in commands]
    open_since = max((n for n, word in enumerate(words) if word == b"MULTI"), default=None)
    return commands if open_since is None or b"EXEC" in words[open_since:] else commands[:open_since]


class VirtualLink(AbstractConnection):
    """A connection of redis-py's whose line is the world's. Subclassed for each node by `link_of`."""

    world: World
    node: VirtualHost
    refused_until = 0.0

    def __init__(self, **options: Any) -> None:
        """The options of a TCP connection are taken and not needed."""
        for name in ("host", "port", "socket_keepalive", "socket_keepalive_options", "socket_type"):
            options.pop(name, None)
        super().__init__(**{"driver_info": DRIVER, **options})

    def pack_commands(self, commands: Iterable[Iterable[Any]]) -> list[bytes]:
        return [piece for command in commands for piece in PACKER.pack(*command)]

    async def _connect(self) -> None:
        world = self.world
        if world.now < max(self.refused_until, self.node.cut_until):
            silent = world.now < self.node.cut_until and world.chance.random() < 0.5
            await asyncio.sleep(CONNECT_TIMEOUT_S if silent else world.wire_s())
            raise ConnectionRefusedError("simulated")
        self.reader = asyncio.StreamReader()
        self._reader, self._writer = self.reader, Line(self)  # type: ignore[assignment]

    async def on_connect_check_health(self, check_health: bool = True) -> None:
        """Without a greeting: the server speaks the client's protocol."""
        self._parser.on_connect(self)  # type: ignore[no-untyped-call]

    def repr_pieces(self) -> list[tuple[str, Any]]:
        return [("host", self.node.name)]

    def _host_error(self) -> str:
        return self.node.name

    def __del__(self, _warnings: Any = None) -> None:
        """Nothing is left open: there is no socket."""


def link_of(world: World, host: VirtualHost) -> type[VirtualLink]:
    return type("NodeLink", (VirtualLink,), {"world": world, "node": host})


class Direct(redis.Redis):
    """The client of a node's thread, which cannot wait in virtual time: its commands are obeyed at once, and lost as
    others are. Without a host it is a caller's, to which nothing happens."""

    def __init__(self, world: World, host: VirtualHost | None = None) -> None:
        super().__init__(connection_pool=world.client.connection_pool)
        self._world, self._host = world, host
        self._reader = hiredis.Reader(encoding="utf-8", replyError=BaseParser.parse_error)

    def execute_command(self, *args: Any, **options: Any) -> Any:
        world = self._world
        if self._host is None:
            return self._obey(args, options)
        fate = world.fate(self._host, [[str(args[0]).encode()]])
        if fate.applied == 0 or world.now < world.stalled_until:
            raise StoreConnectionError("simulated")
        found = self._obey(args, options)
        if fate.echo_s is not None:
            world.later(fate.echo_s, lambda: self._obey(args, options))
        if not fate.answered:
            if fate.refused_s:
                raise StoreConnectionError("simulated")
            return self._obey(args, options)
        return found

    def _obey(self, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        self._reader.feed(self._world.obey(split(b"".join(PACKER.pack(*args)))))
        reply = self._reader.gets()
        if isinstance(reply, Exception):
            raise reply
        return self.response_callbacks.get(args[0], _as_it_is)(reply, **options)


def _as_it_is(reply: Any, **_: Any) -> Any:
    return reply
