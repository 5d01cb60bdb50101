"""No answer leads a call, and the key in it, to another server."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dicast.app.domain.opinion import FailureKind
from tests.providers.conftest import RawServer, answer, failure_of


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_whoever_a_redirect_names_is_not_even_connected_to(dialect: str, provider_at: Any, status: int) -> None:
    visitors = []

    async def note(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        visitors.append(writer.get_extra_info("peername"))
        writer.close()

    other = await asyncio.start_server(note, "127.0.0.1", 0)
    port = other.sockets[0].getsockname()[1]
    redirect = answer(status=f"{status} Elsewhere", headers=(f"location: http://127.0.0.1:{port}/v1/elsewhere",))
    try:
        async with RawServer(redirect) as server:
            failure = await failure_of(provider_at(dialect, server.base_url))
    finally:
        other.close()
    assert (failure.kind, failure.status_code) == (FailureKind.REJECTED, status)
    assert len(server.requests) == 1
    assert visitors == []
