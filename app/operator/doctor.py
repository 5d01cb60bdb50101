"""Checks an installation. Each check yields findings: a fact, its severity, and what to do about it.

`examined` runs all checks of an application, in a fixed order. Checks of pools, jobs and providers are here; those of
the store and the broker are in `store_checks.py`, those of nodes and queues in `waiting.py`.
"""

from __future__ import annotations

import asyncio
import secrets
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from redis.exceptions import RedisError

from dicast.app.application import CALL_GRACE_S, Dicast, create_app
from dicast.app.cluster.snapshot import read_shared
from dicast.app.domain.text import printable
from dicast.app.ledger.records import JobState
from dicast.app.operator import waiting
from dicast.app.operator.store_checks import Finding, Severity, broker, store, store_program
from dicast.app.operator.waiting import NO_WORKER, bounds, queues, unserved, workers
from dicast.app.providers.base import ChatRequest, FailureKind, Provider, ProviderFailure
from dicast.app.providers.batches import BatchState
from dicast.app.providers.local import INSTALL, LocalModelMissing, LocalProvider, find_weights
from dicast.app.providers.registry import PoolUnusable, build_provider
from dicast.config.pools import PoolsError, PoolSpec
from dicast.config.settings import Settings, SettingsError
from dicast.workers.admission.governor import Governor
from dicast.workers.admission.leases import LeaseStore, LeaseVerdict, Want
from dicast.workers.admission.pool_state import findings
from dicast.workers.store.connection import connect_async

__all__ = ["Finding", "Severity", "examine"]

MESSAGE_CHARS = 500


def examine(environ: Mapping[str, str], *, call: bool = False) -> Iterator[Finding]:
    """Check everything, and yield each finding as soon as it is known. Secrets are masked.

    With `call`, each pool that can be used is asked one tiny question, under a lease like any other call's.
    """
    try:
        settings = Settings.from_env(environ)
    except SettingsError as error:
        yield Finding(Severity.ERROR, "settings", str(error), "correct the environment or the .env file")
        return
    dicast = create_app(environ)
    try:
        hidden = dicast.secrets()
    except PoolsError:  # examined and reported below
        hidden = settings.secrets()
    for finding in examined(dicast, call=call):
        yield Finding(finding.severity, finding.area, _masked(finding.message, hidden), _masked(finding.advice, hidden))


def _masked(text: str, hidden: list[str]) -> str:
    for secret in hidden:
        text = text.replace(secret, "***")
    return printable(text, MESSAGE_CHARS)


AREA = "governor"


def governor(dicast: Dicast) -> Iterator[Finding]:
    """Yield findings on each pool that has been used.

    Limits that are not what they should be are explained.
    """
    states = read_shared(dicast.store_url, dicast.keys).pools
    advice = "see dicast governor show"
    calm = []
    for state in states:
        pool_findings = findings(state)
        if not pool_findings:
            calm.append(f"{state.pool} {state.limit}")
        for finding in pool_findings:
            yield Finding(Severity.WARNING, AREA, f"pool {state.pool}: {finding}", advice)
    if states and states[0].slo is not None:
        yield Finding(Severity.INFO, AREA, f"no pool's limit is above {states[0].slo}", "dicast governor slo none")
    if calm:
        yield Finding(Severity.OK, AREA, f"limits: {', '.join(calm)}")


JOBS_READ = 100
"""How many of the newest jobs are checked; `dicast jobs show` explains older ones."""
SHOWN_MAX = 5


def jobs(dicast: Dicast) -> Iterator[Finding]:
    """Yield what jobs wait for, and how many others are under way."""
    going = [status for status in dicast.ledger.jobs(JOBS_READ) if not status.state.ended]
    if not going:
        return
    shared = read_shared(dicast.store_url, dicast.keys)
    # Without a worker all jobs wait for one, which the check of the workers reports once.
    waits = [(status, waiting.reason(dicast, status, shared)) for status in going] if dicast.registry.alive() else []
    waiting_jobs = [(status, why) for status, why in waits if why is not None and not why.startswith("batch @")]
    for status, why in waiting_jobs[:SHOWN_MAX]:
        yield Finding(Severity.WARNING, "jobs", f"job {status.id} waits: {why}", f"dicast jobs show {status.id}")
    if len(waiting_jobs) > SHOWN_MAX:
        yield Finding(Severity.WARNING, "jobs", f"{len(waiting_jobs) - SHOWN_MAX} more jobs wait", "dicast jobs list")
    others = len(going) - len(waiting_jobs)
    if others:
        cancelling = sum(status.state is JobState.CANCELLING for status in going)
        yield Finding(
            Severity.OK, "jobs", f"{others} under way" + (f", {cancelling} being cancelled" if cancelling else "")
        )


