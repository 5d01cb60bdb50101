"""Runs all checks of an application, in a fixed order."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path

from dicast.app.application import Dicast
from dicast.app.doctor.broker import broker
from dicast.app.doctor.finding import Finding, Severity
from dicast.app.doctor.governor import governor
from dicast.app.doctor.jobs import jobs
from dicast.app.doctor.providers import call_pool, provider
from dicast.app.doctor.store import store, store_program
from dicast.app.doctor.workers import NO_WORKER, bounds, queues, unserved, workers
from dicast.config.pools import PoolsError, PoolSpec
from dicast.config.settings import Settings


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
