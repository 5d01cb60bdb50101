"""The store in virtual time: a real server whose clock, deadlines and run id are the world's.

Commands reach the server as they are, with three exceptions. Scripts and `TIME` read the world's clock instead of the
machine's. A key with a time to live loses it at once, and the world deletes the key when its time is over. The run id
that scripts read is the world's, so that another server can take the place of this one.
"""

from __future__ import annotations

import hashlib
import re
import socket
from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import hiredis

import dicast.app.ledger
import dicast.workers
from dicast.workers.store.connection import StoreClient
from dicast.workers.store.scripts import freeing, script_text

Command = list[bytes]
Expires = Callable[[str, float | None], None]
"""Told of a key's time to live in seconds; None: it has none any more."""

TIME, INFO = "virtual:time", "virtual:info"
OWN = frozenset({TIME, INFO})
OK = b"+OK\r\n"
_DATING = re.compile(r"'(?:PX|EX|EXPIRE|PEXPIRE)'")


def digest(text: str) -> str:
    """The server's name for a script."""
    return hashlib.sha1(text.encode()).hexdigest()


def virtual_text(text: str) -> str:
    """A script that reads the world's clock and run id."""
    text = text.replace("redis.call('TIME')", f"redis.call('HMGET', '{TIME}', 's', 'us')")
    return text.replace("redis.call('INFO', 'server')", f"redis.call('GET', '{INFO}')")


def _files() -> list[Path]:
    return [f for module in (dicast.app.ledger, dicast.workers) for f in Path(module.__path__[0]).rglob("*.lua")]


@cache
def _product_scripts() -> dict[str, str]:
    """Every script of the product under its name, as it is in virtual time."""
    texts = [form(script_text(file)) for file in _files() for form in (str, freeing)]
    return {digest(text): virtual_text(text) for text in texts if text.startswith("#!lua")}


@cache
def _file_of() -> dict[str, str]:
    return {digest(form(script_text(file))): file.stem for file in _files() for form in (str, freeing)}


def packed(command: Command) -> bytes:
    return b"".join([b"*%d\r\n" % len(command), *(b"$%d\r\n%b\r\n" % (len(part), part) for part in command)])


def split(data: bytes) -> list[Command]:
    """The commands in what a client has written."""
    reader = hiredis.Reader(notEnoughData=Ellipsis)
    reader.feed(data)
    found: list[Command] = []
    while (command := reader.gets()) is not Ellipsis:
        found.append(command)
    return found


