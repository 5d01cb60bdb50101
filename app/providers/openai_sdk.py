"""Calls that involve OpenAI's SDK: it sends them, or builds the request that they are modelled on."""

from __future__ import annotations

from typing import Any

import httpx2
import openai

from dicast.app.providers.http import (
    BoundedBodies,
    Build,
    Connections,
    DirectPost,
    Post,
    SdkPost,
    UnsentClient,
    built_by,
    timeouts,
)
from dicast.config.pools import PoolSpec

ERRORS = (openai.OpenAIError,)


class _HttpClient(BoundedBodies, openai.DefaultAioHttpClient):
    pass


def direct_post(spec: PoolSpec, key: str, url: str, path: str, *, max_response_bytes: int, timeout_s: float) -> Post:
    """Return a sender of requests like the SDK's, which bypasses the SDK."""
    build = builder(spec, key, url, path, timeouts(timeout_s))
    return DirectPost(build, Connections(max_response_bytes=max_response_bytes, timeout_s=timeout_s))


def builder(spec: PoolSpec, key: str, url: str, path: str, timeout: httpx2.Timeout) -> Build:
    """Return a builder of requests for any pool."""
    return built_by(_client(spec, key, url, UnsentClient(timeout)), path)


def sdk_post(spec: PoolSpec, key: str, url: str, path: str, *, max_response_bytes: int, timeout_s: float) -> Post:
    """Return a sender of requests through the SDK."""
    http = _HttpClient(max_response_bytes=max_response_bytes, timeout_s=timeout_s, trust_env=spec.trust_env)
    return SdkPost(_client(spec, key, url, http), path, openai.APIStatusError)


def _client(spec: PoolSpec, api_key: str, base_url: str, http_client: httpx2.AsyncClient) -> openai.AsyncOpenAI:
    """Build the SDK's client. It ignores the environment, whose organisation and headers are meant for OpenAI alone."""
    options: dict[str, Any] = {
        "api_key": api_key, "max_retries": 0, "default_headers": spec.headers, "default_query": spec.query,
        "http_client": http_client,
    }  # fmt: skip
    client: openai.AsyncOpenAI
    if spec.api_version is not None:
        client = openai.AsyncAzureOpenAI(azure_endpoint=base_url, api_version=spec.api_version, **options)
    else:
        client = openai.AsyncOpenAI(base_url=base_url, **options)
    if not spec.trust_env:
        client.organization = client.project = None
        client._custom_headers = dict(spec.headers)
    return client
