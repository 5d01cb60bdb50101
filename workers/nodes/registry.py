"""The registry of nodes: worker processes with a name and a beacon, whose work others take over when they die.

A beacon is a key that its node renews each second from a thread of its own, so that neither a busy loop nor a slow task
silences it. Silence for `NodeIntervals.beacon_s` lets others take the node's *work* over. Its *leases* are freed only
on proof of death, for a frozen or cut-off node may have calls open: the proof is that its process is gone from this
host; otherwise they end at their deadlines.

Operators' orders are kept in the store until they are taken back (`Orders`); requests are for now, and are lost if the
node is not listening (`Requests`). A node reads its order in the answer to its beacon, and is woken over a channel so
that it reads it at once. It acknowledges the order in its next beacon; by then no call begins there any more. The store
itself grants nothing to a node that has an order (`workers/admission/admit.lua`), from the moment it is written.
"""

from __future__ import annotations

import logging
import secrets
import socket
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import Any
from urllib.parse import quote

import orjson
from pydantic import TypeAdapter, ValidationError

from dicast.workers.admission.leases import log_ended
from dicast.workers.policy.rules import RulesStatus
from dicast.workers.store.connection import StoreClient
from dicast.workers.store.keys import Keys
from dicast.workers.store.scripts import Epoch, script_text
from dicast.workers.system.processes import Liveness, Process

logger = logging.getLogger(__name__)

_SET = Path(__file__).parent / "order.lua"


class OrderKind(StrEnum):
    CORDON = "cordon"
    """Begin no calls."""
    DRAIN = "drain"
    """Begin no calls, and hand back what is not done at the deadline."""
    REMOVE = "remove"
    """Begin no calls, hand back what is not done at the deadline, and end the process."""


@dataclass(frozen=True, slots=True)
class Order:
    """An order for a node. `id` distinguishes it from others of its kind. `at` is Unix seconds by the store's clock.
    `deadline_s`, of a drain or a removal, counts from when the node reads the order."""

    id: str
    kind: OrderKind
    by: str = ""
    at: float = 0.0
    deadline_s: float = 0.0

    @classmethod
    def read(cls, text: str | None) -> Order | None:
        """Parse an order; None if there is none, or if it is of a version that knows other orders."""
        if not text:
            return None
        try:
            return _ORDER.validate_json(text)
        except ValidationError:
            return None


_ORDER = TypeAdapter(Order)


@dataclass(frozen=True, slots=True)
class GiveBack:
    """A request to put messages that wait for a lease back into their queues: how many of each pool."""

    id: str
    node: str
    units: Mapping[str, int]

    @classmethod
    def read(cls, text: str) -> GiveBack | None:
        """Parse a request; None if the text is none."""
        try:
            return _GIVE_BACK.validate_json(text)
        except ValidationError:
            return None


_GIVE_BACK = TypeAdapter(GiveBack)
REPLIES_KEPT_S = 10


class Requests:
    """Sends requests to nodes. A node that is not listening does not answer."""

    def __init__(self, client: StoreClient, keys: Keys) -> None:
        self._redis, self._keys = client, keys

    def give_back(self, units: Mapping[str, Mapping[str, int]], wait_s: float) -> dict[str, dict[str, int]]:
        """Have each of these nodes give back so many messages of each pool; returns how many each gave back, for the
        nodes that answered in time."""
        id_, replies = secrets.token_hex(8), dict[str, dict[str, int]]()
        for node, counts in units.items():
            self._redis.publish(self._keys.notices, orjson.dumps(GiveBack(id_, node, counts)))
        end = time.monotonic() + wait_s
        while len(replies) < len(units) and (left_s := end - time.monotonic()) > 0:
            reply = self._redis.blpop([self._keys.given_back(id_)], timeout=left_s)
            if reply is not None:
                node, returned = orjson.loads(reply[1])
                replies[node] = returned
        return replies


