"""Routes that show the installation, its health, and the caller.

`/status`, `/metrics` and `/grafana/dashboard` show the installation at a glance, for people and for monitors.

`/session` is the caller's identity and rights, so that a page can show what the caller may do. `/healthz` and `/readyz`
are for orchestrators and load balancers. They need no token and reveal nothing internal.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from fastapi import Query, Request
from kombu.exceptions import OperationalError
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from pydantic import BaseModel, Field
from redis.exceptions import RedisError
from starlette.responses import JSONResponse, Response

from dicast import config
from dicast.app.access.scopes import Claims, Scope
from dicast.app.cluster.metrics import node_metrics, pool_demand_metrics, pool_metrics, purse_metrics
from dicast.app.cluster.snapshot import read_shared
from dicast.app.cluster.view import installed_version
from dicast.app.operator.spending import (
    BudgetStanding,
    Spend,
    WrongSpendKey,
    budget_standings,
    spend_keys,
    spend_lines,
    summed,
)
from dicast.app.server.bounds import may_see, sees_pool, visible_state
from dicast.app.server.errors import InvalidRequest, PathNotFound
from dicast.app.server.guards import guarded_router, needs
from dicast.app.server.parts import GivenParts, Parts
from dicast.app.server.problems import AGAIN, problem
from dicast.workers.admission.pool_state import findings
from dicast.workers.store.connection import connect

router = guarded_router("overview")


VERSION = installed_version()
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
    remarks = [f"pool {pool.pool}: {finding}" for pool in pools for finding in pool.findings]
    stuck = ((node.name, node.stuck if claims.pools is None else "") for node, _ in shared.nodes if node.stuck)
    remarks += [f"worker {name} takes no work" + (f": {why}" if why else "") for name, why in stuck]
    if unfinished and not shared.nodes:
        remarks.append("no worker is alive, and jobs wait")
    return Status(
        version=VERSION, installation=dicast.settings.namespace, workers=len(shared.nodes),
        slots=sum(node.slots for node, _ in shared.nodes), open_calls=open_calls,
        unfinished_jobs=unfinished, pools=pools, findings=remarks,
    )  # fmt: skip


class SpendView(BaseModel):
    """What calls have cost, and where budgets stand."""

    spend: list[Spend]
    budgets: list[BudgetStanding]


@router.get("/spend")
def spend(
    parts: GivenParts,
    claims: Annotated[Claims, needs(Scope.JOB_READ)],
    by: Annotated[str, Query(max_length=100, description="of project, job, judge, pool, model, day, joined by commas")]
    = "project,pool,model",
    since: Annotated[str, Query(pattern=r"^(\d{4}-\d\d-\d\d)?$", description="from this day on, of UTC")] = "",
) -> SpendView:  # fmt: skip
    """Tell what calls have cost, of the jobs in the store and of earlier ones whose results are here, and where budgets
    stand. A token for some pools gets jobs that use no others, and the budgets of its pools."""
    try:
        keys = spend_keys(by)
    except WrongSpendKey as error:
        raise InvalidRequest(f"query.by: {error}") from None
    standings = budget_standings(parts.dicast)
    lines = (line for line in spend_lines(parts.dicast, since) if may_see(claims, line.pools))
    if claims.pools is not None:
        standings = [budget for budget in standings if budget.kind == "pool" and sees_pool(claims, budget.name)]
    return SpendView(spend=summed(lines, keys), budgets=standings)


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
        visible_purses = [
            purse for purse in demand.purses if purse.kind == "pool" and sees_pool(self._claims, purse.name)
        ]
        yield from purse_metrics(visible_purses)


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


session_router = guarded_router("session")

Anybody = Annotated[
    Claims, needs(Scope.JOB_READ, Scope.JOB_SUBMIT, Scope.POOL_ADMIN, Scope.NODE_ADMIN, Scope.RATING_WRITE)
]


class Session(BaseModel):
    """The subject of a token, and what it is for. Without tokens every caller is `local` and may do everything."""

    subject: str
    scopes: list[Scope]
    pools: list[str] | None = Field(description="that its jobs may use; null: all")
    expires_at: float | None = Field(description="unix seconds; null: never")
    now: float = Field(description="unix seconds, by the store's clock")
    require_auth: bool
    installation: str
    version: str


@session_router.get("/session")
def session(parts: GivenParts, claims: Anybody) -> Session:
    """Show whose token this is, what it is for, and when it expires."""
    return Session(
        subject=claims.subject, scopes=sorted(claims.scopes),
        pools=None if claims.pools is None else sorted(claims.pools),
        expires_at=claims.expires_at if math.isfinite(claims.expires_at) else None,
        now=parts.dicast.ledger.wall_ms() / 1000, require_auth=parts.require_auth,
        installation=parts.dicast.settings.namespace, version=VERSION,
    )  # fmt: skip


health_router = guarded_router("health")


class Alive(BaseModel):
    """The process answers."""

    alive: bool = True


class Ready(BaseModel):
    """Everything that requests need can be reached."""

    ready: bool = True


@health_router.get("/healthz")
async def healthz(_: Annotated[Claims, needs(rate=0)]) -> Alive:
    """Answer as long as this process is alive; nothing else is checked."""
    return Alive()


@health_router.get("/readyz", response_model=Ready)
def readyz(parts: GivenParts, _: Annotated[Claims, needs(rate=0)]) -> Ready | Response:
    """Answer whether requests can be served; else 503, with what cannot be reached."""
    missing = [name for name, reached in (("store", _store), ("broker", _broker), ("uploads", _uploads))
               if not reached(parts)]  # fmt: skip
    if missing:
        return problem(503, "not-ready", f"cannot be reached: {', '.join(missing)}", missing, AGAIN)
    return Ready()


def _store(parts: Parts) -> bool:
    try:
        with connect(parts.dicast.store_url, retries=0) as client:
            return bool(client.ping())
    except (RedisError, OSError):
        return False


def _broker(parts: Parts) -> bool:
    if parts.dicast.broker.is_store:
        return True
    try:
        with parts.dicast.connection_for_read() as connection:
            connection.ensure_connection(max_retries=1, timeout=2)
        return True
    except (OperationalError, OSError):
        return False


def _uploads(parts: Parts) -> bool:
    folder: Path = parts.uploads.folder
    return os.access(folder if folder.exists() else folder.parent, os.W_OK)
