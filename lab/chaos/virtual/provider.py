"""The provider as a node sees it; its books are the world's."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import orjson

from dicast.app.domain.opinion import FailureKind, Usage
from dicast.app.providers.base import ChatReply, ChatRequest, ProviderFailure
from dicast.app.providers.simulated import nonce_of
from lab.chaos.virtual.wire import VirtualHost
from lab.chaos.virtual.world import Answers, VirtualCall, VirtualPlace, World

CALL_TIMEOUT_S = 20.0


class VirtualProvider:
    """One pool's provider at one node: answers, refuses, spoils or hangs, as the world's odds have it."""

    nonce_in_schema = False
    caches = False

    def __init__(self, world: World, host: VirtualHost, pool: str, *, structured: bool) -> None:
        self._world, self._host, self._pool = world, host, pool
        self.structured_output = structured

    async def complete(self, request: ChatRequest) -> ChatReply:
        world = self._world
        call, chance = world.call(self._host.name, self._pool, f"{request.system} {request.user}")
        ending = ending_of(call, chance, world.odds.answers)
        answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        usage = usage_of(chance)

        def end() -> None:
            if call.number in world.open:
                world.hang_up(call, ending)
                if ending not in ("refused", "hung"):
                    call.usage = usage
                if ending != "hung":
                    self._host.soon(lambda: _answered(answered))

        # Even one that hangs is cut by the provider in the end: nobody can do it for a frozen caller.
        world.later(chance.uniform(0.1, 3.0) if ending != "hung" else CALL_TIMEOUT_S + 5, end)
        try:
            await answered
        finally:
            world.hang_up(call, "hung" if ending == "hung" else "cut")
        if ending == "refused":
            raise ProviderFailure(FailureKind.RATE_LIMITED, "429", status_code=429, retry_after_s=1.0)
        return reply_of(answer_texts(call, ending, request), usage, structured=self.structured_output)

    async def close(self) -> None: ...


def told_by(call: VirtualCall) -> str:
    """What stands in each opinion, so that it can be told by which call it came."""
    return f"call {call.number}"


def score_of(place: VirtualPlace) -> int:
    """What a judge gives there, however often he is asked: one of three scores, so that panels agree and differ, as do
    a judge's replicates."""
    again = place.replicate * (place.item + place.agent)
    return 4 + (place.item * 7 + place.agent * place.dimension * 5 + place.agent * place.item + again) % 3


def _answered(future: asyncio.Future[Any]) -> None:
    if not future.done():
        future.set_result(None)


def ending_of(call: VirtualCall, chance: random.Random, odds: Answers) -> str:
    """How the provider ends a call: good, refused, spoilt, in part, or hung."""
    fate, ending = chance.random(), "good"
    for kind in ("refuse", "spoil", "part", "hang"):
        if 0 <= fate < getattr(odds, kind):
            ending = {"refuse": "refused", "spoil": "spoilt", "part": "part", "hang": "hung"}[kind]
        fate -= getattr(odds, kind)
    return "good" if ending == "part" and len(call.places) < 2 else ending


def usage_of(chance: random.Random) -> Usage:
    """What an answer takes."""
    return Usage(input_tokens=chance.randint(50, 999), output_tokens=chance.randint(5, 99))


def reply_of(texts: Sequence[str], usage: Usage, *, structured: bool) -> ChatReply:
    """The answers to one call, as the product's providers give them."""
    replies = [ChatReply(text, "m", usage, structured) for text in texts]
    return replace(replies[0], others=replies[1:], choices=len(replies))


def answer_texts(call: VirtualCall, ending: str, request: ChatRequest) -> list[str]:
    """What the provider answers to a request, unless it refuses it: one text for each replicate."""
    told = {"spoilt": [], "part": call.told}.get(ending, call.places)
    schema = orjson.dumps(request.schema).decode() if request.schema is not None else ""
    nonce, opinion = {"nonce": nonce_of(request.user)}, {"argument": told_by(call), "cited_evidence": []}
    if '"dissent"' in request.user:
        opinion["dissent"] = ""
    texts = []
    for round in dict.fromkeys(place.replicate for place in call.places):
        opinions = [
            {"criterion_id": f"d{p.dimension}", **opinion, "score": score_of(p)} for p in told if p.replicate == round
        ]
        if ending == "spoilt" or not ('"opinions"' in schema or opinions):
            texts.append("{")
        elif '"opinions"' in schema:
            texts.append(orjson.dumps({**nonce, "opinions": opinions}).decode())
        else:
            texts.append(orjson.dumps({**nonce, **opinion, "score": opinions[0]["score"]}).decode())
    return texts
