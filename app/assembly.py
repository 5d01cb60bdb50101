"""Builds the parts of the pipeline for one worker's event loop and connects them, when the first task needs them.

A job goes from `start.Starter` by `lanes.Lanes` and `plan.Planner` to `messages.Messages`; each of its units from
`judge.Judge` to `call.ProviderCaller` and `outcomes.Outcomes`, which writes by `record.Recorder`; its pages and its end
to `gather.Gatherer`.
"""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

from dicast.app.application import Dicast, app
from dicast.app.domain.cost import budgets_of
from dicast.app.domain.retry import RetryPolicy
from dicast.app.ledger.batches import BatchStore
from dicast.app.ledger.ledger import POISON_DEATHS, Ledger
from dicast.app.ledger.troubles import StopStore, Troubles
from dicast.app.pipeline.batches import BatchRoad, Desk
from dicast.app.pipeline.call import NonceKey, ProviderCaller
from dicast.app.pipeline.gather import Announcer, Extras, Gatherer, ProgressReports
from dicast.app.pipeline.housekeeping import (
    Beat,
    CancelledUnits,
    DueMessages,
    Housekeeper,
    StalledPages,
    Sweeper,
    UnattendedJobs,
)
from dicast.app.pipeline.images import StoredImages
from dicast.app.pipeline.job_faults import JobFaults
from dicast.app.pipeline.judge import Claimer, Judge
from dicast.app.pipeline.kept_opinions import KeptOpinions
from dicast.app.pipeline.lanes import Lanes
from dicast.app.pipeline.messages import Messages
from dicast.app.pipeline.missing_pools import MissingPools
from dicast.app.pipeline.outcomes import Outcomes
from dicast.app.pipeline.plan import Lookahead, Planner
from dicast.app.pipeline.pool_trouble import FailFast
from dicast.app.pipeline.pools import Deployments, LivingPools, ServedPools
from dicast.app.pipeline.record import JobCache, Recorder, Spool
from dicast.app.pipeline.recovery import Adoption, DeadNodes, Recovery
from dicast.app.pipeline.start import Preparation, Starter, Terms
from dicast.app.pipeline.time_limits import TimeLimits
from dicast.app.reports.html.beside import HtmlWriter
from dicast.app.reports.opinion_cache import OpinionCache
from dicast.app.submission.rendering import AsyncRenderer
from dicast.app.tracing import NO_TRACES
from dicast.config.settings import Settings
from dicast.workers.admission.pool_state import Outages, PoolHealthReader
from dicast.workers.nodes.reaper import Reaper
from dicast.workers.runtime.pool import loop_resource
from dicast.workers.store.connection import AsyncStoreClient, connect_batching
from dicast.workers.system.supervision import supervise

CLAIM_GRACE_S = 60.0
"""How much longer than its call a claim may last: the time that a worker may need to read and store the answer."""


