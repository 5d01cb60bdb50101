"""What the product calls `Messages`: how a node sends work into the world's queues."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from app.ledger.keys import PageRef
from app.ledger.records import JobRecord, Token
from app.planning import PageMessages
from chaos.virtual.wire import WIRE_S
from chaos.virtual.world import Chord, Message, World


class SimMessages:
    """Each message takes a moment, so that its sender may die before it."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def _wired(self) -> None:
        await asyncio.sleep(self._world.chance.uniform(0, 2 * WIRE_S))

    async def page(self, job: JobRecord, page: PageMessages) -> None:
        """The header first, the chord's size with it; a planner may die in the middle."""
        self._world.chords[str(page.ref)] = Chord(len(page.tokens))
        for n, token in enumerate(page.tokens):
            if n % 4 == 0:
                await self._wired()
            self.send(job, page.ref, token, header=True)

    def send(self, job: JobRecord, ref: PageRef, token: Token, *, header: bool) -> None:
        pool = self._world.chance.choice(job.lanes[ref.lane].pools)
        self._world.publish(pool, Message("judge", (*ref, str(token)), header))

    async def again(self, job: JobRecord, ref: PageRef, token: Token) -> None:
        await self._wired()
        self.send(job, ref, token, header=True)

    async def start(self, job_id: str) -> None:
        await self._wired()
        self._world.publish("control", Message("start", (job_id,)))

    async def gather(self, ref: PageRef) -> None:
        await self._wired()
        self._world.publish("control", Message("gather", tuple(ref)))

    async def plan(self, job_id: str, incarnation: str, lane: int) -> None:
        await self._wired()
        self._world.publish("control", Message("plan", (job_id, incarnation, lane)))

    async def finish(self, job_id: str) -> None:
        await self._wired()
        self._world.publish("control", Message("finish", (job_id,)))

    def queue(self, pool: str) -> str:
        return pool

    async def queues_empty(self, pools: Collection[str]) -> bool:
        await self._wired()
        return not any(self._world.queues[pool] for pool in pools)
