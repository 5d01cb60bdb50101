"""The pools of this worker, as the pipeline uses them, and the choice among several deployments of a judge."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import orjson

from dicast.app.domain.panel import Deployment
from dicast.app.domain.plan import Candidate, Choice, Lane, assign, place
from dicast.app.ledger.keys import PageRef
from dicast.app.ledger.ledger import Ledger
from dicast.app.ledger.records import JobRecord, MessageId
from dicast.app.pipeline.call_facts import Models, Stops
from dicast.app.providers.base import ChatReply, ChatRequest, Provider, ProviderFailure
from dicast.app.providers.local import LocalProvider
from dicast.app.providers.registry import build_batch_api, build_provider
from dicast.app.tracing import NO_TRACES, Traces
from dicast.workers.admission.pool_state import UNKNOWN, PoolHealth, PoolHealthReader
from dicast.workers.nodes.registry import Node
from dicast.workers.store.connection import AsyncStoreClient
from dicast.workers.store.keys import Keys

if TYPE_CHECKING:
    from dicast.app.providers.batches import BatchApi
    from dicast.config.pools import Pools, PoolSpec
    from dicast.config.settings import Settings
    from dicast.workers.admission.gate_host import GateConfig

LIVING_CACHE_S = 1.0
_REQUEST_SETTINGS = {
    "provider", "dialect", "base_url", "api_version", "query", "structured_output", "structured_channel",
    "max_tokens_field", "schema_lengths", "nonce_in_schema",
}  # fmt: skip
"""The settings of a pool on which the bytes of a request, or who gets them, depend."""


class PoolSettings(Protocol):
    """The parts of the application that concern pools."""

    environ: Mapping[str, str]
    settings: Settings

    @property
    def pools(self) -> Pools: ...
    @property
    def admission_gate(self) -> GateConfig: ...
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

    def __init__(self, app: PoolSettings, tracer: Traces = NO_TRACES) -> None:
        self._app, self._pools, self._tracer = app, app.pools, tracer
        self._providers: dict[str, Provider] = {}
        self._batch_apis: dict[str, BatchApi] = {}
        self._timeouts_s: dict[str, float] = {}

    @property
    def names(self) -> Collection[str]:
        return self._pools.pools.keys()

    def knows(self, pool: str) -> bool:
        return pool in self._pools.pools

    def model(self, deployment: Deployment) -> str:
        """Return a deployment's model, or "" if this worker does not know the pool."""
        spec = self._pools.pools.get(deployment.pool) if deployment.pool else self._pools.get("")
        return deployment.model or (spec.model if spec else "")

    def asked_at(self, deployment: Deployment) -> str:
        """Return the settings of a deployment's pool by which its requests differ from others', and the model, as JSON;
        '' for a pool that this worker does not know. Keys and other headers are no part of it."""
        spec = self._pools.pools.get(deployment.pool) if deployment.pool else self._pools.get("")
        if spec is None:
            return ""
        settings = spec.model_dump(mode="json", include=_REQUEST_SETTINGS)
        settings |= {name: value for name in ("effort", "param_names", "body") if (value := getattr(spec, name))}
        return orjson.dumps(settings | {"model": self.model(deployment)}, option=orjson.OPT_SORT_KEYS).decode()

    def call_timeout_s(self, pool: str) -> float:
        """Return how long a call of this pool may take in total, s."""
        timeout_s = self._timeouts_s.get(pool)
        if timeout_s is None:
            timeout_s = self._timeouts_s[pool] = self._app.call_timeout_s(pool)
        return timeout_s

    def provider(self, pool: str) -> Provider:
        """Return the pool's provider. Raises `ProviderFailure` if it cannot be built, for example without a key."""
        provider = self._providers.get(pool)
        if provider is None:
            spec = self._pools.get(pool)  # `pool` may be "", which is the default pool
            provider = self._providers.get(spec.name)
            if provider is None:
                provider = self._providers[spec.name] = self._build(spec)
        return provider

    def batch_api(self, pool: str) -> BatchApi:
        """Return the pool's batch API. Raises `ProviderFailure` as `provider` does."""
        api = self._batch_apis.get(pool)
        if api is None:
            app = self._app
            api = self._batch_apis[pool] = build_batch_api(self._pools.get(pool), app.settings, app.environ)
        return api

    def _build(self, spec: PoolSpec) -> Provider:
        app = self._app

        def build(base_url: str | None = None) -> Provider:
            return build_provider(spec, app.settings, app.environ, base_url=base_url)

        if spec.provider == "local":
            provider: Provider = LocalProvider(app.settings.state_dir, build, nonce_in_schema=spec.nonce_in_schema)
        else:
            provider = build()
        return provider if self._tracer is NO_TRACES else TracedProvider(self._tracer, provider, spec)

    async def limit(self, pool: str) -> int:
        """Return how many calls the governor allows to be open now, over all workers."""
        return await self._app.admission_gate.governor().limit(pool)

    async def govern(self) -> None:
        """Have the governor decide on every pool's limits."""
        await self._app.admission_gate.governor().tick_all(list(self._pools.pools))

    async def close(self) -> None:
        for provider in self._providers.values():
            await provider.close()
        for api in self._batch_apis.values():
            await api.close()


