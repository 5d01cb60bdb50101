"""Settles units whose call has ended, or is not made: with a result, with an error, or by sending the message again.

Every write names the fence of its claim and carries the cost of the call. The functions build the results of units that
end without a score; `Outcomes` writes them.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from redis.exceptions import RedisError

from dicast.app import logs
from dicast.app.domain.item import Item
from dicast.app.domain.opinion import RATE_LIMITS, ErrorKind, FailureKind, Opinion
from dicast.app.domain.plan import Lane, Stop, divide_usage
from dicast.app.domain.retry import JITTER_MAX_S, GiveUp, Retry, RetryPolicy, decide, given_up_late
from dicast.app.domain.verdict import Judgment
from dicast.app.ledger.ledger import Ledger
from dicast.app.ledger.records import Claim, ClaimVerdict, Deferral, Due, JobRecord, MessageId, Recorded, UnitResult
from dicast.app.pipeline.call_facts import Call, Models, NextSteps, failure_counters, kept_metadata, payload, unscored
from dicast.app.pipeline.pool_trouble import Attribution, FailFast, FailureAttributor, WaitForMoney
from dicast.app.pipeline.record import Recorder
from dicast.app.providers.base import ProviderFailure

UNCLAIMABLE = {
    ClaimVerdict.CANCELLED: (ErrorKind.CANCELLED, "the job was cancelled"),
    ClaimVerdict.REVOKED: (ErrorKind.CANCELLED, "it was revoked"),
    ClaimVerdict.POISON: (ErrorKind.LOST, "the workers that tried it died"),
    ClaimVerdict.SPENT: (ErrorKind.LOST, "all calls that may be paid for it were made, and none brought a result"),
    ClaimVerdict.EXPIRED: (ErrorKind.DEADLINE, "its deadline has passed"),
    ClaimVerdict.UNKNOWN: (ErrorKind.OUTCOME_UNKNOWN, "its worker died during a call that may have been paid for"),
}
"""The error that is recorded for a unit whose claim gets this answer; no call is made for it."""
REQUESTED_ENDS = frozenset({ClaimVerdict.CANCELLED, ClaimVerdict.REVOKED, ClaimVerdict.EXPIRED})
"""Answers that follow from a request of a user or an operator; such a unit does not count as lost."""


def given_up_results(
    call: Call, failure: ProviderFailure, decision: GiveUp, took_s: float, *, was_made: bool, model: str
) -> list[UnitResult]:
    """Return the errors of all units of a call that is not tried again, and log each. `was_made` tells whether the call
    was made at all."""
    call.summarize(f"error: {decision.kind}: {failure.message}")
    call.latency_s = took_s
    results = []
    for claim, dimension in zip(call.claims, call.dimensions, strict=True):
        elapsed_s = claim.elapsed_ms / 1000 + took_s
        call.log(
            logs.failed, dimension=dimension.id, status_code=failure.status_code,
            elapsed_s=round(elapsed_s, 3), kind=failure.kind, reason=failure.message,
        )  # fmt: skip
        results.append(call.error_result(
            claim, dimension, decision.kind, failure.message, decision.argument, attempts=decision.attempts,
            calls=claim.calls if was_made else claim.calls - 1, elapsed_s=elapsed_s,
            status_code=failure.status_code, model=model,
        ))  # fmt: skip
    return results


def stopped_results(call: Call, stop: Stop) -> list[UnitResult]:
    """Return the errors of all units of a call that is not made because its job has stopped asking this model."""
    call.summarize(f"error: {stop.kind}: {stop.reason}")
    results = []
    for claim, dimension in zip(call.claims, call.dimensions, strict=True):
        elapsed_s = claim.elapsed_ms / 1000
        call.log(
            logs.failed, dimension=dimension.id, status_code=stop.status_code,
            elapsed_s=elapsed_s, kind=stop.kind, reason=stop.reason,
        )  # fmt: skip
        results.append(call.error_result(
            claim, dimension, attempts=claim.attempts, calls=claim.calls - 1, elapsed_s=elapsed_s, **_stop_fields(stop)
        ))  # fmt: skip
    return results


def stopped_payload(job: JobRecord, lane: Lane, position: int, item: Item, stop: Stop) -> bytes:
    """Return the result of a unit that is not published because its job has stopped asking this model."""
    unit = lane.unit(position)
    return unscored(
        job, job.spec.agents[unit.agent], job.spec.dimensions[unit.dimension], item, unit.replicate,
        attempts=0, calls=0, elapsed_s=0.0, pool=stop.pool, **_stop_fields(stop),
    )  # fmt: skip


def no_opinions_payload(job: JobRecord, lane: Lane, position: int, item: Item) -> bytes:
    """Return the result of a chief's unit that is not published because no other judge has an opinion."""
    unit = lane.unit(position)
    return unscored(
        job, job.spec.agents[unit.agent], job.spec.dimensions[unit.dimension], item, unit.replicate,
        kind=ErrorKind.NOT_ASKED, message="not asked: no other judge has an opinion",
        argument="Not evaluated: no other judge has an opinion", attempts=0, calls=0, elapsed_s=0.0, status_code=None,
        model="",
    )  # fmt: skip


def not_needed_payload(job: JobRecord, lane: Lane, position: int, item: Item) -> bytes:
    """Return the result of a unit that is not published because the earlier judges have settled the outcome. It is no
    error, just an opinion without a score."""
    unit = lane.unit(position)
    opinion = Opinion(
        judge=job.spec.agents[unit.agent].name,
        criterion_id=job.spec.dimensions[unit.dimension].id,
        item_id=item.id,
        replicate=unit.replicate,
        swapped=job.spec.is_swapped(unit.replicate),
        score=None,
        not_needed=True,
        probe=item.probe,
        argument="Not asked: the judges before had settled it",
        model="",
        attempts=0,
        metadata=kept_metadata(job, item),
    )
    return payload(opinion, None)


def _stop_fields(stop: Stop) -> dict[str, Any]:
    return {
        "kind": stop.kind,
        "message": f"not asked: {stop.reason}",
        "argument": f"Not evaluated: {stop.reason}",
        "status_code": stop.status_code,
        "model": stop.model,
    }


def unclaimable_results(
    call: Call, lane: Lane, claims: Sequence[Claim], model: str, trouble: str = ""
) -> list[UnitResult]:
    """Return the errors of units whose claim was answered by one of `UNCLAIMABLE`, such as cancelled ones or those
    whose workers died. `trouble` says what delayed units that have expired, if that is known."""
    results = []
    for claim in claims:
        dimension = call.job.spec.dimensions[lane.unit(claim.position).dimension]
        kind, message = UNCLAIMABLE[claim.verdict]
        if trouble and kind is ErrorKind.DEADLINE:
            message = f"{message}; {trouble}"
        call.summarize(f"error: {kind}: {message}")
        elapsed_s = claim.elapsed_ms / 1000
        call.log(logs.failed, dimension=dimension.id, status_code=None, elapsed_s=elapsed_s, reason=message)
        results.append(call.error_result(
            claim, dimension, kind, message, f"Not evaluated: {message}", attempts=claim.attempts, calls=claim.calls,
            elapsed_s=elapsed_s, status_code=None, model=model,
        ))  # fmt: skip
    return results


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
