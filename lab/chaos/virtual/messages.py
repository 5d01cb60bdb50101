"""What the product calls `Messages`: how a node sends work into the world's queues."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import Any

from dicast.app.ledger.keys import PageRef
from dicast.app.ledger.records import JobRecord, MessageId
from dicast.app.pipeline.messages import FIRST_DEPLOYMENT
from dicast.app.pipeline.plan import PageMessages
from dicast.app.pipeline.pools import Deployments
from dicast.config.pools import UnknownPool
from lab.chaos.virtual.broker import Chord, Message
from lab.chaos.virtual.world import WIRE_S, World


class SimMessages:
    """Each message takes a moment, so that its sender may die before it. `pools` are those that the node knows: as the
    product's, it raises for another."""

    def __init__(self, world: World, deployments: Deployments, pools: Collection[str]) -> None:
        self._world, self._deployments, self._pools = world, deployments, pools

    async def _wired(self) -> None:
        await asyncio.sleep(self._world.chance.uniform(0, 2 * WIRE_S))

    async def page(self, job: JobRecord, page: PageMessages) -> None:
        """The header first, the chord's size with it; a planner may die in the middle."""
        choices = await self._deployments.choose(job, page.ref, page.lane, page.tokens)
        self._world.broker.chords[str(page.ref)] = Chord(len(page.tokens))
        for n, token in enumerate(page.tokens):
            if n % 4 == 0:
                await self._wired()
            self.send(job, page.ref, token, header=True, choices=choices)

    def send(
        self,
        job: JobRecord,
        ref: PageRef,
        token: MessageId,
        *,
        header: bool,
        choices: Mapping[MessageId, Any] | None = None,
    ) -> None:
        """Into the queue of the deployment that was chosen, or of the only one."""
        choice = (choices or {}).get(token, FIRST_DEPLOYMENT)
        pool = job.lanes[ref.lane].pools[choice.deployment]
        if pool not in self._pools:
            raise UnknownPool(f"no pool {pool!r}")
        unit = (("job", job.id), ("project", job.spec.project), ("elsewhere", choice.elsewhere))
        self._world.broker.publish(pool, Message("judge", (*ref, str(token), choice.deployment), header, unit))

    async def resend(self, job: JobRecord, ref: PageRef, token: MessageId) -> None:
        choices = await self._deployments.choose(job, ref, job.lanes[ref.lane], [token])
        await self._wired()
        self.send(job, ref, token, header=True, choices=choices)

    async def start(self, job_id: str) -> None:
        await self._control("start", job_id)

    async def gather(self, ref: PageRef) -> None:
        await self._control("gather", *ref)

    async def plan(self, job_id: str, incarnation: str, lane: int) -> None:
        await self._control("plan", job_id, incarnation, lane)

    async def finish(self, job_id: str) -> None:
        await self._control("finish", job_id)

    async def _control(self, name: str, *args: Any) -> None:
        await self._wired()
        self._world.broker.publish("control", Message(name, args))

    async def declare(self) -> None: ...

    def queue(self, pool: str) -> str:
        return pool

    async def queues_empty(self, pools: Collection[str]) -> bool:
        await self._wired()
        if unknown := set(pools) - set(self._pools):
            raise KeyError(f"provider.{min(unknown)}")
        return not any(self._world.broker.queues[pool] for pool in pools)
