"""`dicast serve`: the HTTP interface on an address, until it is told to stop."""

from __future__ import annotations

import uvicorn

from dicast.app.application import Dicast
from dicast.app.server.interface import create_server
from dicast.app.server.origins import LOOPBACK_NAMES, is_loopback
from dicast.config.settings import SettingsError

STOP_S = 10
"""How long open answers may take once the server is told to stop; event streams end at once."""
CONNECTIONS_MAX = 2048
IDLE_S = 15
"""A connection without a request is closed after so long."""


def check(dicast: Dicast, host: str) -> None:
    """Raises `SettingsError` for a server that would let strangers in, or whose tokens nobody could have issued."""
    settings = dicast.settings
    if not settings.require_auth and not is_loopback(host):
        raise SettingsError(
            f"DICAST_REQUIRE_AUTH=false is for a loopback address alone, and DICAST_SERVER_HOST is {host!r}"
        )
    if settings.require_auth and not dicast.token_secrets:
        raise SettingsError(
            "DICAST_TOKEN_SECRET must be set where tokens are required: 32 bytes or more, the same for all servers; "
            "or DICAST_REQUIRE_AUTH=false, on a loopback address"
        )


def configured(dicast: Dicast, host: str, port: int) -> uvicorn.Config:
    """How uvicorn is to serve this installation. Raises `SettingsError`."""
    check(dicast, host)
    given = (dicast.settings.server_names or "").split(",")
    names = LOOPBACK_NAMES | {host.lower().strip("[]")} | {name.strip().lower() for name in given if name.strip()}
    return uvicorn.Config(
        create_server(dicast, names if is_loopback(host) else None),
        host=host, port=port, log_config=None, access_log=False, server_header=False, proxy_headers=False,
        timeout_graceful_shutdown=STOP_S, timeout_keep_alive=IDLE_S, limit_concurrency=CONNECTIONS_MAX,
        lifespan="off", ws="none", date_header=True,
    )  # fmt: skip


def serve(dicast: Dicast, host: str, port: int) -> None:
    """Serve until SIGINT or SIGTERM. Raises `SettingsError`; exits with status 3 where the address is taken."""
    uvicorn.Server(configured(dicast, host, port)).run()
