"""One simulated worker process: the product's own parts on a loop of its own, wires and tasks by the simulation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
from redis.exceptions import ConnectionError as StoreConnectionError

import workers.nodes
from app.asking import Asking
from app.domain.retry import RetryPolicy
from app.gathering import Gatherer
from app.housekeeping import Housekeeper
from app.judging import Judge
from app.ledger.asking import AskingStore
from app.ledger.keys import PageRef
from app.ledger.ledger import Ledger
from app.ledger.records import Ended, Token
from app.ledger.troubles import Troubles
from app.planning import Planner
from app.recording import patiently
from app.services import CLAIM_GRACE_S, Services
from app.unserved import Unserved
from chaos.virtual.loop import NodeLoop
from chaos.virtual.messages import SimMessages
from chaos.virtual.provider import CALL_TIMEOUT_S, SimProvider
from chaos.virtual.wire import LOST, WIRE_S, Wire
from chaos.virtual.world import Message, World
from workers.admitted import Admitted
from workers.bench import Bench
from workers.gate import Gate
from workers.nodes import BEACON_S
from workers.store.leases import LeaseStore
from workers.store.scripts import script_text

BURY = Path(workers.nodes.__file__).parent / "store" / "bury.lua"
CALLS_MAX = 200
LEASE_S = CALL_TIMEOUT_S + 10.0
SLOTS = 8
ANNOUNCE_EVERY_S = 1.0
PULL_EVERY_S = 0.25
IDLE_EVERY_S = 1.0


@dataclass
class Request:
    """Stands for Celery's request in the gate."""

    unit: Admitted
    tag: int
    message: Message
    announced: bool = False
    dropped: bool = False
    lease: Any = None
    _request_dict: dict[str, Any] = field(default_factory=dict)


async def _nonce_key() -> bytes:
    return b"virtual"


class NoSpool:
    """A disk that takes nothing: what a killed node has not recorded is lost with it."""

    def put(self, _: bytes) -> None: ...
    def drop(self, _: None) -> None: ...
    def leave(self, _: None) -> None: ...


class Silent:
    """The gate's observer."""

    def queueing(self, *_: Any) -> None: ...
    def acquired(self, *_: Any) -> None: ...
    def released(self, *_: Any) -> None: ...
    def over_share(self, *_: Any) -> None: ...


class SimGatherer(Gatherer):
    """Its files are the world's."""

    async def _keep_items(self, job_id: str) -> None: ...


class SimServices(Services):
    """The product's start and plan, over the simulation's parts."""

    def __init__(self, node: Node, limit: int) -> None:
        self.ledger, self._planner, self.gatherer = node.ledger, node.planner, node.gatherer
        self.unserved, self.troubled = node.unserved, node._troubled
        self._frozen_limit = limit

    def _limit(self) -> int:
        return self._frozen_limit

    async def _prepare(self, _: Any) -> None: ...


