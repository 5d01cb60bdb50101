"""Assigns units to deployments, where a judge has several, by the state of the pools in the store."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from dicast.app.domain.deployments import Candidate, Choice, assign
from dicast.app.domain.plan import Lane
from dicast.app.domain.stop import place
from dicast.app.ledger.keys import PageRef
from dicast.app.ledger.ledger import Ledger
from dicast.app.ledger.records import JobRecord, MessageId
from dicast.app.pipeline.places import Models, Stops
from dicast.workers.admission.pool_health import UNKNOWN, PoolHealth, PoolHealthReader


class KnownPools(Models, Protocol):
    """See `dicast.app.pipeline.pools.ServedPools`."""

    def knows(self, pool: str) -> bool: ...
    async def limit(self, pool: str) -> int: ...


class Living(Protocol):
    """See `dicast.app.pipeline.pools.LivingPools`."""

    async def served(self) -> frozenset[str] | None: ...


class ChoiceCounter(Protocol):
    def assigned(self, pool: str, model: str, score: float) -> None: ...


NO_CHOICES: Mapping[MessageId, Choice] = {}


class Deployments:
    """Chooses deployments on one event loop, and counts every choice in `metrics`.

    A pool that this worker does not know is treated as broken, since its queue cannot be written to. So is a place
    where the job has stopped asking, and a pool that no node serves.
    """

    def __init__(
        self, pool_health: PoolHealthReader, ledger: Ledger, pools: KnownPools, stops: Stops, metrics: ChoiceCounter,
        living: Living | None = None,
    ) -> None:  # fmt: skip
        self._pool_health, self._ledger, self._pools = pool_health, ledger, pools
        self._stops, self._metrics, self._living = stops, metrics, living

    async def choose(
        self, job: JobRecord, ref: PageRef, lane: Lane, tokens: Sequence[MessageId]
    ) -> Mapping[MessageId, Choice]:
        """Choose a deployment for each message of a page, and count it in the ledger. Returns an empty mapping if the
        lane has a single pool. A message that was assigned before and has not been claimed is counted anew.
        """
        if len(lane.pools) == 1:
            return NO_CHOICES
        health_by_pool, stopped = await self._pool_health.read(lane.pools), await self._stops.stops(job)
        served = await self._living.served() if self._living is not None else None
        limits = {pool: health.limit or await self._pools.limit(pool) for pool, health in health_by_pool.items()}
        by_agent: dict[int, list[MessageId]] = {}
        for token in tokens:
            by_agent.setdefault(lane.unit(token.position).agent, []).append(token)
        choices: dict[MessageId, Choice] = {}
        for agent, mine in by_agent.items():
            models = [self._pools.model(deployment) for deployment in job.spec.agents[agent].choices]
            candidates = [
                _candidate(
                    health_by_pool[pool], model, limits[pool], _taken(choices.values(), lane, pool),
                    usable=self._pools.knows(pool) and place(pool, model) not in stopped
                    and (served is None or pool in served),
                )
                for pool, model in zip(lane.pools, models, strict=True)
            ]  # fmt: skip
            draws = [random.random() for _ in mine]  # noqa: S311  spreads work, guards nothing
            for token, choice in zip(mine, assign(candidates, draws), strict=True):
                choices[token] = choice
                self._metrics.assigned(lane.pools[choice.deployment], models[choice.deployment], choice.score)
        await self._ledger.assign(ref, {token: lane.pools[choice.deployment] for token, choice in choices.items()})
        return choices


def _candidate(pool: PoolHealth, model: str, limit: int, taken: int, *, usable: bool) -> Candidate:
    health = pool.health.get(model, UNKNOWN)
    in_hand = pool.open + pool.assigned + taken
    return Candidate(health.success_rate, in_hand, limit, pool.broken or not usable)


def _taken(choices: Iterable[Choice], lane: Lane, pool: str) -> int:
    """Count the page's units that have just been assigned to this pool for other agents."""
    return sum(lane.pools[choice.deployment] == pool for choice in choices)
