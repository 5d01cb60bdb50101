"""The thread that renews a node's beacon, and reads operators' orders for the node from the answer."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from redis.exceptions import RedisError

from dicast.workers.nodes.registry import Node, Order, Registry, Vitals
from dicast.workers.policy.rules import RulesStatus
from dicast.workers.store.connection import is_passing
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
