"""Does the work of one message: claims its units, has them called unless they end without a call, and settles them.

`Judge` enters each part once: `Claimer.claim`, `ProviderCaller.call` (call.py), which returns how the call ended and
writes nothing, and `Outcomes.settle` (outcomes.py), which writes.

The guarantees rest on this order: the claim is written before the call (it records the intent to pay), the lease is
given back as soon as the call has ended and before anything is written, and the result is written with the claim's
fence. An unavailable store is waited for; it never turns an answer into a failure, and a result that cannot be stored
at once is kept on disk meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial

from dicast.app.domain.item import Item
from dicast.app.domain.opinion import FailureKind
from dicast.app.domain.panel import Deployment
from dicast.app.domain.plan import Unit
from dicast.app.domain.price import Bound
from dicast.app.ledger.keys import PageRef
from dicast.app.ledger.ledger import Ledger
from dicast.app.ledger.records import Claim, ClaimVerdict, Deferral, Due, JobRecord, JobState, MessageId
from dicast.app.pipeline.call import ProviderCaller, bound_without_item
from dicast.app.pipeline.call_facts import (
    NOTHING_TO_DO,
    Answered,
    Call,
    Cut,
    Delay,
    Failed,
    Models,
    NextSteps,
    NotMade,
    Outcome,
    Unasked,
    asked_dimensions,
    places_of,
)
from dicast.app.pipeline.outcomes import UNCLAIMABLE, Outcomes
from dicast.app.pipeline.pool_trouble import FailFast, WaitForMoney
from dicast.app.pipeline.record import JobCache, Recorder, retry_until_available
from dicast.app.pipeline.recovery import DeadNodes
from dicast.app.providers.base import ProviderFailure
from dicast.app.tracing import NO_SPAN, NO_TRACES, AnySpan, Traces, trace_of
from dicast.workers.admission.request import Lease

logger = logging.getLogger(__name__)

BOUNDS_KEPT = 10_000
SHORT_OF_ROOM = "waits: open calls have reserved what is left of a cap or a budget"

ClaimReply = tuple[JobState | None, Item | None, list[Claim]]


class Claimer:
    """Claims units on one event loop.

    A claim records the intent to pay for the call of its unit.
    """

    def __init__(self, ledger: Ledger, recorder: Recorder, dead_nodes: DeadNodes) -> None:
        self._ledger, self._recorder, self._dead_nodes = ledger, recorder, dead_nodes

    async def claim(
        self, ref: PageRef, token: MessageId, positions: Sequence[int], item: int, again_ms: int | None = None,
        *, early: bool = False, needs: str = "", batch: str = "",
    ) -> ClaimReply:  # fmt: skip
        """Claim units as `Ledger.claim` does, waiting for the store as long as necessary. If the caller is cancelled
        meanwhile, the claim is given back. A batch keeps what it has claimed: it is known by its name, so that claiming
        again says what it has."""
        if batch:
            by_name = partial(self._ledger.claim, ref, token, positions, item, batch, early=early, needs=needs)
            return await retry_until_available(partial(by_name, batch=batch))
        attempt = self._ledger.attempt()
        claim = partial(self._ledger.claim, ref, token, positions, item, attempt, again_ms=again_ms, early=early,
                        needs=needs)  # fmt: skip
        claiming = asyncio.ensure_future(retry_until_available(claim))
        try:
            return await asyncio.shield(claiming)
        except asyncio.CancelledError:
            await asyncio.shield(self._hand_back(ref, token, claiming))
            raise

    async def claim_from_dead_owner(
        self, ref: PageRef, token: MessageId, positions: Sequence[int], item: int, needs: str = ""
    ) -> ClaimReply:
        """Look for dead nodes, then claim units that another node owns. A broker notices a death sooner than the nodes
        do and redelivers the message before the unit is free. If the owner seems to be alive, the message comes again
        when that node would count as silent."""
        await retry_until_available(self._dead_nodes.deregister)
        return await self.claim(
            ref, token, positions, item, again_ms=self._ledger.intervals.owner_silent_ms, needs=needs
        )

    async def _hand_back(self, ref: PageRef, token: MessageId, claiming: asyncio.Future[ClaimReply]) -> None:
        """Give a claim back that the store may still execute: other workers would count it as a paid call."""
        done, _ = await asyncio.wait({claiming}, timeout=self._ledger.intervals.stopping_s)
        if not done or claiming.exception() is not None:
            claiming.cancel()
            return
        _, _, claims = claiming.result()
        deferrals = [
            Deferral(c.position, c.fence, c.attempts, c.requeues, unpaid=1)
            for c in claims
            if c.verdict is ClaimVerdict.RUN
        ]
        if deferrals:
            await self._recorder.defer(ref, {}, deferrals, [Due(token, 0)])


@dataclass(frozen=True, slots=True)
class _MessageWork:
    """The work of one message: units of a page, to be called at one of their judge's deployments."""

    job: JobRecord
    ref: PageRef
    token: MessageId
    deployment: int
    came_back: bool
    early: bool
    probe: bool
    batch: str = ""
    """The batch for which the units are claimed; '' for a call of this process."""


