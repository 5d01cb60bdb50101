"""One message's work, from its claim to what follows: what is called, when, and what the books and the pool learn."""

from __future__ import annotations

import asyncio
import dataclasses
import math
import time
from types import SimpleNamespace
from typing import Any

import pytest

from dicast.app import logs
from dicast.app.domain.opinion import FailureKind, Usage
from dicast.app.domain.plan import STANDARD
from dicast.app.ledger.records import ClaimVerdict, Due, MessageId, Recorded, WriteVerdict
from dicast.app.pipeline import judge as judge_module
from dicast.app.pipeline.call_facts import NextSteps
from dicast.app.providers.base import ChatReply, ChatRequest, ProviderFailure
from dicast.workers.policy.calls import CallOutcome, Cost
from tests.judge.desk import Endless, Scripted, deferred, failing, good, recording, said
from tests.ledger.bench import a_job, claim

LIMITED = failing(ProviderFailure(FailureKind.RATE_LIMITED, "429", status_code=429))
AWAY = failing(ProviderFailure(FailureKind.SERVER, "503", status_code=503))


async def unit_of(bench: Any, **more: Any) -> Any:
    return await bench.started(a_job(items=1, dimensions=1, **more), units=1)


# ---------------------------------------------------------------------- the lease
@pytest.mark.parametrize(
    "lease_s, called, due_s",
    [
        (45.0, True, None),  # half of a call's 60 s, the margin of 5 s, and more than this test takes
        (34.9, False, 0.0),
        (0.0, False, 1.0),  # no lease: not again at once, or it would come round and round
    ],
)
async def test_without_the_right_to_half_a_call_none_is_made(bench, desk, lease_s, called, due_s):
    ref, judge = await unit_of(bench), desk(Scripted())
    later = deferred(judge)
    outcome = await judge.do(ref, 0, lease_s=lease_s)
    assert (len(judge.provider.asked), outcome.counts) == (called, called)
    assert len(judge.released) == len(judge.leases)
    if not called:
        assert outcome.summary == ("waits for a longer lease" if lease_s else "waits for a lease")
        assert later == {"0": Due(MessageId(0), int(1000 * due_s))}
        await bench.asyncs.hdel(bench.one.keys.page(ref), "w:0")
        again = await claim(bench.two, ref, 0)
        assert (again.calls, again.attempts, again.requeues) == (1, 0, 0)
        assert bench.client.status("j").counters["calls"] == 0


@pytest.mark.parametrize("lease_s, allowed_s", [(600.0, 60.0), (40.0, 35.0)])
async def test_a_call_is_cut_before_its_lease_ends_and_the_pool_learns_of_it(
    bench, desk, monkeypatch, lease_s, allowed_s
):
    limits, limited = [], asyncio.timeout
    monkeypatch.setattr(asyncio, "timeout", lambda s: limits.append(s) or limited(0.0))
    ref, judge = await unit_of(bench), desk(Endless())
    outcome = await judge.do(ref, 0, lease_s=lease_s)
    assert allowed_s - 5.0 < limits[0] <= allowed_s
    told = judge.leases[0].outcome
    assert told == CallOutcome(0, reporter=f"{ref}.0", error=told.error)
    assert told.error.startswith("no answer within ")
    assert outcome.summary == f"waits 0.0 s after timeout: {told.error}"
    counters = bench.client.status("j").counters
    assert (counters["calls"], counters["timeouts"], counters["calls_without_answer"]) == (1, 1, 1)


class Cut(Endless):
    """Never answers. `transit` is how far its calls come."""

    def __init__(self, **transit: bool) -> None:
        super().__init__()
        self._transit = transit

    async def complete(self, request: ChatRequest) -> ChatReply:
        for name, value in self._transit.items():
            setattr(request.transit, name, value)
        return await super().complete(request)


