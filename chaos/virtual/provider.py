"""The provider as a node sees it; its books are the world's."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson

from app.domain.failure import FailureKind
from app.domain.opinion import Usage
from app.providers.base import ChatReply, ChatRequest, ProviderFailure
from app.providers.simulated.answers import nonce_of
from chaos.virtual.wire import Host
from chaos.virtual.world import World

CALL_TIMEOUT_S = 20.0


class SimProvider:
    """Answers, refuses, spoils or hangs, as the world's odds have it."""

    structured_output = True
    nonce_in_schema = False

    def __init__(self, world: World, host: Host, name: str) -> None:
        self._world, self._host, self._name = world, host, name

    async def complete(self, request: ChatRequest) -> ChatReply:
        world = self._world
        number = world.call(self._name, f"{request.system} {request.user}")
        call, odds = world.calls[number], world.odds
        fate = world.chance.random()
        answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        result: Any = "good"
        if fate < odds.refuse:
            result = ProviderFailure(FailureKind.RATE_LIMITED, "429", status_code=429, retry_after_s=1.0)
        elif fate < odds.refuse + odds.spoil:
            result = "spoilt"
        elif fate < odds.refuse + odds.spoil + odds.hang:
            result = None
        else:
            call.good = True

        def end() -> None:
            if number in world.open:
                world.hang_up(number)
                if call.good:
                    world.good.update(call.units)
                if result is not None:
                    self._host.deliver(answered, result)

        # Even one that hangs is cut by the provider in the end: nobody can do it for a frozen caller.
        world.later(world.chance.uniform(0.1, 3.0) if result is not None else CALL_TIMEOUT_S + 5, end)
        try:
            reply = await answered
        finally:
            world.hang_up(number)
        if isinstance(reply, ProviderFailure):
            raise reply
        return ChatReply(_answer(call.units, reply == "good", request), "m", Usage(), structured=True)

    async def close(self) -> None: ...


def _answer(units: list[tuple[int, int, int]], good: bool, request: ChatRequest) -> str:
    opinion = {"argument": "so", "cited_evidence": [], "score": 5}
    nonce = nonce_of(request.user)
    if not good:
        return "{"
    if request.schema is not None and "opinions" in orjson.dumps(request.schema).decode():
        opinions = [{"criterion_id": f"d{d}", **opinion} for _, _, d in units]
        return orjson.dumps({"nonce": nonce, "opinions": opinions}).decode()
    return orjson.dumps({"nonce": nonce, **opinion}).decode()
