"""What is told and counted of calls that brought no score, and of those that did."""

from __future__ import annotations

import asyncio

import pytest

from dicast.app import logs
from dicast.app.domain.opinion import FailureKind, Usage
from dicast.app.providers.base import ChatReply, ProviderFailure
from tests.judge.desk import Scripted, failing, good, said
from tests.ledger.bench import a_job


@pytest.fixture
def told(monkeypatch):
    """The log's events about calls."""
    found = []
    for name in ("retrying", "failed", "corrupt", "judged"):
        monkeypatch.setattr(logs, name, lambda event=name, **fields: found.append({"event": event, **fields}))
    return found


LIMITED = failing(ProviderFailure(FailureKind.RATE_LIMITED, "429 rate_limit_exceeded", status_code=429))
TIMED_OUT = failing(ProviderFailure(FailureKind.TIMEOUT, "no answer in time"))
CUT = failing(ProviderFailure(FailureKind.CONNECTION, "connection failed (ServerDisconnectedError)"))
NOBODY = failing(ProviderFailure(FailureKind.CONNECTION, "connection failed (ConnectionRefusedError)", reached=False))
WRONG_KEY = failing(ProviderFailure(FailureKind.REJECTED, "401 invalid_api_key: Incorrect API key", status_code=401))


async def test_a_unit_that_rate_limits_ended_says_so_and_counts_its_calls(bench, desk):
    ref = await bench.started(a_job(items=1, dimensions=1), units=1)
    judge = desk(Scripted(LIMITED), requeue_budget=5)
    await judge.again(ref, 0, 6)
    result = (await judge.results(ref))[0]
    assert result["opinion"]["argument"] == "Evaluation failed: rate-limited, after 6 calls"
    assert (result["error"]["attempts"], result["error"]["calls"]) == (0, 6)
    assert (await judge.counters("j"))["calls"] == "6"


@pytest.mark.parametrize(
    "answers, calls, attempts", [([TIMED_OUT], 3, 3), ([LIMITED, TIMED_OUT], 4, 3), ([WRONG_KEY], 1, 1)]
)
async def test_an_error_counts_the_calls_that_were_made(bench, desk, answers, calls, attempts):
    ref = await bench.started(a_job(items=1, dimensions=1), units=1)
    judge = desk(Scripted(*answers))
    await judge.again(ref, 0, calls)
    error = (await judge.results(ref))[0]["error"]
    assert (error["calls"], error["attempts"]) == (len(judge.provider.asked), attempts) == (calls, attempts)


@pytest.mark.parametrize(
    "answers, unanswered, again, timeouts",
    [
        ([TIMED_OUT, good], 1, 1, 1),
        ([CUT, TIMED_OUT, good], 2, 2, 1),
        ([TIMED_OUT], 3, 2, 3),  # the last one was not repeated
        ([NOBODY, good], 0, 0, 0),
        ([LIMITED, good], 0, 0, 0),
    ],
)
async def test_calls_without_an_answer_are_told_as_possible_charges(bench, desk, answers, unanswered, again, timeouts):
    ref = await bench.started(a_job(items=1, dimensions=1), units=1)
    judge = desk(Scripted(*answers))
    await judge.again(ref, 0, 3)
    counters = bench.client.status("j").counters
    assert counters["calls_without_answer"] == unanswered
    assert counters["possible_double_charges"] == again
    assert counters["timeouts"] == timeouts


async def test_a_call_that_a_stopping_worker_gave_up_has_no_answer(bench, desk):
    called = asyncio.Event()

    class Endless(Scripted):
        async def complete(self, request):
            called.set()
            await asyncio.get_running_loop().create_future()

    ref = await bench.started(a_job(items=1, dimensions=1), units=1)
    task = asyncio.ensure_future(desk(Endless()).do(ref, 0))
    await called.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    counters = bench.client.status("j").counters
    assert (counters["calls"], counters["calls_without_answer"], counters["possible_double_charges"]) == (1, 1, 1)


async def test_a_retry_after_a_timeout_says_why(bench, desk, told):
    ref = await bench.started(a_job(items=1, dimensions=1), units=1)
    await desk(Scripted(TIMED_OUT)).do(ref, 0)
    (line,) = told
    assert (line["status_code"], line["kind"], line["reason"]) == (None, "timeout", "no answer in time")


async def test_dimensions_that_a_batch_left_out_are_named(bench, desk, told):
    def incomplete(request):
        nonce = '"nonce":"' + judge.provider.nonces[-1] + '"'
        entry = '{"criterion_id":"d1","argument":"So.","cited_evidence":[],"score":7}'
        return ChatReply("{" + nonce + ',"opinions":[' + entry + "]}", "m", Usage(), structured=True)

    ref = await bench.started(a_job(items=1, dimensions=3), batched=True, units=3)
    judge = desk(Scripted(incomplete))
    outcome = await judge.do(ref, "b0")
    corrupt = next(line for line in told if line["event"] == "corrupt")
    assert corrupt["missing"] == ["d0", "d2"]
    assert corrupt["dimension"] == "d0, d1, d2", "what the batch is about, by name"
    assert outcome.summary == "scored d1 7; asked one by one: d0, d2"


@pytest.mark.parametrize(
    "answer, expected",
    [
        (good, "scored d0 "),
        (WRONG_KEY, "error: rejected: 401 invalid_api_key: Incorrect API key"),
        (LIMITED, "waits "),
        (lambda r: ChatReply(said(99, "x"), "m", Usage(), structured=True), "waits "),
    ],
)
async def test_a_task_tells_what_became_of_its_unit(bench, desk, answer, expected):
    ref = await bench.started(a_job(items=1, dimensions=1), units=1)
    judge = desk(Scripted(answer))
    outcome = await judge.do(ref, 0)
    assert outcome.summary.startswith(expected)
    assert "text 0" not in outcome.summary and len(outcome.summary) < 250
    if expected.startswith(("scored", "error")):
        assert (await judge.do(ref, 0)).summary == "nothing to do"


async def test_a_cancelled_unit_tells_so(bench, desk):
    ref = await bench.started(a_job(items=1, dimensions=1), units=1)
    bench.client.cancel("j")
    assert (await desk(Scripted()).do(ref, 0)).summary == "error: cancelled: the job was cancelled"
