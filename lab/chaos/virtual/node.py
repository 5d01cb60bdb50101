"""One simulated worker process: the product's own parts on a loop of its own, wires and tasks by the simulation."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import orjson
from redis.exceptions import RedisError

from dicast.app.assembly import CLAIM_GRACE_S
from dicast.app.domain.retry import RetryPolicy
from dicast.app.ledger.client import LedgerClient, UnknownJob
from dicast.app.ledger.keys import PageRef
from dicast.app.ledger.ledger import Ledger
from dicast.app.ledger.records import Ended, MessageId
from dicast.app.ledger.troubles import StopStore, Troubles
from dicast.app.pipeline.batches import BatchRoad, Desk
from dicast.app.pipeline.call import ProviderCaller
from dicast.app.pipeline.housekeeping import (
    Beat,
    CancelledUnits,
    DueMessages,
    Housekeeper,
    StalledPages,
    Sweeper,
    UnattendedJobs,
)
from dicast.app.pipeline.images import StoredImages
from dicast.app.pipeline.job_faults import JobFaults
from dicast.app.pipeline.judge import Claimer, Judge
from dicast.app.pipeline.lanes import Lanes
from dicast.app.pipeline.messages import is_away
from dicast.app.pipeline.missing_pools import MissingPools
from dicast.app.pipeline.outcomes import Outcomes
from dicast.app.pipeline.plan import Lookahead, Planner
from dicast.app.pipeline.pool_trouble import FailFast
from dicast.app.pipeline.pools import Deployments
from dicast.app.pipeline.record import JobCache, Recorder, retry_until_available
from dicast.app.pipeline.recovery import Adoption, DeadNodes, Recovery
from dicast.app.pipeline.start import Preparation, Starter
from dicast.app.pipeline.time_limits import TimeLimits
from dicast.app.providers.base import Provider
from dicast.app.providers.batches import BatchApi
from dicast.app.submission.rendering import AsyncRenderer
from dicast.config.pools import UnknownPool
from dicast.workers.admission.concurrency import Suspension
from dicast.workers.admission.gate import Gate
from dicast.workers.admission.leases import LeaseStore
from dicast.workers.admission.pool_state import Outages, PoolHealthReader
from dicast.workers.admission.request import GatedUnit, QueuedUnits
from dicast.workers.nodes.registry import Node as Facts
from dicast.workers.nodes.registry import Registry
from dicast.workers.store.connection import AsyncStoreClient, connect_batching, raise_when_closed
from dicast.workers.store.scripts import Epoch
from lab.chaos.virtual.account import batch_api
from lab.chaos.virtual.broker import Message
from lab.chaos.virtual.budgets import budgets_in
from lab.chaos.virtual.loop import NodeLoop
from lab.chaos.virtual.messages import SimMessages
from lab.chaos.virtual.parts import (
    Silent,
    SimBatchStore,
    SimGatherer,
    SimMetrics,
    SimSecret,
    SimSpool,
    SimTerms,
)
from lab.chaos.virtual.provider import CALL_TIMEOUT_S, VirtualProvider
from lab.chaos.virtual.wire import Direct, link_of
from lab.chaos.virtual.world import WIRE_S, World

CALLS_MAX = 200
LEASE_S = CALL_TIMEOUT_S + 10.0
SLOTS = 8
ANNOUNCE_EVERY_S = 1.0
PULL_EVERY_S = 0.25
IDLE_EVERY_S = 1.0
HOUSEKEEPING_EVERY_S = 1.0
SKEW_S = 120.0
"""How far a node's own clock may be from the provider's."""
EXPECTED = (RedisError, OSError)
"""What a task may fail with while the store is away: its message is acknowledged, the sweeper finds what is left."""


@dataclass(frozen=True)
class Shape:
    """How nodes are set up. `pools` are those they know, `unstructured` those without a structured channel."""

    pools: tuple[str, ...]
    unstructured: frozenset[str] = frozenset()
    attempts: int = 30
    page_max: int = 8


@dataclass
class VirtualRequest:
    """Stands for Celery's request in the gate."""

    unit: GatedUnit
    tag: int
    message: Message
    announced: bool = False
    dropped: bool = False
    lease: Any = None
    request_dict: dict[str, Any] = field(default_factory=dict)


