"""What a token that is bound to some pools, labels or a node may use and see.

A token for some pools may see these pools, jobs that use no others, and nodes that serve one of them; a token for one
node may see only that node among the nodes. Names of anything else are left out everywhere, and requests about the
whole installation are refused. Numbers about what may be seen are complete: a node's open calls are those of all its
pools. A bound on labels applies to submitting only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from dicast.app.access.scopes import Claims
from dicast.app.cluster.cluster import ClusterStatus, UnknownNode
from dicast.app.cluster.snapshot import SharedState
from dicast.app.cluster.view import NodeStatus, NodeView
from dicast.app.ledger.client import UnknownJob
from dicast.app.server.errors import NotAllowed
from dicast.app.server.parts import Parts
from dicast.workers.admission.leases import OpenLease
from dicast.workers.admission.request import QUEUE_PREFIX


# ------------------------------------------------------------------ what may be used
def check_pools(claims: Claims, pools: set[str]) -> None:
    """Raise `NotAllowed` if a token may not use one of these pools, whether there is such a pool or not."""
    if claims.pools is not None and (foreign := sorted(pools - claims.pools)):
        raise NotAllowed(f"the token may not use pool {foreign[0]!r}")


def check_labels(claims: Claims, labels: set[str]) -> None:
    """Raise `NotAllowed` if a token may not send units to nodes with one of these labels."""
    if claims.labels is not None and (foreign := sorted(labels - claims.labels)):
        raise NotAllowed(f"the token may not use nodes labelled {foreign[0]}")


def check_all_pools(claims: Claims, what: str) -> None:
    """Raise `NotAllowed` if a token is for some pools; `what` begins the phrase about all of them."""
    if claims.pools is not None:
        raise NotAllowed(f"the token is for some pools, and {what} all")


def check_unbound(claims: Claims, what: str) -> None:
    """Raise `NotAllowed` if a token is for some pools, or for one node."""
    check_all_pools(claims, what)
    if claims.node:
        raise NotAllowed(f"the token is for one node, and {what} all")


def steered(parts: Parts, claims: Claims, name: str) -> str:
    """Return the node that an order of this token is for; its id if the token is for some pools. Raises `UnknownNode`
    for a node that it may not see, and `NotAllowed` for one that also serves other pools."""
    if claims.pools is None:
        return name
    node = node_of(parts, claims, name)
    check_pools(claims, set(parts.dicast.cluster.node(node.id).pools))
    return node.id


# ------------------------------------------------------------------ what may be seen
def sees_pool(claims: Claims, pool: str) -> bool:
    """Return whether a token may see a pool."""
    return claims.pools is None or pool in claims.pools


def may_see(claims: Claims, pools: Iterable[str]) -> bool:
    """Return whether a token may see a job that uses these pools: a token for some pools, only if it covers all of
    them."""
    return claims.pools is None or claims.pools.issuperset(pools)


def sees_node(claims: Claims, id: str, name: str, pools: Iterable[str]) -> bool:
    """Return whether a token may see a node that serves these pools."""
    if claims.node and claims.node not in (id, name):
        return False
    return claims.pools is None or not claims.pools.isdisjoint(pools)


def visible_state(parts: Parts, claims: Claims, shared: SharedState) -> SharedState:
    """Return the part of the shared state that this token may see."""
    if claims.pools is None and not claims.node:
        return shared
    return SharedState(
        pools=[state for state in shared.pools if sees_pool(claims, state.pool)],
        nodes=[(node, status) for node, status in shared.nodes if sees_node(claims, node.id, node.name, node.pools)],
        leases=visible_leases(parts, claims, shared.leases),
    )


def visible_leases(parts: Parts, claims: Claims, leases: Sequence[OpenLease]) -> list[OpenLease]:
    """Return the leases of jobs that this token may see; a pool's calls may be of jobs that also use other pools."""
    jobs: dict[str, bool] = {}
    for job in {lease.job for lease in leases if sees_pool(claims, lease.pool)}:
        try:
            jobs[job] = claims.pools is None or may_see(claims, parts.dicast.ledger.pools(job))
        except UnknownJob:
            jobs[job] = False
    return [lease for lease in leases if jobs.get(lease.job, False)]


def visible_nodes(parts: Parts, claims: Claims, status: NodeStatus | None = None) -> list[NodeView]:
    """Return the nodes that this token may see, as it may see them."""
    nodes = parts.dicast.cluster.nodes(status)
    return [seen_by(claims, node) for node in nodes if sees_node(claims, node.id, node.name, node.pools)]


def node_of(parts: Parts, claims: Claims, name: str) -> NodeView:
    """Return one node by its id or name, as this token may see it. Raises `UnknownNode`, also for a node that it may
    not see; the message names no other node."""
    if claims.pools is None:
        return parts.dicast.cluster.node(name)
    try:
        node = parts.dicast.cluster.node(name)
    except UnknownNode:
        node = None
    if node is None or not sees_node(claims, node.id, node.name, node.pools):
        raise UnknownNode(f"no node has the id or name {name!r}")
    return seen_by(claims, node)


def cluster_status(parts: Parts, claims: Claims) -> ClusterStatus:
    """Return the installation in numbers, as far as this token may see it."""
    status = parts.dicast.cluster.status()
    if claims.pools is None and not claims.node:
        return status
    nodes = visible_nodes(parts, claims)
    working = [node for node in nodes if node.status is NodeStatus.ONLINE]
    waiting = {pool: units for pool, units in status.waiting.items() if sees_pool(claims, pool)}
    unsatisfied = [pool for pool in parts.dicast.cluster.unsatisfied() if pool in waiting]
    return replace(
        status, nodes=nodes,
        by_status={kind.value: sum(node.status is kind for node in nodes) for kind in NodeStatus},
        capacity=sum(node.width for node in working), available=sum(node.available for node in working),
        open=sum(node.open for node in nodes), waiting=waiting,
        oldest_wait_s=status.oldest_wait_s if waiting == status.waiting else None,
        unsatisfied=[f"the units of pool {pool} wait, for no living node takes them" for pool in unsatisfied],
    )  # fmt: skip


def seen_by(claims: Claims, node: NodeView) -> NodeView:
    """Return a node without the names of pools that the token is not for."""
    if claims.pools is None:
        return node
    missing = [pool for pool in node.missing_keys if pool in claims.pools]
    reason = node.reason
    if node.status in (NodeStatus.ONLINE, NodeStatus.DEGRADED):  # the reason may name any pool
        reason = f"no key for {', '.join(missing)}" if missing else ""
    own_queues = {QUEUE_PREFIX + pool for pool in claims.pools}
    return replace(
        node, pools=[pool for pool in node.pools if pool in claims.pools], missing_keys=missing, reason=reason,
        queues=[queue for queue in node.queues if QUEUE_PREFIX not in queue or any(map(queue.endswith, own_queues))],
    )  # fmt: skip