class TracedProvider:
    """A provider that records each call as a span, named by OpenTelemetry's conventions for generative AI."""

    def __init__(self, tracer: Traces, provider: Provider, spec: PoolSpec) -> None:
        self._tracer, self._provider = tracer, provider
        self._pool, self._kind = spec.name, spec.provider
        self.structured_output, self.nonce_in_schema = provider.structured_output, provider.nonce_in_schema
        self.caches = provider.caches

    async def complete(self, request: ChatRequest) -> ChatReply:
        """Make one call with the wrapped provider, within a span."""
        with self._tracer.span(f"chat {request.model}", client=True, pool=self._pool) as span:
            span.set_attributes({
                "gen_ai.operation.name": "chat", "gen_ai.provider.name": self._kind,
                "gen_ai.request.model": request.model, "gen_ai.request.max_tokens": request.max_tokens,
            })  # fmt: skip
            try:
                reply = await self._provider.complete(request)
            except ProviderFailure as failure:
                span.set_attribute("error.type", failure.kind.value)
                if failure.status_code is not None:
                    span.set_attribute("http.response.status_code", failure.status_code)
                raise
            except asyncio.CancelledError:
                span.set_attribute("error.type", "cut")
                raise
            span.set_attributes({
                "gen_ai.response.model": reply.model, "gen_ai.usage.input_tokens": reply.usage.input_tokens,
                "gen_ai.usage.output_tokens": reply.usage.output_tokens, "http.response.status_code": 200,
            })  # fmt: skip
            return reply

    async def close(self) -> None:
        await self._provider.close()


class KnownPools(Models, Protocol):
    """See `dicast.app.pipeline.pools.ServedPools`."""

    def knows(self, pool: str) -> bool: ...
    async def limit(self, pool: str) -> int: ...


class Living(Protocol):
    """See `dicast.app.pipeline.pools.LivingPools`."""

    async def served(self) -> frozenset[str] | None: ...


class ChoiceCounter(Protocol):
    def assigned(self, pool: str, model: str, score: float) -> None: ...


NO_CHOICES: Mapping[MessageId, Choice] = {}


class Deployments:
    """Chooses deployments on one event loop, and counts every choice in `metrics`.

    A pool that this worker does not know is treated as broken, since its queue cannot be written to. So is a place
    where the job has stopped asking, and a pool that no node serves.

    It goes by the state of the pools in the store (app/domain/plan.py has the rule).
    """

    def __init__(
        self, pool_health: PoolHealthReader, ledger: Ledger, pools: KnownPools, stops: Stops, metrics: ChoiceCounter,
        living: Living | None = None,
    ) -> None:  # fmt: skip
        self._pool_health, self._ledger, self._pools = pool_health, ledger, pools
        self._stops, self._metrics, self._living = stops, metrics, living

    async def choose(
        self, job: JobRecord, ref: PageRef, lane: Lane, tokens: Sequence[MessageId]
    ) -> Mapping[MessageId, Choice]:
        """Choose a deployment for each message of a page, and count it in the ledger. Returns an empty mapping if the
        lane has a single pool. A message that was assigned before and has not been claimed is counted anew.
        """
        if len(lane.pools) == 1:
            return NO_CHOICES
        health_by_pool, stopped = await self._pool_health.read(lane.pools), await self._stops.stops(job)
        served = await self._living.served() if self._living is not None else None
        limits = {pool: health.limit or await self._pools.limit(pool) for pool, health in health_by_pool.items()}
        by_agent: dict[int, list[MessageId]] = {}
        for token in tokens:
            by_agent.setdefault(lane.unit(token.position).agent, []).append(token)
        choices: dict[MessageId, Choice] = {}
        for agent, mine in by_agent.items():
            models = [self._pools.model(deployment) for deployment in job.spec.agents[agent].choices]
            candidates = [
                _candidate(
                    health_by_pool[pool], model, limits[pool], _taken(choices.values(), lane, pool),
                    usable=self._pools.knows(pool) and place(pool, model) not in stopped
                    and (served is None or pool in served),
                )
                for pool, model in zip(lane.pools, models, strict=True)
            ]  # fmt: skip
            draws = [random.random() for _ in mine]  # noqa: S311  spreads work, guards nothing
            for token, choice in zip(mine, assign(candidates, draws), strict=True):
                choices[token] = choice
                self._metrics.assigned(lane.pools[choice.deployment], models[choice.deployment], choice.score)
        await self._ledger.assign(ref, {token: lane.pools[choice.deployment] for token, choice in choices.items()})
        return choices


def _candidate(pool: PoolHealth, model: str, limit: int, taken: int, *, usable: bool) -> Candidate:
    health = pool.health.get(model, UNKNOWN)
    in_hand = pool.open + pool.assigned + taken
    return Candidate(health.success_rate, in_hand, limit, pool.broken or not usable)


def _taken(choices: Iterable[Choice], lane: Lane, pool: str) -> int:
    """Count the page's units that have just been assigned to this pool for other agents."""
    return sum(lane.pools[choice.deployment] == pool for choice in choices)
