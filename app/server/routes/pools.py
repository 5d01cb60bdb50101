"""`/pools`, `/slo`: the state of the pools, and operators' overrides."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Path
from pydantic import BaseModel, ConfigDict, Field

from dicast.app.access.scopes import Claims, Scope
from dicast.app.operator import pools as operations
from dicast.app.server.bounds import check_pools, check_unbound, sees_pool, visible_state
from dicast.app.server.errors import InvalidRequest
from dicast.app.server.guards import guarded_router, needs
from dicast.app.server.parts import GivenParts, Parts

router = guarded_router("pools")

Looker = Annotated[Claims, needs(Scope.JOB_READ, Scope.POOL_ADMIN)]
Admin = Annotated[Claims, needs(Scope.POOL_ADMIN)]
PoolPath = Annotated[str, Path(alias="pool", max_length=100, pattern="^[A-Za-z0-9._:-]+$", description="its name")]


class PoolView(BaseModel):
    """A pool's state, as `dicast governor show --json` prints it. A pool that nobody has used yet is not `live`, and
    has only what is configured."""

    model_config = ConfigDict(extra="allow")

    pool: str
    live: bool
    configured: dict[str, Any] = Field(description="overrides of the pools file")
    override: dict[str, Any] = Field(default_factory=dict, description="live overrides")
    findings: list[str] = Field(default_factory=list, description="what needs attention")
    limit: int | None = None
    effective_limit: int | None = None
    ceiling: int | None = None
    open: int = 0
    knee: dict[str, Any] | None = Field(
        None,
        description="what the default engine has learned of how latency grows with load: the `level` that it keeps and "
        "the `reason`, and as `curve` the calls `open`, answers `per_s` and `latency_s` that were seen together",
    )


class PoolsView(BaseModel):
    """All pools, and the cap on each one's limit."""

    slo: int | None
    pools: list[PoolView]


class PoolChange(BaseModel):
    """Live overrides, as in `dicast governor set`. Absent ones stay as they are; null removes an override. In `weights`
    and `project_max`, absent projects stay as they are, and null removes a project's entry."""

    model_config = ConfigDict(extra="forbid", strict=True)

    limit: int | None = None
    adaptive: bool | None = None
    ceiling: int | None = None
    floor: int | None = None
    rpm: int | None = None
    tpm: int | None = None
    latency_target_s: float | None = None
    settle_s: float | None = None
    break_s: float | None = None
    cpu_high: float | None = None
    cpu_by: str | None = None
    error_high: float | None = None
    error_low: float | None = None
    window_s: float | None = None
    sustain_s: float | None = None
    pacing_s: float | None = None
    slo_target: float | None = None
    slo_window_s: float | None = None
    slo_burn_rate: float | None = None
    profile: str | None = None
    fair: str | None = None
    weights: dict[str, float | None] | None = None
    project_max: dict[str, float | None] | None = None


class CapChange(BaseModel):
    """The cap on the limit of every pool; null lifts it."""

    model_config = ConfigDict(extra="forbid", strict=True)

    slo: int | None = Field(ge=1, le=1_000_000)


class InForce(BaseModel):
    """A pool's overrides after a change: the pools file's and the live ones."""

    pool: str
    overrides: dict[str, Any]


class PoolObjective(BaseModel):
    """A pool's objective: the share of calls that should succeed, and the present error rate. `capped_at` is the cap in
    force while errors come too fast."""

    pool: str
    slo_target: float | None
    slo_window_s: float
    slo_burn_rate: float
    error_rate: float | None
    capped_at: int | None


class Objectives(BaseModel):
    """The cap on every pool's limit, and each pool's objective."""

    slo: int | None
    pools: list[PoolObjective]


@router.get("/pools")
def list_pools(parts: GivenParts, claims: Looker) -> PoolsView:
    """List the pools that the token is for: their limits and the reasons, who waits, what was denied, and what needs
    attention."""
    return _view(parts, claims)


@router.get("/pools/{pool}")
def show_pool(parts: GivenParts, claims: Looker, pool: PoolPath) -> PoolView:
    """Show one pool."""
    check_pools(claims, {pool})
    return next(view for view in _view(parts, claims, pool).pools if view.pool == pool)


def _view(parts: Parts, claims: Claims, only: str | None = None) -> PoolsView:
    shared = visible_state(parts, claims, operations.read_state(parts.dicast, only))
    document = operations.document(parts.dicast, shared)
    pools = [pool for pool in document["pools"] if sees_pool(claims, pool["pool"])]
    return PoolsView.model_validate({**document, "pools": pools})


@router.patch("/pools/{pool}")
def change_pool(parts: GivenParts, claims: Admin, pool: PoolPath, change: PoolChange) -> InForce:
    """Set live overrides of a pool. They are in force at once, for all workers, until they are removed."""
    check_pools(claims, {pool})
    changes = {name: _plain(name, getattr(change, name)) for name in change.model_fields_set}
    if not changes:
        raise InvalidRequest("body: names no override, so there is nothing to change")
    overrides = operations.change(parts.dicast, pool, changes)
    parts.record(claims, "pool.change", pool, details=changes)
    return InForce(pool=pool, overrides=operations.in_force(overrides))


@router.patch("/pools")
def change_all_pools(parts: GivenParts, claims: Admin, change: CapChange) -> CapChange:
    """Cap the limit of every pool, whatever else is set."""
    check_unbound(claims, "the cap is of")
    operations.cap_all(parts.dicast, change.slo)
    parts.record(claims, "pool.cap", "*", details={"slo": change.slo})
    return change


@router.get("/slo")
def objectives(parts: GivenParts, claims: Looker) -> Objectives:
    """Show the service level objectives: the cap on every pool, each pool's target, and its error rate."""
    dicast = parts.dicast
    states = {state.pool: state for state in operations.read_state(dicast).pools}
    budgets = []
    for name in sorted(name for name in {*dicast.pools.pools, *states} if sees_pool(claims, name)):
        state = states.get(name)
        overrides = dicast.configured_overrides(name).with_live({} if state is None else state.override)
        budgets.append(
            PoolObjective(
                pool=name, slo_target=overrides.slo_target, slo_window_s=overrides.slo_window_s,
                slo_burn_rate=overrides.slo_burn_rate, error_rate=None if state is None else state.error_rate,
                capped_at=None if state is None else state.budget_cap,
            )
        )  # fmt: skip
    return Objectives(slo=operations.cap_of_all(dicast), pools=budgets)


def _plain(name: str, value: Any) -> Any:
    """Return an override's value, with whole numbers of slots in `project_max` as integers: JSON has one number
    type."""
    if name == "project_max" and value is not None:
        return {
            project: int(most) if most is not None and most == int(most) else most for project, most in value.items()
        }
    return value
