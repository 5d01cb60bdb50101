"""Views of nodes, for people and programs: one status each, with its reason. Pure.

`node_here` gives the facts that this process reports about itself as a node.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Protocol

from dicast.app.analysis import SCORES, has_libraries
from dicast.app.domain.text import counted
from dicast.app.providers.registry import key_trouble
from dicast.workers.nodes.registry import Node, OrderKind, Sighting

if TYPE_CHECKING:
    from dicast.config.pools import Pools
    from dicast.config.settings import Settings


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
    that it has taken and that wait for a lease. `acknowledged` tells whether it follows the present order, or that
    there is none; `cut` counts the calls that were cut at the deadline of a drain."""

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
    acknowledged: bool = True
    cut: int = 0


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
        held=sum(vitals.held.values()) if is_reachable else 0, acknowledged=_is_acknowledged(sighting),
        cut=vitals.cut if _is_drained(sighting, open_calls) else 0,
    )  # fmt: skip


def status_of(sighting: Sighting, open_calls: int) -> tuple[NodeStatus, str]:
    """Return the first status that applies, with its reason: offline, to be removed, draining, cordoned, degraded,
    online."""
    order = sighting.order
    if sighting.heard_s_ago is None:
        suffix = f"; {counted(open_calls, 'call')} of it count until their deadlines" if open_calls else ""
        return NodeStatus.OFFLINE, sighting.lost_reason + suffix
    if order is not None:
        text = f"{order.kind} by {order.by}" if order.by else str(order.kind)
        text += "" if _is_acknowledged(sighting) else ", not acknowledged yet"
        if order.kind is OrderKind.REMOVE:
            return NodeStatus.DRAINING, f"{text}: {counted(open_calls, 'call')} open, then it stops"
        if order.kind is OrderKind.DRAIN and open_calls:
            return NodeStatus.DRAINING, f"{text}: {counted(open_calls, 'call')} open"
        if _is_drained(sighting, open_calls):
            cut = f", {counted(sighting.vitals.cut, 'call')} cut at the deadline" if sighting.vitals.cut else ""
            return NodeStatus.CORDONED, f"{text}: drained{cut}"
        return NodeStatus.CORDONED, text + (f": {counted(open_calls, 'call')} open" if open_calls else "")
    if sighting.node.stuck:
        return NodeStatus.DEGRADED, sighting.node.stuck
    return NodeStatus.ONLINE, _lacks(sighting)


def _is_acknowledged(sighting: Sighting) -> bool:
    """Return whether a node follows its order; also true without an order, and of an unreachable node, of which nobody
    can tell."""
    order = sighting.order
    return sighting.heard_s_ago is None or order is None or sighting.node.order_seen == order.id


def _is_drained(sighting: Sighting, open_calls: int) -> bool:
    order = sighting.order
    return sighting.heard_s_ago is not None and order is not None and order.kind is OrderKind.DRAIN and not open_calls


def _lacks(sighting: Sighting) -> str:
    missing = sighting.node.missing_keys
    return f"no key for {', '.join(missing)}" if missing else ""


class Environment(Protocol):
    """The part of the application that the facts are derived from."""

    environ: Mapping[str, str]
    settings: Settings

    @property
    def pools(self) -> Pools: ...


def installed_version() -> str:
    """Return Dicast's version; 'unknown' if it is run from its sources and not installed."""
    try:
        return version("dicast")
    except PackageNotFoundError:
        return "unknown"


def node_here(name: str, slots: int, env: Environment, labels: Mapping[str, str]) -> Node:
    """Return this process as a node with Celery's node name."""
    import psutil  # noqa: PLC0415  (only workers need it)

    from dicast.workers.system.host import accelerators  # noqa: PLC0415

    return Node.for_this_process(
        name, limit=env.settings.max_concurrent_llm_calls, slots=slots, labels=labels,
        missing_keys=tuple(missing_keys(env)), version=installed_version(), memory_bytes=psutil.virtual_memory().total,
        accelerators=accelerators(), missing_extras=missing_extras(),
    )  # fmt: skip


def missing_extras() -> tuple[str, ...]:
    """Return the optional parts of this program whose libraries are not installed here."""
    return () if has_libraries() else (SCORES,)


def unserved(env: Environment, labels: Mapping[str, str]) -> dict[str, str]:
    """Return the pools whose units a node with these labels does not take, each with the reason."""
    lacking = {
        spec.name: f"it demands {missing}"
        for spec in env.pools.pools.values()
        if (missing := missing_labels(spec.labels, labels))
    }
    return {**lacking, **missing_keys(env)}


def missing_labels(demanded: Mapping[str, str], labels: Mapping[str, str]) -> str:
    """Return the demanded labels that are missing, as `name=value, name=value`; '' if none are."""
    return ", ".join(f"{name}={value}" for name, value in sorted(demanded.items()) if labels.get(name) != value)


def missing_keys(env: Environment) -> dict[str, str]:
    """Return the pools whose key this process lacks, each with what is missing."""
    return {
        spec.name: trouble
        for spec in env.pools.pools.values()
        if (trouble := key_trouble(spec, env.settings, env.environ))
    }
