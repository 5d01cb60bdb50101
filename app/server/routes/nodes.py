"""The routes of nodes: `/cluster/nodes`, where they join, send heartbeats and are controlled, and `/cluster`.

A node that joins over HTTP gets a heartbeat token of its own and a user of the store. It works over the store, as every
other node.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import Path, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from dicast.app.access.membership import Membership
from dicast.app.access.scopes import Claims, Scope
from dicast.app.cluster.cluster import ClusterStatus, UnknownNode
from dicast.app.cluster.view import NodeStatus, NodeView
from dicast.app.server import bounds
from dicast.app.server.bounds import check_all_pools, check_unbound, node_of, seen_by, steered, visible_nodes
from dicast.app.server.errors import PathNotFound
from dicast.app.server.events import Stream, StreamEvent, event_id
from dicast.app.server.guards import guarded_router, needs
from dicast.app.server.parts import GivenParts, Parts

router = guarded_router("cluster")

HEARTBEAT_S = 15.0
"""How often a node that joined over HTTP should send a heartbeat."""
NODES_RATE = 10
"""The factor by which nodes may send more requests than others: hundreds may start at once, with one token."""

Looker = Annotated[Claims, needs(Scope.JOB_READ, Scope.NODE_ADMIN)]
Admin = Annotated[Claims, needs(Scope.NODE_ADMIN)]
NodeName = Annotated[
    str, Path(alias="node", min_length=1, max_length=400, description="its id, or a name that one node has")
]


class Joining(BaseModel):
    """A request to join. A node that had joined before, and joins again after the server has forgotten it or its token
    has ended, keeps its id by showing its heartbeat token."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: str = Field(min_length=1, max_length=120, description="Celery's node name, such as w1@host")
    node: str = Field(default="", max_length=400, description="the id that it had, if it had one")
    heartbeat_token: str | None = Field(default=None, max_length=4096, description="that of this id")


class StoreLogin(BaseModel):
    """The login with which a node reaches the store; `url` contains user and password."""

    url: str
    user: str
    password: str


class JoinedNode(BaseModel):
    """The answer to a node that joins. It should send a heartbeat every `heartbeat_s`; its token is valid for
    `expires_in_s`."""

    node: str
    heartbeat_token: str
    heartbeat_s: float
    expires_in_s: float
    store_url: str = Field(description="that of `credentials`")
    credentials: StoreLogin


class Heard(BaseModel):
    """The answer to a heartbeat. A newer token comes in time; the older one stays valid until it expires."""

    node: str
    heartbeat_s: float
    heartbeat_token: str | None = None
    expires_in_s: float | None = None


class Draining(BaseModel):
    """How long open calls may take to end."""

    model_config = ConfigDict(extra="forbid", strict=True)

    deadline_s: float = Field(default=60.0, ge=0, le=86_400, allow_inf_nan=False)


@router.get("/cluster/nodes")
def list_nodes(parts: GivenParts, claims: Looker, status: NodeStatus | None = None) -> list[NodeView]:
    """List the nodes that the token may see, or those of one status, by name."""
    return visible_nodes(parts, claims, status)


@router.post("/cluster/nodes", status_code=201)
def join(
    parts: GivenParts, claims: Annotated[Claims, needs(Scope.NODE_REGISTER, rate=NODES_RATE)], joining: Joining
) -> JoinedNode:
    """Join the installation as a node. The same name again is another node, unless it shows that it is the same."""
    check_all_pools(claims, "a node that joins reaches the store of")
    joined = _members(parts).join(claims, joining.name, was=joining.node, old_token=joining.heartbeat_token)
    parts.record(claims, "node.join", joined.node, details={"name": joining.name, "again": joined.node == joining.node})
    login = StoreLogin(url=joined.store.url, user=joined.store.user, password=joined.store.password)
    return JoinedNode(
        node=joined.node, heartbeat_token=joined.heartbeat_token, heartbeat_s=HEARTBEAT_S,
        expires_in_s=joined.expires_in_s, store_url=login.url, credentials=login,
    )  # fmt: skip


@router.get("/cluster/nodes/{node}")
def show_node(parts: GivenParts, claims: Looker, node: NodeName) -> NodeView:
    """Show one node."""
    return node_of(parts, claims, node)


@router.delete("/cluster/nodes/{node}", status_code=204)
def remove(
    parts: GivenParts, claims: Annotated[Claims, needs(Scope.NODE_ADMIN, Scope.NODE_HEARTBEAT)], node: NodeName,
    force: Annotated[bool, Query(description="cut the calls that it has open, and hand their units back")] = False,
) -> Response:  # fmt: skip
    """Remove a node: its process ends, and its tokens and its store user are revoked. With its own heartbeat token, a
    node leaves by itself."""
    if Scope.NODE_ADMIN not in claims.scopes:
        _members(parts).leave(node)
        parts.record(claims, "node.leave", node)
        return Response(status_code=204)
    try:
        node_id = parts.dicast.cluster.node(steered(parts, claims, node)).id
        parts.dicast.cluster.remove(node_id, by=claims.subject, force=force)
    except UnknownNode:
        if parts.members is None or claims.pools is not None or not parts.dicast.store_users.has(node):
            raise
        node_id = node  # it has joined, but never begun to work
        parts.record(claims, "node.remove", node)
    if parts.members is not None:
        parts.members.expel(node_id)
    return Response(status_code=204)


