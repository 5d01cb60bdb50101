"""Nodes: worker processes with a name, a beacon and, when they die, an heir.

A beacon is a key that its node renews each second from a thread of its own, so that neither a busy loop nor a slow
task silences it. Silence for `BEACON_S` lets others take the node's *work* over. Its *leases* are freed only on proof
of death, for a frozen or cut-off node may have calls open: the proof is that its process is gone from this host;
otherwise they end at their deadlines.
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
from dicast.workers.store.connection import StoreClient, connect
from dicast.workers.store.epoch import Epoch
from dicast.workers.store.errors import is_passing
from dicast.workers.store.keys import Keys
from dicast.workers.store.scripts import script_text
from dicast.workers.system.processes import Liveness, Process
from dicast.workers.system.supervision import supervised_thread

logger = logging.getLogger(__name__)

_TICK = Path(__file__).parent / "tick.lua"
_DEREGISTER = Path(__file__).parent / "deregister.lua"

BEACON_S = 15.0
"""Silence, by the lease clock."""
BEACON_EVERY_S = 1.0
BEACON_KEPT_S = 7200.0
"""A beacon that nobody ends, since no node lives, ends by itself so much later: by the server's clock, which may be put
ahead by nearly as much without silencing anybody."""


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

    def __init__(self, client: StoreClient, keys: Keys, epoch: Epoch | None = None) -> None:
        self._redis, self._keys, self._epoch = client, keys, epoch or Epoch()
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
                "", node.id, *epoch.known(node.id), epoch.grace_ms, facts, width, int(BEACON_S * 1000), k.freed,
                k.node(""), int(BEACON_KEPT_S * 1000),
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
        """For people: nodes heard in the last `BEACON_S` by the server's own clock. Where no node lives there is nobody
        to notice the silence of the others."""
        known = [node for node, heard in self.known() if heard]
        pipe = self._redis.pipeline(transaction=False)
        for node in known:
            pipe.pttl(self._keys.node(node.id))
        oldest_ms = (BEACON_KEPT_S - BEACON_S) * 1000
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

    def forget(self, node: Node) -> None:
        """Forget a silent node whose work is taken over; its leases run until their deadlines."""
        self._redis.hdel(self._keys.nodes, node.id)


class Beacon:
    """Renews a node's beacon from a supervised thread until it is stopped; `look` is asked each time for what to tell,
    `stuck` for what the node should take and does not, `judges` for whether it reads the queue of any pool."""

    def __init__(
        self, store_url: str, keys: Keys, node: Node, look: Callable[[], RulesStatus], epoch: Epoch,
        stuck: Callable[[], str], judges: Callable[[], bool] = lambda: True,
    ) -> None:  # fmt: skip
        self._url, self._keys, self._node, self._look = store_url, keys, node, look
        self._epoch, self._stuck, self._judges = epoch, stuck, judges
        self._stop = threading.Event()
        self._thread = supervised_thread("beacon", self._run)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(timeout=5)

    def _run(self) -> None:
        registry = Registry(connect(self._url), self._keys, self._epoch)
        while True:
            node, status = replace(self._node, stuck=self._stuck(), judges=self._judges()), self._look()
            try:
                registry.announce(node, status)
            except (RedisError, OSError) as error:
                if not is_passing(error):
                    raise
                logger.warning("the beacon of %s cannot be renewed: %s", self._node.id, error)
            if self._stop.wait(BEACON_EVERY_S):
                break
        self._epoch.forget(self._node.id)
        try:
            registry.deregister(self._node, "node_left")
        except (RedisError, OSError) as error:
            logger.warning("node %s leaves without a word: %s", self._node.id, error)