@pytest.mark.parametrize(
    "cut_frees, transit, counts_on_s", [(False, {}, 0.0), (False, {"written": False}, None), (True, {}, None)]
)
@pytest.mark.parametrize("how", ["cut", "released", "cancelled"])
async def test_a_call_that_was_cut_counts_on_until_its_deadline(bench, desk, cut_frees, transit, counts_on_s, how):
    """Whoever cuts it, and in whatever order: Celery gives a revoked message's lease back before its task is ended."""
    ref, judge = await unit_of(bench), desk(Cut(**transit))
    judge.cut_frees = cut_frees
    working = asyncio.ensure_future(judge.do(ref, 0))
    async with asyncio.timeout(5):
        while not judge.provider.asked:  # noqa: ASYNC110  (a call that nobody announces)
            await asyncio.sleep(0.001)
    (lease,) = judge.leases
    if how == "cut":
        lease.cut()
    else:
        if how == "released":
            lease.release()
        working.cancel()
    await asyncio.gather(working, return_exceptions=True)
    assert judge.released == [lease]
    assert lease.counts_on_s == counts_on_s


@pytest.mark.parametrize(
    "answer, counts_on_s",
    [
        (good, None),
        (LIMITED, None),
        (failing(ProviderFailure(FailureKind.CONNECTION, "closed by the other side")), None),
        (failing(ProviderFailure(FailureKind.CONNECTION, "refused", reached=False, ended=False)), None),
        (failing(ProviderFailure(FailureKind.CONNECTION, "no route", ended=False)), 0.0),
        (failing(ProviderFailure(FailureKind.MALFORMED, "too large", ended=False)), 0.0),
        (failing(ProviderFailure(FailureKind.TIMEOUT, "no answer in time", ended=False)), 60.0),
    ],
)
async def test_a_call_whose_end_is_known_counts_no_more(bench, desk, answer, counts_on_s):
    ref, judge = await unit_of(bench), desk(Scripted(answer))
    judge.cut_frees = False
    await judge.do(ref, 0)
    assert judge.leases[0].counts_on_s == counts_on_s


@pytest.mark.parametrize("left_ms, counts_on_s", [(-1, 60.0), (100, 0.0)])
async def test_a_call_that_outlasts_its_own_time_counts_for_as_long_again(
    bench, desk, monkeypatch, left_ms, counts_on_s
):
    """One that is cut at its unit's deadline does until its own."""
    limited = asyncio.timeout
    monkeypatch.setattr(asyncio, "timeout", lambda _: limited(0.0))
    monkeypatch.setattr(
        judge_module, "_ends_at", lambda _: math.inf if left_ms < 0 else time.monotonic() + left_ms / 1000
    )
    ref, judge = await unit_of(bench), desk(Endless())
    judge.cut_frees = False
    await judge.do(ref, 0)
    assert judge.leases[0].counts_on_s == counts_on_s


@pytest.mark.parametrize("asked", [True, False])
async def test_the_lease_is_given_back_before_anything_is_written(bench, desk, asked):
    """The pool's room is not taken by a slow store."""
    wrong_key = failing(ProviderFailure(FailureKind.REJECTED, "401", status_code=401))
    ref = await bench.started(a_job(items=4, dimensions=1), units=4)
    judge = desk(Scripted(wrong_key), fail_fast=3)
    for position in range(0 if asked else 3):
        await judge.do(ref, position)
    open_leases = []
    store = judge.recorder.store

    async def slow(*results: Any) -> Any:
        open_leases.append(len(judge.leases) - len(judge.released))
        return await store(*results)

    judge.recorder.store = slow
    await judge.do(ref, 3)
    assert (open_leases, len(judge.provider.asked)) == ([0], 1 if asked else 3)


async def test_the_pool_learns_what_an_answer_used(bench, desk):
    ref, judge = await unit_of(bench), desk(Scripted(good))
    await judge.do(ref, 0)
    assert judge.leases[0].outcome == CallOutcome(200, Cost(1.0, 70, 30), reporter=f"{ref}.0")


async def test_the_pool_learns_of_a_refusal(bench, desk):
    ref, judge = await unit_of(bench), desk(Scripted(LIMITED))
    await judge.do(ref, 0)
    assert (judge.leases[0].outcome.status, judge.leases[0].outcome.reporter) == (429, f"{ref}.0")


# ---------------------------------------------------------------------- the books
def refused_answer(request: ChatRequest) -> ChatReply:
    return ChatReply(said(99, "x"), "answering-model", Usage(input_tokens=70, output_tokens=30), structured=True)


