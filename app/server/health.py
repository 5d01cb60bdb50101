"""`/healthz`, `/readyz`: for orchestrators and load balancers. They need no token and reveal nothing internal."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from kombu.exceptions import OperationalError
from pydantic import BaseModel
from redis.exceptions import RedisError
from starlette.responses import Response

from dicast.app.access.scopes import Claims
from dicast.app.server.doors import guarded_router, needs
from dicast.app.server.parts import GivenParts, Parts
from dicast.app.server.problems import AGAIN, problem
from dicast.workers.store.connection import connect

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
