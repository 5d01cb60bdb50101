"""Views of nodes, for people and programs: one status each, with its reason. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from dicast.workers.nodes.orders import OrderKind
from dicast.workers.nodes.registry import Sighting


class NodeStatus(StrEnum):
    ONLINE = "online"
    CORDONED = "cordoned"
    """It begins no calls until it is uncordoned, and has none open if it was drained."""
    DRAINING = "draining"
    """It begins no calls, and ends the open ones."""
    OFFLINE = "offline"
    DEGRADED = "degraded"
    """It is reachable, but does not take the work that it should."""


@dataclass(frozen=True, slots=True)
class NodeView:
    """One node. `width` is how many calls it may have open now, `available` how many more it could begin; CPU and load
    are percent of one core, `memory_used_bytes` is its host's; `registered_at` is Unix seconds. `held` are messages
    that it has taken and that wait for a lease."""

    id: str
    name: str
    generation: int
    status: NodeStatus
    reason: str
    host: str
    pid: int
    labels: dict[str, str]
    pools: list[str]
    missing_keys: list[str]
    queues: list[str]
    slots: int
    available: int
    open: int
    width: int
    cpu_percent: float
    load_percent: float
    memory_bytes: int
    memory_used_bytes: int
    accelerators: list[str]
    version: str
    registered_at: float
    heard_s_ago: float | None
    error_rate: float
    held: int = 0


def view(sighting: Sighting, open_calls: int) -> NodeView:
    """Return the view of a node with `open_calls` by the store's count, without those that were cut."""
    node, width, vitals = sighting.node, sighting.width, sighting.vitals
    status, reason = status_of(sighting, open_calls)
    is_reachable = sighting.heard_s_ago is not None
    takes = status in (NodeStatus.ONLINE, NodeStatus.DEGRADED)
    return NodeView(
        id=node.id, name=node.name, generation=sighting.generation, status=status, reason=reason, host=node.host,
        pid=node.pid, labels=dict(node.labels), pools=list(node.pools), missing_keys=list(node.missing_keys),
        queues=list(node.queues), slots=node.slots, available=vitals.available if takes else 0, open=open_calls,
        width=width.current if width else node.slots, cpu_percent=width.cpu_percent if width and is_reachable else 0.0,
        load_percent=width.load_percent if width and is_reachable else 0.0, memory_bytes=node.memory_bytes,
        memory_used_bytes=vitals.memory_used_bytes, accelerators=list(node.accelerators), version=node.version,
        registered_at=sighting.registered_at, heard_s_ago=sighting.heard_s_ago,
        error_rate=width.error_rate if width else 0.0,
        held=sum(vitals.held.values()) if is_reachable else 0,
    )  # fmt: skip


def status_of(sighting: Sighting, open_calls: int) -> tuple[NodeStatus, str]:
    """Return the first status that applies, with its reason: offline, to be removed, draining, cordoned, degraded,
    online."""
    order = sighting.order
    if sighting.heard_s_ago is None:
        suffix = f"; {_calls(open_calls)} of it count until their deadlines" if open_calls else ""
        return NodeStatus.OFFLINE, sighting.lost_reason + suffix
    if order is not None:
        text = f"{order.kind} by {order.by}" if order.by else str(order.kind)
        text += "" if sighting.node.order_seen == order.id else ", not acknowledged yet"
        if order.kind is OrderKind.REMOVE:
            return NodeStatus.DRAINING, f"{text}: {_calls(open_calls)} open, then it stops"
        if order.kind is OrderKind.DRAIN and open_calls:
            return NodeStatus.DRAINING, f"{text}: {_calls(open_calls)} open"
        if order.kind is OrderKind.DRAIN:
            cut = f", {_calls(sighting.vitals.cut)} cut at the deadline" if sighting.vitals.cut else ""
            return NodeStatus.CORDONED, f"{text}: drained{cut}"
        return NodeStatus.CORDONED, text + (f": {_calls(open_calls)} open" if open_calls else "")
    if sighting.node.stuck:
        return NodeStatus.DEGRADED, sighting.node.stuck
    return NodeStatus.ONLINE, _lacks(sighting)


def _lacks(sighting: Sighting) -> str:
    missing = sighting.node.missing_keys
    return f"no key for {', '.join(missing)}" if missing else ""


def _calls(count: int) -> str:
    return f"{count} call" if count == 1 else f"{count} calls"