@pytest.mark.parametrize("answers, tokens", [([good], (70, 30)), ([refused_answer, good], (140, 60))])
async def test_tokens_of_good_and_of_refused_answers_are_counted(bench, desk, answers, tokens):
    ref, judge = await unit_of(bench), desk(Scripted(*answers))
    await judge.again(ref, 0, len(answers))
    counters = bench.client.status("j").counters
    assert (counters["tokens_in"], counters["tokens_out"]) == tokens
    assert (counters["calls"], counters["scored"]) == (len(answers), 1)
    opinion = (await judge.results(ref))[0]["opinion"]
    assert (opinion["model"], opinion["usage"]["input_tokens"]) == ("answering-model", 70)
    assert 0.0 <= opinion["latency_s"] < 60.0


@pytest.mark.parametrize("truncated", [True, False])
async def test_an_answer_that_was_refused_says_whether_it_was_cut(bench, desk, truncated):
    def cut(_: ChatRequest) -> ChatReply:
        return ChatReply('{"argument": "Be', "m", Usage(), structured=True, truncated=truncated)

    ref, judge = await unit_of(bench), desk(Scripted(cut), max_attempts=1)
    await judge.do(ref, 0)
    error = (await judge.results(ref))[0]["error"]
    assert error["message"].startswith("answer refused: the answer is no JSON object")
    assert error["message"].endswith(" (cut at max_tokens)") is truncated
    assert (error["kind"], error["status_code"]) == ("malformed", 200)


@pytest.mark.parametrize("answer, attempts, requeues, counted", [(AWAY, 1, 0, "retries"), (LIMITED, 0, 1, "requeues")])
async def test_a_failed_call_spends_one_attempt_or_one_requeue(bench, desk, answer, attempts, requeues, counted):
    ref, judge = await unit_of(bench), desk(Scripted(answer))
    assert await judge.do(ref, 0) == NextSteps(counts=False, summary=judge_told(answer), retry=True)
    await bench.asyncs.hdel(bench.one.keys.page(ref), "w:0")
    again = await claim(bench.two, ref, 0)
    assert (again.attempts, again.requeues, again.calls) == (attempts, requeues, 2)
    counters = bench.client.status("j").counters
    assert (counters["calls"], counters["retries"], counters["requeues"]) == (1, attempts, requeues)


def judge_told(answer: Any) -> str:
    return "waits 0.0 s after server: 503" if answer is AWAY else "waits 0.0 s after rate_limited: 429"


async def test_the_call_that_finds_an_account_empty_spends_nothing_where_the_job_waits(bench, desk):
    empty = failing(ProviderFailure(FailureKind.QUOTA_EXHAUSTED, "no money", status_code=429))
    ref, judge = await unit_of(bench, on_exhausted="wait"), desk(Scripted(empty))
    later = deferred(judge)
    assert not (await judge.do(ref, 0)).counts
    assert later["0"].delay_ms == 60_000
    await bench.asyncs.hdel(bench.one.keys.page(ref), "w:0")
    again = await claim(bench.two, ref, 0)
    assert (again.attempts, again.requeues, again.calls) == (0, 0, 1)


async def test_an_error_says_how_long_its_unit_took(bench, desk):
    ref = await unit_of(bench)
    judge = desk(Scripted(failing(ProviderFailure(FailureKind.REJECTED, "400", status_code=400))))
    await judge.do(ref, 0)
    assert 0.0 <= (await judge.results(ref))[0]["error"]["elapsed_s"] < 60.0


async def test_a_wait_is_as_long_as_the_provider_asks_for(bench, desk):
    slow_down = failing(ProviderFailure(FailureKind.RATE_LIMITED, "429", status_code=429, retry_after_s=7.0))
    ref, judge = await unit_of(bench), desk(Scripted(slow_down), max_s=60.0)
    later = deferred(judge)
    await judge.do(ref, 0)
    assert 7000 <= later["0"].delay_ms <= 7500


async def test_a_provider_that_cannot_be_made_was_not_called(bench, desk):
    broken = ProviderFailure(FailureKind.REJECTED, "no such provider", status_code=None)
    ref, judge = await unit_of(bench), desk(broken)
    assert (await judge.do(ref, 0)).counts
    assert bench.client.status("j").counters["calls"] == 0
    error = (await judge.results(ref))[0]["error"]
    assert (error["calls"], error["message"]) == (0, "no such provider")


