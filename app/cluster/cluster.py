"""The nodes of an installation, as operators see and control them. Several operators may do so at once.

Beside the operations stand their errors, and two questions about an installation: how many messages wait in the pools'
queues (`waiting_units`), and which pools' work no living node takes, and why (`unsatisfied`, which is pure).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

import orjson

from dicast.app.access.keys import AccessKeys
from dicast.app.cluster.view import NodeStatus, NodeView, missing_labels, status_of, view
from dicast.app.domain.text import counted, first_few
from dicast.config.pools import PoolSpec
from dicast.errors import DicastError, meant
from dicast.workers.admission.leases import read_holder
from dicast.workers.admission.request import HEADER, QUEUE_PREFIX, SENT
from dicast.workers.nodes.reaper import restore_messages
from dicast.workers.nodes.registry import SILENT, OrderKind, Orders, Requests
from dicast.workers.policy.wanted import HOUSEKEEPER, Load, Transfer, transfers
from dicast.workers.store.connection import StoreClient

if TYPE_CHECKING:
    from dicast.app.ledger.client import LedgerClient
    from dicast.config.pools import Pools
    from dicast.config.settings import Settings
    from dicast.workers.broker.profiles import Broker
    from dicast.workers.nodes.registry import Registry, Sighting
    from dicast.workers.store.keys import Keys


class UnknownNode(DicastError, LookupError):
    """No node has this id, or not exactly one has this name."""

    problem = "unknown-node"


class BadDeadline(DicastError, ValueError):
    """The deadline is not a number of seconds, or longer than a day."""

    problem = "request-refused"


class NodeLeaves(DicastError):
    """The node is being removed, and takes no other order."""

    problem = "node-leaves"

    def __init__(self, node: str) -> None:
        super().__init__(f"node {node} is being removed, which cannot be taken back; start a worker in its place")


class NodeBusy(DicastError):
    """The node has `open` calls open, and is not removed unless that is forced."""

    problem = "node-busy"

    def __init__(self, node: str, open_calls: int) -> None:
        super().__init__(f"node {node} has {counted(open_calls, 'call')} open: drain it first, or force it")
        self.node, self.open = node, open_calls


@dataclass(frozen=True, slots=True)
class Waiting:
    """The waiting messages by pool, without pools that have none; and how long the next one has waited, None if that is
    not known."""

    units: dict[str, int]
    oldest_s: float | None = None


def waiting_units(app: Any, pools: Iterable[str], store: StoreClient, *, in_store: bool) -> Waiting:
    """Ask the broker how many messages wait. Raises its errors."""
    return _in_store(app, pools, store) if in_store else Waiting(_declared(app, pools))


def _in_store(app: Any, pools: Iterable[str], store: StoreClient) -> Waiting:
    names = list(pools)
    pipe = store.pipeline(transaction=False)
    for pool in names:
        queue = app.amqp.queues[QUEUE_PREFIX + pool].name
        pipe.llen(queue)
        pipe.lindex(queue, -1)
    pipe.time()
    *replies, time = pipe.execute()
    counts = {pool: count for pool, count in zip(names, replies[::2], strict=True) if count}
    sent = [at for message in replies[1::2] if message and (at := _sent_at(message)) is not None]
    return Waiting(counts, max(0.0, time[0] + time[1] / 1e6 - min(sent)) if sent else None)


def _sent_at(message: str) -> float | None:
    try:
        at = orjson.loads(message)["headers"][HEADER][SENT]
    except (ValueError, TypeError, KeyError):
        return None
    return float(at) if isinstance(at, int | float) else None


def _declared(app: Any, pools: Iterable[str]) -> dict[str, int]:
    counts = {}
    with app.connection_for_read() as connection:
        for pool in pools:
            channel = connection.channel()
            try:
                queue = app.amqp.queues[QUEUE_PREFIX + pool](channel)
                counts[pool] = int(queue.queue_declare(passive=True).message_count)
            except connection.channel_errors:  # nobody has declared it yet, and the channel is closed over that
                continue
            finally:
                channel.close()
    return {pool: count for pool, count in counts.items() if count}


NODES_TOLD = 3


def unsatisfied(specs: Iterable[PoolSpec], nodes: Sequence[NodeView]) -> dict[str, str]:
    """Return a sentence for each pool whose units no living node takes; none while there is no node, or while one of
    them has a version that does not report what it serves."""
    living = [node for node in nodes if node.status is not NodeStatus.OFFLINE]
    if not living or not all(node.version for node in living):
        return {}
    return {spec.name: why for spec in specs if (why := _why(spec, living))}


def _why(spec: PoolSpec, living: Sequence[NodeView]) -> str:
    serving = [node for node in living if spec.name in node.pools]
    if any(node.status in (NodeStatus.ONLINE, NodeStatus.DEGRADED) for node in serving):
        return ""
    waits = f"the units of pool {spec.name} wait, for no living node takes them"
    if serving:
        return f"{waits}: cordoned is {first_few((node.name for node in serving), NODES_TOLD)}"
    reasons = [f"{node.name} {why}" for node in living if (why := _lacking(spec, node))]
    return f"{waits}: {first_few(reasons, NODES_TOLD)}" if reasons else f"{waits}: none reads its queue"


def _lacking(spec: PoolSpec, node: NodeView) -> str:
    if spec.name in node.missing_keys:
        return f"has no {spec.api_key_env}"
    missing = missing_labels(spec.labels, node.labels)
    return f"lacks the label {missing}" if missing else ""


ACKNOWLEDGED_LOOK_S = 0.01
DEADLINE_MAX_S = 86_400.0
LOOK_EVERY_MS = 900
"""The least time between two looks: a little less than the second after which each caller asks again."""
ANSWERED_S = 1.0
"""How long to wait for nodes that are asked to give messages back."""

Audit = Callable[[str, str, str, str, Mapping[str, Any]], object]
"""Called with each operation: actor, action, object, outcome, details."""


class OrderOutcome(StrEnum):
    """The outcome of an order, for the audit."""

    DONE = "done"
    NOT_ACKNOWLEDGED = "not acknowledged"
    GONE = "gone"
    """The node has left meanwhile."""
    SUPERSEDED = "superseded"
    """There is another order by now."""


REVOKED = "its token was revoked"
"""Why a node is unreachable whose store user was deleted."""


class ClusterParts(Protocol):
    """What the cluster needs of the application."""

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
    @property
    def ledger(self) -> LedgerClient: ...
    @property
    def nothing_stored(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """The installation in numbers: how many calls all nodes may have open, could begin now, and have open; the units
    waiting in the queues, by pool, and how long the next one has waited; and what no living node takes, one sentence
    each."""

    installation: str
    nodes: list[NodeView]
    by_status: dict[str, int]
    capacity: int
    available: int
    open: int
    waiting: dict[str, int]
    oldest_wait_s: float | None
    unsatisfied: list[str]


@dataclass(frozen=True, slots=True)
class Steal:
    """The units that went back for idle nodes: (donor, intended receiver, units). Any idle node may take them."""

    moves: list[tuple[str, str, int]]

    @property
    def total(self) -> int:
        return sum(units for _, _, units in self.moves)


class Cluster:
    """The nodes of one installation; for any thread that may block. Raises redis errors, and those of the broker.
    `audit` is called with each operation; `wait_s` is how long to wait for a node's acknowledgement, at most."""

    def __init__(self, app: ClusterParts, audit: Audit = lambda *_: None, wait_s: float = 3.0) -> None:
        self._app, self._audit, self._wait_s = app, audit, wait_s

    # ------------------------------------------------------------------ what there is
    def nodes(self, status: NodeStatus | None = None) -> list[NodeView]:
        """Return all known nodes, or those of one status, by name."""
        if self._app.nothing_stored:
            return []
        holders = map(read_holder, self._app.store.hvals(self._app.keys.holders))
        open_calls = Counter(holder.node for holder in holders if not holder.cut)
        revoked = self._revoked()
        sightings = [
            replace(sighting, lost_reason=REVOKED)
            if sighting.lost_reason == SILENT and sighting.node.id in revoked
            else sighting
            for sighting in self._app.registry.sightings()
            if not _is_removed(sighting)
        ]
        views = [view(sighting, open_calls[sighting.node.id]) for sighting in sightings]
        return [node for node in views if status in (None, node.status)]

    def _revoked(self) -> Collection[str]:
        """Return the ids of nodes whose tokens were revoked; none on a node that joined over HTTP, which may not read
        them."""
        if self._app.settings.joins:
            return ()
        return set(self._app.store.hkeys(AccessKeys(self._app.settings.namespace).generations))

    def node(self, node: str) -> NodeView:
        """Return a node by its id, or by a name that only one node has; of several with one name, the one that is not
        offline. Raises `UnknownNode`."""
        nodes = self.nodes()
        for candidate in nodes:
            if candidate.id == node:
                return candidate
        same_name = [candidate for candidate in nodes if node in (candidate.name, candidate.name.partition("@")[0])]
        reachable = [candidate for candidate in same_name if candidate.status is not NodeStatus.OFFLINE]
        candidates = reachable or same_name
        if len(candidates) == 1:
            return candidates[0]
        if candidates:
            ids = ", ".join(candidate.id for candidate in candidates)
            raise UnknownNode(f"{len(candidates)} nodes are called {node}; name one by its id: {ids}")
        near = meant(node, [name for other in nodes for name in (other.id, other.name)])
        raise UnknownNode(f"no node has the id or name {node!r}{near or '; dicast cluster nodes lists them'}")

    def status(self) -> ClusterStatus:
        """Return the installation in numbers, all at about one instant."""
        app, nodes = self._app, self.nodes()
        waiting = (
            Waiting({})
            if app.nothing_stored
            else waiting_units(app, app.pools.pools, app.store, in_store=app.broker.is_store)
        )
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
            unsatisfied=[why for pool, why in self.unsatisfied(nodes).items() if pool in waiting.units],
        )

    def unsatisfied(self, nodes: Sequence[NodeView] | None = None) -> dict[str, str]:
        """Return the pools whose units no living node takes, each with a sentence that says why."""
        return unsatisfied(self._app.pools.pools.values(), self.nodes() if nodes is None else nodes)

    # ------------------------------------------------------------------ what is done
    def cordon(self, node: str, *, by: str) -> NodeView:
        """Have a node begin no calls until it is uncordoned; what waits there goes back to the queues. The store grants
        it nothing from now on. Once the node has acknowledged the order, as its view shows, no call that was granted
        before begins any more, either."""
        return self._order(node, OrderKind.CORDON, by, 0.0)

    def drain(self, node: str, *, by: str, deadline_s: float = 60.0) -> NodeView:
        """Cordon a node; calls that are still open at the deadline are cut, and their units handed back. The node stays
        cordoned, and its view shows how many calls were cut. Raises `ValueError` for an invalid deadline."""
        if not 0 <= deadline_s <= DEADLINE_MAX_S:
            raise BadDeadline(f"deadline_s must be from 0 to {DEADLINE_MAX_S:g}, got {deadline_s:g}")
        return self._order(node, OrderKind.DRAIN, by, deadline_s)

    def uncordon(self, node: str, *, by: str) -> NodeView:
        """Have a node take work again. Raises `NodeLeaves` if it is being removed."""
        target = self.node(node)
        orders = Orders(self._app.store, self._app.keys)
        orders.take_back(target.id)
        standing = orders.standing(target.id)
        if standing is not None and standing.kind is OrderKind.REMOVE:
            self._audit(by, "node.uncordon", target.id, "refused", {})
            raise NodeLeaves(target.id)
        return self._acknowledged(target, "", by, "node.uncordon")

    def remove(self, node: str, *, by: str, force: bool = False) -> None:
        """End a node's process, and no longer list it.

        Raises `NodeBusy` for a node with open calls; with `force` they are cut, and their units handed back. The
        messages of an unreachable node go back to the queues, and its leases count until their deadlines; if it comes
        back, it ends.
        """
        target = self.node(node)
        order, leases = Orders(self._app.store, self._app.keys).give(target.id, OrderKind.REMOVE, by=by, busy=force)
        if leases < 0:
            raise _just_left(target)
        if not order.id:
            self._audit(by, "node.remove", target.id, "refused", {"open": leases})
            raise NodeBusy(target.id, leases)
        if target.status is not NodeStatus.OFFLINE:
            self._wait(lambda: self._app.registry.facts(target.id) is None)
        elif self._app.broker.is_store:  # other nodes do so soon, if there are any
            restore_messages(self._app, self._app.keys, target.id, lost=True)
        self._audit(by, "node.remove", target.id, "done", {"open": leases, "forced": force})

    def steal(self, *, by: str, queue_depths: Mapping[str, int] | None = None) -> Steal:
        """Have messages that wait at overloaded nodes, or at nodes that take no work, go back to their queues for idle
        nodes.

        `queue_depths`, by id or name, are used in place of the numbers of messages that nodes hold. Only nodes that
        answer within `wait_s` count.
        """
        loads, silent = self._loads(queue_depths or {})
        settings = self._app.settings
        plan = transfers(
            loads, overload=settings.overload_threshold, idle=settings.idle_threshold, most=settings.max_steal_per_tick
        )
        moves = Counter[tuple[str, str]]()
        receivers = [load.node for load in loads if load.takes and load.queued < settings.idle_threshold]
        plan = self._worth_it(plan, loads)
        for node in silent if by != HOUSEKEEPER else ():  # others take over from them soon; an operator need not wait
            if back := restore_messages(self._app, self._app.keys, node, lost=True):
                moves[node, receivers[0] if receivers else ""] += back
        for transfer, units in _done(plan, self._given_back(plan)):
            moves[transfer.donor, transfer.receiver] += units
        stolen = Steal([(donor, receiver, units) for (donor, receiver), units in moves.items()])
        if stolen.total or by != HOUSEKEEPER:
            self._audit(by, "cluster.steal", "", "done", {"moves": stolen.moves, "total": stolen.total})
        return stolen

    def hand_on(self) -> None:
        """Call `steal` for housekeeping, and for workers that hold messages which they cannot begin; at most once a
        second, however many callers there are."""
        if self._app.ledger.may_spread(LOOK_EVERY_MS):
            self.steal(by=HOUSEKEEPER)

    def _loads(self, depths: Mapping[str, int]) -> tuple[list[Load], list[str]]:
        """Return the nodes' loads, and the silent nodes whose messages have not been put back yet."""
        loads, silent = [], []
        for sighting in self._app.registry.sightings():
            node, vitals = sighting.node, sighting.vitals
            status, _ = status_of(sighting, 0)
            if status is NodeStatus.OFFLINE:
                silent += [] if sighting.is_given_up or not self._app.broker.is_store else [node.id]
                continue
            takes = sighting.order is None and not node.stuck
            depth = depths.get(node.id, depths.get(node.name, -1))
            full = depth < 0 and vitals.available <= 0
            loads.append(Load(node.id, vitals.held, vitals.available, node.pools, takes, depth, full))
        return loads, silent

    def _worth_it(self, plan: Sequence[Transfer], loads: Sequence[Load]) -> list[Transfer]:
        """Return the moves that help: if messages of a pool wait in its queue, idle nodes find work there."""
        if not plan:
            return []
        app, working = self._app, {load.node for load in loads if load.takes}
        waiting = waiting_units(app, {move.pool for move in plan}, app.store, in_store=app.broker.is_store).units
        return [move for move in plan if move.donor not in working or not waiting.get(move.pool)]

    def _given_back(self, plan: Sequence[Transfer]) -> Mapping[str, Mapping[str, int]]:
        requested: dict[str, Counter[str]] = {}
        for transfer in plan:
            requested.setdefault(transfer.donor, Counter())[transfer.pool] += transfer.units
        return (
            Requests(self._app.store, self._app.keys).give_back(requested, min(self._wait_s, ANSWERED_S))
            if plan
            else {}
        )

    def _order(self, node: str, kind: OrderKind, by: str, deadline_s: float) -> NodeView:
        target = self.node(node)
        order, leases = Orders(self._app.store, self._app.keys).give(target.id, kind, by=by, deadline_s=deadline_s)
        if leases < 0:
            raise _just_left(target)
        if order.kind is OrderKind.REMOVE:
            self._audit(by, f"node.{kind}", target.id, "refused", {})
            raise NodeLeaves(target.id)
        return self._acknowledged(target, order.id, by, f"node.{kind}")

    def _acknowledged(self, target: NodeView, order: str, by: str, action: str) -> NodeView:
        orders, outcome = Orders(self._app.store, self._app.keys), OrderOutcome.NOT_ACKNOWLEDGED

        def is_settled() -> bool:
            nonlocal outcome
            node, standing = self._app.registry.facts(target.id), orders.standing(target.id)
            if node is None:
                outcome = OrderOutcome.GONE
            elif (standing.id if standing else "") != order:
                outcome = OrderOutcome.SUPERSEDED
            elif node.order_seen == order:
                outcome = OrderOutcome.DONE
            return outcome is not OrderOutcome.NOT_ACKNOWLEDGED

        if target.status is not NodeStatus.OFFLINE:
            self._wait(is_settled)
        self._audit(by, action, target.id, outcome, {})
        return self._now(target)

    def _now(self, target: NodeView) -> NodeView:
        """Return the node's present view; the former one if it has left meanwhile."""
        return next((node for node in self.nodes() if node.id == target.id), target)

    def _wait(self, condition: Callable[[], bool]) -> bool:
        end = time.monotonic() + self._wait_s
        while not condition():
            if time.monotonic() > end:
                return False
            time.sleep(ACKNOWLEDGED_LOOK_S)
        return True


def _just_left(node: NodeView) -> UnknownNode:
    return UnknownNode(f"node {node.id} has just left")


def _is_removed(sighting: Sighting) -> bool:
    """Return whether a node is removed: it is no longer listed, but its order is kept in case it comes back."""
    return sighting.heard_s_ago is None and sighting.order is not None and sighting.order.kind is OrderKind.REMOVE


def _done(plan: Sequence[Transfer], returned: Mapping[str, Mapping[str, int]]) -> Iterator[tuple[Transfer, int]]:
    """Yield what was given back for each transfer; if a donor gave back less than planned, the later ones get less."""
    remaining = {(donor, pool): units for donor, pools in returned.items() for pool, units in pools.items()}
    for transfer in plan:
        units = min(transfer.units, remaining.get((transfer.donor, transfer.pool), 0))
        if units:
            remaining[transfer.donor, transfer.pool] -= units
            yield transfer, units
