"""The nodes of an installation, as operators see and steer them. Several who do so at once see and do the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from dicast.app.cluster.errors import UnknownNode
from dicast.app.cluster.queues import waiting_units
from dicast.app.cluster.view import NodeStatus, NodeView, view
from dicast.workers.admission.holders import read_holder

if TYPE_CHECKING:
    from dicast.config.pools import Pools
    from dicast.config.settings import Settings
    from dicast.workers.broker.profiles import Broker
    from dicast.workers.nodes.registry import Registry
    from dicast.workers.store.connection import StoreClient
    from dicast.workers.store.keys import Keys

Audit = Callable[[str, str, str, str, Mapping[str, Any]], None]
"""Told of each operation: actor, action, object, outcome, details."""


class Installation(Protocol):
    """What the application tells of itself."""

    settings: Settings

    @property
    def pools(self) -> Pools: ...
    @property
    def keys(self) -> Keys: ...
    @property
    def store(self) -> StoreClient: ...
    @property
    def broker(self) -> Broker: ...
    @property
    def registry(self) -> Registry: ...


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """The installation in numbers: calls that all nodes may have open, could begin now, and have open; units that wait
    in the queues, by pool, and for how long the next one has; and what no living node may take, a sentence each."""

    installation: str
    nodes: list[NodeView]
    by_status: dict[str, int]
    capacity: int
    available: int
    open: int
    waiting: dict[str, int]
    oldest_wait_s: float | None
    unsatisfied: list[str]


class Cluster:
    """For any thread that may block; raises redis errors, and the broker's. `audit` is told of each operation."""

    def __init__(self, app: Installation, audit: Audit = lambda *_: None) -> None:
        self._app, self._audit = app, audit

    # ------------------------------------------------------------------ what there is
    def nodes(self, status: NodeStatus | None = None) -> list[NodeView]:
        """All that are known, or those of one status, by name."""
        held = Counter(read_holder(record).node for record in self._app.store.hvals(self._app.keys.holders))
        views = [view(seen, held[seen.node.id]) for seen in self._app.registry.sightings()]
        return [node for node in views if status in (None, node.status)]

    def node(self, node: str) -> NodeView:
        """By its id, or by a name that only one node has; of several of one name, the one that is not offline. Raises
        `UnknownNode`."""
        nodes = self.nodes()
        for found in nodes:
            if found.id == node:
                return found
        named = [found for found in nodes if node in (found.name, found.name.partition("@")[0])]
        heard = [found for found in named if found.status is not NodeStatus.OFFLINE]
        candidates = heard or named
        if len(candidates) == 1:
            return candidates[0]
        if candidates:
            ids = ", ".join(found.id for found in candidates)
            raise UnknownNode(f"{len(candidates)} nodes are called {node}; name one by its id: {ids}")
        raise UnknownNode(f"no node has the id or name {node!r}; dicast cluster nodes lists them")

    def status(self) -> ClusterStatus:
        """All of it, at about one instant."""
        app, nodes = self._app, self.nodes()
        waiting = waiting_units(app, app.pools.pools, app.store, in_store=app.broker.is_store)
        living = [node for node in nodes if node.status is not NodeStatus.OFFLINE]
        working = [node for node in living if node.status is NodeStatus.ONLINE]
        return ClusterStatus(
            installation=app.settings.namespace,
            nodes=nodes,
            by_status={status.value: sum(node.status is status for node in nodes) for status in NodeStatus},
            capacity=sum(node.width for node in working),
            available=sum(node.available for node in working),
            open=sum(node.open for node in nodes),
            waiting=waiting.units,
            oldest_wait_s=waiting.oldest_s,
            unsatisfied=[],
        )
