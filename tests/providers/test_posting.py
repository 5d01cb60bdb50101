"""Calls that are sent directly are those that the SDK would have sent, byte for byte."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import pytest

from dicast.app.providers.base import ImagePart, ProviderFailure, Transit
from tests.providers.conftest import SCHEMA, RawServer, Script, answer, chat, good_body, make

REQUESTS = {
    "plain": chat(),
    "no system": chat(system=""),
    "structured": chat(schema=SCHEMA),
    "all that texts hold": chat('"quoted"\\ \n\t\r\x00\x1f\x7f\u2028 ä 漢字 🦊', temperature=0.0),
    "temperatures": chat(temperature=0.7),
    "images": chat(
        "one\ntwo",
        schema=SCHEMA,
        images=[
            ImagePart(4, type="image/png", data="iVBORw0KGgo=", detail="low"),
            ImagePart(4, address="https://h/ä"),
            ImagePart(7, type="image/gif", data="R0lGODlh"),
        ],
    ),
}
POOLS: dict[str, dict[str, Any]] = {
    "": {},
    "tool": {"structured_channel": "tool"},
    "headers": {"headers": {"x-team": "blue", "user-agent": "mine"}, "query": {"trace": "1", "tag": "c&d e"}},
    "headers that the SDK has too": {
        "headers": {
            "OpenAI-Project": "p",
            "openai-organization": "o",
            "Authorization": "Basic x",
            "ACCEPT": "*/*",
            "x-stainless-lang": "none",
            "x-stainless-retry-count": "7",
        },
        "query": {"sum": "1+1=2~*/:, ", "empty": ""},
    },
    "no key": {"key": None},
    "azure": {"api_version": "2026-01-01"},
}


def answered(dialect: str) -> Script:
    body = json.dumps(good_body(dialect)).encode()
    return answer(body, headers=("content-type: application/json", "connection: close"))


@pytest.mark.parametrize("request_name", REQUESTS)
@pytest.mark.parametrize("pool", POOLS)
async def test_a_direct_call_is_the_sdk_s_byte_for_byte(dialect: str, request_name: str, pool: str) -> None:
    if (dialect == "openai" and pool == "tool") or (dialect == "anthropic" and pool == "azure"):
        pytest.skip("the dialect has no such pools")
    async with RawServer(answered(dialect)) as server:
        for calls in ("sdk", "direct", "direct"):
            provider = make(dialect, server.base_url, calls=calls, **POOLS[pool])
            for _ in range(2):  # the first of them is prepared
                await provider.complete(REQUESTS[request_name])
            await provider.close()
    assert len(server.requests) == 6
    assert len(set(server.requests)) == 1


async def test_images_stand_where_they_belong_in_each_dialect(dialect: str) -> None:
    async with RawServer(answered(dialect)) as server:
        provider = make(dialect, server.base_url)
        await provider.complete(REQUESTS["images"])
        await provider.close()
    content = json.loads(server.requests[0].partition(b"\r\n\r\n")[2])["messages"][-1]["content"]
    texts = [{"type": "text", "text": text} for text in ("one\n", "two")]
    if dialect == "openai":
        low = {"url": "data:image/png;base64,iVBORw0KGgo=", "detail": "low"}
        given = [low, {"url": "https://h/ä"}, {"url": "data:image/gif;base64,R0lGODlh"}]
        images = [{"type": "image_url", "image_url": one} for one in given]
    else:
        png, gif = [
            {"type": "base64", "media_type": f"image/{kind}", "data": data}
            for kind, data in (("png", "iVBORw0KGgo="), ("gif", "R0lGODlh"))
        ]
        images = [{"type": "image", "source": one} for one in (png, {"type": "url", "url": "https://h/ä"}, gif)]
    assert content == [texts[0], images[0], images[1], texts[1], images[2]]


async def test_a_proxy_of_the_environment_is_the_sdk_s_business(monkeypatch: pytest.MonkeyPatch) -> None:
    async with RawServer(answered("openai")) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.base_url)
        for trust_env in (False, True):
            provider = make("openai", "http://nowhere.invalid/v1", trust_env=trust_env)
            try:
                await provider.complete(chat())
            except ProviderFailure:
                assert not trust_env
            await provider.close()
    assert [request.split(b"\r\n")[0] for request in proxy.requests] == [
        b"POST http://nowhere.invalid/v1/chat/completions HTTP/1.1"
    ]


# ---------------------------------------------------------------------- how far a call has come
async def cut_after(provider: Any, reached: asyncio.Event) -> Transit:
    """A call that is cut when it has come so far."""
    request = chat()
    call = asyncio.create_task(provider.complete(request))
    async with asyncio.timeout(5):
        await reached.wait()
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    await provider.close()
    return request.transit


@pytest.mark.parametrize("calls, is_open", [("direct", False), ("sdk", True)])
async def test_a_call_that_is_cut_before_it_is_written_is_not_open_at_the_provider(
    dialect: str, calls: str, is_open: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The SDK does not tell what it has written, and is taken to have."""
    connecting = asyncio.Event()

    async def connect(*_: Any, **__: Any) -> Any:
        connecting.set()
        await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(aiohttp.TCPConnector, "connect", connect)
    assert (await cut_after(make(dialect, "http://127.0.0.1:9", calls=calls), connecting)).is_open() is is_open


@pytest.mark.parametrize("calls", ["direct", "sdk"])
async def test_a_call_that_is_cut_while_it_waits_is_open_at_the_provider(dialect: str, calls: str) -> None:
    arrived = asyncio.Event()

    async def silent(*_: Any) -> None:
        arrived.set()
        await asyncio.get_running_loop().create_future()

    async with RawServer(silent) as server:
        assert (await cut_after(make(dialect, server.base_url, calls=calls), arrived)).is_open()
