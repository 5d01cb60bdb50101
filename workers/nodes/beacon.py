"""A node's beacon, and the duties of a working node: it reports its work in the beacon, and carries out orders.

`Beacon` is the thread that renews it, and reads operators' orders for the node from the answer. `NodeDuties` carries
them out. `NodeStep` is Celery's boot step for both: the beacon lasts from before the first message until after the last
call.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import orjson
import psutil
from celery import bootsteps
from celery.platforms import EX_OK
from celery.worker import state as worker_state
from redis.exceptions import RedisError

from dicast.workers.admission.gate import Gate
from dicast.workers.admission.gate_host import GateConfig
from dicast.workers.admission.request import AdmittedRequest
from dicast.workers.nodes.registry import REPLIES_KEPT_S, GiveBack, Node, Order, OrderKind, Registry, Vitals
from dicast.workers.policy.rules import RulesStatus
from dicast.workers.store.connection import connect_async, is_passing
from dicast.workers.system.host import share_one_arena
from dicast.workers.system.supervision import supervised_thread

logger = logging.getLogger(__name__)

ACKNOWLEDGE_LOOK_S = 0.02
"""How often a node with a new order checks whether the order is in force and can be acknowledged."""


class Duties(Protocol):
    """What a beacon needs of its worker. It calls these on its own thread."""

    @property
    def stuck(self) -> str:
        """The work that the node should take and does not, as a sentence; '' if all is well."""

    @property
    def judges(self) -> bool:
        """Whether the node reads the queue of any pool."""

    def served(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the pools whose units the node takes, and the queues that it reads."""

    def vitals(self) -> Vitals: ...
    def obey(self, order: Order | None) -> bool:
        """Put an order, or none, into force; returns whether it is in force, so that it can be acknowledged."""


