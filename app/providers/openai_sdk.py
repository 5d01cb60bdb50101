"""Calls in which OpenAI's SDK has a part: it sends them, or builds the request after which they are sent."""

from __future__ import annotations

from typing import Any

import httpx2
import openai

from dicast.app.providers.http import BoundedBodies, Connections, patience
from dicast.app.providers.posting import DirectPost, Post, SdkPost, Unsent, built_by
from dicast.config.pools import PoolSpec

ERRORS = (openai.OpenAIError,)


class _HttpClient(BoundedBodies, openai.DefaultAioHttpClient):
    pass


def direct(spec: PoolSpec, key: str, url: str, path: str, *, max_response_bytes: int, timeout_s: float) -> Post:
    """As the SDK would send them."""
    build = built_by(_client(spec, key, url, Unsent(patience(timeout_s))), path)
    return DirectPost(build, Connections(max_response_bytes=max_response_bytes, timeout_s=timeout_s))


def through(spec: PoolSpec, key: str, url: str, path: str, *, max_response_bytes: int, timeout_s: float) -> Post:
    """By the SDK."""
    http = _HttpClient(max_response_bytes=max_response_bytes, timeout_s=timeout_s, trust_env=spec.trust_env)
    return SdkPost(_client(spec, key, url, http), path, openai.APIStatusError)


def _client(spec: PoolSpec, api_key: str, base_url: str, http_client: httpx2.AsyncClient) -> openai.AsyncOpenAI:
    """The SDK's client, deaf to the environment: an organisation or headers meant for OpenAI go to no other host."""
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
