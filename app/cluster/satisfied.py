"""Which pools' work no living node takes, and why. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dicast.app.cluster.facts import lacks
from dicast.app.cluster.view import NodeStatus, NodeView
from dicast.config.pools import PoolSpec

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
        return f"{waits}: cordoned is {_abbreviated(node.name for node in serving)}"
    reasons = [f"{node.name} {why}" for node in living if (why := _lacking(spec, node))]
    return f"{waits}: {_abbreviated(reasons)}" if reasons else f"{waits}: none reads its queue"


def _lacking(spec: PoolSpec, node: NodeView) -> str:
    if spec.name in node.missing_keys:
        return f"has no {spec.api_key_env}"
    lacking = lacks(spec.labels, node.labels)
    return lacking.replace("it demands", "lacks the label") if lacking else ""


def _abbreviated(parts: Iterable[str]) -> str:
    names = list(parts)
    more = len(names) - NODES_TOLD
    return ", ".join(names[:NODES_TOLD]) + (f" and {more} more" if more > 0 else "")