async def test_a_refusal_is_recorded_without_a_call(bench, desk):
    ref, judge = await unit_of(bench), desk(Scripted())
    gone = ProviderFailure(FailureKind.REJECTED, "the pool has left the configuration")
    assert (await judge.do(ref, 0, rejection=gone)).counts
    assert (judge.provider.asked, len(judge.released)) == ([], 1)
    assert bench.client.status("j").counters["calls"] == 0
    error = (await judge.results(ref))[0]["error"]
    assert (error["kind"], error["message"], error["elapsed_s"]) == (
        "rejected",
        gone.message,
        pytest.approx(0, abs=0.5),
    )


@pytest.mark.parametrize("call_ended, calls", [(False, 0), (True, 1)])
async def test_a_fault_of_this_program_ends_the_unit_and_counts_the_call_if_it_was_made(
    bench, desk, monkeypatch, call_ended, calls
):
    ref, judge = await unit_of(bench), desk(Scripted(), max_attempts=1)
    monkeypatch.setattr(f"dicast.app.pipeline.call.{'read_single' if call_ended else 'nonce_for'}", None)
    outcome = await judge.do(ref, 0)
    assert outcome.counts and outcome.summary.startswith("error: internal: TypeError")
    error = (await judge.results(ref))[0]["error"]
    assert (error["kind"], error["calls"], error["elapsed_s"]) == ("internal", calls, pytest.approx(0, abs=0.5))
    assert bench.client.status("j").counters["calls"] == calls


# ---------------------------------------------------------------------- messages that come again
@pytest.mark.parametrize("owned, looked", [(True, 1), (False, 0)])
async def test_a_message_that_came_back_has_the_dead_looked_for(bench, desk, owned, looked):
    ref, judge, burials = await unit_of(bench), desk(Scripted()), []
    if owned:
        await claim(bench.two, ref, 0)

    def reap() -> int:
        burials.append(1)
        bench.kill(1)
        return 0

    judge.pools.reap = reap
    outcome = await judge.do(ref, 0, came_back=True)
    assert (len(burials), outcome.counts, len(judge.provider.asked)) == (looked, True, 1)


async def test_a_unit_whose_owner_lives_comes_again_when_that_one_would_be_silent(bench, desk):
    ref, judge = await unit_of(bench), desk(Scripted())
    await claim(bench.two, ref, 0)

    before = await bench.one.now_ms()
    assert await judge.do(ref, 0, came_back=True) == NextSteps(counts=False)
    assert judge.provider.asked == []
    ((_, due),) = await bench.asyncs.zrange(bench.one.keys.due, 0, -1, withscores=True)
    assert due - before == pytest.approx(STANDARD.owner_silent_ms, abs=5000)


async def test_copies_of_a_message_in_one_process_make_one_call(bench, desk):
    ref, judge = await unit_of(bench), desk(Endless())
    first = asyncio.ensure_future(judge.do(ref, 0))
    async with asyncio.timeout(5):
        while not judge.provider.asked:  # noqa: ASYNC110  (a call that nobody announces)
            await asyncio.sleep(0.001)
    assert judge.judge.works_on(ref, 0)
    assert await judge.do(ref, 0) == NextSteps(counts=False)
    assert len(judge.released) == 1
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    assert not judge.judge.works_on(ref, 0)


@pytest.mark.parametrize("deployment", [-1, 1])
async def test_a_deployment_that_the_agent_does_not_have_is_refused(bench, desk, deployment):
    ref, judge = await unit_of(bench), desk(Scripted())
    with pytest.raises(LookupError, match=f"names deployment {deployment} of 1"):
        await judge.do(ref, 0, deployment=deployment)


async def test_a_unit_that_has_its_result_counts_for_the_chord_again(bench, desk):
    ref, judge = await unit_of(bench), desk(Scripted())
    await judge.do(ref, 0)
    assert await judge.do(ref, 0) == NextSteps(counts=True)