class VirtualNode:
    """One worker process."""

    def __init__(self, world: World, name: str, shape: Shape) -> None:
        self.world, self.name, self.shape, self.frozen_limit = world, name, shape, world.limit
        self.alive, self.frozen, self.cut_until, self.disk_full = True, False, 0.0, False
        self.loop = NodeLoop(lambda: world.now)
        self.judging: dict[int, VirtualRequest] = {}
        self.epoch = Epoch(grace_ms=int(LEASE_S * 1000))
        self.registry = Registry(Direct(world, self), world.keys, self.epoch)
        self.facts = replace(Facts.for_this_process(name, limit=world.limit, slots=SLOTS), id=name)
        client = self._linked(connect_batching("redis://store"))
        self.ledger = Ledger(
            client, world.keys, name, claim_ms=int((CALL_TIMEOUT_S + CLAIM_GRACE_S) * 1000), calls_max=CALLS_MAX,
            intervals=world.intervals, budgets=partial(budgets_in, world),
        )  # fmt: skip
        self.spool = SimSpool(world.folder / "spool", name, lambda: self.disk_full)
        stops = StopStore(client, world.keys)
        asking = FailFast(stops, self, fail_fast=20, recheck_s=5.0)
        health = PoolHealthReader(client, world.keys)
        deployments = Deployments(health, self.ledger, self, stops, SimMetrics())
        self.messages: Any = SimMessages(world, deployments, shape.pools)
        self._providers = {
            pool: VirtualProvider(world, self, pool, structured=pool not in shape.unstructured) for pool in shape.pools
        }
        outages, results = Outages(client, world.keys), str(world.folder / "results")
        self.node, self.observer, self.suspension, self.asking, self.leased = name, Silent(), Suspension(), 0, 0
        recorder, dead_nodes = Recorder(self.ledger, self.spool, self.suspension), DeadNodes(self.ledger, self)
        policy = RetryPolicy(initial_s=0.5, max_s=4, max_attempts=shape.attempts, requeue_budget=20)
        settler = Outcomes(self.ledger, recorder, policy, asking, outages, self)
        asker = ProviderCaller(self, SimSecret(), StoredImages(""), AsyncRenderer())
        claimer, self.jobs = Claimer(self.ledger, recorder, dead_nodes), JobCache(self.ledger)
        self.judge = Judge(self.jobs, claimer, asking, self, asker, settler)
        troubles, submitted = Troubles(client, world.keys), LedgerClient(Direct(world, self), world.keys)
        self.faults = JobFaults(troubles, submitted)
        self.gatherer = SimGatherer(self.ledger, results, self, stops, self, self.faults)
        self.gatherer.pages = world.pages
        self.gatherer.differs = lambda ref: world.fail(f"one outcome: page {ref} was written twice, differently")  # type: ignore[method-assign]
        unserved = MissingPools(troubles, self.judge, self.messages, shape.pools)
        planner = Planner(self.ledger, self, stops, Lookahead(2.0, shape.page_max), results)
        batch_store, self.batches = self._batch_road(
            client, Desk(self.ledger, self.jobs, self.judge, asker, settler, self.messages, stops, health)
        )
        self.lanes = Lanes(self.ledger, planner, self.messages, unserved, self.faults, self.batches)
        recovery = Recovery(self.ledger, self.messages, recorder, self.gatherer, self.judge, self.epoch)
        terms = SimTerms(self, SimpleNamespace(unit_deadline=0.0, max_pool_down=3600.0))  # type: ignore[arg-type]
        self.starter = Starter(
            self.ledger, Preparation(self.ledger, submitted, results), terms, recovery, self.lanes, self.gatherer
        )
        adoption = Adoption(self.spool, recorder, self.messages, SimMetrics())
        time_limits = TimeLimits(self.ledger, asking, self.judge, self.messages, outages, self)
        still_pages = StalledPages(self.ledger, self.messages, self.jobs, unserved)
        unattended = UnattendedJobs(
            self.ledger, self.messages, self.lanes, CancelledUnits(self.ledger, self.judge, self.messages), batch_store
        )
        sweeper = Sweeper(self.ledger, still_pages, unattended, time_limits, self.gatherer, self.faults)
        due = DueMessages(self.ledger, self.messages, self.jobs, unserved, self.faults, batch_store)
        beat = Beat(self.ledger, adoption, dead_nodes, sweeper, self)
        self.housekeeper = Housekeeper(due, adoption, recovery, unserved, beat, HOUSEKEEPING_EVERY_S)
        # What the gate wants of its host.
        self.config = self
        self.width = SimpleNamespace(width=SLOTS, record=lambda _: None)
        self.store = LeaseStore(self._linked(connect_batching("redis://store")), world.keys, self.epoch)
        self.gates = {pool: Gate(self, pool) for pool in shape.pools}  # type: ignore[arg-type]
        self._leases = 0
        self.begin()

    def _batch_road(self, client: AsyncStoreClient, desk: Desk) -> tuple[SimBatchStore | None, BatchRoad | None]:
        """What sends units by batches, where the world has pools that take them."""
        world = self.world
        if not world.accounts:
            return None, None
        store = SimBatchStore(client, world.keys, self.name, world.intervals)
        store.world = world
        served = set(self.shape.pools)
        self._batch_apis = {
            pool: batch_api(account, world, self, structured=pool not in self.shape.unstructured)
            for pool, account in world.accounts.items()
        }
        road = BatchRoad(store, desk, self, served, self.suspension)
        skew_s = random.Random(f"clock {world.seed} {self.name}").uniform(-SKEW_S, SKEW_S)
        road.now = lambda: world.starts_s + world.now + skew_s  # type: ignore[method-assign]
        return store, road

    def _linked(self, client: AsyncStoreClient) -> AsyncStoreClient:
        """The product's own client, over the world's wire."""
        client.connection_pool.connection_class = link_of(self.world, self)
        raise_when_closed(client.connection_pool)
        return client

    # ------------------------------------------------------------------ life
    def begin(self) -> None:
        asyncio._set_running_loop(self.loop)
        try:
            tasks = [self._beacon(), self.housekeeper.run(), self._consume(), *(g.run() for g in self.gates.values())]
            if self.batches is not None:
                tasks.append(self.batches.run())
            self.tasks = [self.loop.create_task(task) for task in tasks]
        finally:
            asyncio._set_running_loop(None)

    def soon(self, act: Callable[[], object]) -> None:
        if self.alive:
            self.loop.call_soon(act)

    def excuse(self) -> None:
        """What this node works on may be paid for twice, and may not be told: it dies, or others take it for dead."""
        for request in self.judging.values():
            self.world.excuse(self.name, request.message)

    def terminate(self, is_meant: Callable[[Message], bool]) -> None:
        """As dicast.app.operator.remote_control does it: calls are cut, or may not begin."""
        for request in self.judging.values():
            if request.lease is not None and is_meant(request.message):
                self.world.cut(self.name, request.message)
                request.lease.forbid()

    def kill(self) -> None:
        self.alive = False
        self.excuse()
        for call in list(self.world.open.values()):
            if call.node == self.name:
                self.world.hang_up(call, "killed")
        self.spool.die()
        self.world.tell(f"{self.name} is killed")

    async def _beacon(self) -> None:
        """This is dicast.workers.nodes.beacon.Beacon without its thread."""
        while True:
            with contextlib.suppress(*EXPECTED):
                self.registry.announce(self.facts)
            await asyncio.sleep(ANNOUNCE_EVERY_S)

    def reap(self) -> int:
        """As dicast.workers.nodes.reaper.reap: the dead are buried, the silent are relieved of their messages."""
        gone = 0
        for facts, heard in self.registry.registered():
            other = self.world.nodes[facts.id]
            if heard and other.alive:
                continue
            gone += 1
            if other.alive:
                self.world.tell(f"{self.name} takes {other.name} for silent")
                other.excuse()
                self.world.silent.add(other.name)
                self.world.broker.restore(facts.id)
                self.registry.forget(facts)
            else:
                self.registry.silence(facts)
                self.world.broker.restore(facts.id)
                self.registry.deregister(facts)
        return gone

    async def govern(self) -> None: ...

    # ------------------------------------------------------------------ the gate's host
    def cut_frees(self, _pool: str) -> bool:
        return True

    def lease_s(self, _pool: str) -> float:
        return LEASE_S

    def governor(self) -> Any:
        return self

    async def tick(self, _pool: str) -> None: ...

    def free_slots(self) -> int:
        return max(0, SLOTS - len(self.judging))

    def room_freed(self) -> None:
        for gate in self.gates.values():
            if gate.starved:
                gate.kick()

    def new_lease_id(self) -> str:
        self._leases += 1
        return f"{self.name}/{self._leases}"

    async def count_waiting(self, pool: str) -> int | None: ...
    async def count_by_project(self, pool: str) -> QueuedUnits | None: ...

    def on_loop(self, callback: Callable[[], None]) -> None:
        self.loop.call_soon(callback)

    def start_request(self, request: VirtualRequest) -> None:
        self.judging[request.tag] = request
        self.loop.create_task(self._judge(request))

    # ------------------------------------------------------------------ consuming
    async def _consume(self) -> None:
        broker = self.world.broker
        while True:
            for pool, gate in self.gates.items():
                while gate.room() > 0 and (taken := broker.take(pool, self.name)) is not None:
                    tag, message = taken
                    gate.hold(VirtualRequest(GatedUnit.from_header(dict(message.unit)), tag, message))  # type: ignore[arg-type]
            taken = broker.take("control", self.name)
            if taken is not None:
                self.loop.create_task(self._control(*taken))
            idle = taken is None and not any(broker.queues[pool] for pool in self.shape.pools)
            await asyncio.sleep(self.world.chance.uniform(0.01, IDLE_EVERY_S if idle else PULL_EVERY_S))

    async def _judge(self, request: VirtualRequest) -> None:
        """As dicast.app.tasks does it."""
        message = request.message
        *page, token, deployment = message.args
        ref = PageRef(*page)
        try:
            outcome = await self.judge.judge(
                ref, MessageId.parse(token), request.lease, deployment, came_back=message.came_back
            )
            counts = outcome.counts and message.header
            if outcome.follow_ups:
                job = await self.jobs.get(ref.job, ref.incarnation)
                assert job is not None
                choices = {follower: SimpleNamespace(deployment=deployment, elsewhere=False)
                           for follower in outcome.follow_ups}  # fmt: skip
                for follower in outcome.follow_ups:
                    if message.header:
                        self.world.broker.chords[str(ref)].size += 1
                    self.messages.send(job, ref, follower, header=message.header, choices=choices)
            if outcome.plan:
                await self.messages.plan(ref.job, ref.incarnation, ref.lane)
            if outcome.gather:
                await self.messages.gather(ref)
            if counts:
                await asyncio.sleep(self.world.chance.uniform(0, WIRE_S))
                self.world.broker.ended(str(ref), Message("gather", tuple(ref)))
        except EXPECTED as error:
            self.world.tell(f"{self.name}: {message} failed: {error}")
        except Exception as error:
            self._raised(message, error)
        finally:
            self.judging.pop(request.tag, None)
        await asyncio.sleep(self.world.chance.uniform(0, WIRE_S))
        self.world.broker.acknowledge(self.name, request.tag)
        if request.lease is not None:
            request.lease.release()

    async def _control(self, tag: int, message: Message) -> None:
        """As dicast.app.tasks and Celery do it: a task that fails is acknowledged, too."""
        try:
            await self._do(message)
        except EXPECTED as error:
            self.world.tell(f"{self.name}: {message} failed: {error}")
        except Exception as error:
            self._raised(message, error)
        self.world.broker.acknowledge(self.name, tag)

    def _raised(self, message: Message, error: Exception) -> None:
        if self.alive:  # or its coroutines are thrown away, which they do not like
            self.world.fail(f"bounded: {message} raised {error!r}")

    async def _do(self, message: Message) -> None:
        match message.name, message.args:
            case "start", (job_id,):
                await self._start(job_id)
            case "plan", (job_id, incarnation, lane):
                await retry_until_available(lambda: self.lanes.plan(job_id, incarnation, lane))
            case "gather", page:
                ref = PageRef(*page)
                gathered = await retry_until_available(lambda: self.gatherer.gather(ref))
                for lane in gathered.lanes(ref.lane):
                    await retry_until_available(partial(self.lanes.plan, ref.job, ref.incarnation, lane))
                if gathered.finish:
                    await self.messages.finish(ref.job)
            case "finish", (job_id,):
                if await retry_until_available(lambda: self.gatherer.finish(job_id)):
                    self.world.completions[job_id] += 1

    async def _start(self, job_id: str) -> None:
        try:
            await retry_until_available(lambda: self.starter.start(job_id))
        except UnknownJob:
            self.world.tell(f"{self.name} knows no job {job_id}")
        except Exception as error:
            if is_away(error):
                raise
            await self.faults.note(job_id, error)

    # ------------------------------------------------------------------ what is told
    def knows(self, pool: str) -> bool:
        return pool in self.shape.pools

    def call_timeout_s(self, _pool: str) -> float:
        return CALL_TIMEOUT_S

    def provider(self, pool: str) -> Provider:
        try:
            return self._providers[pool]
        except KeyError:
            raise UnknownPool(f"no pool {pool!r}") from None

    def batch_api(self, pool: str) -> BatchApi:
        return self._batch_apis[pool]

    def model(self, deployment: Any) -> str:
        return "m" if deployment.pool in self.shape.pools else ""

    async def limit(self, _pool: str) -> int:
        return self.world.limit

    def announce(self, job_id: str, end: Ended, _: Any) -> None:
        if end.lost:
            self.world.lost_jobs.add(job_id)
            self.world.tell(f"{self.name} tells that job {job_id} is lost")
            return
        told = orjson.loads(orjson.dumps(end.report))
        if self.world.announced.setdefault(job_id, told) != told:
            self.world.fail(f"one completion: two reports of job {job_id}")