@router.post("/cluster/nodes/{node}/heartbeat")
def heartbeat(
    parts: GivenParts, claims: Annotated[Claims, needs(Scope.NODE_HEARTBEAT, rate=NODES_RATE)], node: NodeName
) -> Heard:
    """Note that a node is alive, and renew its token in time. 404: it is no longer known, and has to join again."""
    members = _members(parts)
    if not parts.dicast.store_users.has(node):
        raise UnknownNode(f"no node {node!r} has joined, or it was removed; it has to join again")
    renewed = members.renewed(claims)
    if renewed is None:
        return Heard(node=node, heartbeat_s=HEARTBEAT_S)
    return Heard(node=node, heartbeat_s=HEARTBEAT_S, heartbeat_token=renewed[0], expires_in_s=renewed[1])


@router.post("/cluster/nodes/{node}/cordon")
def cordon(parts: GivenParts, claims: Admin, node: NodeName) -> NodeView:
    """Have a node begin no calls until it is uncordoned; its view shows when it has acknowledged that."""
    return seen_by(claims, parts.dicast.cluster.cordon(steered(parts, claims, node), by=claims.subject))


@router.post("/cluster/nodes/{node}/uncordon")
def uncordon(parts: GivenParts, claims: Admin, node: NodeName) -> NodeView:
    """Have a node take work again."""
    return seen_by(claims, parts.dicast.cluster.uncordon(steered(parts, claims, node), by=claims.subject))


@router.post("/cluster/nodes/{node}/drain")
def drain(parts: GivenParts, claims: Admin, node: NodeName, draining: Draining | None = None) -> NodeView:
    """Have a node begin no calls, and end the open ones before a deadline; the rest are handed back."""
    options = Draining() if draining is None else draining
    cluster = parts.dicast.cluster
    return seen_by(
        claims, cluster.drain(steered(parts, claims, node), by=claims.subject, deadline_s=options.deadline_s)
    )


def _members(parts: Parts) -> Membership:
    """Return the membership. Raises `PathNotFound` if no tokens can be issued."""
    if parts.members is None:
        raise PathNotFound("nodes cannot join here: DICAST_TOKEN_SECRET is not set")
    return parts.members


_ALWAYS_MOVING = (
    "heard_s_ago", "cpu_percent", "load_percent", "memory_used_bytes", "error_rate", "available", "open", "held",
)  # fmt: skip
"""Fields that change with every beacon, and so are left out of events."""
EVENTS: dict[int | str, dict[str, Any]] = {
    200: {"description": "server-sent events", "content": {"text/event-stream": {"schema": {"type": "string"}}}}
}


class Stealing(BaseModel):
    """Numbers of waiting units by node id or name, to be used instead of what the nodes hold."""

    model_config = ConfigDict(extra="forbid", strict=True)

    queue_depths: dict[str, Annotated[int, Field(ge=0, le=1_000_000_000)]] = Field(
        default_factory=dict, max_length=1000
    )


class Move(BaseModel):
    """Units that a donor gave back for a receiver; any idle node may take them."""

    donor: str
    receiver: str
    units: int


class Moves(BaseModel):
    """The moves that were made, and the total number of units."""

    moves: list[Move]
    total: int


@router.post("/cluster/steal")
def steal(parts: GivenParts, claims: Admin, stealing: Stealing | None = None) -> Moves:
    """Have messages that wait at overloaded nodes, or at nodes that take no work, go back for idle nodes."""
    check_unbound(claims, "stealing is among")
    depths = {} if stealing is None else stealing.queue_depths
    done = parts.dicast.cluster.steal(by=claims.subject, queue_depths=depths or None)
    moves = [Move(donor=donor, receiver=receiver, units=units) for donor, receiver, units in done.moves]
    return Moves(moves=moves, total=done.total)


@router.get("/cluster/status")
def cluster_status(parts: GivenParts, claims: Looker) -> ClusterStatus:
    """Show the installation in numbers: nodes by status, capacity, open calls, what waits and for how long, and what no
    living node takes."""
    return bounds.cluster_status(parts, claims)


@router.get("/cluster/events", response_class=Response, responses=EVENTS)
def cluster_events(request: Request, parts: GivenParts, claims: Looker) -> Response:
    """Stream all nodes whenever one comes, goes or changes its status, its pools or its width, as events named `nodes`.
    Loads and open calls are left out: `GET /cluster/status` has them."""

    def changes(last: str | None) -> Iterator[StreamEvent]:
        views = _stable_views(parts, claims)
        if event_id(views) != last:
            yield StreamEvent("nodes", views)

    return Stream(request, changes)


def _stable_views(parts: Parts, claims: Claims) -> list[dict[str, Any]]:
    return [
        {name: value for name, value in asdict(node).items() if name not in _ALWAYS_MOVING}
        for node in bounds.visible_nodes(parts, claims)
    ]