# ---------------------------------------------------------------------- what is asked, told and asked to follow
async def test_the_provider_is_asked_as_the_agent_says(bench, desk):
    job = a_job(items=1, dimensions=1).model_dump(exclude_unset=True)
    agent = {"name": "a0", "temperature": 0.25, "max_tokens": 77, "persona": "You teach physics.", "model": "m"}
    job["agents"] = [agent]
    ref = await bench.started(type(a_job()).model_validate(job), units=1)
    judge = desk(Scripted())
    await judge.do(ref, 0)
    (asked,) = judge.provider.asked
    assert (asked.model, asked.temperature, asked.max_tokens) == ("m", 0.25, 77)
    assert "You teach physics." in asked.system and "text 0" in asked.user
    assert asked.schema is not None


async def test_a_call_without_an_answer_ends_its_unit_as_that(bench, desk, monkeypatch):
    limited = asyncio.timeout
    monkeypatch.setattr(asyncio, "timeout", lambda _: limited(0.0))
    ref, judge = await unit_of(bench), desk(Endless(), max_attempts=1)
    assert (await judge.do(ref, 0)).counts
    error = (await judge.results(ref))[0]["error"]
    assert (error["kind"], "status_code" in error, error["calls"]) == ("timeout", False, 1)
    assert error["message"].startswith("no answer within ")


async def test_a_call_that_may_be_paid_once_and_was_given_up_ends_its_unit(bench, desk):
    ref, judge = await unit_of(bench, spend="at_most_once"), desk(Endless())
    working = asyncio.ensure_future(judge.do(ref, 0))
    async with asyncio.timeout(5):
        while not judge.provider.asked:  # noqa: ASYNC110  (a call that nobody announces)
            await asyncio.sleep(0.001)
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working
    error = (await judge.results(ref))[0]["error"]
    assert (error["kind"], error["calls"]) == ("outcome_unknown", 1)
    assert error["message"] == "the worker was stopped during the call" and error["elapsed_s"] < 60.0
    counters = bench.client.status("j").counters
    assert (counters["calls"], counters["calls_without_answer"], counters["possible_double_charges"]) == (1, 1, 0)


async def test_a_call_that_may_be_paid_once_and_was_cut_by_its_revocation_says_so(bench, desk):
    ref, judge = await unit_of(bench, spend="at_most_once"), desk(Endless())
    working = asyncio.ensure_future(judge.do(ref, 0))
    async with asyncio.timeout(5):
        while not judge.provider.asked:  # noqa: ASYNC110  (a call that nobody announces)
            await asyncio.sleep(0.001)
    bench.client.revoke_unit(ref, MessageId(0))
    judge.leases[0].forbid()
    assert (await working).counts
    error = (await judge.results(ref))[0]["error"]
    assert (error["kind"], error["calls"]) == ("outcome_unknown", 1)
    assert error["message"] == "it was revoked or cancelled during the call"
    counters = bench.client.status("j").counters
    assert (counters["calls"], counters["calls_without_answer"], counters["possible_double_charges"]) == (1, 1, 0)


async def test_a_call_that_a_stopping_worker_gave_up_spends_nothing_of_its_units(bench, desk):
    ref, judge = await unit_of(bench), desk(Endless())
    later = deferred(judge)
    working = asyncio.ensure_future(judge.do(ref, 0))
    async with asyncio.timeout(5):
        while not judge.provider.asked:  # noqa: ASYNC110  (a call that nobody announces)
            await asyncio.sleep(0.001)
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working
    assert later == {"0": Due(MessageId(0), 0)}
    await bench.asyncs.hdel(bench.one.keys.page(ref), "w:0")
    again = await claim(bench.two, ref, 0)
    assert (again.attempts, again.requeues, again.calls) == (0, 0, 2)


async def test_a_unit_that_is_not_asked_any_more_has_ended(bench, desk):
    wrong_key = failing(ProviderFailure(FailureKind.REJECTED, "401", status_code=401))
    ref = await bench.started(a_job(items=4, dimensions=1), units=4)
    judge = desk(Scripted(wrong_key), fail_fast=3)
    assert [(await judge.do(ref, position)).counts for position in range(4)] == [True] * 4
    assert len(judge.provider.asked) == 3
    assert len(judge.released) == 4