@dataclass(frozen=True, slots=True)
class BatchClaim:
    """What a batch has of a message: the call of its units, None if there is none to be made; what follows from those
    that have ended (`steps`); and whether a cap or a budget leaves no room now (`short`)."""

    call: Call | None
    steps: Sequence[NextSteps] = ()
    short: bool = False


class Judge:
    """Does the work of messages on one event loop. `fail_fast` decides whether a unit is worth a call."""

    def __init__(
        self,
        jobs: JobCache,
        claimer: Claimer,
        fail_fast: FailFast,
        models: Models,
        caller: ProviderCaller,
        outcomes: Outcomes,
        tracer: Traces = NO_TRACES,
    ) -> None:
        self._jobs, self._claimer, self._fail_fast = jobs, claimer, fail_fast
        self._models, self._caller, self._outcomes, self._tracer = models, caller, outcomes, tracer
        self._working: set[tuple[PageRef, int]] = set()
        self._bounds: dict[tuple[str, str, int, int, int], Bound] = {}

    async def judge(
        self, ref: PageRef, token: MessageId, lease: Lease | None, deployment: int = 0, *, came_back: bool = False,
        rejection: ProviderFailure | None = None, early: bool = False,
    ) -> NextSteps:  # fmt: skip
        """Do one message's work, at the given one of its agent's deployments.

        May be repeated at any time and from any number of workers. If the message was redelivered (`came_back`), dead
        nodes are looked for first. With a `rejection` no call is made, and the rejection is recorded. With `early`,
        units that wait for their time are claimed too.
        """
        try:
            job = await self._jobs.get(ref.job, ref.incarnation)
            if job is None:
                return NextSteps(counts=True)
            positions = token.positions(job.lanes[ref.lane])
            # Without those that this process is working on already, for another message or a copy of this one.
            free = [position for position in positions if not self.works_on(ref, position)]
            if not free:
                return NextSteps(counts=False)
            mine = {(ref, position) for position in free}
            self._working |= mine
            try:
                probe = lease is not None and lease.probe
                work = _MessageWork(job, ref, token, deployment, came_back, early, probe)
                with self._span(work, lease) as span:
                    steps = await self._do(work, free, lease, rejection)
                    span.set_attribute("dicast.outcome", steps.summary)
                    return steps
            finally:
                self._working -= mine
        finally:
            if lease is not None:
                lease.release()

    async def claim_for_batch(
        self, job: JobRecord, ref: PageRef, token: MessageId, batch: str, *, again: bool = False
    ) -> BatchClaim:
        """Claim the units of a message for a batch; those that get no call are settled. With `again`, return what the
        batch has claimed of it before."""
        work = _MessageWork(job, ref, token, 0, came_back=False, early=True, probe=False, batch=batch)
        claimed = await self._claim(work, token.positions(job.lanes[ref.lane]))
        if claimed is None:
            return BatchClaim(None)
        call, claims = claimed
        steps = [await self._end_unclaimable(call, claims)] if len(call.claims) < len(claims) else []
        short = any(claim.verdict in (ClaimVerdict.SHORT, ClaimVerdict.BUDGET) for claim in claims)
        if not call.claims:
            return BatchClaim(None, steps, short)
        stop = None if again else await self._reason_not_to_call(call, leased=True)
        if stop is None:
            return BatchClaim(call if again else self.without_dropped(call), steps, short)
        return BatchClaim(None, [*steps, await self._outcomes.settle(call, stop)], short)

    async def refresh(self, job: JobRecord) -> None:
        """Read from the store which parameters the job's models have refused."""
        await self._fail_fast.refresh(job)

    def without_dropped(self, call: Call) -> Call:
        """Return a call without the parameters that its model has refused before."""
        dropped = self._fail_fast.left_out(call.job, call.pool, self._models.model(call.deployment))
        return replace(call, dropped=dropped) if dropped else call

    def works_on(self, ref: PageRef, position: int) -> bool:
        """Whether this process is working on the unit."""
        return (ref, position) in self._working

    async def _do(
        self, work: _MessageWork, positions: Sequence[int], lease: Lease | None, rejection: ProviderFailure | None
    ) -> NextSteps:
        """Claim units, end those that get no call, have the others called if that is worth it, and settle them."""
        claimed = await self._claim(work, positions)
        if claimed is None:
            return NextSteps(counts=True)
        call, claims = claimed
        ended = await self._end_unclaimable(call, claims) if len(call.claims) < len(claims) else None
        if not call.claims:
            return ended or NextSteps(counts=True)
        outcome: Outcome | None = None
        try:
            if rejection is not None:
                outcome = Unasked.rejected(rejection, self._models.model(call.deployment), call.pool)
            else:
                outcome = await self._reason_not_to_call(call, leased=lease is not None)
            if outcome is None:
                if self._fail_fast.left_out(call.job, call.pool, self._models.model(call.deployment)):
                    call = self.without_dropped(call)
                outcome = await self._caller.call(call, lease)
            if lease is not None:
                lease.release()  # before anything is written: other units wait for it
            if isinstance(outcome, Cut) and outcome.cancelled is not None:
                # The worker stops: hand the units back, so that they need not wait for the proof of a death.
                await asyncio.shield(self._outcomes.settle(call, outcome))
                raise outcome.cancelled
            steps = await self._outcomes.settle(call, outcome)
        except Exception as error:
            # A fault of this program must not leave the units claimed by a task that has ended.
            logger.exception("job %s, unit %s.%s.%s", call.ref.job, call.ref.lane, call.ref.page, call.token)
            was_made = isinstance(outcome, Answered | Cut) or (isinstance(outcome, Failed) and outcome.was_made)
            failure = ProviderFailure(FailureKind.INTERNAL, repr(error))
            steps = await self._outcomes.settle(call, Failed(failure, was_made=was_made))
        return steps if ended is None else steps.following(ended)

    async def _claim(self, work: _MessageWork, positions: Sequence[int]) -> tuple[Call, Sequence[Claim]] | None:
        """Claim units. Return the call of those that may be called, and all claims; None if the page is gone."""
        job, ref, token = work.job, work.ref, work.token
        unit = job.lanes[ref.lane].unit(token.position)
        choices = job.spec.agents[unit.agent].choices
        if not 0 <= work.deployment < len(choices):
            raise LookupError(f"{ref}.{token} names deployment {work.deployment} of {len(choices)}")
        needs = self._needs(work, unit) if job.is_capped else ""
        with self._tracer.span("claim") as span:
            state, item, claims = await self._claimer.claim(
                ref, token, positions, unit.item, early=work.early, needs=needs, batch=work.batch
            )
            if work.came_back and claims and all(c.verdict is ClaimVerdict.OWNED for c in claims):
                state, item, claims = await self._claimer.claim_from_dead_owner(ref, token, positions, unit.item, needs)
            span.set_attribute("dicast.answers", sorted({claim.verdict.value for claim in claims}))
        if state is None or item is None:
            return None
        run = [c for c in claims if c.verdict is ClaimVerdict.RUN]
        return _call(work, unit, choices[work.deployment], item, run), claims

    def _needs(self, work: _MessageWork, unit: Unit) -> str:
        """Return what a call of a job with caps or budgets may take at most, and the budgets, for the ledger's
        claim."""
        job, lane = work.job, work.job.lanes[work.ref.lane]
        batched, answers = lane.batched and work.token.batch, lane.together if work.token.batch else 1
        key = job.id, job.incarnation, unit.agent, -1 if batched else unit.dimension, answers
        bound = self._bounds.get(key)
        if bound is None:
            if len(self._bounds) >= BOUNDS_KEPT:
                self._bounds.clear()
            dimensions = job.spec.dimensions if batched else [job.spec.dimensions[unit.dimension]]
            agent = job.spec.agents[unit.agent]
            bound = self._bounds[key] = bound_without_item(agent, dimensions, batch=batched, answers=answers)
        place = job.places[unit.agent][work.deployment] if job.places else None
        of_input, of_output = place.highest_by(_road(work)) if place is not None else (0, 0)
        needs = f"{bound.input_tokens},{bound.output_tokens},{of_input},{of_output}"
        return needs + "".join(budget.needs for budget in job.budgets_at(unit.agent, work.deployment))

    async def _end_unclaimable(self, call: Call, claims: Sequence[Claim]) -> NextSteps:
        """End the units that get no call, and return the next steps for a message of which nothing is to be called."""
        settled = all(c.verdict is ClaimVerdict.DONE or c.verdict in UNCLAIMABLE for c in claims)
        ended = [c for c in claims if c.verdict in UNCLAIMABLE]
        if not ended:
            verdicts = {c.verdict for c in claims}
            if ClaimVerdict.BUDGET in verdicts:
                return NextSteps(counts=settled, retry=True, summary=await self._outcomes.note_budget(call))
            short = ClaimVerdict.SHORT in verdicts
            return NextSteps(counts=settled, retry=short, summary=SHORT_OF_ROOM if short else NOTHING_TO_DO)
        steps = await self._outcomes.end_unclaimable(call, ended)
        return replace(steps, counts=steps.counts and settled)

    async def _reason_not_to_call(self, call: Call, *, leased: bool) -> Outcome | None:
        """Return how a call ends that is not worth making; None if it is."""
        model = self._models.model(call.deployment)
        stop = await self._fail_fast.stop_or_wait(call.job, call.pool, model, leased=leased)
        if stop is None:
            return None
        if isinstance(stop, WaitForMoney):
            return NotMade(Delay.NO_MONEY, stop.delay_s, stop.words(call.pool))
        agent = call.lane.unit(call.token.position).agent
        if self._fail_fast.asks_at(call.job, places_of(call.job, call.lane, agent, self._models)):
            return NotMade(Delay.ELSEWHERE, words=f"{Delay.ELSEWHERE.value}: {stop.reason}")
        return Unasked.stopped(stop)

    def _span(self, work: _MessageWork, lease: Lease | None) -> AbstractContextManager[AnySpan]:
        """Return the span of one message's work."""
        return NO_SPAN if self._tracer is NO_TRACES else self._message_span(work, lease)

    @contextlib.contextmanager
    def _message_span(self, work: _MessageWork, lease: Lease | None) -> Iterator[AnySpan]:
        """Record one message's work, and beside it the time for which it waited for its lease."""
        ref = work.ref
        parent, published = trace_of(lease.unit.labels if lease is not None else {})
        with self._tracer.span(
            "judge", parent or work.job.traceparent, job=ref.job, unit=f"{ref.lane}.{ref.page}.{work.token}",
            came_back=work.came_back,
        ) as span:  # fmt: skip
            if lease is not None:
                span.set_attribute("dicast.pool", lease.unit.pool)
                self._tracer.past("lease wait", published, time.time(), pool=lease.unit.pool)
            yield span


