"""Settles units whose call has ended, or is not made: with a result, with an error, or by sending the message again.

Every write names the fence of its claim and carries the cost of the call.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace

from redis.exceptions import RedisError

from dicast.app import logs
from dicast.app.domain.batching import divide_usage
from dicast.app.domain.failure import RATE_LIMITS, FailureKind
from dicast.app.domain.opinion import ErrorKind
from dicast.app.domain.retry import JITTER_MAX_S, GiveUp, Retry, RetryPolicy, decide, given_up_late
from dicast.app.domain.stop import Stop
from dicast.app.domain.verdict import Judgment
from dicast.app.ledger.ledger import Ledger
from dicast.app.ledger.records import Claim, ClaimVerdict, Deferral, Due, MessageId, Recorded
from dicast.app.pipeline.blame import Attribution, FailureAttributor
from dicast.app.pipeline.call import Call, failure_counters
from dicast.app.pipeline.endings import REQUESTED_ENDS, given_up_results, stopped_results, unclaimable_results
from dicast.app.pipeline.fail_fast import FailFast, WaitForMoney
from dicast.app.pipeline.next_steps import NextSteps
from dicast.app.pipeline.places import Models
from dicast.app.pipeline.record import Recorder
from dicast.app.providers.base import ProviderFailure

STORE_ANSWER_TIMEOUT_S = 1.0
"""How long a worker that stops waits for an answer that only its counters need."""


class Outcomes:
    """Settles units on one event loop. `attributor` attributes a failure to the unit or its pool."""

    def __init__(
        self,
        ledger: Ledger,
        recorder: Recorder,
        policy: RetryPolicy,
        fail_fast: FailFast,
        attributor: FailureAttributor,
        models: Models,
    ) -> None:
        self._ledger, self._recorder, self._policy = ledger, recorder, policy
        self._fail_fast, self._attributor, self._models = fail_fast, attributor, models

    # ------------------------------------------------------------------ without a call
    async def end_unclaimable(self, call: Call, claims: Sequence[Claim]) -> Recorded:
        """End units whose claim was answered by one of `UNCLAIMABLE`."""
        expired = any(c.verdict is ClaimVerdict.EXPIRED for c in claims)
        outage = await self._attributor.outage_text(call.pool) if expired else ""
        lane = call.job.lanes[call.ref.lane]
        results = unclaimable_results(call, lane, claims, self._models.model(call.deployment), outage)
        counters = {"lost": sum(c.verdict not in REQUESTED_ENDS for c in claims)}
        return await self._recorder.store(call.ref, counters, results)

    async def stopped(self, call: Call, stop: Stop | WaitForMoney) -> NextSteps:
        """End units that get no call because their job has stopped asking; or let them wait for money."""
        if isinstance(stop, WaitForMoney):
            return await self._wait_for_money(call, stop, {})
        return NextSteps.after(await self._recorder.store(call.ref, {}, stopped_results(call, stop)))

    async def rejected(self, call: Call, failure: ProviderFailure) -> NextSteps:
        """End units whose pool no worker knows. This is not counted against the pool: other units are still called."""
        decision = GiveUp(ErrorKind.REJECTED, f"Not evaluated: {failure.message}", call.claims[0].attempts)
        model = self._models.model(call.deployment)
        results = given_up_results(call, failure, decision, 0.0, was_made=False, model=model)
        return NextSteps.after(await self._recorder.store(call.ref, {}, results))

    async def defer_unpaid(self, call: Call, delay_s: float) -> NextSteps:
        """Let the message come again after `delay_s`. No call was made, so nothing is counted as paid."""
        return await self._defer(call, delay_s, unpaid=True)

    # ------------------------------------------------------------------ after a call
    async def scored(self, call: Call, verdicts: dict[Claim, Judgment], counters: dict[str, int]) -> Recorded:
        """Record the opinions of units."""
        dimension_of = dict(zip(call.claims, call.dimensions, strict=True))
        shares = divide_usage(call.usage, len(verdicts))
        scores = [f"{dimension_of[claim].id} {verdict.score}" for claim, verdict in verdicts.items()]
        call.summarize(f"scored {', '.join(scores)}")
        results = []
        for (claim, verdict), usage in zip(verdicts.items(), shares, strict=True):
            call.log(logs.judged, dimension=dimension_of[claim].id, score=verdict.score)
            results.append(call.scored_result(claim, dimension_of[claim], verdict, usage))
        recorded = await self._recorder.store(call.ref, counters, results)
        # Last, because this waits for the store, while an answer is also kept on disk.
        await self._fail_fast.note_answer(call.job, call.pool, self._models.model(call.deployment))
        return recorded

    async def failed(
        self, call: Call, failure: ProviderFailure, took_s: float, counters: dict[str, int], *, was_made: bool = True
    ) -> NextSteps:
        """Retry as the policy says, or record the error of every unit of the call. `was_made` tells whether the call
        was made."""
        model = self._models.model(call.deployment)
        attribution = await self._attributor.attribute(call, failure, model)
        decision = self._decide(call, failure, attribution)
        counters = {**failure_counters(failure), **counters}
        if isinstance(decision, Retry):
            return await self._retry(call, failure, decision, counters, attribution.breaker_open_s)
        wait = await self._fail_fast.note_failure(
            call.job, call.pool, model, failure, was_made=was_made,
            unit=f"{call.ref.lane}.{call.ref.page}.{call.token}", item=call.item_number,
        )  # fmt: skip
        if wait is not None:
            return await self._wait_for_money(call, wait, counters)
        results = given_up_results(call, failure, decision, took_s, was_made=was_made, model=model)
        return NextSteps.after(await self._recorder.store(call.ref, counters, results))

    def _decide(self, call: Call, failure: ProviderFailure, attribution: Attribution) -> Retry | GiveUp:
        first = call.claims[0]
        decision = decide(
            self._policy,
            failure.kind,
            attempts=first.attempts,
            requeues=first.requeues,
            retry_after_s=failure.retry_after_s,
            jitter=random.uniform(0.0, JITTER_MAX_S),  # noqa: S311  spreads retries, guards nothing
            at_most_once=call.job.spec.spend == "at_most_once",
            pool_down=attribution.pool_down,
        )
        left_s = call.ends_at - asyncio.get_running_loop().time()
        if isinstance(decision, Retry) and decision.delay_s >= left_s:
            return given_up_late(decision, first.attempts)
        return decision

    async def _retry(
        self, call: Call, failure: ProviderFailure, decision: Retry, counters: dict[str, int], breaker_open_s: float
    ) -> NextSteps:
        first, wait_s = call.claims[0], max(decision.delay_s, breaker_open_s)
        counters["possible_double_charges"] = counters["calls_without_answer"]
        call.log(
            logs.retrying,
            attempt=first.attempts + first.requeues + 1,
            status_code=failure.status_code,
            delay_s=round(wait_s, 3),
            kind=failure.kind,
            reason=failure.message,
        )
        call.summarize(f"waits {wait_s:.1f} s after {failure.kind}: {failure.message}")
        counters["requeues" if failure.kind in RATE_LIMITS else "retries"] = 1
        return await self._defer(
            call, decision.delay_s, counters, spent=int(decision.spends == "attempt"),
            requeued=int(decision.spends == "requeue"), probe=decision.spends == "nothing",
        )  # fmt: skip

    async def interrupted(self, call: Call, took_s: float) -> NextSteps:
        """Settle units whose open call was cut: the worker stops, has to hand its units back, or they were revoked."""
        is_called_again = await self._is_called_again(call)
        why = (
            "the worker was stopped during the call"
            if is_called_again
            else "it was revoked or cancelled during the call"
        )
        if call.job.spec.spend == "at_most_once":
            return await self.failed(call, ProviderFailure(FailureKind.CONNECTION, why), took_s, {})
        call.summarize(f"waits: {why}")
        counters = {"calls": 1, "calls_without_answer": 1, "possible_double_charges": int(is_called_again)}
        return await self._defer(call, 0.0, counters)

    async def _is_called_again(self, call: Call) -> bool:
        """Whether an interrupted call will be made again, according to the store; True if the store does not answer
        soon."""
        try:
            async with asyncio.timeout(STORE_ANSWER_TIMEOUT_S):
                return await self._ledger.may_call(call.ref, [c.position for c in call.claims])
        except (RedisError, TimeoutError):
            return True

    # ------------------------------------------------------------------ after a batch
    def is_rest_final(self, call: Call) -> bool:
        """Whether dimensions that are missing from a batch's answer are final, and not asked for again."""
        last = len(call.claims) == 1 and call.claims[0].attempts + 1 >= self._policy.max_attempts
        return call.job.spec.spend == "at_most_once" or last

    async def fail_rest(
        self, call: Call, rest: Sequence[Claim], counters: dict[str, int], recorded: Recorded | None
    ) -> NextSteps:
        """End the units of a batch that its answer left out. `recorded` is the ledger's answer for the other units, if
        there were any; the cost of the call was written with them."""
        failure = ProviderFailure(FailureKind.MALFORMED, "answer refused", status_code=200)
        dimension_of = dict(zip(call.claims, call.dimensions, strict=True))
        rest_call = replace(call, claims=rest, dimensions=[dimension_of[c] for c in rest], summary="")
        ended = await self.failed(rest_call, failure, call.latency_s, counters if recorded is None else {"calls": 0})
        call.summarize("; ".join(filter(None, (call.summary, rest_call.summary))))
        if recorded is None:
            return ended
        return replace(ended, plan=ended.plan or recorded.plan, gather=ended.gather or recorded.gather)

    async def split_batch(
        self, call: Call, claims: Sequence[Claim], *, spent: int = 0, counters: dict[str, int] | None = None,
        recorded: Recorded | None = None, unpaid: bool = False,
    ) -> NextSteps:  # fmt: skip
        """Split units off a batch into messages of their own, which join the same chord."""
        deferrals = [Deferral(c.position, c.fence, c.attempts + spent, c.requeues, int(unpaid)) for c in claims]
        tokens = [MessageId(c.position) for c in claims]
        dimension_ids = [d.id for c, d in zip(call.claims, call.dimensions, strict=True) if c in claims]
        call.summarize("; ".join(filter(None, (call.summary, f"asked one by one: {', '.join(dimension_ids)}"))))
        due = [Due(token, self._ledger.intervals.unclaimed_ms, wait=False) for token in tokens]
        await self._recorder.defer(call.ref, {"retries": spent, **(counters or {})}, deferrals, due)
        return replace(NextSteps.after(recorded), follow_ups=tokens)

    # ------------------------------------------------------------------ the same message once more
    async def _wait_for_money(self, call: Call, wait: WaitForMoney, counters: dict[str, int]) -> NextSteps:
        call.summarize(f"waits {wait.delay_s:.0f} s: the account of pool {call.pool!r} has no money left")
        return await self._defer(call, wait.delay_s, counters, unpaid=True)

    async def _defer(
        self, call: Call, delay_s: float, counters: dict[str, int] | None = None, *, spent: int = 0, requeued: int = 0,
        unpaid: bool = False, probe: bool = False,
    ) -> NextSteps:  # fmt: skip
        """Defer the call's units in the ledger: the same message comes again after `delay_s`."""
        deferrals = [
            Deferral(c.position, c.fence, c.attempts + spent, c.requeues + requeued, int(unpaid), int(probe))
            for c in call.claims
        ]
        due = [Due(call.token, int(delay_s * 1000))]
        await self._recorder.defer(call.ref, counters or {}, deferrals, due)
        return NextSteps(counts=False, retry=True)
