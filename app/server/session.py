"""`/session`: the caller's identity and rights, so that a page can show what the caller may do."""

from __future__ import annotations

import math
from typing import Annotated

from pydantic import BaseModel, Field

from dicast.app.access.scopes import Claims, Scope
from dicast.app.server.doors import guarded_router, needs
from dicast.app.server.overview import VERSION
from dicast.app.server.parts import GivenParts

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