@pytest.mark.parametrize("failures, attempt", [([], 1), ([AWAY], 2), ([LIMITED, AWAY], 3)])
async def test_a_retry_is_told_with_its_number_and_wait(bench, desk, monkeypatch, failures, attempt):
    lines: list[dict[str, Any]] = []
    monkeypatch.setattr(logs, "retrying", lambda **fields: lines.append(fields))
    slow_down = failing(ProviderFailure(FailureKind.RATE_LIMITED, "slow down", status_code=429, retry_after_s=1.23456))
    ref, judge = await unit_of(bench), desk(Scripted(*failures, slow_down), max_attempts=9)
    monkeypatch.setattr("dicast.app.pipeline.outcomes.JITTER_MAX_S", 0.0)
    await judge.again(ref, 0, len(failures) + 1)
    line = lines[-1]
    assert (line["attempt"], line["status_code"], line["delay_s"], line["kind"], line["reason"]) == (
        attempt, 429, 1.235, FailureKind.RATE_LIMITED, "slow down"
    )  # fmt: skip


@pytest.mark.parametrize("plan, gather", [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize("answer", [good, failing(ProviderFailure(FailureKind.REJECTED, "no", status_code=400))])
async def test_what_the_ledger_asks_for_after_a_result_follows(bench, desk, answer, plan, gather):
    ref, judge = await unit_of(bench), desk(Scripted(answer))
    recording(judge, (plan, gather))
    outcome = await judge.do(ref, 0)
    assert (outcome.counts, outcome.plan, outcome.gather) == (True, plan, gather)


@pytest.mark.parametrize("written, counts", [
    ([WriteVerdict.NEW], True), ([WriteVerdict.AGAIN], True), ([WriteVerdict.STALE], False),
    ([WriteVerdict.GONE], False),
    ([WriteVerdict.STALE, WriteVerdict.NEW], True), ([WriteVerdict.STALE, WriteVerdict.GONE], False),
])  # fmt: skip
async def test_a_unit_whose_claim_others_have_is_counted_by_them(bench, desk, written, counts):
    ref, judge = await unit_of(bench), desk(Scripted())

    async def told(*_: Any) -> Recorded:
        return Recorded(0, plan=False, gather=False, written=written)

    judge.recorder.store = told
    assert (await judge.do(ref, 0)).counts is counts


@pytest.mark.parametrize("verdict, lost", [
    (ClaimVerdict.POISON, 1), (ClaimVerdict.SPENT, 1), (ClaimVerdict.UNKNOWN, 1),
    (ClaimVerdict.CANCELLED, 0), (ClaimVerdict.REVOKED, 0), (ClaimVerdict.EXPIRED, 0),
])  # fmt: skip
async def test_units_that_nobody_wished_to_end_are_counted_as_lost(bench, desk, monkeypatch, verdict, lost):
    ref, judge = await unit_of(bench), desk(Scripted())
    ask = judge.judge._claimer.claim

    async def claimed(*args: Any, **more: Any) -> Any:
        state, item, claims = await ask(*args, **more)
        return state, item, [dataclasses.replace(c, verdict=verdict) for c in claims]

    monkeypatch.setattr(judge.judge._claimer, "claim", claimed)
    assert (await judge.do(ref, 0)).counts
    assert judge.provider.asked == []
    assert bench.client.status("j").counters["lost"] == lost


async def test_a_call_goes_to_the_pool_of_the_deployment_that_its_message_names() -> None:
    lane = SimpleNamespace(pools=("p", "q", "r"), road="online", unit=lambda _: SimpleNamespace(dimension=0))
    spec = SimpleNamespace(agents=["a0"], dimensions=["d0"], is_swapped=lambda _: None)
    order = SimpleNamespace(
        job=SimpleNamespace(spec=spec, lanes=[lane], places=(), budgets_at=lambda *_: ()),
        ref=SimpleNamespace(lane=0), token=MessageId(0), deployment=1, probe=False,
    )  # fmt: skip
    unit = SimpleNamespace(agent=0, replicate=0)
    call = judge_module._call(order, unit, "q's", SimpleNamespace(criteria=None, opinions=None), [])
    assert (call.pool, call.deployment) == ("q", "q's")
