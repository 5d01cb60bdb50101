"""A real server on loopback, in a thread of the test's process, and what asks it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import httpx2
import uvicorn

from dicast.app.application import Dicast, create_app
from dicast.app.server.interface import configured, create_server, listening

SECRET = "s" * 40
POOLS = """
default = "sim"
[pools.sim]
provider = "simulated"
base_url = "{url}/v1"
[pools.other]
provider = "simulated"
base_url = "{url}/v1"
"""
JOB: dict[str, Any] = {
    "agents": [{"name": "a"}],
    "dimensions": [{"id": "d", "instructions": "?"}],
    "items": [{"id": "i", "text": "a text"}],
}


def installation(folder: Path, redis_url: str, *, provider: str = "http://127.0.0.1:9", **settings: str) -> Dicast:
    """An application with a folder of its own."""
    (folder / "pools.toml").write_text(POOLS.format(url=provider))
    return create_app({
        "REDIS_URL": redis_url, "DICAST_POOLS_FILE": str(folder / "pools.toml"),
        "DICAST_RESULTS_DIR": str(folder / "results"), "DICAST_STATE_DIR": str(folder / "state"),
        "DICAST_UPLOAD_DIR": str(folder / "uploads"), "DICAST_TOKEN_SECRET": SECRET, "DICAST_SERVER_RATE": "1000000",
        **settings,
    })  # fmt: skip


@cache
def open_description() -> dict[str, Any]:
    """The OpenAPI description of a server that asks for no tokens."""
    dicast = create_app({"REDIS_URL": "redis://127.0.0.1:1/0", "DICAST_REQUIRE_AUTH": "false"})
    return create_server(dicast).openapi()


@contextmanager
def served(dicast: Dicast) -> Iterator[str]:
    """The address of a server of this application."""
    server, made = uvicorn.Server(configured(dicast, "127.0.0.1")), listening("127.0.0.1", 0)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [made]}, name="server of a test")
    thread.start()
    try:
        end = time.monotonic() + 20
        while not server.started:
            assert thread.is_alive() and time.monotonic() < end, "the server does not start"
            time.sleep(0.005)
        yield f"http://127.0.0.1:{made.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(timeout=20)
        made.close()
        assert not thread.is_alive()
        dicast.close()


def client(address: str, token: str | None = None, **headers: str) -> httpx2.Client:
    bearer = {} if token is None else {"Authorization": f"Bearer {token}"}
    return httpx2.Client(base_url=address, headers={**bearer, **headers}, timeout=20)


def problem(reply: httpx2.Response, status: int, kind: str) -> dict[str, Any]:
    """The problem in an answer that must be one."""
    assert reply.status_code == status, reply.text
    assert reply.headers["content-type"] == "application/problem+json"
    told: dict[str, Any] = reply.json()
    assert (told["status"], told["type"]) == (status, f"urn:dicast:problem:{kind}")
    assert told["title"] and told["detail"] and "Traceback" not in reply.text
    return told