class Orders:
    """The store's list of orders."""

    def __init__(self, client: StoreClient, keys: Keys) -> None:
        self._redis, self._keys = client, keys
        self._set = client.register_script(script_text(_SET))

    def give(
        self, node: str, kind: OrderKind, *, by: str, deadline_s: float = 0.0, busy: bool = True
    ) -> tuple[Order, int]:
        """Give a node an order; returns the order in force, and how many leases the node holds.

        If an order of the same kind and deadline is in force it is kept, so that a repeated order has no effect. A
        removal is never replaced. Unless `busy`, no order is given to a node that holds leases: the returned order has
        no id then. If there is no such node, the order has no id and the number of leases is -1.
        """
        at = self._redis.time()[0]
        order = Order(secrets.token_hex(8), kind, by, at, deadline_s)
        standing, leases = self._set(
            keys=self._own_keys(),
            args=[node, orjson.dumps(order), "1" if busy else "", self._keys.notices],
        )
        return Order.read(standing) or Order("", kind, by, at, deadline_s), leases

    def take_back(self, node: str) -> None:
        """Take back the node's order, unless the node is to be removed."""
        self._set(keys=self._own_keys(), args=[node, "", "1", self._keys.notices])

    def _own_keys(self) -> list[str]:
        k = self._keys
        return [k.orders, k.holders, k.nodes, k.gone_facts]

    def all(self) -> dict[str, Order]:
        """Return all orders in force, by node."""
        stored = self._redis.hgetall(self._keys.orders).items()
        return {node: order for node, text in stored if (order := Order.read(text)) is not None}

    def standing(self, node: str) -> Order | None:
        """Return the order in force for a node; None if there is none."""
        return Order.read(self._redis.hget(self._keys.orders, node))


_TICK = Path(__file__).parent / "tick.lua"
_DEREGISTER = Path(__file__).parent / "deregister.lua"
_FORGET = Path(__file__).parent / "forget.lua"

LOST = "node_lost"
DEAD, SILENT = "its process is gone", "it fell silent"
"""Why a node is listed that is no longer reachable."""


@dataclass(frozen=True, slots=True)
class NodeIntervals:
    """How often nodes renew their beacons, and for how long they count as alive."""

    beacon_s: float = 15.0
    """Others take a node's work over after this much silence, by the lease clock. It is long enough that a starved
    process on a busy machine does not count as silent."""
    beacon_every_s: float = 1.0
    """How often a node renews its beacon: several times in `beacon_s`, so that a lost command silences nobody."""
    beacon_kept_s: float = 7200.0
    """How long a beacon is kept at most, by the server's clock, if no living node ends it earlier. The clock may be put
    ahead by nearly as much without silencing a node."""


STANDARD = NodeIntervals()


@dataclass(frozen=True, slots=True)
class Node:
    """One worker process. `id` is unique over restarts, `name` is Celery's; `boot`, `pid` and `started` are its process
    (see `dicast.workers.system.processes`)."""

    id: str
    name: str
    limit: int
    slots: int
    host: str = ""
    boot: str = ""
    pid: int = 0
    started: float = 0
    stuck: str = ""
    """The work that it should take and does not, as a sentence; '' if all is well."""
    judges: bool = True
    """Whether it reads the queue of any pool."""
    labels: Mapping[str, str] = field(default_factory=dict)
    pools: tuple[str, ...] = ()
    """Pools whose units it takes: it reads their queues, and has their keys and labels."""
    missing_keys: tuple[str, ...] = ()
    """Pools whose key it lacks."""
    missing_extras: tuple[str, ...] = ()
    """Optional parts of this program whose libraries it lacks, by their names in its package."""
    queues: tuple[str, ...] = ()
    """All queues that it reads, by their names at the broker."""
    version: str = ""
    """Dicast's version; '' for a version that does not report labels, pools and queues."""
    memory_bytes: int = 0
    """The total memory of its host."""
    accelerators: tuple[str, ...] = ()
    order_seen: str = ""
    """The id of the order that it has acknowledged."""

    @classmethod
    def for_this_process(cls, name: str, *, limit: int, slots: int, **facts: Any) -> Node:
        """Return this process as a node under Celery's node name, with further facts. Two workers with the same name
        get different ids."""
        process = Process.current()
        return cls(
            id=f"{quote(name, safe='@')}#{secrets.token_hex(4)}",
            name=name,
            limit=limit,
            slots=slots,
            host=socket.gethostname(),
            boot=process.boot,
            pid=process.pid,
            started=process.started,
            **facts,
        )

    @classmethod
    def read(cls, facts: str) -> Node | None:
        """Parse a node as it was announced, perhaps by another version: unknown facts are left out, missing ones have
        their defaults. None if this is no node."""
        try:
            return _NODE.validate_json(facts)
        except ValidationError:
            return None

    def proven_dead(self) -> bool:
        """Return True only if the process ran on this host since its last boot, and is gone."""
        if self.host != socket.gethostname():
            return False
        return Process(self.pid, self.boot, int(self.started)).fate() is Liveness.GONE


_NODE = TypeAdapter(Node)


