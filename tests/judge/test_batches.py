"""What becomes of the parts of a batch's answer, and of what it left out."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from dicast.app import logs
from dicast.app.domain.opinion import FailureKind, Usage
from dicast.app.domain.plan import STANDARD
from dicast.app.ledger.records import Due, MessageId
from dicast.app.providers.base import ChatReply, ChatRequest, ProviderFailure
from tests.judge.desk import Scripted, batch_of, deferred, failing, recording
from tests.ledger.bench import a_job, claim

LIMITED = failing(ProviderFailure(FailureKind.RATE_LIMITED, "429", status_code=429))
AWAY = failing(ProviderFailure(FailureKind.SERVER, "503", status_code=503))


async def batch(bench: Any, desk: Any, *names: str, spend: str = "at_least_once", **policy: Any) -> Any:
    """A batch of three dimensions whose answer has these."""
    ref = await bench.started(a_job(items=1, dimensions=3, spend=spend), batched=True, units=3)
    judge = desk(None, **policy)
    judge.provider = Scripted(batch_of(judge, *names))
    judge.later = deferred(judge)
    return ref, judge, await judge.do(ref, "b0")


async def test_what_a_batch_left_out_is_asked_for_by_messages_of_its_own_and_spends_an_attempt(bench, desk):
    ref, judge, outcome = await batch(bench, desk, "d1")
    assert (outcome.counts, outcome.follow_ups) == (True, [MessageId(0), MessageId(2)])
    assert set(await judge.results(ref)) == {1}
    counters = bench.client.status("j").counters
    assert {n: counters[n] for n in ("calls", "retries", "scored", "tokens_in", "tokens_out")} == {
        "calls": 1, "retries": 1, "scored": 1, "tokens_in": 60, "tokens_out": 20,
    }  # fmt: skip
    assert judge.later == {str(n): Due(MessageId(n), STANDARD.unclaimed_ms, wait=False) for n in (0, 2)}, "a safeguard"
    again = await claim(bench.two, ref, 2)
    assert (again.attempts, again.calls) == (1, 2)


async def test_a_batch_without_one_opinion_counts_its_call_once(bench, desk):
    _, _, outcome = await batch(bench, desk)
    assert outcome.follow_ups == [MessageId(0), MessageId(1), MessageId(2)]
    counters = bench.client.status("j").counters
    assert {n: counters[n] for n in ("calls", "retries", "scored", "tokens_in")} == {
        "calls": 1, "retries": 1, "scored": 0, "tokens_in": 60,
    }  # fmt: skip


@pytest.mark.parametrize("names, calls, scored", [(["d1"], 1, 1), ([], 1, 0)])
async def test_a_batch_that_may_be_paid_once_ends_with_what_it_brought(bench, desk, names, calls, scored):
    ref, judge, outcome = await batch(bench, desk, *names, spend="at_most_once")
    assert (outcome.counts, outcome.follow_ups) == (True, ())
    results = await judge.results(ref)
    assert sorted(r.get("error", {}).get("criterion_id", "") for r in results.values()) == sorted(
        [""] * scored + [d for d in ("d0", "d1", "d2") if d not in names]
    )
    counters = bench.client.status("j").counters
    assert (counters["calls"], counters["scored"], counters["failed"]) == (calls, scored, 3 - scored)
    assert counters["tokens_in"] == 60
    if scored:
        assert outcome.summary == "scored d1 7; error: malformed: answer refused"


async def test_a_batch_for_a_provider_without_schemas_is_asked_one_by_one_and_spends_nothing(bench, desk):
    ref = await bench.started(a_job(items=1, dimensions=2), batched=True, units=2)
    judge = desk(Scripted())
    judge.provider.structured_output = False
    outcome = await judge.do(ref, "b0")
    assert (outcome.follow_ups, judge.provider.asked) == ([MessageId(0), MessageId(1)], [])
    again = await claim(bench.two, ref, 1)
    assert (again.attempts, again.calls) == (0, 1)
    assert bench.client.status("j").counters["retries"] == 0


@pytest.mark.parametrize("attempts, ends", [(0, False), (1, False), (2, True)])
async def test_a_batch_of_one_dimension_ends_with_its_attempts(bench, desk, attempts, ends):
    ref = await bench.started(a_job(items=1, dimensions=1), batched=True, units=1)
    judge = desk(None)
    judge.provider = Scripted(*[AWAY] * attempts, batch_of(judge))
    outcome = await judge.again(ref, "b0", attempts + 1)
    assert (outcome.counts, outcome.follow_ups) == (True, () if ends else [MessageId(0)])
    results = await judge.results(ref)
    if ends:
        error = results[0]["error"]
        assert (error["kind"], error["status_code"], error["attempts"], error["calls"]) == ("malformed", 200, 3, 3)
    else:
        assert results == {}
        assert (await claim(bench.two, ref, 0)).attempts == attempts + 1
    assert bench.client.status("j").counters["calls"] == attempts + 1


async def test_a_corrupt_part_of_a_batch_is_told_by_its_dimension(bench, desk, monkeypatch):
    def answer(_: ChatRequest) -> ChatReply:
        scores = {"d0": 7, "d1": 9999}
        entries = [{"criterion_id": n, "argument": "So.", "cited_evidence": [], "score": s} for n, s in scores.items()]
        text = orjson.dumps({"nonce": judge.provider.nonces[-1], "opinions": entries}).decode()
        return ChatReply(text, "m", Usage(), structured=True)

    lines: list[dict[str, Any]] = []
    monkeypatch.setattr(logs, "corrupt", lambda **fields: lines.append(fields))
    ref = await bench.started(a_job(items=1, dimensions=2), batched=True, units=2)
    judge = desk(Scripted(answer))
    assert (await judge.do(ref, "b0")).follow_ups == [MessageId(1)]
    (line,) = lines
    assert (line["dimension"], "9999" in line["payload"]) == ("d1", True)
    assert line["reason"].startswith("score must be within ")


@pytest.mark.parametrize("first, second", [
    ((True, False), (False, False)), ((False, True), (False, False)),
    ((False, False), (True, False)), ((False, False), (False, True)), ((False, False), (False, False)),
])  # fmt: skip
async def test_what_the_ledger_asks_for_after_each_part_of_a_batch_follows(bench, desk, first, second):
    ref = await bench.started(a_job(items=1, dimensions=2, spend="at_most_once"), batched=True, units=2)
    judge = desk(None)
    judge.provider = Scripted(batch_of(judge, "d1"))
    recording(judge, first, second)
    outcome = await judge.do(ref, "b0")
    assert (outcome.plan, outcome.gather) == (first[0] or second[0], first[1] or second[1])


@pytest.mark.parametrize("names, rest", [(["d1"], [MessageId(0)]), (["d0", "d1"], ())])
async def test_what_the_ledger_asks_for_after_a_batch_follows_beside_its_rest(bench, desk, names, rest):
    ref = await bench.started(a_job(items=1, dimensions=2), batched=True, units=2)
    judge = desk(None)
    judge.provider = Scripted(batch_of(judge, *names))
    recording(judge, (True, True))
    outcome = await judge.do(ref, "b0")
    assert (outcome.counts, outcome.plan, outcome.gather, outcome.follow_ups) == (True, True, True, rest)