def _call(work: _MessageWork, unit: Unit, deployment: Deployment, item: Item, run: Sequence[Claim]) -> Call:
    """Build the call for claimed units."""
    job, lane = work.job, work.job.lanes[work.ref.lane]
    return Call(
        ref=work.ref,
        token=work.token,
        job=job,
        agent=job.spec.agents[unit.agent],
        deployment=deployment,
        pool=lane.pools[work.deployment],
        item=item,
        dimensions=asked_dimensions(job, lane, item, run),
        claims=run,
        ends_at=_ends_at(run),
        probe=work.probe,
        book=f"b:{unit.agent}.{work.deployment}.",
        place=job.places[unit.agent][work.deployment] if job.places else None,
        road=_road(work) if lane.road == "auto" else lane.road,
        budgets=job.budgets_at(unit.agent, work.deployment),
    )


def _road(work: _MessageWork) -> str:
    """Return how a call gets to its provider: of `auto`, by whether it goes in a batch."""
    road = work.job.lanes[work.ref.lane].road
    if road == "auto":
        return "batch" if work.batch else "online"
    return road


def _ends_at(claims: Sequence[Claim]) -> float:
    """Return the earliest deadline of claims that were answered just now, on the loop's clock."""
    ends_at, now = math.inf, asyncio.get_running_loop().time()
    for claim in claims:
        if claim.left_ms >= 0:
            ends_at = min(ends_at, now + claim.left_ms / 1000)
    return ends_at
