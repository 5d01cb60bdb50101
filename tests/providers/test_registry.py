from __future__ import annotations

import asyncio
import json
import shutil
import ssl
import subprocess
from pathlib import Path

import pytest

from dicast.app.providers.anthropic import AnthropicProvider
from dicast.app.providers.base import FailureKind, ProviderFailure
from dicast.app.providers.openai import OpenAIProvider
from dicast.app.providers.registry import build_provider
from dicast.config.pools import Pools, PoolSpec
from dicast.config.settings import Settings
from tests.providers.conftest import RawServer, answer, chat, good_body


def spec(lines: str) -> PoolSpec:
    return Pools.parse(f"[pools.p]\n{lines}").get("p")


MINE = 'provider = "openai"\nmodel = "m"\napi_key_env = "MINE"'
SCHEMA = {"type": "object", "properties": {"a": {"type": "string", "maxLength": 9}}}
SETTINGS = Settings.from_env({"OPENAI_API_KEY": "sk-from-settings"})


async def sent(pool: PoolSpec, environ: dict[str, str], base_url: str | None = None) -> tuple[bytes, bytes]:
    """Head and body of what one call puts on the wire."""
    body = json.dumps(good_body(pool.dialect)).encode()
    async with RawServer(answer(body)) as server:
        provider = build_provider(pool, SETTINGS, environ, base_url=base_url or server.base_url)
        try:
            await provider.complete(
                chat(schema={"type": "object", "properties": {"a": {"type": "string", "maxLength": 9}}})
            )
        finally:
            await provider.close()
    head, _, rest = server.requests[0].partition(b"\r\n\r\n")
    return head.lower(), rest


async def test_the_dialect_decides_which_sdk_speaks():
    for dialect, kind in (("openai", OpenAIProvider), ("anthropic", AnthropicProvider)):
        pool = spec(f'provider = "simulated"\ndialect = "{dialect}"')
        provider = build_provider(pool, SETTINGS, {}, base_url="http://127.0.0.1:9")
        assert isinstance(provider, kind)
        await provider.close()


@pytest.mark.parametrize(
    "lines, environ, key",
    [
        ('provider = "openai"\nmodel = "m"', {}, b"sk-from-settings"),
        (MINE, {"MINE": "sk-mine"}, b"sk-mine"),
        ('provider = "anthropic"\nmodel = "m"', {"ANTHROPIC_API_KEY": "sk-ant"}, b"sk-ant"),
        ('provider = "openai"\nmodel = "m"\nbase_url = "http://127.0.0.1:9"', {}, b"none"),
        ('provider = "local"', {}, b"none"),
    ],
)
async def test_the_key_comes_from_the_variable_the_pool_names(lines, environ, key):
    head, _ = await sent(spec(lines), environ)
    assert b"\r\nauthorization: bearer " + key + b"\r\n" in head or b"\r\nx-api-key: " + key + b"\r\n" in head
    assert key == b"sk-from-settings" or b"sk-from-settings" not in head


@pytest.mark.parametrize(
    "lines, environ, complaint",
    [
        ('provider = "anthropic"\nmodel = "m"', {}, "pool 'p' needs ANTHROPIC_API_KEY, which is not set"),
        (
            'provider = "openai"\nmodel = "m"\napi_key_env = "MINE"',
            {"MINE": ""},
            "pool 'p' needs MINE, which is not set",
        ),
        (
            'provider = "openai"\nmodel = "m"\napi_key_env = "MINE"',
            {"MINE": "sk-canary\n"},
            "pool 'p': MINE holds white",
        ),
        (
            'provider = "openai"\nmodel = "m"\napi_key_env = "MINE"',
            {"MINE": "sk-canaryä"},
            "pool 'p': MINE holds white",
        ),
        ('provider = "local"', {}, "pool 'p': its local server is not running"),
        (
            'provider = "simulated"',
            {},
            "pool 'p': its simulated server is not running: start it (python -m dicast.app.providers.simulated --port",
        ),
    ],
)
def test_what_is_missing_is_named_when_the_pool_is_used(lines, environ, complaint):
    with pytest.raises(ProviderFailure) as caught:
        build_provider(spec(lines), SETTINGS, environ)
    assert caught.value.kind is FailureKind.REJECTED
    assert caught.value.message.startswith(complaint)
    assert "canary" not in caught.value.message


async def test_compatible_servers_and_openai_itself_get_what_they_understand():
    _, body = await sent(spec('provider = "openai"\nmodel = "m"'), {})
    assert json.loads(body)["max_completion_tokens"] == 200
    assert b"maxLength" not in body
    _, body = await sent(spec('provider = "openai"\nmodel = "m"\nbase_url = "http://127.0.0.1:9"'), {})
    assert json.loads(body)["max_tokens"] == 200
    assert b"maxLength" in body
    assert json.loads(body)["response_format"]["json_schema"]["strict"] is True


async def test_azure_is_called_by_deployment_with_its_own_key_header():
    lines = (
        'provider = "openai"\nmodel = "m"\nbase_url = "https://x.openai.azure.com"\n'
        'api_version = "2026-01-01"\napi_key_env = "AZURE"'
    )
    head, _ = await sent(spec(lines), {"AZURE": "azure-key"})
    assert head.startswith(b"post /openai/deployments/judge/chat/completions?api-version=2026-01-01 ")
    assert b"\r\napi-key: azure-key\r\n" in head
    assert b"authorization" not in head


async def test_extra_headers_and_query_are_sent():
    lines = 'headers = { x-team = "blue" }\nquery = { trace = "1" }'
    for dialect in ("openai", "anthropic"):
        head, _ = await sent(spec(f'provider = "simulated"\ndialect = "{dialect}"\n{lines}'), {})
        assert b"trace=1" in head.split(b"\r\n")[0]
        assert b"\r\nx-team: blue\r\n" in head


def self_signed(folder: Path) -> ssl.SSLContext:
    key, certificate = folder / "key.pem", folder / "cert.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate],
        check=True, capture_output=True,
    )  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes a certificate with the openssl command")
async def test_a_certificate_that_nobody_signed_is_refused(tmp_path, dialect):
    context = await asyncio.to_thread(self_signed, tmp_path)
    reached = asyncio.Event()

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reached.set()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    async with server:
        base_url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        pool = spec(f'provider = "simulated"\ndialect = "{dialect}"\nbase_url = "{base_url}"')
        provider = build_provider(pool, SETTINGS, {})
        with pytest.raises(ProviderFailure) as caught:
            await provider.complete(chat())
        await provider.close()
    assert caught.value.kind is FailureKind.CONNECTION
    assert "ertificate" in caught.value.message
    assert not reached.is_set()
