"""`/cluster`: all nodes together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import Request, Response
from pydantic import BaseModel, ConfigDict, Field

from dicast.app.access.scopes import Claims
from dicast.app.cluster.cluster import ClusterStatus
from dicast.app.server import bounds
from dicast.app.server.bounds import check_unbound
from dicast.app.server.doors import guarded_router
from dicast.app.server.events import Stream, StreamEvent, event_id
from dicast.app.server.nodes import Admin, Looker
from dicast.app.server.parts import GivenParts, Parts

router = guarded_router("cluster")

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
