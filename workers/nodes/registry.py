"""Nodes: worker processes with a name, a beacon and, when they die, an heir.

A beacon is a key that its node renews each second from a thread of its own, so that neither a busy loop nor a slow
task silences it. Silence for `NodeIntervals.beacon_s` lets others take the node's *work* over. Its *leases* are freed
only on proof of death, for a frozen or cut-off node may have calls open: the proof is that its process is gone from
this host; otherwise they end at their deadlines.
"""

from __future__ import annotations

import logging
import secrets
import socket
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from urllib.parse import quote

import orjson
from pydantic import TypeAdapter, ValidationError
from redis.exceptions import RedisError

from dicast.workers.admission.leases import tell_ended
from dicast.workers.policy.rules import RulesStatus
from dicast.workers.store.connection import StoreClient
from dicast.workers.store.epoch import Epoch
from dicast.workers.store.errors import is_passing
from dicast.workers.store.keys import Keys
from dicast.workers.store.scripts import script_text
from dicast.workers.system.processes import Liveness, Process
from dicast.workers.system.supervision import supervised_thread

logger = logging.getLogger(__name__)

_TICK = Path(__file__).parent / "tick.lua"
_DEREGISTER = Path(__file__).parent / "deregister.lua"


@dataclass(frozen=True, slots=True)
class NodeIntervals:
    """When nodes are heard, and for how long they are believed to live."""

    beacon_s: float = 15.0
    """Silence for so long, by the lease clock, lets others take a node's work over: a starved process on a busy machine
    must not be taken for a silent one."""
    beacon_every_s: float = 1.0
    """How often a node renews its beacon: several times in `beacon_s`, so that a lost command silences nobody."""
    beacon_kept_s: float = 7200.0
    """A beacon that nobody ends, since no node lives, ends by itself so much later: by the server's clock, which may be
    put ahead by nearly as much without silencing anybody."""


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
    """Queues with work that it should take and does not."""
    judges: bool = True
    """Whether it reads the queue of any pool."""

    @classmethod
    def here(cls, name: str, *, limit: int, slots: int) -> Node:
        """This process under Celery's node name. Two workers of one name still get two ids."""
        process = Process.here()
        return cls(
            id=f"{quote(name, safe='@')}#{secrets.token_hex(4)}",
            name=name,
            limit=limit,
            slots=slots,
            host=socket.gethostname(),
            boot=process.boot,
            pid=process.pid,
            started=process.started,
        )

    @classmethod
    def read(cls, facts: str) -> Node | None:
        """A node as it was announced, perhaps by another version: facts that are unknown here are left out, and those
        that are missing prove nothing. None if this is no node."""
        try:
            return _NODE.validate_json(facts)
        except ValidationError:
            return None

    def proven_dead(self) -> bool:
        """True only if the process ran on this very host since its boot and is gone."""
        if self.host != socket.gethostname():
            return False
        return Process(self.pid, self.boot, int(self.started)).fate() is Liveness.GONE


_NODE = TypeAdapter(Node)


_TOLD = {f.name for f in fields(RulesStatus)}
"""What is understood of a beacon that another version may have written."""