FINALIZING_MAX_S = 3600.0
"""A provider needs minutes to write down the results of a batch; after so long it may be stuck."""
BATCH_MAX_S = 25 * 3600.0
"""Providers end a batch after a day."""


def batches(dicast: Dicast) -> Iterator[Finding]:
    """Yield batches that are stuck, and how many others are at their providers."""
    others = 0
    for batch in dicast.ledger.batches():
        state_s, age_s = time.time() - batch.state_since, time.time() - batch.formed_at
        if batch.state == BatchState.FINALIZING and state_s > FINALIZING_MAX_S:
            trouble = f"has been finalizing for {state_s / 3600:.0f} h, and none of its results can be had yet"
        elif age_s > BATCH_MAX_S:
            trouble = f"was formed {age_s / 3600:.0f} h ago, and {batch.progress}"
        elif batch.note:
            trouble = f"does not go on: {batch.note}"
        else:
            others += 1
            continue
        where = f"batch {batch.name} of job {batch.lane.job} at pool {batch.pool} ({batch.provider_id or 'not sent'})"
        advice = f"dicast batches show {batch.name}; dicast batches cancel {batch.name} has its units asked again"
        yield Finding(Severity.WARNING, "batches", f"{where} {trouble}", advice)
    if others:
        yield Finding(Severity.OK, "batches", f"{others} at their providers, or on the way")


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
        trouble = failure.trouble if isinstance(failure, PoolUnusable) else failure.message
        return Finding(serious, area, trouble, advice)
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
    """Make one tiny call under a lease, so that it counts within the pool's limit.

    It shows that the pool can be used from this machine, and answers.
    """
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


def examined(dicast: Dicast, *, call: bool) -> Iterator[Finding]:
    """Run all checks, each after those that it depends on. Without a store, the checks of its contents are left out;
    an embedded store that has never run is not started for them."""
    yield from _settings(dicast.settings)
    try:
        pools = dicast.pools
    except PoolsError as error:
        pools = None
        yield Finding(Severity.ERROR, "pools", str(error), "correct the file that DICAST_POOLS_FILE names")
    usable: list[PoolSpec] = []
    if pools is not None:
        names = ", ".join(pools.pools)
        yield Finding(Severity.OK, "pools", f"{len(pools.pools)} pools ({names}), {pools.default} by default")
        if pools.flat:
            yield Finding(
                Severity.INFO, "pools", "the file has the older shape, of one pool", "dicast pools prints the new one"
            )
        for unwise in pools.findings():
            yield Finding(Severity.WARNING, f"pool {unwise.pool}", unwise.message, "use https, or a tunnel")
        for spec in pools.pools.values():
            finding = provider(spec, dicast, default=spec.name == pools.default)
            if finding.severity is Severity.OK:
                usable.append(spec)
            yield finding
    if dicast.nothing_stored and not call and dicast.settings.broker_url is None:
        yield store_program(dicast)
        yield NO_WORKER
        if pools is not None:
            yield from bounds(dicast)
        return
    store_answers = True
    for finding in store(dicast):
        store_answers = store_answers and not (finding.area == "store" and finding.severity is Severity.ERROR)
        yield finding
    if not store_answers:
        return
    yield from workers(dicast)
    yield from governor(dicast)
    yield from jobs(dicast)
    yield from batches(dicast)
    if pools is not None:
        yield from bounds(dicast)
        broker_answers = True
        for finding in broker(dicast):
            broker_answers = broker_answers and not (finding.area == "broker" and finding.severity is Severity.ERROR)
            yield finding
        if broker_answers:
            yield from queues(dicast)
            yield from unserved(dicast)
        if call:
            for spec in usable:
                yield asyncio.run(call_pool(dicast, spec))


def _settings(settings: Settings) -> Iterator[Finding]:
    yield Finding(
        Severity.OK, "settings",
        f"at most {settings.max_concurrent_llm_calls} calls open, {settings.retry_max_attempts} attempts, "
        f"a call is cut after {settings.llm_call_timeout:g} s",
    )  # fmt: skip
    for variable, folder in (("DICAST_RESULTS_DIR", settings.results_dir), ("DICAST_STATE_DIR", settings.state_dir)):
        place = _nearest_existing(Path(folder).resolve())
        try:
            with tempfile.TemporaryFile(dir=place):
                continue
        except OSError as error:
            message = f"{variable}: {folder} cannot be written to: {error.strerror}"
            yield Finding(Severity.ERROR, "settings", message, f"make {place} a folder that can be written to")


def _nearest_existing(path: Path) -> Path:
    while not path.exists():
        path = path.parent
    return path