class Server:
    """One world's server. `wall_us` is its clock; `client` reaches it past all wires, for the harness."""

    def __init__(self, client: StoreClient, wall_us: Callable[[], int], expires: Expires) -> None:
        self.client, self.run_id = client, "0" * 40
        self._wall_us, self._expires = wall_us, expires
        self._told: tuple[int, str] | None = None
        self._texts = dict(_product_scripts())
        self._names = {name: digest(text) for name, text in self._texts.items()}
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(client.connection_pool.connection_kwargs["path"])
        self._ask([[b"HELLO", b"3"]])
        if not all(client.script_exists(*self._names.values())):
            for text in self._texts.values():
                client.script_load(text)

    def close(self) -> None:
        self._socket.close()

    def apply(self, commands: Sequence[Command]) -> bytes:
        """Obey commands in order; their replies as they travel."""
        ours = self._clockwork()
        raw, replies = self._ask([*ours, *map(self._virtual, commands)])
        for command, reply in zip(commands, replies[len(ours) :], strict=True):
            self._heed(command, reply)
        return raw[len(ours) * len(OK) :]

    def touch(self) -> None:
        """Let the server know the world's time, before a command of the harness."""
        self.apply([])

    def _ask(self, commands: Sequence[Command]) -> tuple[bytes, list[Any]]:
        """Replies, as they travel and read."""
        self._socket.sendall(b"".join(map(packed, commands)))
        reader = hiredis.Reader(notEnoughData=Ellipsis)
        raw, replies = b"", list[Any]()
        while len(replies) < len(commands):
            piece = self._socket.recv(1 << 20)
            assert piece, "the server is gone"
            raw += piece
            reader.feed(piece)
            while len(replies) < len(commands) and (reply := reader.gets()) is not Ellipsis:
                replies.append(reply)
        return raw, replies

    def _clockwork(self) -> list[Command]:
        now = self._wall_us(), self.run_id
        if now == self._told:
            return []
        self._told = now
        seconds, microseconds = divmod(now[0], 1_000_000)
        return [
            [b"HMSET", TIME.encode(), b"s", b"%d" % seconds, b"us", b"%d" % microseconds],
            [b"SET", INFO.encode(), b"run_id:" + self.run_id.encode()],
        ]

    def _virtual(self, command: Command) -> Command:
        """What the server is asked instead."""
        match command[0].upper():
            case b"TIME":
                return [b"HMGET", TIME.encode(), b"s", b"us"]
            case b"EVALSHA":
                return [command[0], self.virtual_name(command[1].decode()).encode(), *command[2:]]
            case b"SCRIPT" if command[1].upper() == b"LOAD":
                text = command[2].decode()
                virtual = virtual_text(text)
                self._texts[digest(text)], self._names[digest(text)] = virtual, digest(virtual)
                return [*command[:2], virtual.encode()]
            case b"SET":
                return [*command[:3], *(part for part in command[3:] if part.upper() in (b"NX", b"XX"))]
            case b"EXPIRE" | b"PEXPIRE":
                return [b"EXISTS", command[1]]
        return command

    def _heed(self, command: Command, reply: Any) -> None:
        """Note what a command means for the lives of its keys."""
        match command[0].upper():
            case b"SET" if reply == b"OK":
                self._expires(command[1].decode(), _life_s(command[3:]))
            case b"EXPIRE" if reply:
                self._expires(command[1].decode(), float(command[2]))
            case b"PEXPIRE" if reply:
                self._expires(command[1].decode(), float(command[2]) / 1000)
            case b"EVALSHA":
                self.heed_script(command[1].decode(), [key.decode() for key in command[3 : 3 + int(command[2])]])

    def named(self, command: Command) -> str:
        """A command for whoever reads the trace: a script by its file."""
        word = command[0].upper().decode()
        if word != "EVALSHA" or len(command) < 2:
            return word
        return _file_of().get(command[1].decode(), word)

    def flush(self) -> None:
        """All keys are gone."""
        self.client.flushdb()
        self._told = None

    def dump(self) -> dict[str, bytes]:
        """All keys with what they hold, as the server itself writes it down."""
        names = [key.encode() for key in self.client.keys("*")]
        _, values = self._ask([[b"DUMP", name] for name in names])
        return {name.decode(): value for name, value in zip(names, values, strict=True)}

    def restore(self, kept: dict[str, bytes]) -> None:
        """Another server, with these keys and no others."""
        self.flush()
        self._ask([[b"RESTORE", name.encode(), b"0", value] for name, value in kept.items()])
        self.run_id = f"{int(self.run_id) + 1:040}"

    def virtual_name(self, name: str) -> str:
        """A script's name in virtual time."""
        return self._names.get(name, name)

    def heed_script(self, name: str, keys: Sequence[str]) -> None:
        """Take over the lives that a script has given to its keys."""
        if not _DATING.search(self._texts.get(name, "")):
            return
        _, left = self._ask([[b"PTTL", key.encode()] for key in keys])
        for key, left_ms in zip(keys, left, strict=True):
            if left_ms >= 0:
                self.client.persist(key)
                self._expires(key, left_ms / 1000)


def _life_s(options: Sequence[bytes]) -> float | None:
    for unit, amount in pairwise(options):
        if unit.upper() == b"PX":
            return float(amount) / 1000
        if unit.upper() == b"EX":
            return float(amount)
    return None
