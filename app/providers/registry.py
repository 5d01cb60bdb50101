"""Builds the provider for a pool's specification."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from dicast.app.providers.base import FailureKind, Provider, ProviderFailure
from dicast.config.pools import PoolSpec
from dicast.config.settings import Settings

if TYPE_CHECKING:
    from dicast.app.providers.anthropic import AnthropicProvider
    from dicast.app.providers.batches import BatchApi
    from dicast.app.providers.openai import OpenAIProvider

_GRACE_S = 5.0
"""How much later than the caller's total deadline the socket's own comes, which is for callers that set none."""


class PoolUnusable(ProviderFailure):
    """A pool has no address, no key, or one that cannot be a key. `trouble` says which, without the pool's name."""

    def __init__(self, message: str, trouble: str) -> None:
        super().__init__(FailureKind.REJECTED, message)
        self.trouble = trouble


def load_sdks(specs: Iterable[PoolSpec]) -> None:
    """Import what calls of these pools need, including SDKs. To be called ahead of the first call, off the loop."""
    from dicast.app.providers import http, openai  # noqa: PLC0415  as in `_provider_class`

    for spec in specs:
        _provider_class(spec)
        if spec.dialect == "openai":
            openai.load(spec)
        if not spec.trust_env and (spec.base_url or _DEFAULT_SCHEMES.get(spec.provider, "")).startswith("https:"):
            http.tls(trust_env=False)


_DEFAULT_SCHEMES = {"openai": "https:", "anthropic": "https:"}
"""The schemes of providers whose pools need no address."""
_REMEDY = ": start it (python -m dicast.app.providers.simulated --port 8900), and give the pool its base_url"


def _provider_class(spec: PoolSpec) -> type[AnthropicProvider] | type[OpenAIProvider]:
    if spec.dialect == "anthropic":
        from dicast.app.providers.anthropic import AnthropicProvider  # noqa: PLC0415

        return AnthropicProvider
    from dicast.app.providers.openai import OpenAIProvider, ResponsesProvider  # noqa: PLC0415

    return OpenAIProvider if spec.api == "chat" else ResponsesProvider


def build_provider(
    spec: PoolSpec, settings: Settings, environ: Mapping[str, str], *, base_url: str | None = None
) -> Provider:
    """Build a provider for one pool, to be used on one event loop and closed by the caller. Opens no connection yet.

    `environ` is the environment merged with `.env`; the pool's key is looked up there. `base_url` is where a `local` or
    `simulated` server was found, and wins over the pool's. Raises `PoolUnusable` naming pool and variable
    if the key is missing or cannot be a key, or naming the pool if there is no address.
    """
    if base_url is None and spec.base_url is None and spec.provider in ("local", "simulated"):
        remedy = _REMEDY if spec.provider == "simulated" else ""
        trouble = f"its {spec.provider} server is not running{remedy}"
        raise PoolUnusable(f"pool {spec.name!r}: {trouble}", trouble)
    return _provider_class(spec)(
        spec,
        api_key=_api_key(spec, settings, environ),
        base_url=base_url,
        timeout_s=spec.timeout_s or settings.llm_call_timeout + _GRACE_S,
        max_response_bytes=settings.max_response_bytes,
    )


def build_batch_api(
    spec: PoolSpec, settings: Settings, environ: Mapping[str, str], *, base_url: str | None = None
) -> BatchApi:
    """Build what hands over batches to one pool, as `build_provider` does for its calls. Raises `PoolUnusable` also if
    the pool's provider has no batches that are known here."""
    if spec.provider == "local" or spec.api_version is not None or spec.api != "chat":
        trouble = "has no batch API that Dicast knows"
        raise PoolUnusable(f"pool {spec.name!r} {trouble}", trouble)
    provider: Any = build_provider(spec, settings, environ, base_url=base_url)
    from dicast.app.providers import batch_apis, http  # noqa: PLC0415  few pools have batches

    build = batch_apis.AnthropicBatches if spec.dialect == "anthropic" else batch_apis.OpenAIBatches
    connections = http.Connections(
        max_response_bytes=settings.max_response_bytes,
        timeout_s=spec.timeout_s or settings.llm_call_timeout + _GRACE_S,
        trust_env=spec.trust_env,
    )
    return build(provider, connections, most_line=settings.max_response_bytes)


def key_trouble(spec: PoolSpec, settings: Settings, environ: Mapping[str, str]) -> str:
    """Return why this process has no key for a pool; "" if it has one, or needs none."""
    try:
        _api_key(spec, settings, environ)
    except PoolUnusable as failure:
        return failure.trouble
    return ""


def _api_key(spec: PoolSpec, settings: Settings, environ: Mapping[str, str]) -> str | None:
    variable = spec.api_key_env
    if variable is None:
        return None
    configured = {"OPENAI_API_KEY": settings.openai_api_key, "ANTHROPIC_API_KEY": settings.anthropic_api_key}
    key = configured.get(variable) or environ.get(variable)
    if not key:
        trouble = f"needs {variable}, which is not set"
        raise PoolUnusable(f"pool {spec.name!r} {trouble}", trouble)
    if not key.isascii() or not key.isprintable() or " " in key:
        trouble = f"{variable} holds white space or characters that no key has"
        raise PoolUnusable(f"pool {spec.name!r}: {trouble}", trouble)
    return key