class Services:
    """All parts of the pipeline, for one event loop."""

    def __init__(self, app: Dicast) -> None:
        assert app.node is not None
        settings, node = app.settings, app.node
        self._client = client = connect_batching(app.store_url)
        tracer = app.tracer or NO_TRACES
        self._pools = pools = ServedPools(app, tracer)
        self.ledger = ledger = _ledger(app, client)
        stops, outages = StopStore(client, app.keys), Outages(client, app.keys)
        fail_fast = FailFast(stops, pools, fail_fast=settings.fail_fast, recheck_s=settings.quota_recheck)
        health = PoolHealthReader(client, app.keys)
        living = LivingPools(client, app.keys)
        deployments = Deployments(health, ledger, pools, stops, app.process_metrics, living)
        self.messages = Messages(app, pools, deployments, tracer)

        self._spool = Spool(settings.state_dir, settings.namespace, node.id)
        recorder = Recorder(ledger, self._spool, app.suspension, tracer)
        reaper = Reaper(app, app.registry, app.keys, own_id=node.id, broker_is_store=app.broker.is_store)
        dead_nodes = DeadNodes(ledger, reaper)
        self._cache = OpinionCache(settings.state_dir, most_bytes=settings.cache_bytes)
        kept_opinions = KeptOpinions(self._cache, pools)
        outcomes = Outcomes(ledger, recorder, _policy(settings), fail_fast, outages, pools, kept_opinions)
        self._renderer = AsyncRenderer()
        images = StoredImages(settings.results_dir)
        caller = ProviderCaller(pools, NonceKey(client, app.keys, settings, app.epoch), images, self._renderer)
        self.jobs = JobCache(ledger)
        claimer = Claimer(ledger, recorder, dead_nodes)
        self.judge = Judge(self.jobs, claimer, fail_fast, pools, caller, outcomes, tracer)

        troubles = Troubles(client, app.keys, app.intervals)
        self.faults = JobFaults(troubles, app.ledger)
        missing_pools = MissingPools(troubles, self.judge, self.messages, pools.names, app.intervals)
        ahead = Lookahead(settings.window_seconds, settings.page_units)
        planner = Planner(ledger, pools, stops, ahead, settings.results_dir, kept_opinions)
        desk = Desk(ledger, self.jobs, self.judge, caller, outcomes, self.messages, stops, health)
        batch_store, batches = _batches(app, client, desk, pools)
        self.lanes = Lanes(ledger, planner, self.messages, missing_pools, self.faults, batches)
        announcer = Announcer(app, node.name)
        extras = Extras(_pages(settings), kept_opinions)
        self.gatherer = Gatherer(ledger, settings.results_dir, pools, stops, announcer, self.faults, extras, tracer)

        adoption = Adoption(self._spool, recorder, self.messages, app.process_metrics)
        recovery = Recovery(ledger, self.messages, recorder, self.gatherer, self.judge, app.epoch)
        preparation = Preparation(ledger, app.ledger, settings.results_dir)
        self.starter = Starter(ledger, preparation, Terms(app.registry, settings), recovery, self.lanes, self.gatherer)

        time_limits = TimeLimits(ledger, fail_fast, self.judge, self.messages, outages, pools)
        stalled_pages = StalledPages(ledger, self.messages, self.jobs, missing_pools)
        unattended = UnattendedJobs(
            ledger, self.messages, self.lanes, CancelledUnits(ledger, self.judge, self.messages), batch_store
        )
        sweeper = Sweeper(ledger, stalled_pages, unattended, time_limits, self.gatherer, self.faults)
        self.progress = ProgressReports(ledger, app.backend)
        nodes = app.cluster if settings.steal else None
        self.beat = Beat(ledger, adoption, dead_nodes, sweeper, pools, nodes, self.progress)
        due = DueMessages(ledger, self.messages, self.jobs, missing_pools, self.faults, batch_store)
        housekeeper = Housekeeper(due, adoption, recovery, missing_pools, self.beat, app.intervals.due_every_s)
        self._loops = [supervise("housekeeper", housekeeper.run), supervise("batches", batches.run)]

    async def close(self) -> None:
        for loop in self._loops:
            loop.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)
        self._renderer.close()
        await self._pools.close()
        await self._client.aclose()
        self._spool.close()
        self._cache.close()


def _batches(app: Dicast, client: AsyncStoreClient, desk: Desk, pools: ServedPools) -> tuple[BatchStore, BatchRoad]:
    assert app.node is not None
    store = BatchStore(client, app.keys, app.node.id, app.intervals)
    served = set(pools.names) - app.unserved.keys()
    return store, BatchRoad(store, desk, pools, served, app.suspension)


def _ledger(app: Dicast, client: AsyncStoreClient) -> Ledger:
    settings = app.settings
    assert app.node is not None
    claim_ms = int((max(map(app.call_timeout_s, app.pools.pools)) + CLAIM_GRACE_S) * 1000)
    calls_max = settings.retry_max_attempts + settings.requeue_budget + POISON_DEATHS
    return Ledger(
        client, app.keys, app.node.id, claim_ms=claim_ms, calls_max=calls_max, intervals=app.intervals,
        budgets=partial(budgets_of, app.pools),
    )  # fmt: skip


def _pages(settings: Settings) -> HtmlWriter | None:
    """Return what writes report.html beside a job's results, or None if that is switched off."""
    return HtmlWriter(Path(settings.state_dir)) if settings.html_report else None


def _policy(settings: Settings) -> RetryPolicy:
    return RetryPolicy(
        initial_s=settings.retry_initial_delay,
        max_s=settings.retry_max_delay,
        max_attempts=settings.retry_max_attempts,
        requeue_budget=settings.requeue_budget,
        retry_after_max_s=settings.retry_after_max,
    )


services = loop_resource(lambda: Services(app), Services.close)
"""The services of the running loop."""
