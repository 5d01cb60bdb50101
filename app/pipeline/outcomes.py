"""Settles units whose call has ended, or is not made: with a result, with an error, or by sending the message again.

Every write names the fence of its claim and carries the cost of the call. Whether a failure is the unit's or its
pool's, and whether its job stops asking, is decided in pool_trouble.py; this module asks, and acts on the answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import assert_never

from redis.exceptions import RedisError

from dicast.app import logs
from dicast.app.domain.opinion import RATE_LIMITS, FailureKind
from dicast.app.domain.plan import divide_usage
from dicast.app.domain.prompt import batch_max_tokens
from dicast.app.domain.retry import JITTER_MAX_S, GiveUp, Retry, RetryPolicy, decide, given_up_late, more_room
from dicast.app.ledger.ledger import Ledger
from dicast.app.ledger.records import Claim, ClaimVerdict, Deferral, Due, MessageId, UnitResult
from dicast.app.pipeline.call_facts import (
    Answered,
    Call,
    Cut,
    Delay,
    Failed,
    Models,
    NextSteps,
    NoCall,
    NotMade,
    Outcome,
    Unasked,
    call_counters,
    failure_counters,
    shortened,
    unasked_payload,
)
from dicast.app.pipeline.kept_opinions import KeptOpinions
from dicast.app.pipeline.pool_trouble import (
    UNIT_FAILED,
    Attribution,
    Conditions,
    FailFast,
    attribute,
    may_concern_pool,
    outage_text_of,
)
from dicast.app.pipeline.record import Recorder, retry_until_available
from dicast.app.providers.base import ANSWERS, ProviderFailure
from dicast.workers.admission.pool_state import PoolCondition

UNCLAIMABLE = {
    ClaimVerdict.CANCELLED: NoCall.CANCELLED,
    ClaimVerdict.REVOKED: NoCall.REVOKED,
    ClaimVerdict.POISON: NoCall.POISON,
    ClaimVerdict.SPENT: NoCall.SPENT,
    ClaimVerdict.CAPPED: NoCall.CAPPED,
    ClaimVerdict.EXPIRED: NoCall.EXPIRED,
    ClaimVerdict.UNKNOWN: NoCall.UNKNOWN,
}
"""Why a unit whose claim gets this answer ends without a call."""
REQUESTED_ENDS = frozenset({ClaimVerdict.CANCELLED, ClaimVerdict.REVOKED, ClaimVerdict.EXPIRED, ClaimVerdict.CAPPED})
"""Answers that follow from a request of a user or an operator; such a unit does not count as lost."""
STORE_ANSWER_TIMEOUT_S = 1.0
"""How long a worker that stops waits for an answer that only its counters need."""


def given_up_results(call: Call, failed: Failed, decision: GiveUp, model: str) -> list[UnitResult]:
    """Return the errors of all units of a call that is not tried again, and log each."""
    failure, results = failed.failure, []
    for claim in call.claims:
        elapsed_s = claim.elapsed_ms / 1000 + failed.latency_s
        call.log(
            logs.failed, dimension=call.dimension(claim).id, status_code=failure.status_code,
            elapsed_s=round(elapsed_s, 3), kind=failure.kind, reason=failure.message,
        )  # fmt: skip
        results.append(call.error_result(
            claim, decision.kind, failure.message, decision.argument, attempts=decision.attempts,
            calls=claim.calls if failed.was_made else claim.calls - 1, elapsed_s=elapsed_s,
            status_code=failure.status_code, model=model, latency_s=failed.latency_s,
        ))  # fmt: skip
    return results


def unasked_results(call: Call, claims: Sequence[Claim], unasked: Mapping[ClaimVerdict, Unasked]) -> list[UnitResult]:
    """Return the errors of units that end without a call, by the verdicts of their claims, and log each."""
    results = []
    for claim in claims:
        why, elapsed_s = unasked[claim.verdict], claim.elapsed_ms / 1000
        call.log(
            logs.failed, dimension=call.dimension(claim).id, status_code=why.status_code, elapsed_s=elapsed_s,
            kind=why.kind, reason=why.words,
        )  # fmt: skip
        content = unasked_payload(
            call.job, call.lane, claim.position, call.item, why, attempts=claim.attempts, elapsed_s=elapsed_s,
            calls=claim.calls - (claim.verdict is ClaimVerdict.RUN),  # such a claim counts as a call already
        )  # fmt: skip
        results.append(call.unscored_result(claim, content))
    return results


class Outcomes:
    """Settles units on one event loop."""

    def __init__(
        self, ledger: Ledger, recorder: Recorder, policy: RetryPolicy, fail_fast: FailFast, conditions: Conditions,
        models: Models, kept: KeptOpinions | None = None,
    ) -> None:  # fmt: skip
        """Without `kept`, no opinion is kept for later jobs."""
        self._ledger, self._recorder, self._policy = ledger, recorder, policy
        self._fail_fast, self._conditions, self._models, self._kept = fail_fast, conditions, models, kept

    async def settle(self, call: Call, outcome: Outcome) -> NextSteps:
        """Write what became of a call whose units are claimed, and return what follows for its message. Waits for the
        store as long as necessary."""
        match outcome:
            case Answered():
                return await self._answered(call, outcome)
            case Failed(failure, usage=usage, was_made=was_made, most=most):
                cost = call_counters(call, usage, most) if was_made else {}
                counters = failure_counters(failure) | {"calls": int(was_made)} | cost
                return await self._failed(call, outcome, counters)
            case Cut():
                return await self._cut(call, outcome)
            case NotMade(Delay.ONE_BY_ONE):
                return await self._one_by_one(call, unpaid=True)
            case NotMade(why, delay_s, words, needed):
                moved = {"moved_online": len(call.claims)} if why is Delay.ONLINE else None
                return await self._defer(call, delay_s, words or why.value, moved, unpaid=True, input_tokens=needed)
            case Unasked():
                return await self._unasked(call, call.claims, {ClaimVerdict.RUN: outcome}, {})
        assert_never(outcome)

    async def end_unclaimable(self, call: Call, claims: Sequence[Claim]) -> NextSteps:
        """End units whose claim was answered by one of `UNCLAIMABLE`."""
        expired = any(claim.verdict is ClaimVerdict.EXPIRED for claim in claims)
        outage = outage_text_of(call.pool, await self._condition(call.pool)) if expired else ""
        where = {"model": self._models.model(call.deployment), "pool": call.pool}
        ends = {verdict: Unasked.because(why, **where) for verdict, why in UNCLAIMABLE.items()}
        ends[ClaimVerdict.EXPIRED] = Unasked.because(NoCall.EXPIRED, detail=outage, **where)
        lost = sum(claim.verdict not in REQUESTED_ENDS for claim in claims)
        steps = await self._unasked(call, claims, ends, {"lost": lost})
        # Whoever plans next ends the planning.
        return replace(steps, plan=True) if any(c.verdict is ClaimVerdict.CAPPED for c in claims) else steps

    async def note_budget(self, call: Call) -> str:
        """Record for its watchers which budget a job's call waits for, and return it in words."""
        reason = await self._ledger.budget_reason(call.budgets)
        if reason is None:
            return "waits: a budget was met"
        with contextlib.suppress(RedisError):
            await self._ledger.waits(call.job.id, reason.removeprefix("waits: "))
        return reason

    async def _unasked(
        self, call: Call, claims: Sequence[Claim], ends: Mapping[ClaimVerdict, Unasked], counters: dict[str, int]
    ) -> NextSteps:
        recorded = await self._recorder.store(call.ref, counters, unasked_results(call, claims, ends))
        ended = [ends[claim.verdict] for claim in claims]
        failure = f"{ended[-1].kind}: {ended[-1].words}"
        return NextSteps.after(recorded, f"error: {failure}", [end.kind for end in ended], failure)

    # ------------------------------------------------------------------ an answer
    async def _answered(self, call: Call, answer: Answered) -> NextSteps:
        """Record opinions. Dimensions that a batch's answer left out are asked for again, one by one, unless they have
        no attempts left, and so are those of which some of the item's criteria have no answer. The cost of the call is
        written once, with the first write."""
        unwritten = {"calls": 1, **call_counters(call, answer.usage, answer.most)}
        lacking: Mapping[Claim, int] = {}
        if call.item.criteria is not None:
            lacking = {claim: lacks for claim, verdict in answer.opinions.items() if (lacks := verdict.unanswered)}
        if lacking and not self._is_final(call):
            if len(call.claims) == 1:
                lacks, criteria = sum(lacking.values()), call.dimensions[0].scale.item_criteria
                reason = f"answer refused: {lacks} of {len(criteria)} criteria have no answer"
                failure = ProviderFailure(FailureKind.MALFORMED, reason, status_code=200)
                counters = failure_counters(failure) | unwritten
                return await self._failed(call, Failed(failure, answer.latency_s, answer.usage), counters)
            answer = replace(answer, opinions={c: v for c, v in answer.opinions.items() if c not in lacking})
        earlier = NextSteps(counts=True)
        if answer.opinions:
            earlier, unwritten = await self._scored(call, answer, unwritten), {}
        if len(answer.opinions) == len(call.claims):
            return earlier
        rest = [claim for claim in call.claims if claim not in answer.opinions]
        if answer.ignored:
            await self._drop_ignored(call, answer.ignored)
            steps = await self._one_by_one(call.of(rest), unwritten, unpaid=True, counts=earlier.counts)
        elif self._is_final(call):
            refused = ProviderFailure(FailureKind.MALFORMED, "answer refused", status_code=200)
            counters = failure_counters(refused) | {"calls": 0} | unwritten
            steps = await self._failed(call.of(rest), Failed(refused, answer.latency_s), counters)
        else:
            steps = await self._one_by_one(call.of(rest), unwritten, spent=1, counts=earlier.counts)
        return steps.following(earlier)

    async def _drop_ignored(self, call: Call, parameter: str) -> None:
        """Have replicates asked for one by one at a model that has given fewer answers than it was asked for."""
        model = self._models.model(call.deployment)
        why = f"{call.answers} answers were asked for in one call, and fewer came"
        failure = ProviderFailure(FailureKind.REJECTED, why, refused_params=[parameter])
        await self._fail_fast.drop(call.job, call.pool, model, failure)

    def _is_final(self, call: Call) -> bool:
        """Whether dimensions that are missing from a batch's answer are not asked for again."""
        last = len(call.claims) == 1 and call.claims[0].attempts + 1 >= self._policy.max_attempts
        return last or call.job.spec.spend == "at_most_once"

    async def _scored(self, call: Call, answer: Answered, counters: dict[str, int]) -> NextSteps:
        shares, results, scores = divide_usage(answer.usage, len(answer.opinions)), [], []
        for (claim, verdict), usage in zip(answer.opinions.items(), shares, strict=True):
            dimension, question = call.dimension(claim), None
            if self._kept is not None and call.job.spec.cache in ("use", "refresh"):
                question = self._kept.question(call.job, call.lane, claim.position, call.item, call.deployment)
            score = verdict.score if verdict.expected is None else verdict.expected
            call.log(logs.judged, dimension=dimension.id, score=score)
            results.append(call.scored_result(claim, dimension, verdict, usage, answer, question))
            scores.append(f"{dimension.id} {score}")
        recorded = await self._recorder.store(call.ref, counters, results)
        # Last, because this waits for the store, while an answer is also kept on disk.
        await self._fail_fast.note_answer(call.job, call.pool, self._models.model(call.deployment))
        return NextSteps.after(recorded, f"scored {', '.join(scores)}")

    # ------------------------------------------------------------------ a failure
    async def _failed(self, call: Call, failed: Failed, counters: dict[str, int]) -> NextSteps:
        """Retry as the policy says, or record the error of every unit of the call."""
        failure, model = failed.failure, self._models.model(call.deployment)
        may_drop = not call.job.spec.strict_params or set(failure.refused_params) == {ANSWERS}
        if failure.refused_params and may_drop:
            await self._fail_fast.drop(call.job, call.pool, model, failure)
            summary = f"asked without {', '.join(failure.refused_params)}, which {model} refuses"
            return await self._defer(call, 0.0, summary, counters, unpaid=True)
        attribution = await self._attribution(call, failure, model)
        decision = self._decide(call, failure, attribution)
        if isinstance(decision, Retry):
            return await self._retry(call, failure, decision, counters, attribution.breaker_open_s)
        wait = await self._fail_fast.note_failure(
            call.job, call.pool, model, failure, was_made=failed.was_made,
            unit=f"{call.ref.lane}.{call.ref.page}.{call.token}", item=call.item_number,
        )  # fmt: skip
        if wait is not None:
            return await self._defer(call, wait.delay_s, wait.words(call.pool), counters, unpaid=True)
        results = given_up_results(call, failed, decision, model)
        recorded = await self._recorder.store(call.ref, counters, results)
        words = f"{decision.kind}: {failure.message}"
        return NextSteps.after(recorded, f"error: {words}", [decision.kind] * len(results), words)

    async def _attribution(self, call: Call, failure: ProviderFailure, model: str) -> Attribution:
        """Attribute a failure to its unit or its pool. What the decision does not need is not read."""
        if not may_concern_pool(failure, probe=call.probe):
            return UNIT_FAILED
        condition = await self._condition(call.pool)
        broken = call.probe and await retry_until_available(
            lambda: self._fail_fast.seems_broken(call.job, call.pool, model)
        )
        return attribute(failure, condition, probe=call.probe, model_broken=broken)

    async def _condition(self, pool: str) -> PoolCondition:
        return (await retry_until_available(lambda: self._conditions.read([pool])))[pool]

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
            had_more_room=first.room > 0 or not self._room(call),
        )
        left_s = call.ends_at - asyncio.get_running_loop().time()
        if isinstance(decision, Retry) and decision.delay_s >= left_s:
            return given_up_late(decision, first.attempts)
        return decision

    def _room(self, call: Call) -> int:
        """Return the tokens of output that a call gets whose model has reasoned all of them away; 0 if no more."""
        agent = call.agent
        most = batch_max_tokens(agent, len(call.dimensions)) if call.batched else agent.max_tokens
        room = more_room(most)
        return room if room > most else 0

    async def _retry(
        self, call: Call, failure: ProviderFailure, decision: Retry, counters: dict[str, int], breaker_open_s: float
    ) -> NextSteps:
        first, wait_s = call.claims[0], max(decision.delay_s, breaker_open_s)
        call.log(
            logs.retrying,
            attempt=first.attempts + first.requeues + 1,
            status_code=failure.status_code,
            delay_s=round(wait_s, 3),
            kind=failure.kind,
            reason=failure.message,
        )
        counters = counters | {
            "possible_double_charges": counters["calls_without_answer"],
            "requeues" if failure.kind in RATE_LIMITS else "retries": 1,
        }
        return await self._defer(
            call, decision.delay_s, f"waits {wait_s:.1f} s after {failure.kind}: {failure.message}", counters,
            spent=int(decision.spends == "attempt"), requeued=int(decision.spends == "requeue"),
            probe=decision.spends == "nothing",
            room=self._room(call) * call.most_answers if failure.kind is FailureKind.OUT_OF_TOKENS else 0,
        )  # fmt: skip

    async def _cut(self, call: Call, cut: Cut) -> NextSteps:
        """Settle units whose open call was cut."""
        is_called_again = await self._is_called_again(call)
        why = (
            "the worker was stopped during the call"
            if is_called_again
            else "it was revoked or cancelled during the call"
        )
        if call.job.spec.spend == "at_most_once":
            failure = ProviderFailure(FailureKind.CONNECTION, why)
            counters = failure_counters(failure) | call_counters(call, None, cut.most)
            return await self._failed(call, Failed(failure, cut.latency_s), counters)
        counters = {"calls": 1, "calls_without_answer": 1, "possible_double_charges": int(is_called_again)}
        counters |= call_counters(call, None, cut.most)
        return await self._defer(call, 0.0, f"waits: {why}", counters)

    async def _is_called_again(self, call: Call) -> bool:
        """Whether a call that was cut will be made again, according to the store; True if the store does not answer
        soon."""
        try:
            async with asyncio.timeout(STORE_ANSWER_TIMEOUT_S):
                return await self._ledger.may_call(call.ref, [c.position for c in call.claims])
        except (RedisError, TimeoutError):
            return True

    # ------------------------------------------------------------------ once more
    async def _one_by_one(
        self, call: Call, counters: dict[str, int] | None = None, *, spent: int = 0, unpaid: bool = False,
        counts: bool = True,
    ) -> NextSteps:  # fmt: skip
        """Split units off a batch into messages of their own, which join the same chord."""
        deferrals = [Deferral(c.position, c.fence, c.attempts + spent, c.requeues, int(unpaid)) for c in call.claims]
        tokens = [MessageId(c.position) for c in call.claims]
        due = [Due(token, self._ledger.intervals.unclaimed_ms, wait=False) for token in tokens]
        await self._recorder.defer(call.ref, {"retries": spent, **(counters or {})}, deferrals, due)
        return NextSteps(counts, follow_ups=tokens, summary=shortened(f"asked one by one: {call.label}"))

    async def _defer(
        self, call: Call, delay_s: float, summary: str, counters: dict[str, int] | None = None, *, spent: int = 0,
        requeued: int = 0, unpaid: bool = False, probe: bool = False, input_tokens: int = 0, room: int = 0,
    ) -> NextSteps:  # fmt: skip
        """Defer the call's units in the ledger: the same message comes again after `delay_s`."""
        deferrals = [
            Deferral(c.position, c.fence, c.attempts + spent, c.requeues + requeued, int(unpaid), int(probe))
            for c in call.claims
        ]
        due = [Due(call.token, int(delay_s * 1000), input_tokens=input_tokens, room=room)]
        await self._recorder.defer(call.ref, counters or {}, deferrals, due)
        return NextSteps(counts=False, retry=True, summary=shortened(summary))
