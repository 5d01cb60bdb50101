"""Sends units by the providers' batch APIs: forms batches, hands them over, looks after them, settles their results.

A batch is a page's call through the same ledger. Its units are claimed under the batch's name before anything is sent,
each request is the one that an online call would send, and each result ends its unit as an online answer would: with
the claim's fence, the same retries, the same books. Units that come again go into a later batch.

What may happen between two steps, and what follows:

* Nothing was sent (`collecting`): the units are given up, free of charge.
* It may have been sent (`sealed`, with `sending_at`): the provider is asked for a batch with its identity. One that is
  there is adopted. Where none is listed, it is looked for again, for `Intervals.batch_listed_ms`; then it is taken for
  never created and sent again under the next identity, and its calls are counted as possibly paid twice. Should the
  first one turn up after all, it is cancelled. Where a cap, a budget or `spend: at_most_once` forbids that, its calls
  are settled as calls without an answer instead.
* It was sent: whoever comes next asks the provider how it is.
* Its results are being settled: whoever comes next begins again, with the units that the batch still has.

No slot, lease or message is held while a batch waits at its provider. When it is looked after next stands in the store.

Units of the road `auto` go by batches as long as these end before the job's `finish_by`, by what is known
(`dicast.app.domain.deadlines.Outlook`). When a batch would be too late, its lane goes online for good: units that wait
for a batch are sent as messages, and batches are cancelled when what is left of the time is only enough for online
calls. Each unit that such a batch has not made is sent as a message when the batch is over, and no sooner.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from hashlib import blake2s
from typing import Any, Protocol

from dicast.app.domain.deadlines import NO_HURRY, Outlook, RoadChange, online_time, usual_turnaround
from dicast.app.domain.opinion import RATE_LIMITS, FailureKind
from dicast.app.domain.plan import place
from dicast.app.ledger.batches import BatchRecord, BatchStage, BatchStore, DueWork, LaneRef, TurnLost, new_batch
from dicast.app.ledger.keys import PageRef
from dicast.app.ledger.ledger import Ledger
from dicast.app.ledger.records import JobRecord, JobState, MessageId
from dicast.app.pipeline.call import PreparedCall, ProviderCaller, failed_call, read_reply
from dicast.app.pipeline.call_facts import Call, Delay, Failed, Models, NextSteps, NotMade, Outcome, Stops
from dicast.app.pipeline.judge import Judge
from dicast.app.pipeline.messages import Sender, is_away
from dicast.app.pipeline.outcomes import Outcomes
from dicast.app.pipeline.plan import PageMessages, Publisher
from dicast.app.pipeline.record import JobCache
from dicast.app.providers.base import ANSWERS, ProviderFailure
from dicast.app.providers.batches import (
    BatchApi,
    BatchError,
    BatchRequest,
    BatchResult,
    BatchState,
    BatchStatus,
    CreateFailed,
    DamagedResults,
    ForeignBatch,
    RequestFate,
    UndecidedBatch,
    UnusableBatch,
)
from dicast.workers.admission.concurrency import Suspension
from dicast.workers.admission.pool_state import UNKNOWN, PoolHealth

logger = logging.getLogger(__name__)

TOGETHER = 100
"""How many units are claimed, prepared or settled at once: they share round trips, and their texts are in memory."""
TOGETHER_IF_SCARCE = 5
FULL = 0.95
"""How far a batch is filled: the bytes and tokens of the last units are known only when they are claimed."""
WRAPPING_BYTES = 200
"""What an API's wrapping adds to a request, at most."""
BYTES_PER_TOKEN = 4
NEVER_CONFIRMED = "its creation was never confirmed"
AGAIN_MS = 5000
"""When something is tried again that could not be done now."""
QUEUE_FULL_S = 60.0
"""How long units wait that found their model's queue full."""
SEND_AGAIN_MAX_S = 300.0
AT_ONCE = 2
"""How many batches one worker sends or settles at a time."""
LOOK_EVERY_S, IDLE_LOOK_S, HOLD_EVERY_S = 0.5, 2.0, 5.0
RESULT_LOOKS = 3
"""How often results are fetched again of which some are missing, before these units are given up."""
ONLINE_CALL_S = 30.0
"""How long an online call is taken to need at a pool that nobody has called lately."""


class BatchPools(Models, Protocol):
    """See `dicast.app.pipeline.pools.ServedPools`."""

    def batch_api(self, pool: str) -> BatchApi:
        """Return the pool's batch API. Raises `ProviderFailure` if it cannot be built, for example without a key."""
        ...

    async def limit(self, pool: str) -> int: ...