@dataclass(frozen=True, slots=True)
class Vitals:
    """A node's present work, as its beacon reports it: open calls, free slots for calls, messages by pool that it has
    taken and that wait for a lease, the used memory of its host, and open calls that were cut at its order's
    deadline."""

    open: int = 0
    available: int = 0
    held: Mapping[str, int] = field(default_factory=dict)
    memory_used_bytes: int = 0
    cut: int = 0


@dataclass(frozen=True, slots=True)
class Sighting:
    """One node as the store knows it. `heard_s_ago` is None if it is unreachable, and `gone` says why. `is_given_up`
    says that others have taken over from it. `registered_at` is Unix seconds; `width` is what its beacon reported
    last."""

    node: Node
    generation: int = 0
    registered_at: float = 0.0
    heard_s_ago: float | None = None
    lost_reason: str = ""
    order: Order | None = None
    width: RulesStatus | None = None
    vitals: Vitals = Vitals()
    is_given_up: bool = False


_VITALS_FIELDS = {f.name for f in fields(Vitals)}
_WIDTH_FIELDS = {f.name for f in fields(RulesStatus)}
"""The fields that are read of a beacon, which another version may have written."""


class Registry:
    """The store's list of nodes: the facts of each, kept until others have taken over from it, and its beacon."""

    def __init__(
        self, client: StoreClient, keys: Keys, epoch: Epoch | None = None, intervals: NodeIntervals = STANDARD
    ) -> None:
        self._redis, self._keys, self._epoch, self.intervals = client, keys, epoch or Epoch(), intervals
        self._tick = client.register_script(script_text(_TICK))
        self._bury = client.register_script(script_text(_DEREGISTER))
        self._forget = client.register_script(script_text(_FORGET))

    def announce(self, node: Node, status: RulesStatus | None = None, vitals: Vitals | None = None) -> Order | None:
        """Renew a node's beacon, with its width and its work; returns the node's order.

        This also advances the lease clock, ends leases that have expired, and compares epochs, so that all of it
        happens even while no calls are made.
        """
        k, epoch, facts = self._keys, self._epoch, orjson.dumps(asdict(node))
        beacon = orjson.dumps({**(asdict(status) if status else {}), **(asdict(vitals) if vitals else {})})
        _, number, answers, server, over, _, order = self._tick(
            keys=[
                k.clock, k.epoch, k.nodes, k.node(node.id), k.leases, k.holders, k.open, k.nodes_heard, k.nodes_silent,
                k.nodes_registered, k.nodes_gone, k.gone_facts, k.orders,
            ],
            args=[
                "", node.id, *epoch.knowledge(node.id), epoch.grace_ms, facts, beacon,
                int(self.intervals.beacon_s * 1000), k.freed, k.node(""), int(self.intervals.beacon_kept_s * 1000),
            ],
        )  # fmt: skip
        log_ended(over, "expired")
        self._epoch.learn(node.id, number, answers)
        self._epoch.server = server
        return Order.read(order)

    def registered(self) -> list[tuple[Node, bool]]:
        """Return every registered node, and whether it is reachable (has a beacon)."""
        nodes = [node for facts in self._redis.hvals(self._keys.nodes) if (node := Node.read(facts)) is not None]
        if not nodes:
            return []
        beacons = self._redis.mget([self._keys.node(n.id) for n in nodes])
        return sorted(
            ((n, beacon is not None) for n, beacon in zip(nodes, beacons, strict=True)), key=lambda x: x[0].id
        )

    def alive(self) -> list[Node]:
        """Return the nodes that renewed their beacons in the last `beacon_s` by the server's own clock, for display.
        This is right also when no node is alive to notice the silence of others."""
        reachable = [node for node, is_reachable in self.registered() if is_reachable]
        pipe = self._redis.pipeline(transaction=False)
        for node in reachable:
            pipe.pttl(self._keys.node(node.id))
        oldest_ms = (self.intervals.beacon_kept_s - self.intervals.beacon_s) * 1000
        return [node for node, left_ms in zip(reachable, pipe.execute(), strict=True) if left_ms >= oldest_ms]

    def statuses(self) -> list[tuple[Node, RulesStatus]]:
        """Return the widths of the living nodes that report theirs."""
        alive = self.alive()
        beacons = self._redis.mget([self._keys.node(node.id) for node in alive]) if alive else []
        return [
            (node, width)
            for node, text in zip(alive, beacons, strict=True)
            if text and (width := _width(orjson.loads(text))) is not None
        ]

    def sightings(self) -> list[Sighting]:
        """Return every known node by name: the living and, for a day, the dead and silent ones. After a restart of the
        store, a node is unreachable until it renews its beacon."""
        k = self._keys
        pipe = self._redis.pipeline(transaction=False)
        for key in (k.nodes, k.nodes_registered, k.orders, k.gone_facts):
            pipe.hgetall(key)
        pipe.zrange(k.nodes_gone, 0, -1, withscores=True)
        pipe.info("server")
        facts, registered, orders, lost, gone_at, server = pipe.execute()
        nodes = [node for text in facts.values() if (node := Node.read(text)) is not None]
        for node in nodes:
            pipe.get(k.node(node.id))
            pipe.pttl(k.node(node.id))
        beacons = pipe.execute() if nodes else []
        sightings = []
        for node, beacon, left_ms in zip(nodes, beacons[::2], beacons[1::2], strict=True):
            mark = registered.get(node.id, "0|0|").split("|")
            order, restarted = Order.read(orders.get(node.id)), mark[2] != server["run_id"]
            sightings.append(self._sighting(node, mark, beacon, left_ms, order, restarted=restarted))
        for id_, _ in gone_at:
            mark, _, text = lost.get(id_, "").partition("\n")
            node, order = Node.read(text), Order.read(orders.get(id_))
            if node is not None:
                generation, registered_ms, why = mark.split("|", 2)
                sightings.append(
                    Sighting(
                        node, int(generation), int(registered_ms) / 1000, lost_reason=why, order=order, is_given_up=True
                    )
                )
        return sorted(sightings, key=lambda sighting: (sighting.node.name, sighting.node.id))

    def _sighting(
        self, node: Node, mark: list[str], beacon: str | None, left_ms: int, order: Order | None, *, restarted: bool
    ) -> Sighting:
        heard_s_ago = self.intervals.beacon_kept_s - left_ms / 1000
        why = ""
        if beacon is None or heard_s_ago > self.intervals.beacon_s:
            why = SILENT
        elif restarted:
            why = "it has not been heard since the store was started again"
        facts = orjson.loads(beacon) if beacon else {}
        return Sighting(
            node, int(mark[0]), int(mark[1]) / 1000, None if why else max(0.0, heard_s_ago), why, order, _width(facts),
            Vitals(**{name: value for name, value in facts.items() if name in _VITALS_FIELDS}),
        )  # fmt: skip

    def facts(self, node: str) -> Node | None:
        """Return the facts of one node; None if it is not registered."""
        text = self._redis.hget(self._keys.nodes, node)
        return Node.read(text) if text else None

    def silence(self, node: Node) -> None:
        """End the beacon of a node that is proven dead, so that its work may be claimed."""
        self._redis.delete(self._keys.node(node.id))

    def deregister(self, node: Node, reason: str = LOST) -> int:
        """Forget a node that is proven dead, or has left, and free its leases; returns how many were freed.

        Leases of pools whose providers may still be working on its calls count until their deadlines. Dead nodes stay
        listed for a day.
        """
        k = self._keys
        keys = [
            k.leases, k.holders, k.open, k.nodes, k.node(node.id), k.epoch, k.nodes_heard, k.nodes_silent,
            k.nodes_registered, k.nodes_gone, k.gone_facts, k.orders,
        ]  # fmt: skip
        freed, cut = self._bury(keys=keys, args=[node.id, k.freed, DEAD if reason == LOST else ""])
        if cut:
            logger.warning(
                "%d calls of node %s were cut: they count until their deadlines, as the provider may still be working "
                "on them", cut, node.id, extra={"event": "cut_at_end", "node": node.id, "calls": cut},
            )  # fmt: skip
        return log_ended(freed, reason)

    def leave(self, node: Node) -> None:
        """Deregister this process as a node, because it ends; its epoch is no longer compared."""
        self._epoch.forget(node.id)
        self.deregister(node, "node_left")

    def forget(self, node: Node) -> None:
        """Forget a silent node whose work has been taken over; its leases run until their deadlines. It stays listed
        for a day, and has a new generation when it registers again."""
        k = self._keys
        self._forget(keys=[k.nodes, k.nodes_registered, k.nodes_gone, k.gone_facts], args=[node.id, SILENT])


def _width(facts: Mapping[str, Any]) -> RulesStatus | None:
    known_fields = {name: value for name, value in facts.items() if name in _WIDTH_FIELDS}
    return RulesStatus(**known_fields) if known_fields else None