class Registry:
    """The store's list of nodes: the facts of each, kept until its heirs have taken over, and its beacon."""

    def __init__(
        self, client: StoreClient, keys: Keys, epoch: Epoch | None = None, intervals: NodeIntervals = STANDARD
    ) -> None:
        self._redis, self._keys, self._epoch, self.intervals = client, keys, epoch or Epoch(), intervals
        self._tick = client.register_script(script_text(_TICK))
        self._bury = client.register_script(script_text(_DEREGISTER))

    def announce(self, node: Node, status: RulesStatus | None = None) -> None:
        """Renew a node's beacon, which tells its width, keep the lease clock going and end leases that are over while
        nobody calls, and compare epochs."""
        k, epoch, facts = self._keys, self._epoch, orjson.dumps(asdict(node))
        width = orjson.dumps(status) if status is not None else b"{}"
        _, number, told, server, over = self._tick(
            keys=[
                k.clock, k.epoch, k.nodes, k.node(node.id), k.leases, k.holders, k.open, k.nodes_heard, k.nodes_silent,
            ],
            args=[
                "", node.id, *epoch.known(node.id), epoch.grace_ms, facts, width,
                int(self.intervals.beacon_s * 1000), k.freed, k.node(""), int(self.intervals.beacon_kept_s * 1000),
            ],
        )  # fmt: skip
        tell_ended(over, "expired")
        self._epoch.learn(node.id, number, told)
        self._epoch.server = server

    def known(self) -> list[tuple[Node, bool]]:
        """Every node that is not deregistered yet, and whether its beacon can be heard."""
        nodes = [node for facts in self._redis.hvals(self._keys.nodes) if (node := Node.read(facts)) is not None]
        if not nodes:
            return []
        heard = self._redis.mget([self._keys.node(n.id) for n in nodes])
        return sorted(((n, beacon is not None) for n, beacon in zip(nodes, heard, strict=True)), key=lambda x: x[0].id)

    def alive(self) -> list[Node]:
        """For people: nodes heard in the last `beacon_s` by the server's own clock. Where no node lives there is nobody
        to notice the silence of the others."""
        known = [node for node, heard in self.known() if heard]
        pipe = self._redis.pipeline(transaction=False)
        for node in known:
            pipe.pttl(self._keys.node(node.id))
        oldest_ms = (self.intervals.beacon_kept_s - self.intervals.beacon_s) * 1000
        return [node for node, left_ms in zip(known, pipe.execute(), strict=True) if left_ms >= oldest_ms]

    def statuses(self) -> list[tuple[Node, RulesStatus]]:
        """The widths of the living nodes that tell theirs."""
        alive = self.alive()
        told = self._redis.mget([self._keys.node(node.id) for node in alive]) if alive else []
        return [
            (node, RulesStatus(**{name: value for name, value in status.items() if name in _TOLD}))
            for node, text in zip(alive, told, strict=True)
            if text and (status := orjson.loads(text))
        ]

    def silence(self, node: Node) -> None:
        """End the beacon of a node that is proven dead: from now on its work may be claimed."""
        self._redis.delete(self._keys.node(node.id))

    def deregister(self, node: Node, reason: str = "node_lost") -> int:
        """Forget a node that is proven dead, or has left, and free its leases; returns how many it still held."""
        k = self._keys
        keys = [k.leases, k.holders, k.open, k.nodes, k.node(node.id), k.epoch, k.nodes_heard, k.nodes_silent]
        return tell_ended(self._bury(keys=keys, args=[node.id, k.freed]), reason)

    def leave(self, node: Node) -> None:
        """This process is the node, and ends; its epoch is not compared any more."""
        self._epoch.forget(node.id)
        self.deregister(node, "node_left")

    def forget(self, node: Node) -> None:
        """Forget a silent node whose work is taken over; its leases run until their deadlines."""
        self._redis.hdel(self._keys.nodes, node.id)


class Beacon:
    """Renews a node's beacon from a supervised thread until it is stopped. `make_registry` makes the thread one of its
    own; `look` is asked each time for what to tell, `stuck` for what the node should take and does not, `judges` for
    whether it reads the queue of any pool."""

    def __init__(
        self, make_registry: Callable[[], Registry], node: Node, look: Callable[[], RulesStatus],
        stuck: Callable[[], str], judges: Callable[[], bool] = lambda: True,
    ) -> None:  # fmt: skip
        self._make_registry, self._node, self._look = make_registry, node, look
        self._stuck, self._judges = stuck, judges
        self._stop = threading.Event()
        self._thread = supervised_thread("beacon", self._run)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(timeout=5)

    def _run(self) -> None:
        registry = self._make_registry()
        while True:
            node, status = replace(self._node, stuck=self._stuck(), judges=self._judges()), self._look()
            try:
                registry.announce(node, status)
            except (RedisError, OSError) as error:
                if not is_passing(error):
                    raise
                logger.warning("the beacon of %s cannot be renewed: %s", self._node.id, error)
            if self._stop.wait(registry.intervals.beacon_every_s):
                break
        try:
            registry.leave(self._node)
        except (RedisError, OSError) as error:
            logger.warning("node %s leaves without a word: %s", self._node.id, error)