class IdleDuties:
    """The duties of a process that does no work yet."""

    stuck, judges = "", True

    def served(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return (), ()

    def vitals(self) -> Vitals:
        return Vitals()

    def obey(self, order: Order | None) -> bool:
        return False


@dataclass(slots=True)
class _Signals:
    """The signals that wake and end the thread."""

    wake: threading.Event
    stop: bool = False


class Beacon:
    """Renews a node's beacon from a supervised thread until it is stopped. `make_registry` makes a registry for that
    thread. Each time, `look` returns the node's width and `duties` its worker's duties."""

    def __init__(
        self, make_registry: Callable[[], Registry], node: Node, sample_width: Callable[[], RulesStatus],
        duties: Callable[[], Duties] = IdleDuties,
    ) -> None:  # fmt: skip
        self._make_registry, self._node, self._sample_width, self._duties = make_registry, node, sample_width, duties
        self._order_seen = ""
        self._signals = _Signals(threading.Event())
        self._thread = supervised_thread("beacon", self._run)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """Renew the beacon now, and read the answer. Any thread."""
        self._signals.wake.set()

    def stop(self) -> None:
        self._signals.stop = True
        self.wake()
        self._thread.join(timeout=5)

    def _run(self) -> None:
        registry = self._make_registry()
        while not self._signals.stop:
            wait_s = self._announce(registry)
            self._signals.wake.wait(wait_s)
            self._signals.wake.clear()
        try:
            registry.leave(self._node)
        except (RedisError, OSError) as error:
            logger.warning("node %s could not deregister: %s", self._node.id, error)

    def _announce(self, registry: Registry) -> float:
        """Renew the beacon, and once more when an order is in force; returns how long to wait until the next time,
        s."""
        duties = self._duties()
        try:
            order = self._renew(registry, duties)
            if not duties.obey(order):
                return ACKNOWLEDGE_LOOK_S if order else registry.intervals.beacon_every_s
            if self._order_seen != (acknowledged := order.id if order else ""):
                self._order_seen = acknowledged
                self._renew(registry, duties)
        except (RedisError, OSError) as error:
            if not is_passing(error):
                raise
            logger.warning("the beacon of %s cannot be renewed: %s", self._node.id, error)
        return registry.intervals.beacon_every_s

    def _renew(self, registry: Registry, duties: Duties) -> Order | None:
        pools, queues = duties.served()
        node = replace(
            self._node, stuck=duties.stuck, judges=duties.judges, pools=pools, queues=queues,
            order_seen=self._order_seen,
        )  # fmt: skip
        return registry.announce(node, self._sample_width(), duties.vitals())


TURN_S = 0.1
"""How long the beacon waits for the loop to turn before it renews itself and checks again."""


class DutifulPool(Protocol):
    """What the duties need of the worker's execution pool; see `dicast.workers.runtime.pool.TaskPool`."""

    def post(self, function: Callable[..., Any], *args: Any) -> None: ...
    def submit(self, coroutine: Coroutine[Any, Any, None]) -> concurrent.futures.Future[None]: ...


class DutifulWorker(Protocol):
    """What the duties need of the worker's consumer."""

    config: GateConfig
    leased: int

    @property
    def pool(self) -> DutifulPool: ...
    @property
    def gates(self) -> Mapping[str, Gate]: ...
    @property
    def queues(self) -> list[Any]: ...
    @property
    def stuck(self) -> str: ...
    @property
    def judges(self) -> bool: ...
    def free_slots(self) -> int: ...
    def put_back(self, requests: list[AdmittedRequest]) -> None:
        """Put requests back into their queues; on the hub."""

    def on_loop(self, callback: Callable[[], None]) -> None: ...


class NodeDuties:
    """The duties of a working node; see `dicast.workers.nodes.beacon.Duties`."""

    def __init__(self, worker: DutifulWorker) -> None:
        self._worker = worker
        self._order: Order | None = None
        self._ends_at = 0.0
        self._cut = 0
        self._turn: concurrent.futures.Future[None] | None = None

    # ------------------------------------------------------------------ what is reported
    @property
    def stuck(self) -> str:
        return self._worker.stuck

    @property
    def judges(self) -> bool:
        return self._worker.judges

    def served(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        pools = {gate.pool for gate in list(self._worker.gates.values()) if not gate.shut}
        return tuple(sorted(pools)), tuple(sorted(queue.name for queue in self._worker.queues))

    def vitals(self) -> Vitals:
        worker, memory = self._worker, psutil.virtual_memory()
        takes = worker.config.suspension.takes_units
        return Vitals(
            open=worker.leased,
            available=worker.free_slots() if takes else 0,
            held={gate.pool: len(gate.waiting) for gate in list(worker.gates.values()) if gate.waiting},
            memory_used_bytes=memory.total - memory.available,
            cut=self._cut,
        )

    # ------------------------------------------------------------------ what is done
    def handle_request(self, text: str) -> None:
        """Take a request that may be for this node; on the loop."""
        request = GiveBack.read(text)
        if request is not None and request.node == self._worker.config.node:
            self._worker.pool.post(self._give_back, request)

    def _give_back(self, request: GiveBack) -> None:
        """Put messages back for other nodes and reply how many; on the hub."""
        returned = {}
        for gate in self._worker.gates.values():
            if dropped := gate.give_up(request.units.get(gate.pool, 0)):
                returned[gate.pool] = len(dropped)
                self._worker.put_back(dropped)
        logger.info("messages go back for idle nodes: %s", returned, extra={"event": "gave_back", "units": returned})
        self._worker.pool.submit(self._reply(request, returned))

    async def _reply(self, request: GiveBack, returned: Mapping[str, int]) -> None:
        config = self._worker.config
        key = config.keys.given_back(request.id)
        with contextlib.suppress(RedisError, OSError):  # whoever asked waits no longer
            async with connect_async(config.store_url) as client:
                pipe = client.pipeline()
                pipe.rpush(key, orjson.dumps([config.node, returned]))
                pipe.expire(key, REPLIES_KEPT_S)
                await pipe.execute()

    def obey(self, order: Order | None) -> bool:
        """Put an order, or none, into force; returns whether it is in force.

        Holds once this has returned True: no call begins any more, since the loop, on which calls begin, has turned.
        """
        suspension = self._worker.config.suspension
        if order != self._order:
            self._order, suspension.cordon = order, f"{order.kind} by {order.by}" if order else ""
            self._turn, self._cut = None, 0
            if order is None:
                logger.info("this node takes units again", extra={"event": "uncordoned"})
                self._on_hub(_wake)
            else:
                self._turn = self._turn_of_the_loop()
                self._ends_at = time.monotonic() + order.deadline_s
                logger.warning("this node takes no more units: %s", suspension.cordon,
                               extra={"event": "cordoned", "kind": order.kind, "by": order.by})  # fmt: skip
                suspension.suspended()
        if order is not None and order.kind is not OrderKind.CORDON:
            self._finish(order)
        return self._turned()

    def _turn_of_the_loop(self) -> concurrent.futures.Future[None] | None:
        turn = asyncio.sleep(0)
        try:
            return self._worker.pool.submit(turn)
        except RuntimeError:  # the loop is closed: nothing begins there any more
            turn.close()
            return None

    def _turned(self) -> bool:
        if self._turn is None:
            return True
        done, _ = concurrent.futures.wait([self._turn], timeout=TURN_S)
        return bool(done)

    def _finish(self, order: Order) -> None:
        """Cut the calls that are open after the deadline; once none is open, end the process if it is to be removed."""
        if self._worker.leased and time.monotonic() >= self._ends_at:
            self._worker.on_loop(self._cut_calls)
        elif not self._worker.leased and order.kind is OrderKind.REMOVE and worker_state.should_stop is None:
            logger.warning("this node is removed: it stops", extra={"event": "removed", "by": order.by})
            worker_state.should_stop = EX_OK
            self._on_hub(_wake)

    def _cut_calls(self) -> None:
        """Cut all open calls. Their units are noted as interrupted, and go to other workers."""
        cut = sum(gate.cut_calls() for gate in self._worker.gates.values())
        self._cut += cut
        if cut:
            logger.warning("%d calls were open after the deadline: their units are handed back", cut,
                           extra={"event": "drained", "left": cut})  # fmt: skip

    def _on_hub(self, function: Callable[[], None]) -> None:
        self._worker.pool.post(function)


def _wake() -> None:
    """Do nothing: posting this wakes the hub."""


class NodeStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """Announces the node. It is the first step to start and the last to stop."""

    def __init__(self, worker: Any, **kwargs: Any) -> None:
        super().__init__(worker, **kwargs)
        self._beacon: Beacon | None = None

    def include(self, worker: Any) -> None:
        """Insert this step first. Celery orders steps that do not require each other arbitrarily, and a node that left
        before its pool has drained would free the leases of calls that are still open."""
        worker.steps.insert(0, self)

    def start(self, worker: Any) -> None:
        share_one_arena()  # before there are threads that might have made more
        app = worker.app
        app.registry.announce(app.node, app.width.sample())
        self._beacon = Beacon(
            app.registry_maker(),
            app.node,
            app.width.sample,
            lambda: getattr(worker.consumer, "duties", None) or IdleDuties(),
        )
        worker.wake_beacon = self._beacon.wake
        self._beacon.start()

    def stop(self, worker: Any) -> None:
        if self._beacon is not None:
            self._beacon.stop()

    terminate = stop
