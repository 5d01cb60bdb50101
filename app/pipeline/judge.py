"""One message's work: claim its units, ask the judge, read the answer, record it or let it wait.

Order that the promises rest on: the claim is written before the call (it is the intent to pay), the lease is given
back as soon as the call has ended, and the result is written with the claim's fence. A store that does not answer
is waited for; it never turns an answer into a failure, and what cannot be stored at once is kept on disk meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from redis.exceptions import RedisError

from dicast.app import logs
from dicast.app.domain.batching import divide_usage
from dicast.app.domain.failure import RATE_LIMITS, FailureKind
from dicast.app.domain.intervals import STANDARD, Intervals
from dicast.app.domain.job import Deployment
from dicast.app.domain.nonce import nonce_for
from dicast.app.domain.opinion import Usage
from dicast.app.domain.plan import Lane
from dicast.app.domain.prompt import Prompt, batch_prompt, single_prompt
from dicast.app.domain.retry import JITTER_MAX_S, Retry, RetryPolicy, decide, given_up_late
from dicast.app.domain.stop import Stop
from dicast.app.domain.verdict import Judgment, Malformed, read_batch, read_single
from dicast.app.ledger.keys import PageRef
from dicast.app.ledger.ledger import Ledger
from dicast.app.ledger.records import Claim, ClaimAnswer, Deferral, Due, JobRecord, MessageId, Recorded, Written
from dicast.app.pipeline.blame import Blames
from dicast.app.pipeline.call import NO_ANSWER, Call, answered, refused, spent
from dicast.app.pipeline.claim import Claimer
from dicast.app.pipeline.endings import CLOSED, WISHED, closed, given_up, not_asked
from dicast.app.pipeline.fail_fast import FailFast, WaitForMoney, places_of
from dicast.app.pipeline.job_cache import JobCache
from dicast.app.pipeline.record import Recorder, retry_until_available
from dicast.app.pipeline.spool import Spool
from dicast.app.providers.base import ChatReply, ChatRequest, Provider, ProviderFailure
from dicast.workers.admission.request import Lease
from dicast.workers.admission.suspension import Suspension
from dicast.workers.policy.admission import CallOutcome

T = TypeVar("T")
ASKED_IN_S = 1.0
"""A worker that stops waits no longer for what only its counters ask."""
Bury = Callable[[], Awaitable[None]]

logger = logging.getLogger(__name__)

LEASE_MARGIN_S = 5.0
"""A call ends at the latest this long before its lease, so that the pool is never asked for more than it grants."""


@dataclass(frozen=True, slots=True)
class NextSteps:
    """What the task has to do next. `counts` is False while the unit has no end: its chord must not count it. `told`
    says to people what became of the unit."""

    counts: bool
    follow_ups: Sequence[MessageId] = ()
    plan: bool = False
    gather: bool = False
    told: str = "nothing to do"


class Judge:
    """Judges messages on one event loop. `provider` gives a pool's provider, `model` a deployment's model,
    `call_timeout_s` how long a pool's call may take in total, `nonce_key` the installation's secret, `fail_fast`
    whether a unit is worth a call, `blames` whose fault a failure is."""

    def __init__(
        self,
        ledger: Ledger,
        *,
        provider: Callable[[str], Provider],
        model: Callable[[Deployment], str],
        policy: RetryPolicy,
        call_timeout_s: Callable[[str], float],
        nonce_key: Callable[[], Awaitable[bytes]],
        fail_fast: FailFast,
        blames: Blames,
        spool: Spool,
        suspension: Suspension | None = None,
        intervals: Intervals = STANDARD,
    ) -> None:
        self._intervals = intervals
        self.recorder = Recorder(ledger, spool, suspension)
        self._claims = Claimer(ledger, self.recorder)
        self._jobs = JobCache(lambda job_id: retry_until_available(lambda: ledger.job(job_id)))
        self._ledger, self._provider, self._model = ledger, provider, model
        self._policy, self._call_timeout_s, self._nonce_key = policy, call_timeout_s, nonce_key
        self._fail_fast, self._blames = fail_fast, blames
        self._working: set[tuple[PageRef, int]] = set()

    async def judge(
        self, ref: PageRef, token: MessageId, lease: Lease | None, deployment: int = 0, deregister: Bury | None = None,
        refusal: ProviderFailure | None = None, early: bool = False,
    ) -> NextSteps:  # fmt: skip
        """Do one message's work, at this one of its agent's deployments. Safe to repeat at any time and from any number
        of workers. Of a message that has come back, `deregister` has those looked for who may have died of it. With a
        `refusal` no call is made: it is what is recorded. `early`: units that wait for their time come now, too."""
        try:
            job = await self.job(ref)
            if job is None:
                return NextSteps(counts=True)
            units = job.lanes[ref.lane].dimensions if token.batch else 1
            positions = range(token.position, token.position + units)
            # Not those that another message, or a copy of this one, has brought to this process already.
            free = [position for position in positions if not self.works_on(ref, position)]
            if not free:
                return NextSteps(counts=False)
            mine = {(ref, position) for position in free}
            self._working |= mine
            try:
                return await self._judge(job, ref, token, free, lease, deployment, deregister, refusal, early)
            finally:
                self._working -= mine
        finally:
            if lease is not None:
                lease.release()

    def works_on(self, ref: PageRef, position: int) -> bool:
        """Whether this process has the unit in hand."""
        return (ref, position) in self._working

    async def _judge(
        self, job: JobRecord, ref: PageRef, token: MessageId, positions: Sequence[int], lease: Lease | None,
        deployment: int, deregister: Bury | None, refusal: ProviderFailure | None, early: bool,
    ) -> NextSteps:  # fmt: skip
        lane = job.lanes[ref.lane]
        unit = lane.unit(token.position)
        agent = job.spec.agents[unit.agent]
        if not 0 <= deployment < len(agent.choices):
            raise LookupError(f"{ref}.{token} names deployment {deployment} of {len(agent.choices)}")
        state, item, claims = await self._claims.claim(ref, token, positions, unit.item, early=early)
        if deregister is not None and claims and all(c.verdict is ClaimAnswer.OWNED for c in claims):
            # A broker notices a death sooner than the nodes do, and its message is here before the unit is free.
            await retry_until_available(deregister)
            again_ms = self._intervals.owner_silent_ms
            state, item, claims = await self._claims.claim(ref, token, positions, unit.item, again_ms=again_ms)
        if state is None or item is None:
            return NextSteps(counts=True)
        run = [c for c in claims if c.verdict is ClaimAnswer.RUN]
        call = Call(
            ref=ref,
            token=token,
            job=job,
            agent=agent,
            deployment=agent.choices[deployment],
            pool=lane.pools[deployment],
            item=item,
            dimensions=[job.spec.dimensions[lane.unit(c.position).dimension] for c in run],
            claims=run,
            replicate=unit.replicate,
            ends_at=_ends_at(run),
            probe=lease is not None and lease.probe,
        )
        ended = [c for c in claims if c.verdict in CLOSED]
        recorded = await self._close(call, lane, ended) if ended else None
        if not run:
            settled = all(c.verdict is ClaimAnswer.DONE or c.verdict in CLOSED for c in claims)
            return replace(_outcome(settled, recorded), told=call.told or "nothing to do")
        if refusal is not None:
            return await self._failed(call, refusal, 0.0, {"calls": 0})
        try:
            model = self._model(call.deployment)
            unasked = await self._fail_fast.refusal(job, call.pool, model, leased=lease is not None)
            if isinstance(unasked, Stop) and self._fail_fast.asks_at(
                job, places_of(job, lane, unit.agent, self._model)
            ):
                call.tell(f"goes elsewhere: {unasked.reason}")
                gone = await self._again(call, spent=0, requeued=0, delay_s=0.0, counters={}, unpaid=True)
                return replace(gone, told=call.told)
            outcome = await (self._call(call, lease) if unasked is None else self._refuse(call, lease, unasked))
            return replace(outcome, told=call.told or "waits for a lease")
        except Exception as error:
            # A fault of this program: it must not leave the unit in the hands of a task that is gone.
            logger.exception("job %s, unit %s.%s.%s", ref.job, ref.lane, ref.page, token)
            # Before the call's end is known, it may not have been made.
            made = call.latency_s > 0.0
            failure = ProviderFailure(FailureKind.INTERNAL, repr(error))
            outcome = await self._failed(call, failure, 0.0, {"calls": int(made)}, made=made)
            return replace(outcome, told=call.told)

    async def _close(self, call: Call, lane: Lane, claims: Sequence[Claim]) -> Recorded:
        expired = any(c.verdict is ClaimAnswer.EXPIRED for c in claims)
        trouble = await self._blames.down(call.pool) if expired else ""
        results = closed(call, lane, claims, self._model(call.deployment), trouble)
        counters = {"lost": sum(c.verdict not in WISHED for c in claims)}
        return await self.recorder.store(call.ref, counters, results)

    async def _refuse(self, call: Call, lease: Lease | None, refusal: Stop | WaitForMoney) -> NextSteps:
        """Units that get no call, now or ever."""
        if lease is not None:
            lease.release()
        if isinstance(refusal, WaitForMoney):
            call.tell(f"waits {refusal.delay_s:.0f} s: the account of pool {call.pool!r} has no money left")
            return await self._again(call, spent=0, requeued=0, delay_s=refusal.delay_s, counters={}, unpaid=True)
        return _outcome(True, await self.recorder.store(call.ref, {}, not_asked(call, refusal)))

    # ------------------------------------------------------------------ the call
    async def _call(self, call: Call, lease: Lease | None) -> NextSteps:
        if lease is None:  # not again at once: it would come round and round
            return await self._again(call, spent=0, requeued=0, delay_s=1.0, counters={}, unpaid=True)
        loop, full_s = asyncio.get_running_loop(), self._call_timeout_s(call.deployment.pool)
        left_s = lease.expires_at - loop.time() - LEASE_MARGIN_S
        if left_s < 0.5 * full_s:  # no right to a whole call: come again for one
            return await self._again(call, spent=0, requeued=0, delay_s=0.0, counters={}, unpaid=True)
        timeout_s = min(full_s, left_s)
        try:
            provider = self._provider(call.deployment.pool)
        except ProviderFailure as failure:
            return await self._failed(call, failure, 0.0, {"calls": 0}, made=False)
        if call.token.batch and not provider.structured_output:
            return await self._one_by_one(call, call.claims, spent=0, counters={}, recorded=None, unpaid=True)
        key = await retry_until_available(self._nonce_key)
        nonce = nonce_for(key, call.agent, call.dimensions, call.item, call.replicate)
        prompt = _prompt(call, nonce, provider)
        request = ChatRequest(
            model=self._model(call.deployment),
            system=prompt.system,
            user=prompt.user,
            max_tokens=prompt.max_tokens,
            temperature=call.agent.temperature,
            schema=prompt.schema,
        )
        reporter = f"{call.ref}.{call.token}"
        started, own_s = loop.time(), timeout_s
        timeout_s = max(0.0, min(own_s, call.ends_at - started))
        try:
            async with asyncio.timeout(timeout_s):
                reply = await provider.complete(request)
            lease.outcome = answered(reply, reporter, time.time())
        except TimeoutError:
            cut = ProviderFailure(FailureKind.TIMEOUT, f"no answer within {timeout_s:g} s")
            if timeout_s < own_s:
                cut = ProviderFailure(FailureKind.TIMEOUT, f"cut at its deadline, after {timeout_s:.3g} s")
            if timeout_s >= 0.5 * own_s:  # sooner the pool might have answered yet: that says nothing of it
                lease.outcome = CallOutcome(NO_ANSWER, reporter=reporter, error=cut.message)
            lease.release()
            call.log(logs.timed_out, timeout_s=round(timeout_s, 3))
            return await self._failed(call, cut, loop.time() - started, {})
        except ProviderFailure as failure:
            lease.outcome = refused(failure, reporter, time.time())
            lease.release()
            return await self._failed(call, failure, loop.time() - started, {})
        except asyncio.CancelledError:
            # The worker stops: hand the unit back, so that it need not wait for the proof of a death.
            await asyncio.shield(self._interrupted(call, loop.time() - started))
            raise
        finally:
            call.latency_s = loop.time() - started
            lease.release()
        call.model, call.usage = reply.model, reply.usage
        return await (self._read_all(call, reply, nonce) if call.token.batch else self._read_one(call, reply, nonce))

    async def _interrupted(self, call: Call, took_s: float) -> None:
        if call.job.spec.spend == "at_most_once":
            stopped = ProviderFailure(FailureKind.CONNECTION, "the worker was stopped during the call")
            await self._failed(call, stopped, took_s, {})
        else:
            call.tell("waits: the worker was stopped during the call")
            again = await self._comes_again(call)
            counters = {"calls": 1, "calls_without_answer": 1, "possible_double_charges": int(again)}
            await self._again(call, spent=0, requeued=0, delay_s=0.0, counters=counters)

    async def _comes_again(self, call: Call) -> bool:
        """Whether an interrupted call is going to be made once more, as far as the store can tell now."""
        try:
            async with asyncio.timeout(ASKED_IN_S):
                return await self._ledger.calls_again(call.ref, [c.position for c in call.claims])
        except (RedisError, TimeoutError):
            return True

    async def _read_one(self, call: Call, reply: ChatReply, nonce: str) -> NextSteps:
        verdict = read_single(reply.text, structured=reply.structured, nonce=nonce, scale=call.dimensions[0].scale)
        if isinstance(verdict, Malformed):
            reason = f"{verdict.reason} (cut at max_tokens)" if reply.truncated else verdict.reason
            failure = ProviderFailure(FailureKind.MALFORMED, f"answer refused: {reason}", status_code=200)
            return await self._failed(call, failure, call.latency_s, _tokens(reply.usage))
        recorded = await self._record(call, {call.claims[0]: verdict}, {"calls": 1, **_tokens(reply.usage)})
        return _outcome(True, recorded)

    async def _read_all(self, call: Call, reply: ChatReply, nonce: str) -> NextSteps:
        """Accept what is valid of a batch; what is missing or corrupt is asked for again, one by one."""
        reading = read_batch(reply.text, structured=reply.structured, nonce=nonce, dimensions=call.dimensions)
        for corrupt in reading.corrupt:
            call.log(logs.corrupt, dimension=corrupt.dimension_id, reason=corrupt.reason, payload=corrupt.raw)
        by_id = {d.id: c for d, c in zip(call.dimensions, call.claims, strict=True)}
        accepted = {by_id[name]: verdict for name, verdict in reading.accepted.items()}
        counters = {"calls": 1, **_tokens(reply.usage)}
        if reading.missing:
            call.log(logs.corrupt, reason=f"{len(reading.missing)} of {len(call.claims)} dimensions are missing",
                      payload="", missing=reading.missing)  # fmt: skip
        recorded = await self._record(call, accepted, counters) if accepted else None
        rest = [c for c in call.claims if c not in accepted]
        if not rest:
            return _outcome(True, recorded)
        if call.job.spec.spend == "at_most_once" or (
            len(call.claims) == 1 and call.claims[0].attempts + 1 >= self._policy.max_attempts
        ):
            failure = ProviderFailure(FailureKind.MALFORMED, "answer refused", status_code=200)
            dimension_of = dict(zip(call.claims, call.dimensions, strict=True))
            refused = replace(call, claims=rest, dimensions=[dimension_of[c] for c in rest], told="")
            ended = await self._failed(refused, failure, call.latency_s, {"calls": 0} if accepted else counters)
            call.tell("; ".join(filter(None, (call.told, refused.told))))
            return (
                ended
                if recorded is None
                else replace(ended, plan=ended.plan or recorded.plan, gather=ended.gather or recorded.gather)
            )
        return await self._one_by_one(call, rest, spent=1, counters={} if accepted else counters, recorded=recorded)

    # ------------------------------------------------------------------ what follows
    async def _failed(
        self, call: Call, failure: ProviderFailure, took_s: float, counters: dict[str, int], *, made: bool = True
    ) -> NextSteps:
        """Retry as the policy says, or record the error of every unit of the call; `made` if there was one."""
        first, model = call.claims[0], self._model(call.deployment)
        blame = await self._blames.of(call, failure, model)
        decision = decide(
            self._policy,
            failure.kind,
            attempts=first.attempts,
            requeues=first.requeues,
            retry_after_s=failure.retry_after_s,
            jitter=random.uniform(0.0, JITTER_MAX_S),  # noqa: S311  spreads retries, guards nothing
            at_most_once=call.job.spec.spend == "at_most_once",
            pool_down=blame.pool_down,
        )
        left_s = call.ends_at - asyncio.get_running_loop().time()
        if isinstance(decision, Retry) and decision.delay_s >= left_s:
            decision = given_up_late(decision, first.attempts)
        counters = {**spent(failure), **counters}
        if isinstance(decision, Retry):
            counters["possible_double_charges"] = counters["calls_without_answer"]
            call.log(
                logs.retrying,
                attempt=first.attempts + first.requeues + 1,
                status_code=failure.status_code,
                delay_s=round(max(decision.delay_s, blame.closed_s), 3),
                kind=failure.kind,
                reason=failure.message,
            )
            wait_s = max(decision.delay_s, blame.closed_s)
            call.tell(f"waits {wait_s:.1f} s after {failure.kind}: {failure.message}")
            counters["requeues" if failure.kind in RATE_LIMITS else "retries"] = 1
            return await self._again(
                call, spent=int(decision.spends == "attempt"), requeued=int(decision.spends == "requeue"),
                delay_s=decision.delay_s, counters=counters, probe=decision.spends == "nothing",
            )  # fmt: skip
        wait = await self._fail_fast.failed(
            call.job, call.pool, model, failure, made=made,
            unit=f"{call.ref.lane}.{call.ref.page}.{call.token}", item=call.item_number,
        )  # fmt: skip
        if wait is not None:
            call.tell(f"waits {wait.delay_s:.0f} s: the account of pool {call.pool!r} has no money left")
            return await self._again(call, spent=0, requeued=0, delay_s=wait.delay_s, counters=counters, unpaid=True)
        results = given_up(call, failure, decision, took_s, made=made, model=model)
        return _outcome(True, await self.recorder.store(call.ref, counters, results))

    async def _again(
        self, call: Call, *, spent: int, requeued: int, delay_s: float, counters: dict[str, int], unpaid: bool = False,
        probe: bool = False,
    ) -> NextSteps:  # fmt: skip
        """The same message once more, after a wait in the ledger."""
        deferrals = [
            Deferral(c.position, c.fence, c.attempts + spent, c.requeues + requeued, int(unpaid), int(probe))
            for c in call.claims
        ]
        due = [Due(call.token, int(delay_s * 1000))]
        await self.recorder.defer(call.ref, counters, deferrals, due)
        return NextSteps(counts=False)

    async def _one_by_one(
        self, call: Call, claims: Sequence[Claim], *, spent: int, counters: dict[str, int],
        recorded: Recorded | None, unpaid: bool = False,
    ) -> NextSteps:  # fmt: skip
        """Hand units of a batch on to messages of their own, which join the same chord."""
        deferrals = [Deferral(c.position, c.fence, c.attempts + spent, c.requeues, int(unpaid)) for c in claims]
        tokens = [MessageId(c.position) for c in claims]
        again = [d.id for c, d in zip(call.claims, call.dimensions, strict=True) if c in claims]
        call.tell("; ".join(filter(None, (call.told, f"asked one by one: {', '.join(again)}"))))
        due = [Due(token, self._intervals.unclaimed_ms, wait=False) for token in tokens]
        await self.recorder.defer(call.ref, {"retries": spent, **counters}, deferrals, due)
        return replace(_outcome(True, recorded), follow_ups=tokens)

    # ------------------------------------------------------------------ records
    async def _record(self, call: Call, verdicts: dict[Claim, Judgment], counters: dict[str, int]) -> Recorded:
        dimension_of = dict(zip(call.claims, call.dimensions, strict=True))
        shares = divide_usage(call.usage, len(verdicts))
        scores = [f"{dimension_of[claim].id} {verdict.score}" for claim, verdict in verdicts.items()]
        call.tell(f"scored {', '.join(scores)}")
        results = []
        for (claim, verdict), usage in zip(verdicts.items(), shares, strict=True):
            call.log(logs.judged, dimension=dimension_of[claim].id, score=verdict.score)
            results.append(call.scored(claim, dimension_of[claim], verdict, usage))
        recorded = await self.recorder.store(call.ref, counters, results)
        # Not before: while the store is away an answer in hand is kept on disk, and this waits for the store.
        await self._fail_fast.answered(call.job, call.pool, self._model(call.deployment))
        return recorded

    async def job(self, ref: PageRef) -> JobRecord | None:
        """The unchanging part of a page's job; None if the ledger does not hold it, or another one of that id."""
        return await self._jobs.get(ref.job, ref.incarnation)


def _outcome(counts: bool, recorded: Recorded | None) -> NextSteps:
    if recorded is None:
        return NextSteps(counts)
    # Whoever has the newer claim counts for the chord.
    counts = counts and not all(w in {Written.STALE, Written.GONE} for w in recorded.written)
    return NextSteps(counts, plan=recorded.plan, gather=recorded.gather)


def _ends_at(claims: Sequence[Claim]) -> float:
    """The deadline of claims that were answered just now, by the loop's clock."""
    left_ms = min((c.left_ms for c in claims if c.left_ms >= 0), default=None)
    return math.inf if left_ms is None else asyncio.get_running_loop().time() + left_ms / 1000


def _prompt(call: Call, nonce: str, provider: Provider) -> Prompt:
    fixed = provider.nonce_in_schema
    if call.token.batch:
        return batch_prompt(call.agent, call.dimensions, call.item, nonce, fixed_nonce=fixed)
    structured = provider.structured_output
    return single_prompt(call.agent, call.dimensions[0], call.item, nonce, structured=structured, fixed_nonce=fixed)


def _tokens(usage: Usage) -> dict[str, int]:
    return {"tokens_in": usage.input_tokens, "tokens_out": usage.output_tokens}
