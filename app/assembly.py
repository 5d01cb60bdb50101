"""The pipeline's parts on one worker's event loop, made when the first task needs them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from functools import partial
from typing import Any

from redis.exceptions import ResponseError

from dicast.app import logs
from dicast.app.application import Dicast, app
from dicast.app.domain.deadlines import Bounds
from dicast.app.domain.job import Deployment
from dicast.app.domain.retry import RetryPolicy
from dicast.app.ledger.client import JobLost, JobState, UnknownJob
from dicast.app.ledger.keys import PageRef
from dicast.app.ledger.ledger import Ledger
from dicast.app.ledger.records import Ended, JobRecord, Recorded, Written
from dicast.app.ledger.stops import StopStore
from dicast.app.ledger.troubles import Troubles
from dicast.app.ledger.unit_verbs import POISON_DEATHS
from dicast.app.pipeline.blame import Blames
from dicast.app.pipeline.calling_options import Continuation
from dicast.app.pipeline.fail_fast import FailFast
from dicast.app.pipeline.gather import Gatherer
from dicast.app.pipeline.judge import Judge
from dicast.app.pipeline.messages import CONTROL_QUEUE, Messages, is_away
from dicast.app.pipeline.nonce_key import NonceKey
from dicast.app.pipeline.plan import DatasetChanged, Planner
from dicast.app.pipeline.route import Deployments
from dicast.app.pipeline.spool import Spool
from dicast.app.pipeline.sweep import Housekeeper
from dicast.app.pipeline.time_limits import TimeLimits
from dicast.app.pipeline.unserved import Unserved
from dicast.app.providers.base import Provider
from dicast.app.providers.local import LocalProvider
from dicast.app.providers.registry import build_provider
from dicast.app.reports.folders import begin
from dicast.app.reports.resuming import earlier, read_items, set_aside
from dicast.config.pools import PoolSpec
from dicast.workers.admission.outages import Outages
from dicast.workers.admission.pool_health import PoolHealthReader
from dicast.workers.nodes.reaper import reap
from dicast.workers.runtime.pool import loop_resource
from dicast.workers.store.connection import connect_batching
from dicast.workers.store.errors import is_passing
from dicast.workers.system.supervision import supervise

logger = logging.getLogger(__name__)

CLAIM_GRACE_S = 60.0
"""How much longer a claim may last than its call: what a worker may need to read and store the answer."""
RETENTION_S = 7 * 86_400
ADOPTED_TOGETHER = 100
ITEMS_TOGETHER = 500
TRIES = 5
"""A job that the same trouble has kept from going on so often is given up."""
WHY_CHARS = 500


class Services:
    """One of each, for one event loop."""

    def __init__(self, app: Dicast) -> None:
        settings = app.settings
        assert app.node is not None
        self._app, self._settings = app, settings
        self._client = connect_batching(app.store_url)
        self._providers: dict[str, Provider] = {}
        claim_ms = int((max(map(app.call_timeout_s, app.pools.pools)) + CLAIM_GRACE_S) * 1000)
        calls_max = settings.retry_max_attempts + settings.requeue_budget + POISON_DEATHS
        self._node_name = app.node.name
        self.ledger = Ledger(
            self._client, app.keys, app.node.id, claim_ms=claim_ms, calls_max=calls_max, intervals=app.intervals
        )
        self.spool = Spool(settings.state_dir, settings.namespace, app.node.id)
        self.fail_fast = FailFast(
            StopStore(self._client, app.keys),
            model=self.model,
            fail_fast=settings.fail_fast,
            recheck_s=settings.quota_recheck,
        )
        deployments = Deployments(
            PoolHealthReader(self._client, app.keys), self.ledger,
            model=self.model, first_limit=self._pool_limit, chosen=app.process_metrics.assigned,
            known=app.pools.pools.__contains__, stopped=self.fail_fast.stops,
        )  # fmt: skip
        self.messages = Messages(app, self.model, deployments.choose)
        outages = Outages(self._client, app.keys).read
        self.judge = Judge(
            self.ledger,
            fail_fast=self.fail_fast,
            blames=Blames(outages, self.fail_fast),
            provider=self._provider,
            model=self.model,
            policy=RetryPolicy(
                initial_s=settings.retry_initial_delay,
                max_s=settings.retry_max_delay,
                max_attempts=settings.retry_max_attempts,
                requeue_budget=settings.requeue_budget,
                retry_after_max_s=settings.retry_after_max,
            ),
            call_timeout_s=app.call_timeout_s,
            nonce_key=NonceKey(self._client, app.keys, settings, lambda: app.epoch.number).get,
            spool=self.spool,
            suspension=app.suspension,
            intervals=app.intervals,
        )
        self.troubles = Troubles(self._client, app.keys, app.intervals)
        self.unserved = Unserved(self.troubles, self.judge, self.messages, app.pools.pools.keys(), app.intervals)
        self._planner, self._rejecter = (
            Planner(
                self.ledger, publish, self._pool_limit,
                window_s=settings.window_seconds, page_max=settings.page_units,
                earlier=partial(earlier, settings.results_dir), stopped=self.fail_fast.stops, model=self.model,
            )
            for publish in (self.messages.page, self.unserved.reject_planned)
        )  # fmt: skip
        self.gatherer = Gatherer(
            self.ledger,
            results_dir=settings.results_dir,
            retention_s=RETENTION_S,
            model=self.model,
            stopped=self.fail_fast.stops,
            announce=self._announce,
        )
        self.housekeeper = Housekeeper(
            self.ledger, self.messages, self.gatherer,
            job=self.judge.job, plan=self.plan, reap=self._reap, govern=self._govern,
            store=lambda: (app.epoch.number, app.epoch.server), works_on=self.judge.works_on,
            lost=self._lost, adopt=self._adopt, recall=self._recall, unserved=self.unserved, troubled=self.troubled,
            time_limits=TimeLimits(self.ledger, self.fail_fast, self.judge, self.messages, outages, self.model).look,
            intervals=app.intervals,
        )  # fmt: skip

        self._housekeeping = supervise("housekeeper", self.housekeeper.run)

    async def start(self, job_id: str) -> None:
        """Start a submitted job, with its limit frozen; of one that has ended, announce the report again."""
        job = await self.ledger.job(job_id)
        if job is None:
            raise UnknownJob(job_id)
        await self._prepare(job)
        await self.housekeeper.watch(job_id)
        limit = await asyncio.to_thread(self._limit)
        state, started, expired = await self.ledger.start(job_id, limit, job.resumed, self._bounds(job))
        if expired:
            await asyncio.to_thread(self._app.ledger.cancel, job_id, "it was not started in time", revoked="expired")
            await self.gatherer.finish(job_id)
            return
        if started:
            logs.limit_frozen(job=job_id, limit=limit, units=job.units)
            await self.ledger.attended(job_id)
        if state is JobState.RUNNING:  # started now, or by a worker that died over the planning
            for lane in range(len(job.lanes)):
                await self.plan(job_id, job.incarnation, lane)
        elif state is not None and state.ended:
            await self.gatherer.announce(job_id)
        elif state is JobState.FINISHING:
            await self.gatherer.finish(job_id)

    def _bounds(self, job: JobRecord) -> Bounds:
        """What the job says, else what this worker's settings say."""
        spec, settings = job.spec, self._settings
        return Bounds.of(
            unit_deadline_s=settings.unit_deadline if spec.unit_deadline is None else spec.unit_deadline,
            finish_by=spec.finish_by,
            max_pool_down_s=settings.max_pool_down if spec.max_pool_down is None else spec.max_pool_down,
        )

    async def _prepare(self, job: JobRecord) -> None:
        """A job that is to start gets its folder; if it is resumed, its files make room, and its items come back."""
        if (await self.ledger.progress(job.id)).get("state") != JobState.SUBMITTED:
            return
        place = self._settings.results_dir, job.id, job.incarnation
        if aside := await asyncio.to_thread(partial(begin, *place, resumed=job.resumed > 0)):
            logger.warning("job %s: results of an earlier job of this id are now in %s", job.id, aside,
                           extra={"event": "set_aside", "job": job.id})  # fmt: skip
        if not job.resumed:
            return
        waits = partial(self._app.ledger.awaits_start, job.id)
        await asyncio.to_thread(set_aside, *place, waits=waits)
        if isinstance(job.spec.items, list) and await self.ledger.item_count(job.id) < job.items:
            pages, first = read_items(*place, ITEMS_TOGETHER), 0
            while page := await asyncio.to_thread(next, pages, None):
                await self.ledger.put_items(job.id, first, page)
                first += len(page)

    async def plan(self, job_id: str, incarnation: str, lane: int) -> None:
        """Fill a lane's window. A job whose items' file has changed is cancelled, for its rest would be another job;
        whatever else keeps it from being planned is tried a few times. Raises what passes, and `LookupError` for a lane
        that the job has not: that is a message's fault, and no trouble of the job's."""
        job = await self.ledger.job(job_id)
        if job is None or job.incarnation != incarnation:
            return
        if not isinstance(lane, int) or not 0 <= lane < len(job.lanes):  # Python counts -1 from the end
            raise LookupError(f"job {job_id} has no lane {lane!r}")
        try:
            await self._plan(job, lane)
        except DatasetChanged as error:
            await self._cancel(job_id, str(error))
        except Exception as error:
            if is_away(error):
                raise
            logger.exception("lane %d of job %s cannot be planned", lane, job_id, extra={"job": job_id})
            await self.ledger.planned(job_id, lane)
            await self.troubled(job_id, error)
        await self.ledger.attended(job_id)

    async def _plan(self, job: JobRecord, lane: int) -> None:
        if self.unserved.serves(job.lanes[lane]):
            await self._planner.plan(job, lane)
        elif await self.unserved.gone(job, job.lanes[lane]):
            await self._rejecter.plan(job, lane)
        else:
            await self.ledger.planned(job.id, lane)
            self.unserved.hand_on(job, lane)

    async def troubled(self, job_id: str, error: Exception) -> None:
        """Something keeps a job from going on that is no outage: it is put on record, and after `TRIES` of the same the
        job is cancelled with that reason."""
        why = f"{type(error).__name__}: {error}"[:WHY_CHARS]
        if await self.troubles.note(job_id, why) >= TRIES:
            await self._cancel(job_id, why)

    async def _cancel(self, job_id: str, why: str) -> None:
        with contextlib.suppress(UnknownJob):
            state, _ = await asyncio.to_thread(self._app.ledger.cancel, job_id, why)
            if state in (JobState.SUBMITTED, JobState.RUNNING):
                logger.error("job %s is cancelled: %s", job_id, why, extra={"event": "job_given_up", "job": job_id})

    def model(self, deployment: Deployment) -> str:
        """A deployment's model; '' of a pool that this worker does not know."""
        spec = self._app.pools.pools.get(deployment.pool) if deployment.pool else self._app.pools.get("")
        return deployment.model or (spec.model if spec else "")

    def _limit(self) -> int:
        """The smallest limit of all living workers binds."""
        heard = {node.limit for node, heard in self._app.registry.known() if heard}
        limits = heard | {self._settings.max_concurrent_llm_calls}
        if len(limits) > 1:
            logger.warning("workers disagree on MAX_CONCURRENT_LLM_CALLS (%s); the smallest binds", sorted(limits))
        return min(limits)

    async def _pool_limit(self, pool: str) -> int:
        return await self._app.gate.governor().limit(pool)

    async def _govern(self) -> None:
        await self._app.gate.governor().tick_all(list(self._app.pools.pools))

    def _reap(self) -> int:
        app = self._app
        assert app.node is not None
        return reap(app, app.registry, app.keys, own=app.node.id, broker_is_store=app.broker.is_store)

    def _provider(self, pool: str) -> Provider:
        """The pool's provider, made when a unit first needs it."""
        spec = self._app.pools.get(pool)
        if spec.name not in self._providers:
            self._providers[spec.name] = self._build(spec)
        return self._providers[spec.name]

    def _build(self, spec: PoolSpec) -> Provider:
        def build(base_url: str | None = None) -> Provider:
            return build_provider(spec, self._settings, self._app.environ, base_url=base_url)

        if spec.provider == "local":
            return LocalProvider(self._settings.state_dir, build, nonce_in_schema=spec.nonce_in_schema)
        return build()

    def _announce(self, job_id: str, end: Ended, continuations: Mapping[str, str]) -> None:
        if end.lost:
            self._app.backend.mark_as_failure(job_id, JobLost(job_id))
            event = "task-failed"
            fields: dict[str, Any] = {"exception": repr(JobLost(job_id)), "traceback": ""}
        elif end.revoked:
            self._app.backend.mark_as_revoked(job_id, end.revoked)
            event, fields = "task-revoked", {"terminated": False, "signum": None, "expired": end.revoked == "expired"}
        else:
            self._app.backend.mark_as_done(job_id, end.report)
            event, fields = "task-succeeded", {"result": f"<report of {job_id}>", "runtime": end.report["wall_s"]}
        # As this worker's: a monitor makes a worker of whatever name it hears.
        place = {"exchange": self._app.names.of("dicast"), "routing_key": self._app.names.of(CONTROL_QUEUE)}
        with self._app.events.default_dispatcher(hostname=self._node_name) as events:
            events.send(event, uuid=job_id, **place, **fields)
        for task_id, text in continuations.items():
            Continuation.parse(task_id, text).send(self._app, job_id, CONTROL_QUEUE)

    async def _lost(self, job_id: str, facts: Mapping[str, str]) -> None:
        if await self.ledger.mark_lost(job_id, facts, RETENTION_S):
            logger.error("%s", JobLost(job_id), extra={"event": "job_lost", "job": job_id})
            await self.gatherer.announce(job_id)

    async def _adopt(self) -> None:
        """Store answers that dead processes of this machine have left on disk."""
        with contextlib.ExitStack() as locks:
            entries = await asyncio.to_thread(locks.enter_context, self.spool.orphans(ADOPTED_TOGETHER))
            for path, entry in entries:
                try:
                    ref, recorded = await self.judge.recorder.store_spooled(entry)
                except (ValueError, KeyError, ResponseError) as error:
                    if is_passing(error):
                        raise
                    logger.error("%s holds no answer: %s", path, error)
                    self.spool.refuse(path)
                    continue
                what = "is stored" if Written.NEW in recorded.written else "came too late"
                logger.warning("an answer of %s was on disk, and %s", ref, what,
                               extra={"event": "adopted", "job": ref.job, "counted": recorded.news})  # fmt: skip
                self._app.process_metrics.adopted(counted=recorded.news)
                self.spool.drop(path)
                await self._follow(ref, recorded)

    async def _recall(self) -> None:
        """Store answers again that the store took and has lost."""
        count = 0
        async for ref, recorded in self.judge.recorder.recall():
            count += len(recorded.written)
            await self._follow(ref, recorded)
        if count:
            logger.warning("the store had lost %d results, and has them again", count,
                           extra={"event": "recalled", "results": count})  # fmt: skip

    async def _follow(self, ref: PageRef, recorded: Recorded) -> None:
        if recorded.plan:
            await self.messages.plan(ref.job, ref.incarnation, ref.lane)
        if recorded.gather:
            await self.messages.gather(ref)

    async def close(self) -> None:
        self._housekeeping.cancel()
        await asyncio.gather(self._housekeeping, return_exceptions=True)
        for provider in self._providers.values():
            await provider.close()
        await self._client.aclose()
        self.spool.close()


services = loop_resource(lambda: Services(app), Services.close)
"""The services of the running loop."""
