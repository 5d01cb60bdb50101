"""Clients whose commands are obeyed and whose answers are lost: the same command comes again, at once or late.

Time is a number that the test moves, and all names are counted, so that two runs leave the same store.
"""

import inspect
import re
from functools import partial

import pytest

from dicast.app.ledger.client import LedgerClient
from dicast.app.ledger.ledger import Ledger
from dicast.app.ledger.troubles import StopStore
from dicast.workers.store.connection import connect, connect_async
from tests.ledger.bench import KEYS

START_MS = 1_800_000_000_000
EPOCH = START_MS
NOW = "now"


@pytest.fixture(autouse=True)
def one_incarnation(monkeypatch):
    monkeypatch.setattr("dicast.app.ledger.client.new_incarnation", lambda: NOW)


class Clock:
    def __init__(self):
        self.ms = START_MS


class Repeating:
    """A client. `repeats(command)` is how often each command is obeyed once more before it is answered; what
    is obeyed is told to `late` with its script's name, for the test to send again when it likes."""

    def __init__(self, client, clock, repeats=lambda: 0, late=None):
        self._client, self._clock, self._repeats, self.late = client, clock, repeats, late

    def __getattr__(self, name):
        command = getattr(self._client, name)
        if not callable(command) or name == "connection_pool":
            return command
        return lambda *args, **options: self._send(lambda: command(*args, **options))

    def register_script(self, text):
        script, name = self._client.register_script(text), re.search(r"-- (\w+)\.lua:", text)[1]

        def call(keys, args=()):
            def act():
                dated = [self._clock.ms, *args[1:]] if args and args[0] == "" else args
                return script(keys=keys, args=dated)

            return self._send(act, name)

        return call

    def pipeline(self, transaction=False):
        pipe = self._client.pipeline(transaction=transaction)
        execute = pipe.execute

        def again():
            stack = list(pipe.command_stack)

            def act():
                pipe.command_stack = list(stack)
                return execute()

            return self._send(act)

        pipe.execute = again
        return pipe

    def _send(self, act, name=""):
        answer = act()
        if not inspect.isawaitable(answer):
            for _ in range(self._repeats()):
                answer = act()
            return answer
        return self._awaited(answer, act, name)

    async def _awaited(self, answer, act, name):
        found = await answer
        for _ in range(self._repeats()):
            found = await act()
        if self.late is not None:
            self.late(name, act)
        return found


class Stage:
    """A database with two nodes that are heard, their ledgers, and a caller's."""

    def __init__(self, redis_url, repeats=lambda: 0, late=None):
        self.clock, self.redis, self.asyncs = Clock(), connect(redis_url), connect_async(redis_url)
        self.nodes = ["one@h#1", "two@h#2"]
        self.redis.hset(KEYS.epoch, "number", EPOCH)
        for node in self.nodes:
            self.redis.set(KEYS.node(node), "heard")
        self._repeats, self._late = repeats, late
        self.one, self.two = map(self.ledger, self.nodes)
        self.asking = StopStore(Repeating(self.asyncs, self.clock, self._now, self._late), KEYS)
        self.client = LedgerClient(Repeating(self.redis, self.clock, self._now), KEYS)

    def ledger(self, node, claim_ms=60_000):
        client = Repeating(self.asyncs, self.clock, self._now, self._late)
        client.hget = partial(self._hget, client.hget)
        ledger = Ledger(client, KEYS, node, claim_ms=claim_ms, calls_max=9)
        ledger._name = f"{node[:3]}."
        return ledger

    async def _hget(self, hget, key, name):
        return self.clock.ms if (key, name) == (KEYS.clock, "now") else await hget(key, name)

    def _now(self):
        return self._repeats()

    def from_now_on(self, repeats):
        """Until now nothing was repeated."""
        self._repeats = repeats

    def kill(self, n):
        self.redis.delete(KEYS.node(self.nodes[n]))

    def dump(self):
        """Everything in the store but what tells a node what it was answered last."""
        keys = sorted(key for key in self.redis.scan_iter(count=1000) if ":taken:" not in key)
        return {key: _value(self.redis, key) for key in keys}

    async def close(self):
        await self.asyncs.aclose()


def _value(client, key):
    kind = client.type(key)
    read = {
        "hash": lambda: dict(sorted(client.hgetall(key).items())),
        "zset": lambda: client.zrange(key, 0, -1, withscores=True),
        "set": lambda: sorted(client.smembers(key)),
        "list": lambda: client.lrange(key, 0, -1),
        "string": lambda: client.get(key),
    }[kind]
    return read(), client.ttl(key) >= 0