class Health(Protocol):
    """See `dicast.workers.admission.pool_state.PoolHealthReader`."""

    async def read(self, pools: Iterable[str]) -> dict[str, PoolHealth]: ...


class UnitMessages(Sender, Publisher, Protocol):
    """See `dicast.app.pipeline.messages.Messages`."""


class NotPrepared(Exception):
    """A request of a batch cannot be prepared now, so that the batch cannot be sent."""


@dataclass(frozen=True, slots=True)
class Desk:
    """The parts by which units are claimed, asked about and settled."""

    ledger: Ledger
    jobs: JobCache
    judge: Judge
    caller: ProviderCaller
    outcomes: Outcomes
    messages: UnitMessages
    stops: Stops
    health: Health


class BatchRoad:
    """Looks after batches on one event loop. `served` are the pools that this worker serves."""

    now: Callable[[], float] = staticmethod(time.time)
    """Unix time, s."""

    def __init__(
        self, store: BatchStore, desk: Desk, pools: BatchPools, served: Collection[str],
        suspension: Suspension | None = None,
    ) -> None:  # fmt: skip
        self._store, self._desk, self._pools, self._served = store, desk, pools, served
        self._suspension = suspension or Suspension()
        self._intervals = desk.ledger.intervals

    async def page(self, job: JobRecord, page: PageMessages) -> None:
        """Have the units of a page go into a batch, in place of publishing their messages; publish these where the road
        is `auto` and there is no time for a batch."""
        lane = LaneRef(page.ref.job, page.ref.incarnation, page.ref.lane)
        if not page.tokens:  # all its units had their results before the job was resumed
            await self._desk.messages.gather(page.ref)
        elif await self._fits_batch(job, lane):
            await self._store.schedule(lane, self._intervals.batch_forms_ms, later=True)
        else:
            await self._desk.messages.page(job, page)

    async def run(self) -> None:
        """Look after batches until cancelled."""
        working: set[asyncio.Task[None]] = set()
        pause_s = LOOK_EVERY_S
        try:
            while True:
                await asyncio.sleep(pause_s)
                pause_s = LOOK_EVERY_S if working else IDLE_LOOK_S
                while len(working) < AT_ONCE and self._suspension.takes_units:
                    taken = await self._take()
                    if taken is None:
                        break
                    task = asyncio.ensure_future(self.work(taken))
                    working.add(task)
                    task.add_done_callback(working.discard)
                    pause_s = LOOK_EVERY_S
        finally:
            for task in working:
                task.cancel()
            await asyncio.gather(*working, return_exceptions=True)

    async def _take(self) -> DueWork | None:
        try:
            return await self._store.take()
        except Exception as error:  # of the store, or of this program: neither must end the loop
            if not _passes(error, "look for batches"):
                logger.exception("could not look for batches")
            return None

    async def step_once(self) -> bool:
        """Do one step of what is due; return whether anything was."""
        taken = await self._store.take()
        if taken is not None:
            await self.work(taken)
        return taken is not None

    async def work(self, taken: DueWork) -> None:
        """Take the next step with a batch, or form batches of a lane. Errors are logged, and it is tried again."""
        try:
            if taken.lane is not None:
                await self._form(taken.lane)
            elif taken.batch is not None:
                async with self._holding(taken.batch):
                    await self._step(taken.batch)
        except TurnLost:
            logger.info("a batch is in other hands, or over")
        except Exception as error:  # the batch comes again, and others are to go on
            if not _passes(error, "work on a batch"):
                logger.exception("could not work on a batch")
            await self._try_again(taken, error)

    async def _try_again(self, taken: DueWork, error: Exception) -> None:
        with contextlib.suppress(Exception):  # it comes again by itself, if later
            if taken.lane is not None:
                await self._store.schedule(taken.lane, AGAIN_MS)
            elif taken.batch is not None:
                await self._store.rest(taken.batch, AGAIN_MS, note=f"{type(error).__name__}: {error}"[:200])

    @contextlib.asynccontextmanager
    async def _holding(self, batch: BatchRecord) -> AsyncIterator[None]:
        """Hold a batch for as long as it takes. Raises `TurnLost` as soon as another worker is found to have it."""
        worker, lost = asyncio.current_task(), False

        async def hold() -> None:
            nonlocal lost
            while True:
                await asyncio.sleep(HOLD_EVERY_S)
                try:
                    await self._store.hold(batch)
                except TurnLost:
                    lost = True
                    assert worker is not None
                    worker.cancel()
                    return
                except Exception as error:  # it is tried again before the hold ends
                    if not _passes(error, "hold a batch"):
                        logger.exception("could not hold a batch")

        holding = asyncio.ensure_future(hold())
        try:
            yield
        except asyncio.CancelledError:
            if lost and worker is not None and worker.uncancel() == 0:
                raise TurnLost(batch.name) from None
            raise
        finally:
            holding.cancel()

    # ------------------------------------------------------------------ forming
    async def _form(self, lane_ref: LaneRef) -> None:
        """Form batches of the lane's free units, one for each model, or several where one cannot hold them."""
        job = await self._desk.jobs.get(lane_ref.job, lane_ref.incarnation)
        if job is None or not await self._runs(lane_ref):
            return
        lane = job.lanes[lane_ref.lane]
        pool = lane.pools[0]
        if not await self._fits_batch(job, lane_ref):
            return
        if pool not in self._served or await self._settles(lane_ref):  # what comes again of that batch joins in
            await self._store.schedule(lane_ref, AGAIN_MS)
            return
        by_model: dict[str, deque[tuple[PageRef, MessageId]]] = {}
        for ref, tokens in (await self._store.free_messages(lane_ref, lane)).items():
            for token in tokens:
                agent = job.spec.agents[lane.unit(token.position).agent]
                by_model.setdefault(self._pools.model(agent.choices[0]), deque()).append((ref, token))
        for model, messages in by_model.items():
            while messages:
                batch = await self._store.begin(new_batch(lane_ref, pool, model, self.now()))
                async with self._holding(batch):
                    if not await self._fill(batch, job, messages):
                        break

    async def _runs(self, lane: LaneRef) -> bool:
        return (await self._desk.ledger.lane(lane.job, lane.lane)).state == JobState.RUNNING

    async def _settles(self, lane: LaneRef) -> bool:
        """Whether results of a batch of this lane are being settled."""
        return any(batch.lane == lane and _is_over(batch.state) for batch in await self._store.all())

    async def _fill(self, batch: BatchRecord, job: JobRecord, messages: deque[tuple[PageRef, MessageId]]) -> bool:
        """Claim units for a new batch, as many as it may hold, and seal it. Return False if no more can be claimed for
        now, because others have reserved what is left of the job's cap."""
        api = self._pools.batch_api(batch.pool)
        learned = await self._store.most_tokens(batch.place)
        most_bytes = api.limits.bytes * FULL
        if learned is not None:
            most_bytes = min(most_bytes, learned * BYTES_PER_TOKEN)
        requests, size, short, digest = 0, 0, False, blake2s()
        while messages and not short and requests < api.limits.requests and size < most_bytes:
            together = TOGETHER if learned is None else TOGETHER_IF_SCARCE
            ref = messages[0][0]
            tokens = _taken_of(messages, ref, min(together, api.limits.requests - requests))
            await self._store.add_members(batch, ref.page, tokens)
            added = await asyncio.gather(*(self._add(batch, job, api, ref, token) for token in tokens))
            short = any(is_short for _, is_short in added)
            for token, (body_bytes, _) in zip(tokens, added, strict=True):
                if body_bytes:
                    requests, size = requests + 1, size + body_bytes + WRAPPING_BYTES
                    digest.update(batch.custom_id(ref, token).encode())
        if requests:
            sealed = {"requests": requests, "tokens": size // BYTES_PER_TOKEN, "digest": digest.hexdigest()}
            await self._store.rest(batch, 0, stage=BatchStage.SEALED, **sealed)
            logger.info("batch %s of %d requests is formed", batch.name, requests, extra={"job": job.id})
        else:
            await self._store.drop(batch)
        return not short

    async def _add(
        self, batch: BatchRecord, job: JobRecord, api: BatchApi, ref: PageRef, token: MessageId
    ) -> tuple[int, bool]:
        """Claim one message's units for a batch; return the bytes of its request, 0 if there is none to be made, and
        whether the job's cap leaves no room for it now."""
        claim = await self._desk.judge.claim_for_batch(job, ref, token, batch.name)
        for steps in claim.steps:
            await self._follow(ref, steps)
        if claim.call is None:
            return 0, claim.short
        prepared = await self._desk.caller.prepare(claim.call)
        if isinstance(prepared, PreparedCall):
            return len(api.body(prepared.request)), claim.short
        await self._follow(ref, await self._desk.outcomes.settle(claim.call, prepared))
        return 0, claim.short

    async def _follow(self, ref: PageRef, steps: NextSteps) -> None:
        """Do what follows from the end of units. Those that come again are due in the ledger."""
        if steps.plan:
            await self._desk.messages.plan(ref.job, ref.incarnation, ref.lane)
        if steps.gather:
            await self._desk.messages.gather(ref)

    # ------------------------------------------------------------------ batches or online
    async def _fits_batch(self, job: JobRecord, lane: LaneRef) -> bool:
        """Return whether units of a lane go into a batch that begins now. If there is no time, the lane goes online."""
        if not await self._desk.ledger.by_batches(job, lane.lane):
            return False
        if job.lanes[lane.lane].road == "batch":
            return True
        outlook = await self._outlook(job, lane.lane)
        if outlook.fits_batch:
            return True
        await self._go_online(job, lane, outlook)
        return False

    async def _outlook(self, job: JobRecord, number: int) -> Outlook:
        """Return what is known of the time of a lane whose road is `auto`."""
        left_ms = await self._desk.ledger.left_ms(job.id)
        if left_ms is None:
            return NO_HURRY
        lane, ledger = job.lanes[number], self._desk.ledger
        pool, models = lane.pools[0], {self._pools.model(job.spec.agents[agent].choices[0]) for agent in lane.agents}
        promised_s = self._intervals.batch_turnaround_s
        turnarounds = [usual_turnaround(await self._store.turnarounds(place(pool, m)), promised_s) for m in models]
        health = (await self._desk.health.read([pool]))[pool]
        calls_s = [health.health.get(model, UNKNOWN).latency_s or ONLINE_CALL_S for model in models]
        _, jobs = await ledger.pool_rate(pool)
        limit = min(job.limit or 1, health.limit or await self._pools.limit(pool))
        calls = await ledger.calls_left(job, pool)
        online_s = online_time(calls, at_once=max(1, limit // max(1, jobs)), call_s=max(calls_s))
        return Outlook(left_ms / 1000, max(turnarounds), online_s, self._intervals.batch_cancelling_s)

    async def _go_online(self, job: JobRecord, lane: LaneRef, outlook: Outlook) -> None:
        """Have a lane's units go online from now on, those first that wait for a batch. If this worker dies before
        these are due, the housekeeping finds them as lost."""
        change = RoadChange(pool=job.lanes[lane.lane].pools[0], message=outlook.sentence())
        await self._desk.ledger.go_online(job, lane.lane, change)
        logger.warning("job %s: %s", job.id, change.reason, extra={"event": "went_online", "job": job.id})
        await self._store.release(lane, job.lanes[lane.lane])

    async def _is_late(self, batch: BatchRecord, job: JobRecord, outlook: Outlook) -> bool:
        """Return whether units of a batch have to be moved online now; its lane has gone online then."""
        if not outlook.leaves_batch:
            return False
        if await self._desk.ledger.by_batches(job, batch.lane.lane):
            await self._go_online(job, batch.lane, outlook)
        return True

    async def _outlook_of(self, batch: BatchRecord, job: JobRecord) -> Outlook:
        is_bound = job.lanes[batch.lane.lane].road == "batch"
        return NO_HURRY if is_bound else await self._outlook(job, batch.lane.lane)

    # ------------------------------------------------------------------ one step of a batch
    async def _step(self, batch: BatchRecord) -> None:
        if batch.pool not in self._served:
            await self._store.rest(batch, AGAIN_MS)
            return
        job = await self._desk.jobs.get(batch.lane.job, batch.lane.incarnation)
        if job is None:
            await self._abandon(batch)
        elif batch.stage is BatchStage.COLLECTING:  # its worker died
            await self._give_up(batch, job, 0.0)
        elif batch.stage is BatchStage.SEALED:
            await self._send(batch, job, self._pools.batch_api(batch.pool))
        else:
            await self._look_after(batch, job, self._pools.batch_api(batch.pool))

    async def _abandon(self, batch: BatchRecord) -> None:
        """Forget a batch whose job is not in the ledger any more, after its end has been asked for."""
        if batch.provider_id and not batch.guessed:
            with contextlib.suppress(ProviderFailure):
                await self._pools.batch_api(batch.pool).cancel(batch.provider_id)
        logger.error("job %s is gone: batch %s at pool %s is given up, as %s there", batch.lane.job, batch.name,
                     batch.pool, batch.provider_id or "unknown")  # fmt: skip
        await self._store.drop(batch, _summary(batch, self.now(), "its job is gone"))

    async def _give_up(
        self, batch: BatchRecord, job: JobRecord, delay_s: float, why: str = "", after: Delay = Delay.NEXT_BATCH
    ) -> None:
        """Return a batch's units, which were not called, and forget it."""
        delayed = NotMade(after, delay_s)
        async for call in self._calls(batch, job):
            await self._follow(call.ref, await self._desk.outcomes.settle(call, delayed))
        await self._store.drop(batch, _summary(batch, self.now(), why) if why else None)
        await self._store.schedule(batch.lane, round(1000 * delay_s) + self._intervals.batch_forms_ms)

    async def _fail(self, batch: BatchRecord, job: JobRecord, failure: ProviderFailure) -> None:
        """End or put off a batch's units, none of which was called, as one would after such an answer online."""
        async for call in self._calls(batch, job):
            steps = await self._desk.outcomes.settle(call, Failed(failure, was_made=False))
            await self._follow(call.ref, steps)
        await self._store.drop(batch, _summary(batch, self.now(), f"{failure.kind}: {failure.message}"))
        await self._store.schedule(batch.lane, self._intervals.batch_forms_ms)

    async def _calls(self, batch: BatchRecord, job: JobRecord) -> AsyncIterator[Call]:
        """Yield the calls of a batch whose units it still has, in the order of its requests."""
        for ref, tokens in (await self._store.live_members(batch, job.lanes[batch.lane.lane])).items():
            for first in range(0, len(tokens), TOGETHER):
                together = tokens[first : first + TOGETHER]
                for call in await asyncio.gather(*(self._call(batch, job, ref, token) for token in together)):
                    if call is not None:
                        yield call

    async def _call(self, batch: BatchRecord, job: JobRecord, ref: PageRef, token: MessageId) -> Call | None:
        return (await self._desk.judge.claim_for_batch(job, ref, token, batch.name, again=True)).call

    # ------------------------------------------------------------------ sending
    async def _send(self, batch: BatchRecord, job: JobRecord, api: BatchApi) -> None:
        """Hand a batch over, unless the provider has it already."""
        if batch.sending_at:
            looked_at = self.now()  # this worker may be stopped for any time after it has looked
            listed_batch = await self._find(batch, api)
            if listed_batch is not None:
                guessed = listed_batch.identity != batch.identity
                await self._confirm(batch, job, api, listed_batch, guessed=guessed)
                return
            if await self._is_in_doubt(batch, looked_at):
                return
            if job.is_capped or job.spec.spend == "at_most_once":
                await self._write_off(batch, job)
                return
            logger.warning("batch %s was not confirmed and is not listed: it is sent again", batch.name)
            batch = await self._store.resend(batch)
        if batch.cancelled or not await self._runs(batch.lane):
            await self._give_up(batch, job, 0.0, "cancelled before it was sent")
            return
        if await self._is_late(batch, job, await self._outlook_of(batch, job)):
            await self._give_up(batch, job, 0.0, "it would have ended too late", Delay.ONLINE)
            return
        batch = await self._store.hold(batch, sending_at=self.now(), doubted_at=0.0)
        try:
            status = await api.create(self._requests(batch, job, api), batch.identity)
        except UnusableBatch as error:
            await self._split(batch, job, str(error))
        except NotPrepared as error:
            await self._store.rest(batch, AGAIN_MS, sending_at=0.0, note=str(error))
        except ProviderFailure as failure:
            await self._not_created(batch, job, failure)
        else:
            await self._confirm(batch, job, api, status)

    async def _requests(self, batch: BatchRecord, job: JobRecord, api: BatchApi) -> AsyncIterator[BatchRequest]:
        """Yield the requests of a batch. Raises `NotPrepared`."""
        await self._desk.judge.refresh(job)
        async for member in self._calls(batch, job):
            call = self._desk.judge.without_dropped(member)
            if ANSWERS in call.dropped:  # a request that is in the batch already is not divided
                call = replace(call, dropped=call.dropped - {ANSWERS})
            prepared = await self._desk.caller.prepare(call)
            if not isinstance(prepared, PreparedCall):
                raise NotPrepared(f"unit {call.ref}.{call.token}: {prepared}"[:200])
            yield BatchRequest(batch.custom_id(call.ref, call.token), api.body(prepared.request))

    async def _find(self, batch: BatchRecord, api: BatchApi) -> BatchStatus | None:
        return await api.find(
            batch.identity, since=batch.sending_at, requests=batch.requests, known=await self._foreign_ids(batch)
        )

    async def _foreign_ids(self, batch: BatchRecord) -> set[str]:
        """Return the ids of batches at the provider that are known not to be this one."""
        others = {other.provider_id for other in await self._store.all() if other.name != batch.name}
        return (others | set(batch.others)) - {""}

    async def _is_in_doubt(self, batch: BatchRecord, looked_at: float) -> bool:
        """Whether a batch that the provider did not list at `looked_at` may still turn up there. It is looked for again
        later then."""
        doubted_at = batch.doubted_at or looked_at
        if looked_at >= doubted_at + self._intervals.batch_listed_ms / 1000:
            return False
        note = "its creation was not confirmed; it is looked for in the provider's list"
        await self._store.rest(batch, AGAIN_MS, doubted_at=doubted_at, note=note)
        return True

    async def _write_off(self, batch: BatchRecord, job: JobRecord) -> None:
        """Settle the calls of a batch that the provider does not list as calls without an answer, of a job that must
        not pay for more than it knows of: what each may have cost stays reserved, or no second one is made."""
        logger.warning("batch %s was not confirmed and is not listed: its calls count as made", batch.name)
        live = await self._store.live_members(batch, job.lanes[batch.lane.lane])
        messages = [(ref, token) for ref, tokens in live.items() for token in tokens]
        await self._settle_missing(batch, job, messages, 0.0, None, free=False)
        await self._store.drop(batch, _summary(batch, self.now(), NEVER_CONFIRMED))
        await self._store.schedule(batch.lane, self._intervals.batch_forms_ms)

    async def _not_created(self, batch: BatchRecord, job: JobRecord, failure: ProviderFailure) -> None:
        """Decide what follows when the provider did not confirm a batch."""
        if not isinstance(failure, CreateFailed) or failure.uncertain:
            await self._store.rest(batch, AGAIN_MS, doubted_at=self.now(), note=failure.message[:200])
        elif failure.kind in RATE_LIMITS or failure.kind not in (FailureKind.REJECTED, FailureKind.QUOTA_EXHAUSTED):
            wait_s = max(failure.retry_after_s or 0.0, AGAIN_MS / 1000 * 2.0 ** min(batch.tries, 10))
            late_s = (await self._outlook_of(batch, job)).leaves_in_s
            wait_ms = round(1000 * min(wait_s, SEND_AGAIN_MAX_S, late_s))
            changes = {"sending_at": 0.0, "tries": batch.tries + 1, "note": failure.message[:200]}
            await self._store.rest(batch, wait_ms, **changes)
            await self._desk.ledger.waits(job.id, f"batch {batch.name} is not taken: {failure.message}")
        else:
            await self._fail(batch, job, failure)

    async def _split(self, batch: BatchRecord, job: JobRecord, why: str) -> None:
        """Return the units of a batch that is too large, for smaller ones. One that cannot be smaller ends."""
        if batch.requests <= 1:
            await self._fail(batch, job, ProviderFailure(FailureKind.REJECTED, why, reached=False))
            return
        await self._store.learn_most_tokens(batch.place, max(1, batch.tokens // 2))
        await self._give_up(batch, job, 0.0, why)

    async def _confirm(
        self, batch: BatchRecord, job: JobRecord, api: BatchApi, status: BatchStatus, *, guessed: bool = False
    ) -> None:
        """Write where a batch is at its provider; `guessed` if that may be another's (`BatchRecord.guessed`).

        If another worker has taken it meanwhile and found no batch, this one is cancelled: nobody would fetch it.
        """
        first = self._intervals.batch_poll_ms[0]
        now = self.now()
        try:
            await self._store.rest(
                batch, first, stage=BatchStage.SENT, provider_id=status.id, sent_at=now, note="", doubted_at=0.0,
                state=status.state.value, state_since=now, guessed=guessed, tries=0,
            )  # fmt: skip
        except TurnLost:
            present = await self._store.read(batch.name)
            if not guessed and (present is None or present.provider_id not in ("", status.id)):
                await api.cancel(status.id)
            raise
        await self._desk.ledger.waits(job.id, waits_for(batch, status, now))

    # ------------------------------------------------------------------ at the provider
    async def _look_after(self, batch: BatchRecord, job: JobRecord, api: BatchApi) -> None:
        """Ask the provider how a batch is, and settle it if it is over."""
        if batch.number > 1:
            await self._cancel_earlier(batch, api)
        status, now = await api.get(batch.provider_id), self.now()
        changes: dict[str, Any] = {"done": status.counts.succeeded, "failed": status.counts.errored, "note": ""}
        if status.state.value != batch.state:
            changes |= {"state": status.state.value, "state_since": now}
        if status.state.is_over:
            await self._settle(await self._store.hold(batch, **changes), job, api, status)
            return
        outlook = await self._outlook_of(batch, job)
        unwanted = await self._is_late(batch, job, outlook) or await self._is_unwanted(batch, job)
        cancels = unwanted and status.state is not BatchState.CANCELLING
        if cancels and batch.guessed:
            changes["note"] = "not cancelled, since it may be somebody else's: its results will tell"
        elif cancels:
            status = await api.cancel(batch.provider_id)
        await self._desk.ledger.waits(job.id, waits_for(batch, status, now))
        least, most = self._intervals.batch_poll_ms
        wait_ms = min(most, max(least, 50 * (now - batch.sent_at)), max(least, 1000 * outlook.leaves_in_s))
        if unwanted and not batch.guessed:
            wait_ms = min(wait_ms, AGAIN_MS)
        await self._store.rest(batch, round(wait_ms), **changes)

    async def _cancel_earlier(self, batch: BatchRecord, api: BatchApi) -> None:
        """Cancel what was created for a batch before, and listed too late."""
        for number in range(1, batch.number):
            earlier = replace(batch, number=number)
            others = {*await self._foreign_ids(batch), batch.provider_id}
            with contextlib.suppress(UndecidedBatch):
                late = await api.find(earlier.identity, since=batch.formed_at, requests=batch.requests, known=others)
                if late is not None and late.identity == earlier.identity and not late.state.is_over:
                    logger.error("batch %s was created twice: %s is cancelled", batch.name, late.id)
                    await api.cancel(late.id)

    async def _is_unwanted(self, batch: BatchRecord, job: JobRecord) -> bool:
        """Whether a batch is to be cancelled: somebody said so, its job is cancelled, or asks there no more."""
        if batch.cancelled or not await self._runs(batch.lane):
            return True
        return batch.place in await self._desk.stops.stops(job)

    # ------------------------------------------------------------------ results
    async def _settle(self, batch: BatchRecord, job: JobRecord, api: BatchApi, status: BatchStatus) -> None:
        """Settle all units of a batch that is over, and forget it."""
        if status.state is BatchState.FAILED:
            await self._failed_whole(batch, job, api, status)
            return
        index = {
            batch.custom_id(ref, token): (ref, token)
            for ref, tokens in (await self._store.live_members(batch, job.lanes[batch.lane.lane])).items()
            for token in tokens
        }
        latency_s, lost, missing = max(0.0, (status.ended_at or self.now()) - status.created_at), 0, 0
        moved, results = await self._moved(batch, job), list[BatchResult]()
        try:
            async for result in api.results(status, batch.identity):
                results.append(result)
                if len(results) >= TOGETHER:
                    await self._settle_results(batch, job, api, index, results, latency_s, moved)
                    results = []
        except ForeignBatch:
            await self._store.rest(
                batch, 0, stage=BatchStage.SEALED, provider_id="", state="", others=(*batch.others, status.id)
            )
            return
        except DamagedResults as damage:
            if damage.cut:
                raise
            lost, missing = damage.missing + damage.garbage, damage.missing
            logger.error("batch %s: %s", batch.name, damage)
        await self._settle_results(batch, job, api, index, results, latency_s, moved)
        if missing and batch.tries < RESULT_LOOKS:  # a file that was not whole yet, or an end that nobody noticed
            note = f"{missing} results are missing, and are fetched again"
            await self._store.rest(batch, AGAIN_MS, tries=batch.tries + 1, note=note)
            return
        free = lost == 0 and status.state is not BatchState.ENDED
        await self._settle_missing(batch, job, index.values(), latency_s, moved, free=free)
        if status.state is not BatchState.CANCELLED:
            await self._store.learn_turnaround(batch, latency_s)
        summary = _summary(batch, self.now(), status.state.value, status)
        await self._store.drop(batch, summary)
        await self._store.schedule(batch.lane, self._intervals.batch_forms_ms)
        logger.info("batch %s is over", batch.name, extra={"job": job.id, "state": status.state.value})

    async def _moved(self, batch: BatchRecord, job: JobRecord) -> Outcome | None:
        """Return the outcome of units that a batch has not called, if they go online at once, as their lane does; None
        if they go into a later batch."""
        waits = await self._desk.ledger.by_batches(job, batch.lane.lane) or not await self._runs(batch.lane)
        return None if waits else NotMade(Delay.ONLINE)

    async def _settle_results(
        self, batch: BatchRecord, job: JobRecord, api: BatchApi, index: dict[str, tuple[PageRef, MessageId]],
        results: Sequence[BatchResult], latency_s: float, moved: Outcome | None,
    ) -> None:  # fmt: skip
        """Settle results of units that the batch still has; others were settled before. For `moved` see `_moved`."""
        await asyncio.gather(*(
            self._settle_result(batch, job, api, *index.pop(result.custom_id), result, latency_s, moved)
            for result in results
            if result.custom_id in index
        ))  # fmt: skip

    async def _settle_result(
        self, batch: BatchRecord, job: JobRecord, api: BatchApi, ref: PageRef, token: MessageId, result: BatchResult,
        latency_s: float, moved: Outcome | None,
    ) -> None:  # fmt: skip
        call = await self._call(batch, job, ref, token)
        if call is None:
            return
        prepared = await self._desk.caller.prepare(call)
        if not isinstance(prepared, PreparedCall):  # such as an image that cannot be read any more
            await self._follow(ref, await self._desk.outcomes.settle(call, prepared))
            return
        try:
            outcome = read_reply(call, api.read(result, prepared.request), prepared, latency_s)
        except ProviderFailure as failure:
            was_made, unmade = result.fate is RequestFate.ANSWERED, moved or Failed(failure, was_made=False)
            outcome = failed_call(failure, prepared, latency_s) if was_made else unmade
        await self._follow(ref, await self._desk.outcomes.settle(call, outcome))

    async def _settle_missing(
        self, batch: BatchRecord, job: JobRecord, missing: Collection[tuple[PageRef, MessageId]], latency_s: float,
        moved: Outcome | None, *, free: bool,
    ) -> None:  # fmt: skip
        """Settle units of which a batch that is over has no result; `free` tells that they were not called."""
        for ref, token in missing:
            call = await self._call(batch, job, ref, token)
            prepared = None if call is None else await self._desk.caller.prepare(call)
            if call is None:
                continue
            if free or not isinstance(prepared, PreparedCall):
                unmade = ProviderFailure(FailureKind.UNAVAILABLE, "its batch ended before it was called")
                outcome = moved or Failed(unmade, was_made=False)
            else:
                unknown = ProviderFailure(FailureKind.CONNECTION, "its batch has no result of it")
                outcome = failed_call(unknown, prepared, latency_s)
            await self._follow(ref, await self._desk.outcomes.settle(call, outcome))

    async def _failed_whole(self, batch: BatchRecord, job: JobRecord, api: BatchApi, status: BatchStatus) -> None:
        """Settle a batch that the provider refused after it was created: nothing of it was called."""
        error = status.errors[0] if status.errors else BatchError("failed", "the provider gave no reason")
        reason = f"the batch was refused: {error.code}: {error.message}"[:300]
        if not status.met_full_queue:
            await self._fail(batch, job, ProviderFailure(FailureKind.REJECTED, reason))
            return
        if batch.requests > 1 and not await self._is_in_company(batch, api):  # the queue itself is smaller than this
            await self._store.learn_most_tokens(batch.place, max(1, batch.tokens // 2))
        await self._desk.ledger.waits(job.id, f"the provider's queue of batches is full: {error.message}")
        await self._give_up(batch, job, QUEUE_FULL_S, reason)

    async def _is_in_company(self, batch: BatchRecord, api: BatchApi) -> bool:
        """Whether another batch of ours is in the queue of the same model. What the store has may be older than the end
        of one that was refused at the same time."""
        for other in await self._store.all():
            is_near = other.place == batch.place and other.stage is BatchStage.SENT and other.name != batch.name
            if is_near and not (await api.get(other.provider_id)).state.is_over:
                return True
        return False


def _taken_of(messages: deque[tuple[PageRef, MessageId]], ref: PageRef, most: int) -> list[MessageId]:
    """Remove the first messages, as many as are of one page and at most so many, and return them."""
    tokens: list[MessageId] = []
    while messages and messages[0][0] == ref and len(tokens) < most:
        tokens.append(messages.popleft()[1])
    return tokens


def _is_over(state: str) -> bool:
    return bool(state) and BatchState(state).is_over


def waits_for(batch: BatchRecord, status: BatchStatus, now: float) -> str:
    """Return for what the job of a batch waits, in words."""
    since = datetime.fromtimestamp(batch.sent_at or now, UTC).strftime("%H:%M:%S UTC")
    done = status.counts.succeeded + status.counts.errored
    return (
        f"batch {batch.name} at pool {batch.pool!r} since {since}: {status.state.value}, {done:,} of "
        f"{batch.requests:,} requests done"
    )


def _summary(batch: BatchRecord, now: float, end: str, status: BatchStatus | None = None) -> Mapping[str, Any]:
    """Return what is remembered of a batch that is over."""
    counts = status.counts._asdict() if status is not None else {}
    return {
        "name": batch.name, "job": batch.lane.job, "pool": batch.pool, "model": batch.model, "end": end,
        "requests": batch.requests, "formed_at": batch.formed_at, "sent_at": batch.sent_at, "over_at": now,
        "provider_id": batch.provider_id, **counts,
    }  # fmt: skip


def _passes(error: Exception, what: str) -> bool:
    """Whether an error may go by itself; it is logged then."""
    passes = is_away(error) or isinstance(error, ProviderFailure | DamagedResults | UndecidedBatch)
    if passes:
        logger.warning("cannot %s now: %s", what, error)
    return passes
