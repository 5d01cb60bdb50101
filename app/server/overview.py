"""`/status`, `/metrics`, `/grafana/dashboard`: the installation at a glance, for people and for monitors."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated

from fastapi import Request
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from pydantic import BaseModel, Field
from starlette.responses import JSONResponse, Response

from dicast import config
from dicast.app.access.scopes import Claims, Scope
from dicast.app.monitoring.demand import pool_demand_metrics
from dicast.app.monitoring.metrics import node_metrics, pool_metrics
from dicast.app.monitoring.snapshot import read_shared
from dicast.app.server.bounds import may_see, sees_pool, visible_state
from dicast.app.server.doors import guarded_router, needs
from dicast.app.server.errors import PathNotFound
from dicast.app.server.parts import GivenParts, Parts
from dicast.workers.admission.pool_state import findings

router = guarded_router("overview")


def _version() -> str:
    try:
        return version("dicast")
    except PackageNotFoundError:
        return "unknown"


VERSION = _version()
Looker = Annotated[Claims, needs(Scope.JOB_READ, Scope.POOL_ADMIN, Scope.NODE_ADMIN)]
DASHBOARD = Path(config.__file__).parent / "monitoring" / "grafana-dashboard.json"


class PoolGlance(BaseModel):
    """One pool in short."""

    pool: str
    open: int
    limit: int
    effective_limit: int
    waiting_projects: int
    findings: list[str]


class Status(BaseModel):
    """The installation at one instant."""

    version: str
    installation: str = Field(description="DICAST_NAMESPACE")
    workers: int = Field(description="that are alive")
    slots: int = Field(description="calls that they have room for")
    open_calls: int
    unfinished_jobs: int
    pools: list[PoolGlance]
    findings: list[str] = Field(description="what needs attention")


@router.get("/status")
def status(parts: GivenParts, claims: Looker) -> Status:
    """Show workers, open calls, unfinished jobs, pools, and what needs attention, as far as the token may see it."""
    dicast = parts.dicast
    shared = visible_state(parts, claims, read_shared(dicast.store_url, dicast.keys))
    pools = [
        PoolGlance(
            pool=state.pool, open=state.open, limit=state.limit, effective_limit=state.effective_limit,
            waiting_projects=len(state.waiting), findings=findings(state),
        )
        for state in shared.pools
    ]  # fmt: skip
    if claims.pools is None:
        open_calls, unfinished = dicast.ledger.open_calls().get("all", 0), dicast.ledger.count_unfinished()
    else:
        open_calls = sum(pool.open for pool in pools)
        unfinished = sum(may_see(claims, of_job) for of_job in dicast.ledger.unfinished_pools())
    said = [f"pool {pool.pool}: {finding}" for pool in pools for finding in pool.findings]
    stuck = ((node.name, node.stuck if claims.pools is None else "") for node, _ in shared.nodes if node.stuck)
    said += [f"worker {name} takes no work" + (f": {why}" if why else "") for name, why in stuck]
    if unfinished and not shared.nodes:
        said.append("no worker is alive, and jobs wait")
    return Status(
        version=VERSION, installation=dicast.settings.namespace, workers=len(shared.nodes),
        slots=sum(node.slots for node, _ in shared.nodes), open_calls=open_calls,
        unfinished_jobs=unfinished, pools=pools, findings=said,
    )  # fmt: skip


@router.get(
    "/metrics", response_class=Response, responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}}
)
def metrics(parts: GivenParts, claims: Looker) -> Response:
    """Serve the metrics that all workers share, for Prometheus. A token for some pools, or for a node, gets only their
    metrics, without the installation's totals."""
    registry = parts.dicast.metrics
    if claims.pools is not None or claims.node:
        registry = CollectorRegistry()
        registry.register(_BoundMetrics(parts, claims))
    return Response(generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})


class _BoundMetrics(Collector):
    """Collects the metrics of the pools and nodes that a bound token may see."""

    def __init__(self, parts: Parts, claims: Claims) -> None:
        self._parts, self._claims = parts, claims

    def describe(self) -> list[Metric]:
        return []  # registering is no scrape

    def collect(self) -> Iterator[Metric]:
        shared, demand = self._parts.dicast.scrape()
        shared = visible_state(self._parts, self._claims, shared)
        yield from pool_metrics(shared.pools)
        yield from node_metrics(shared.nodes)
        yield from pool_demand_metrics(demand, [p for p in demand.wanted_workers.by_pool if sees_pool(self._claims, p)])


@router.get(
    "/grafana/dashboard", response_class=Response,
    responses={200: {"content": {"application/json": {"schema": {"type": "object"}}}}},
)  # fmt: skip
def dashboard(_: Looker) -> Response:
    """Serve a dashboard for import into Grafana."""
    if not DASHBOARD.is_file():
        raise PathNotFound("this installation comes without a dashboard")
    return Response(DASHBOARD.read_bytes(), media_type="application/json")


@router.get("/openapi.json", response_class=Response, include_in_schema=False)
def description(request: Request, _: Annotated[Claims, needs()]) -> Response:
    """Serve the OpenAPI description of this interface."""
    return JSONResponse(request.app.openapi())
