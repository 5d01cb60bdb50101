"""The wire between a node and the store: a command may be late, refused, or obeyed without an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import cache
from typing import Any, Protocol

from redis.exceptions import ResponseError

from chaos.virtual.world import World

WIRE_S = 0.004
LOST: Any = object()
"""Delivered instead of an answer: the connection has broken."""


class Host(Protocol):
    """Whose wire it is: a node, to which nothing is delivered any more once it is dead."""

    cut_until: float

    def deliver(self, answer: asyncio.Future[Any], result: Any) -> None: ...


class Wire:
    """A node's client of the store: every command travels, and so may be late, lost, or lost on the way back.

    Keys with an expiry get it in virtual time. Scripts get the world's clock for an empty `now_ms`.
    """

    def __init__(self, world: World, node: Host) -> None:
        self._world, self._node = world, node
        self._scripts: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        command = getattr(self._world.client, name)
        return lambda *args, **options: self.trip(lambda: command(*args, **options))

    def hget(self, key: str, field_: str) -> Awaitable[Any]:
        if key == self._world.keys.clock:
            return self.trip(lambda: self._world.now_ms)
        return self.trip(lambda: self._world.client.hget(key, field_))

    def time(self) -> Awaitable[Any]:
        return self.trip(lambda: divmod(self._world.now_ms * 1000, 1_000_000))

    def register_script(self, text: str) -> Callable[..., Awaitable[Any]]:
        script = self._world.client.register_script(text)

        def call(keys: list[str], args: list[Any] | None = None) -> Awaitable[Any]:
            return self.trip(lambda: script(keys=keys, args=self._dated(list(args or ()))))

        return call

    def _dated(self, args: list[Any]) -> list[Any]:
        return [self._world.now_ms, *args[1:]] if args and args[0] == "" else args

    def pipeline(self, transaction: bool = False) -> Any:
        pipe = self._world.client.pipeline(transaction=transaction)
        execute = cache(pipe.execute)  # sent again, it says the same again
        pipe.execute = lambda: self.trip(execute)
        return pipe

    async def trip(self, act: Callable[[], Any]) -> Any:
        """There and back. The command is one step; a node that dies meanwhile never hears of it."""
        world, node = self._world, self._node
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        trouble = world.now < node.cut_until
        if (trouble and world.chance.random() < 0.7) or world.chance.random() < world.odds.store_error:
            world.later(world.chance.uniform(0.01, 2.0 if trouble else 0.05), lambda: node.deliver(answer, LOST))
            return await answer

        def arrive() -> None:
            world.commands += 1
            try:
                result: Any = act()
            except ResponseError as error:
                world.fail(f"I15: a script failed: {error}")
                result = LOST
            if world.now < node.cut_until or world.chance.random() < world.odds.answer_lost:
                if world.chance.random() < 0.5:  # redis-py sends the command again by itself
                    world.later(world.chance.uniform(0.01, 0.1), arrive)
                    return
                result = LOST
            world.later(world.chance.uniform(0, WIRE_S), lambda: node.deliver(answer, result))

        world.later(world.chance.uniform(0, WIRE_S), arrive)
        return await answer
