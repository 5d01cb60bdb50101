"""`/status`, `/metrics`, `/grafana/dashboard`: the installation at a glance, for people and for monitors."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated

from fastapi import Request
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel, Field
from starlette.responses import JSONResponse, Response

from dicast import config
from dicast.app.access.scopes import Claims, Scope
from dicast.app.monitoring.snapshot import read_shared
from dicast.app.server.doors import guarded_router, needs
from dicast.app.server.errors import NotThere
from dicast.app.server.parts import GivenParts
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
def status(parts: GivenParts, _: Looker) -> Status:
    """Workers, open calls, unfinished jobs, pools, and what needs attention."""
    dicast = parts.dicast
    shared = read_shared(dicast.store_url, dicast.keys)
    pools = [
        PoolGlance(
            pool=state.pool, open=state.open, limit=state.limit, effective_limit=state.effective_limit,
            waiting_projects=len(state.waiting), findings=findings(state),
        )
        for state in shared.pools
    ]  # fmt: skip
    unfinished = dicast.ledger.count_unfinished()
    said = [f"pool {pool.pool}: {finding}" for pool in pools for finding in pool.findings]
    said += [f"worker {node.name} takes no work: {node.stuck}" for node, _ in shared.nodes if node.stuck]
    if unfinished and not shared.nodes:
        said.append("no worker is alive, and jobs wait")
    return Status(
        version=VERSION, installation=dicast.settings.namespace, workers=len(shared.nodes),
        slots=sum(node.slots for node, _ in shared.nodes), open_calls=dicast.ledger.open_calls().get("all", 0),
        unfinished_jobs=unfinished, pools=pools, findings=said,
    )  # fmt: skip


@router.get(
    "/metrics", response_class=Response, responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}}
)
def metrics(parts: GivenParts, _: Looker) -> Response:
    """What Prometheus scrapes: the metrics that all workers share."""
    return Response(generate_latest(parts.dicast.metrics), headers={"Content-Type": CONTENT_TYPE_LATEST})


@router.get(
    "/grafana/dashboard", response_class=Response,
    responses={200: {"content": {"application/json": {"schema": {"type": "object"}}}}},
)  # fmt: skip
def dashboard(_: Looker) -> Response:
    """A dashboard to be imported into Grafana."""
    if not DASHBOARD.is_file():
        raise NotThere("this installation comes without a dashboard")
    return Response(DASHBOARD.read_bytes(), media_type="application/json")


@router.get("/openapi.json", response_class=Response, include_in_schema=False)
def description(request: Request, _: Annotated[Claims, needs()]) -> Response:
    """This interface, described by OpenAPI."""
    return JSONResponse(request.app.openapi())