class Node:
    """One worker process. `lanes` are the names of the pools that it serves."""

    def __init__(self, world: World, name: str, pools: list[str], shape: dict[str, Any]) -> None:
        self.world, self.name, self.pools = world, name, pools
        self.alive, self.frozen, self.cut_until = True, False, 0.0
        self.loop = NodeLoop(lambda: world.now)
        self.judging: dict[int, Message] = {}
        self.wire = Wire(world, self)
        self.ledger = Ledger(
            self.wire, world.keys, name, claim_ms=int((CALL_TIMEOUT_S + CLAIM_GRACE_S) * 1000), calls_max=CALLS_MAX
        )
        provider, self.messages = SimProvider(world, self, name), SimMessages(world)
        asking = Asking(AskingStore(self.wire, world.keys), model=lambda _: "m", fail_fast=20, recheck_s=5.0)
        self.judge = Judge(
            self.ledger, provider=lambda _: provider, model=lambda _: "m",
            policy=RetryPolicy(initial_s=0.5, max_s=4, max_attempts=shape["attempts"], requeue_budget=20),
            call_timeout_s=lambda _: CALL_TIMEOUT_S,
            nonce_key=_nonce_key,
            asking=asking,
            spool=NoSpool(),  # type: ignore[arg-type]
        )  # fmt: skip
        self.gatherer = SimGatherer(
            self.ledger, results_dir="", retention_s=86_400, model=lambda _: "m", stopped=asking.stops,
            announce=self._announce
        )
        self.planner = Planner(
            self.ledger,
            self.messages.page,
            self._pool_limit,
            window_s=2.0,
            page_max=shape["page_max"],
            earlier=lambda *_: ({}, 0),
            stopped=asking.stops,
            model=lambda _: "m",
        )
        self.unserved = Unserved(Troubles(self.wire, world.keys), self.judge, self.messages, pools)
        self.services = SimServices(self, world.limit)
        self.housekeeper = Housekeeper(
            self.ledger, self.messages, self.gatherer, job=self.judge.job, plan=self.services.plan, reap=self._reap,
            govern=self._nothing, store=lambda: (0, ""), works_on=self.judge.works_on,
            lost=self._mourn, adopt=self._nothing, recall=self._nothing,
            unserved=self.unserved, troubled=self._troubled,
        )  # fmt: skip
        # What the gate wants of its host.
        self.config = self
        self.node, self.observer, self.asking, self.leased = name, Silent(), 0, 0
        self.bench = Bench()
        self.width = SimpleNamespace(width=SLOTS, record=lambda _: None)
        self.store = LeaseStore(self.wire, world.keys)
        self.gates = {pool: Gate(self, pool) for pool in pools}  # type: ignore[arg-type]
        self._leases = 0
        self._bury = world.client.register_script(script_text(BURY))
        self.begin()

    # ------------------------------------------------------------------ life
    def begin(self) -> None:
        asyncio._set_running_loop(self.loop)
        try:
            tasks = [self._beacon(), self.housekeeper.run(), self._consume(), *(g.run() for g in self.gates.values())]
            self.tasks = [self.loop.create_task(task) for task in tasks]
        finally:
            asyncio._set_running_loop(None)

    def excuse(self) -> None:
        """What this node works on may be paid for twice: it dies, or others take it for dead."""
        for message in self.judging.values():
            self.world.excused.update(self.world.units_of(*message.args[2:]))

    def kill(self) -> None:
        self.alive = False
        self.excuse()
        for number, call in list(self.world.open.items()):
            if call.node == self.name:
                self.world.hang_up(number)
        self.world.tell(f"{self.name} is killed")

    def deliver(self, answer: asyncio.Future[Any], result: Any) -> None:
        if not self.alive or answer.done():
            return

        def settle() -> None:
            if answer.done():
                return
            if result is LOST:
                answer.set_exception(StoreConnectionError("simulated"))
            else:
                answer.set_result(result)

        self.loop.call_soon(settle)

    async def _beacon(self) -> None:
        key = self.world.keys.node(self.name)
        while True:
            try:
                await self.wire.hset(self.world.keys.nodes, self.name, "{}")
                await self.wire.set(key, "alive", px=int(BEACON_S * 1000))
            except StoreConnectionError:
                pass
            await asyncio.sleep(ANNOUNCE_EVERY_S)

    def _reap(self) -> int:
        """As workers.reaper.reap: the dead are buried, the silent are relieved of their messages."""
        world, restored = self.world, 0
        for name in world.client.hkeys(world.keys.nodes):
            other = world.nodes[name]
            heard = bool(world.client.exists(world.keys.node(name)))
            if heard and other.alive:
                continue
            restored += world.restore(name)
            if other.alive:
                other.excuse()
                world.client.hdel(world.keys.nodes, name)
            else:
                k = world.keys
                keys = [k.leases, k.holders, k.open, k.nodes, k.node(name), k.epoch, k.nodes_heard, k.nodes_silent]
                self._bury(keys=keys, args=[name, k.freed])
        return restored

    @staticmethod
    async def _nothing() -> None: ...

    async def _troubled(self, job_id: str, error: Exception) -> None:
        self.world.fail(f"I11: job {job_id}: {error!r}")

    async def _mourn(self, job_id: str, _: Any) -> None:
        self.world.fail(f"I3: job {job_id} is taken for lost")

    # ------------------------------------------------------------------ the gate's host
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

    def on_loop(self, callback: Callable[[], None]) -> None:
        self.loop.call_soon(callback)

    def start_request(self, request: Request) -> None:
        self.judging[request.tag] = request.message
        self.loop.create_task(self._judge(request))

    # ------------------------------------------------------------------ consuming
    async def _consume(self) -> None:
        while True:
            for pool, gate in self.gates.items():
                while gate.room() > 0 and (taken := self.world.take(pool, self.name)) is not None:
                    tag, message = taken
                    gate.hold(Request(Admitted(message.args[0], "p", {}), tag, message))  # type: ignore[arg-type]
            taken = self.world.take("control", self.name)
            if taken is not None:
                self.loop.create_task(self._control(*taken))
            idle = taken is None and not any(self.world.queues[pool] for pool in self.pools)
            await asyncio.sleep(self.world.chance.uniform(0.01, IDLE_EVERY_S if idle else PULL_EVERY_S))

    def _ack(self, tag: int) -> None:
        self.world.unacked[self.name].pop(tag, None)

    async def _judge(self, request: Request) -> None:
        """As app.tasks does it."""
        *place, token = request.message.args
        ref = PageRef(*place)
        try:
            outcome = await self.judge.judge(ref, Token.parse(token), request.lease)
            counts = outcome.counts and request.message.header
            if outcome.follow_ups:
                job = await self.judge.job(ref)
                assert job is not None
                for follower in outcome.follow_ups:
                    if request.message.header:
                        self.world.chords[str(ref)].size += 1
                    self.messages.send(job, ref, follower, header=request.message.header)
            if outcome.plan:
                await self.messages.plan(ref.job, ref.incarnation, ref.lane)
            if outcome.gather:
                await self.messages.gather(ref)
            if counts:
                await asyncio.sleep(self.world.chance.uniform(0, WIRE_S))
                self.world.ended(ref, Message("gather", tuple(ref)))
        except StoreConnectionError as error:
            self.world.tell(f"{self.name}: {request.message} failed: {error}")
        except Exception as error:
            self._raised(request.message, error)
        finally:
            self.judging.pop(request.tag, None)
        await asyncio.sleep(self.world.chance.uniform(0, WIRE_S))
        self._ack(request.tag)
        if request.lease is not None:
            request.lease.release()

    async def _control(self, tag: int, message: Message) -> None:
        """As app.tasks and Celery do it: a task that fails is acknowledged, too."""
        try:
            await self._do(message)
        except StoreConnectionError as error:
            self.world.tell(f"{self.name}: {message} failed: {error}")
        except Exception as error:
            self._raised(message, error)
        self._ack(tag)

    def _raised(self, message: Message, error: Exception) -> None:
        if self.alive:  # or its coroutines are thrown away, which they do not like
            self.world.fail(f"I11: {message} raised {error!r}")

    async def _do(self, message: Message) -> None:
        match message.name, message.args:
            case "start", (job_id,):
                await patiently(lambda: self.services.start(job_id))
            case "plan", (job_id, incarnation, lane):
                await patiently(lambda: self.services.plan(job_id, incarnation, lane))
            case "gather", (job_id, incarnation, lane, page):
                ref = PageRef(job_id, incarnation, lane, page)
                gathered = await patiently(lambda: self.gatherer.gather(ref))
                if gathered.plan:
                    await patiently(lambda: self.services.plan(job_id, incarnation, lane))
                if gathered.finish:
                    await self.messages.finish(job_id)
            case "finish", (job_id,):
                if await patiently(lambda: self.gatherer.finish(job_id)):
                    self.world.completions[job_id] += 1

    # ------------------------------------------------------------------ what is told
    async def _pool_limit(self, _pool: str) -> int:
        return self.world.limit

    def _announce(self, job_id: str, end: Ended, _: Any) -> None:
        told = orjson.dumps(end.report, option=orjson.OPT_SORT_KEYS)
        if self.world.announced.setdefault(job_id, told) != told:
            self.world.fail(f"I2: two reports of job {job_id}")
