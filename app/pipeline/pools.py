"""The pools of this worker, as the parts of the pipeline use them."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Protocol

from dicast.app.domain.job import Deployment
from dicast.app.providers.base import Provider
from dicast.app.providers.local import LocalProvider
from dicast.app.providers.registry import build_provider
from dicast.workers.nodes.registry import Node
from dicast.workers.store.connection import AsyncStoreClient
from dicast.workers.store.keys import Keys

if TYPE_CHECKING:
    from dicast.config.pools import Pools, PoolSpec
    from dicast.config.settings import Settings
    from dicast.workers.admission.gate_host import GateConfig


LIVING_CACHE_S = 1.0


class PoolSettings(Protocol):
    """The parts of the application that concern pools."""

    environ: Mapping[str, str]
    settings: Settings

    @property
    def pools(self) -> Pools: ...
    @property
    def gate(self) -> GateConfig: ...
    def call_timeout_s(self, pool: str) -> float: ...


class LivingPools:
    """Knows which pools are served by any living node, according to the nodes themselves. For one event loop."""

    def __init__(self, client: AsyncStoreClient, keys: Keys) -> None:
        self._redis, self._keys = client, keys
        self._served: frozenset[str] | None = None
        self._read_at = float("-inf")

    async def served(self) -> frozenset[str] | None:
        """Return the pools that are served, at most `LIVING_CACHE_S` old; None if some node does not report its pools.
        Raises redis errors."""
        now = asyncio.get_running_loop().time()
        if now >= self._read_at + LIVING_CACHE_S:
            facts = await self._redis.hvals(self._keys.nodes)
            nodes = [node for text in facts if (node := Node.read(text)) is not None]
            is_known = bool(nodes) and all(node.version for node in nodes)
            self._served = frozenset(pool for node in nodes for pool in node.pools) if is_known else None
            self._read_at = now
        return self._served


class ServedPools:
    """The pools of this worker's configuration, for one event loop. A provider is built when a unit first needs it."""

    def __init__(self, app: PoolSettings) -> None:
        self._app, self._pools = app, app.pools
        self._providers: dict[str, Provider] = {}

    @property
    def names(self) -> Collection[str]:
        return self._pools.pools.keys()

    def knows(self, pool: str) -> bool:
        return pool in self._pools.pools

    def model(self, deployment: Deployment) -> str:
        """Return a deployment's model, or "" if this worker does not know the pool."""
        spec = self._pools.pools.get(deployment.pool) if deployment.pool else self._pools.get("")
        return deployment.model or (spec.model if spec else "")

    def call_timeout_s(self, pool: str) -> float:
        """Return how long a call of this pool may take in total, s."""
        return self._app.call_timeout_s(pool)

    def provider(self, pool: str) -> Provider:
        """Return the pool's provider. Raises `ProviderFailure` if it cannot be built, for example without a key."""
        spec = self._pools.get(pool)
        if spec.name not in self._providers:
            self._providers[spec.name] = self._build(spec)
        return self._providers[spec.name]

    def _build(self, spec: PoolSpec) -> Provider:
        app = self._app

        def build(base_url: str | None = None) -> Provider:
            return build_provider(spec, app.settings, app.environ, base_url=base_url)

        if spec.provider == "local":
            return LocalProvider(app.settings.state_dir, build, nonce_in_schema=spec.nonce_in_schema)
        return build()

    async def limit(self, pool: str) -> int:
        """Return how many calls the governor allows to be open now, over all workers."""
        return await self._app.gate.governor().limit(pool)

    async def govern(self) -> None:
        """Have the governor decide on every pool's limits."""
        await self._app.gate.governor().tick_all(list(self._pools.pools))

    async def close(self) -> None:
        for provider in self._providers.values():
            await provider.close()
