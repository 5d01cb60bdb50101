"""How long many nodes take to join over HTTP at once: a token, a user of the store and an id each."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
from typing import Any

import httpx2

from dicast.app.access.scopes import Scope
from lab.bench.pipeline import Figures, Machine
from tests.e2e.cluster import ROOT, until

NODES, AT_ONCE = 500, 50
SECRET = "a secret of the benchmark's, 32 bytes or more"


def joins() -> Figures:
    """500 nodes register with one server over 50 connections, and are heard once."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with Machine(DICAST_TOKEN_SECRET=SECRET) as m:
        environ = {**m.cluster.environ, "DICAST_SERVER_PORT": str(port), "DICAST_SERVER_RATE": "1000000"}
        command = [sys.executable, "-m", "dicast", "serve"]
        server = subprocess.Popen(command, cwd=ROOT, env={**os.environ, **environ}, stderr=subprocess.DEVNULL)
        try:
            until(lambda: _answers(port), "the server answers")
            token = m.cluster.app.tokens.issue("bench", [Scope.NODE_REGISTER], ttl_s=600.0)
            join_s, heard_s = asyncio.run(_all(f"http://127.0.0.1:{port}", token))
        finally:
            server.terminate()
            server.wait()
    return {"500 nodes join: s": join_s, "500 heartbeats: s": heard_s}


def _answers(port: int) -> bool:
    try:
        return httpx2.get(f"http://127.0.0.1:{port}/healthz").status_code == 200
    except httpx2.TransportError:
        return False


async def _all(url: str, token: str) -> tuple[float, float]:
    limits = httpx2.Limits(max_connections=AT_ONCE)
    async with httpx2.AsyncClient(base_url=url, limits=limits, timeout=60.0) as client:

        async def ask(path: str, token: str, body: Any = None) -> dict[str, Any]:
            reply = await client.post(path, json=body, headers={"authorization": f"Bearer {token}"})
            reply.raise_for_status()
            found: dict[str, Any] = reply.json()
            return found

        began = time.monotonic()
        nodes = await asyncio.gather(
            *(ask("/cluster/nodes", token, {"name": f"w{number}@bench"}) for number in range(NODES))
        )
        joined = time.monotonic()
        await asyncio.gather(
            *(
                ask(f"/cluster/nodes/{node['node'].replace('#', '%23')}/heartbeat", node["heartbeat_token"])
                for node in nodes
            )
        )
        return joined - began, time.monotonic() - joined
