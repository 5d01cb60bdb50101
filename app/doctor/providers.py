"""Checks whether each pool can be used from this machine, and whether it answers."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from redis.exceptions import RedisError

from dicast.app.application import CALL_GRACE_S, Dicast
from dicast.app.doctor.finding import Finding, Severity
from dicast.app.providers.base import ChatRequest, FailureKind, Provider, ProviderFailure
from dicast.app.providers.local import INSTALL, LocalModelMissing, LocalProvider, find_weights
from dicast.app.providers.registry import build_provider
from dicast.config.pools import PoolSpec
from dicast.workers.admission.governor import Governor
from dicast.workers.admission.leases import LeaseStore, LeaseVerdict, Want
from dicast.workers.store.connection import connect_async

CALL_TIMEOUT_S = 60.0
LEASE_WAIT_S = 5.0
LEASE_RETRY_S = 0.25
DOCTOR = "~doctor"
"""The job and project of test calls: no job can have this id."""


def provider(spec: PoolSpec, dicast: Dicast, *, default: bool) -> Finding:
    """Check whether the pool has what it needs on this machine. Makes no call."""
    area, serious = _area(spec), Severity.ERROR if default else Severity.INFO
    if spec.provider == "local":
        try:
            find_weights()
        except LocalModelMissing:
            return Finding(serious, area, "the local model is not installed", INSTALL)
        return Finding(Severity.OK, area, f"{spec.model}, installed here")
    try:
        asyncio.run(_built(spec, dicast))
    except ProviderFailure as failure:
        advice = f"set {spec.api_key_env} in the environment or in .env" if spec.api_key_env else "give it a base_url"
        return Finding(serious, area, failure.message.removeprefix(f"pool {spec.name!r}").lstrip(": "), advice)
    key = f"key in {spec.api_key_env}" if spec.api_key_env else "no key needed"
    return Finding(Severity.OK, area, f"{spec.model} at {spec.base_url or spec.provider}, {key}")


def _area(spec: PoolSpec) -> str:
    return f"pool {spec.name}"


async def _built(spec: PoolSpec, dicast: Dicast) -> None:
    await _build(spec, dicast).close()


def _build(spec: PoolSpec, dicast: Dicast) -> Provider:
    def build(base_url: str | None = None) -> Provider:
        return build_provider(spec, dicast.settings, dicast.environ, base_url=base_url)

    return LocalProvider(dicast.settings.state_dir, build) if spec.provider == "local" else build()


async def call_pool(dicast: Dicast, spec: PoolSpec) -> Finding:
    """Make one tiny call under a lease, so that it counts within the pool's limit."""
    timeout_s = min(spec.timeout_s or dicast.settings.llm_call_timeout, CALL_TIMEOUT_S)
    try:
        async with _lease(dicast, spec, timeout_s) as denial:
            if denial is not None:
                return Finding(Severity.INFO, _area(spec), f"not called, for no lease came free ({denial})")
            return await _try_call(dicast, spec, timeout_s)
    except RedisError as error:
        return Finding(Severity.ERROR, _area(spec), f"no lease, so no call: the store says {error}")


@asynccontextmanager
async def _lease(dicast: Dicast, spec: PoolSpec, timeout_s: float) -> AsyncIterator[str | None]:
    """Take a lease for one call, as a job of one unit does. Yields None, or the reason if no lease was granted within
    `LEASE_WAIT_S`."""
    lease, end = f"{DOCTOR}.{secrets.token_hex(8)}", time.monotonic() + LEASE_WAIT_S
    limit = min([dicast.settings.max_concurrent_llm_calls, *(node.limit for node in dicast.registry.alive())])
    async with connect_async(dicast.store_url) as client:
        governor = Governor(client, dicast.keys, dicast.configured_overrides)
        ttl_ms = round(1000 * (timeout_s + CALL_GRACE_S))
        admit = partial(LeaseStore(client, dicast.keys).admit, pool=spec.name, node=DOCTOR, ttl_ms=ttl_ms)
        try:
            while True:
                await client.hset(dicast.keys.job_limits, DOCTOR, limit)
                admission = await admit(give_back=[], wants=[Want(lease, DOCTOR, DOCTOR)])
                if admission.verdicts == [LeaseVerdict.GRANTED] or time.monotonic() > end:
                    break
                if admission.decide:
                    await governor.tick(spec.name)
                else:
                    await asyncio.sleep(LEASE_RETRY_S)
            yield None if admission.verdicts == [LeaseVerdict.GRANTED] else admission.reason
        finally:
            await admit(give_back=[lease], wants=[])
            await client.hdel(dicast.keys.job_limits, DOCTOR)


async def _try_call(dicast: Dicast, spec: PoolSpec, timeout_s: float) -> Finding:
    provider: Provider | None = None
    area = _area(spec)
    serious = Severity.ERROR if spec.api_key_env or spec.name == dicast.pools.default else Severity.WARNING
    request = ChatRequest(spec.model, system="Answer with one word.", user="Say yes.", max_tokens=16)
    started = time.perf_counter()
    try:
        provider = _build(spec, dicast)
        async with asyncio.timeout(timeout_s):
            reply = await provider.complete(request)
    except ProviderFailure as failure:
        status = f" (status {failure.status_code})" if failure.status_code else ""
        advice = "is the address right, and the server running?" if failure.kind is FailureKind.CONNECTION else ""
        return Finding(serious, area, f"the call failed: {failure.kind}{status}: {failure.message}", advice)
    except TimeoutError:
        return Finding(serious, area, f"no answer within {timeout_s:g} s", "is the address right, and the network?")
    finally:
        if provider is not None:
            await provider.close()
    took_s, tokens = time.perf_counter() - started, reply.usage.input_tokens + reply.usage.output_tokens
    return Finding(Severity.OK, area, f"{reply.model} answered in {took_s:.2f} s, {tokens} tokens")
