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
_TAKE_LIVES = """
local left = {}
for i, key in ipairs(KEYS) do
    left[i] = redis.call('PTTL', key)
    if left[i] >= 0 then redis.call('PERSIST', key) end
end
return left
"""
"""As `PTTL` tells them: the keys have none any more."""


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
def _product_names() -> tuple[dict[bytes, bytes], frozenset[bytes]]:
    """Their names in virtual time by those that the product knows, and which of them may give a key a life."""
    scripts = {name.encode(): text for name, text in _product_scripts().items()}
    dating = frozenset(name for name, text in scripts.items() if _DATING.search(text))
    return {name: digest(text).encode() for name, text in scripts.items()}, dating


@cache
def _file_of() -> dict[str, str]:
    return {digest(form(script_text(file))): file.stem for file in _files() for form in (str, freeing)}


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
        names, dating = _product_names()
        self._names, self._dating = dict(names), set(dating)
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(client.connection_pool.connection_kwargs["path"])
        self._ask([[b"HELLO", b"3"]])
        texts = [_TAKE_LIVES, *_product_scripts().values()]
        if not all(client.script_exists(*map(digest, texts))):
            for text in texts:
                client.script_load(text)

    def close(self) -> None:
        self._socket.close()

    def apply(self, commands: Sequence[Command]) -> bytes:
        """Obey commands in order; their replies as they travel."""
        ours, dated = self._clockwork(), self._dated(commands)
        take = [[b"EVALSHA", digest(_TAKE_LIVES).encode(), b"%d" % len(dated), *dated]] if dated else []
        raw, replies = self._ask([*ours, *map(self._virtual, commands), *take])
        lives = replies.pop() if take else []
        for command, reply in zip(commands, replies[len(ours) :], strict=True):
            self._heed(command, reply)
        for key, left_ms in zip(dated, lives, strict=True):
            if left_ms >= 0:
                self._expires(key.decode(), left_ms / 1000)
        # What was answered to the commands of our own came before theirs and after.
        return raw[len(ours) * len(OK) : len(raw) - (_size_of(lives) if take else 0)]

    def _ask(self, commands: Sequence[Command]) -> tuple[bytes, list[Any]]:
        """Replies, as they travel and read."""
        self._socket.sendall(b"".join([hiredis.pack_command(tuple(command)) for command in commands]))
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
        now, before = (self._wall_us(), self.run_id), self._told
        if now == before:
            return []
        self._told = now
        seconds, microseconds = divmod(now[0], 1_000_000)
        ours: list[Command] = [[b"HMSET", TIME.encode(), b"s", b"%d" % seconds, b"us", b"%d" % microseconds]]
        if before is None or before[1] != self.run_id:
            ours.append([b"SET", INFO.encode(), b"run_id:" + self.run_id.encode()])
        return ours

    def _dated(self, commands: Sequence[Command]) -> list[bytes]:
        """The keys to which scripts among these commands may give a life: it is taken over from them."""
        scripts = [c for c in commands if c[0].upper() == b"EVALSHA" and c[1] in self._dating]
        return [key for c in scripts for key in c[3 : 3 + int(c[2])]]

    def _virtual(self, command: Command) -> Command:
        """What the server is asked instead."""
        match command[0].upper():
            case b"TIME":
                return [b"HMGET", TIME.encode(), b"s", b"us"]
            case b"EVALSHA":
                return [command[0], self._names.get(command[1], command[1]), *command[2:]]
            case b"SCRIPT" if command[1].upper() == b"LOAD":
                text = command[2].decode()
                virtual, name = virtual_text(text), digest(text).encode()
                self._names[name] = digest(virtual).encode()
                if _DATING.search(virtual):
                    self._dating.add(name)
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


def _size_of(numbers: Sequence[int]) -> int:
    """How many bytes a list of them takes as it travels."""
    return len(b"".join([b"*%d\r\n" % len(numbers), *(b":%d\r\n" % number for number in numbers)]))


def _life_s(options: Sequence[bytes]) -> float | None:
    for unit, amount in pairwise(options):
        if unit.upper() == b"PX":
            return float(amount) / 1000
        if unit.upper() == b"EX":
            return float(amount)
    return None
