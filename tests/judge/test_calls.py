"""What one call's facts become: opinions, errors, lines of the log, and what the pool's governor learns."""

from __future__ import annotations

import orjson
import pytest

from dicast.app import logs
from dicast.app.domain.opinion import ErrorKind, FailureKind, Usage
from dicast.app.domain.panel import Deployment
from dicast.app.domain.plan import Stop, lanes
from dicast.app.domain.retry import GiveUp
from dicast.app.domain.verdict import Judgment
from dicast.app.ledger.keys import PageRef
from dicast.app.ledger.records import Claim, ClaimVerdict, JobRecord, MessageId
from dicast.app.pipeline.call_facts import (
    NO_ANSWER,
    SUMMARY_CHARS,
    Answered,
    Call,
    Failed,
    NextSteps,
    NoCall,
    Unasked,
    failure_counters,
    outcome_of_failure,
    outcome_of_reply,
    shortened,
    unasked_payload,
)
from dicast.app.pipeline.outcomes import UNCLAIMABLE, given_up_results, unasked_results
from dicast.app.providers.base import ChatReply, ProviderFailure
from dicast.workers.policy.calls import CallOutcome, Cost
from tests.ledger.bench import a_job

REF = PageRef("j", "abc123", 0, 4)
STOP = Stop(pool="p", model="m", kind=ErrorKind.REJECTED, after=2, status_code=401, message="401 bad key")
WHY = "the first 2 calls of m in pool 'p' ended in: 401 bad key"


def a_call(claims: int = 2, verdict: ClaimVerdict = ClaimVerdict.RUN) -> Call:
    """Of two dimensions of one item, the second time it is asked."""
    items = [{"id": "i0", "text": "text", "metadata": {"lang": "de", "secret": 1}}]
    spec = a_job(agents=2, dimensions=2, replicates=2, keep=["lang", "absent"]).model_copy()
    spec = spec.model_validate({**spec.model_dump(exclude_unset=True), "items": items})
    plan = lanes([("p",), ("p",)], 2, 2, [True, True])
    job = JobRecord("j", spec, plan, 8, 5, None, "abc123")
    return Call(
        ref=REF, token=MessageId(4, batch=True), job=job, agent=spec.agents[0],
        deployment=Deployment(pool="p"), pool="p",
        item=items_of(spec), dimensions=spec.dimensions[:claims],
        claims=[Claim(4 + n, verdict, 7 + n, 2, 1, 4, 2500) for n in range(claims)],
    )  # fmt: skip


def items_of(spec):
    (item,) = spec.items
    return item


@pytest.fixture
def told(monkeypatch):
    found = []
    for name in ("failed", "judged"):
        monkeypatch.setattr(logs, name, lambda event=name, **fields: found.append({"event": event, **fields}))
    return found


def unit(dimension: str = "d0", attempts: int = 3) -> dict[str, object]:
    return {
        "judge": "a0",
        "criterion_id": dimension,
        "item_id": "i0",
        "replicate": 1,
        "attempts": attempts,
    }


def test_a_unit_that_gets_no_call_is_about_its_own_dimension():
    call, other = a_call(claims=1), a_call().claims[1]
    assert [dimension.id for dimension in call.dimensions] == ["d0"]
    assert call.dimension(other).id == "d1"


def test_a_score_goes_into_the_ledger_with_all_that_the_call_brought():
    call = a_call()
    verdict, usage = Judgment(7, "So.", ("a quote",)), Usage(input_tokens=3, output_tokens=4)
    result = call.scored_result(
        call.claims[1], call.dimensions[1], verdict, usage, Answered({}, "answering", Usage(), 1.23456)
    )
    assert (result.position, result.fence, result.scored) == (5, 8, True)
    found = orjson.loads(result.payload)
    assert found.keys() == {"opinion"}
    opinion = found["opinion"]
    usage = opinion.pop("usage")
    assert (usage["input_tokens"], usage["output_tokens"]) == (3, 4)
    assert opinion == unit("d1") | {
        "score": 7, "argument": "So.", "cited_evidence": ["a quote"], "model": "answering", "pool": "p",
        "latency_s": 1.2346,
        "metadata": {"lang": "de"},
    }  # fmt: skip


def test_an_error_goes_into_the_ledger_with_the_opinion_that_stands_for_it(told):
    call = a_call()
    failure = ProviderFailure(FailureKind.SERVER, "503 overloaded", status_code=503)
    decision = GiveUp(ErrorKind.PROVIDER, "Evaluation failed after 3 retries", 3)
    results = given_up_results(call, Failed(failure, 0.25049), decision, "asked")
    assert [(r.position, r.fence, r.scored) for r in results] == [(4, 7, False), (5, 8, False)]
    found = orjson.loads(results[1].payload)
    opinion, error = found["opinion"], found["error"]
    del opinion["usage"]
    assert opinion == unit("d1") | {
        "argument": decision.argument, "cited_evidence": [], "model": "asked", "pool": "p",
        "latency_s": 0.2505,
        "metadata": {"lang": "de"},
    }  # fmt: skip
    assert error == unit("d1") | {
        "kind": "provider", "message": "503 overloaded", "status_code": 503, "calls": 4, "elapsed_s": 2.75,
    }  # fmt: skip
    assert told[1] == {
        "event": "failed", "dimension": "d1", "agent": "a0", "job": "j", "item": "i0", "pool": "p", "unit": "0.4.b4",
        "status_code": 503, "elapsed_s": 2.75, "kind": FailureKind.SERVER, "reason": "503 overloaded",
    }  # fmt: skip


def test_a_call_that_was_not_made_is_not_counted():
    call = a_call()
    failure = ProviderFailure(FailureKind.INTERNAL, "no such pool")
    decision = GiveUp(ErrorKind.INTERNAL, "Evaluation failed", 3)
    for made, calls in ((True, 4), (False, 3)):
        (first, _) = given_up_results(call, Failed(failure, was_made=made), decision, "m")
        assert orjson.loads(first.payload)["error"]["calls"] == calls


def test_what_a_job_no_longer_asks_says_where_and_why(told):
    call = a_call()
    results = unasked_results(call, call.claims, {ClaimVerdict.RUN: Unasked.stopped(STOP)})
    assert [(r.position, r.fence, r.scored) for r in results] == [(4, 7, False), (5, 8, False)]
    found = orjson.loads(results[0].payload)
    assert (found["opinion"]["argument"], found["opinion"]["model"]) == (f"Not evaluated: {WHY}", "m")
    assert found["opinion"]["pool"] == "p"
    assert found["error"] == unit(attempts=2) | {
        "kind": "rejected", "message": f"not asked: {WHY}", "status_code": 401, "calls": 3, "elapsed_s": 2.5,
    }  # fmt: skip
    assert [line["dimension"] for line in told] == ["d0", "d1"]
    assert (told[0]["status_code"], told[0]["elapsed_s"], told[0]["kind"], told[0]["reason"]) == (
        401, 2.5, ErrorKind.REJECTED, WHY
    )  # fmt: skip


def test_a_unit_that_is_not_even_published_has_cost_nothing():
    call = a_call()
    lane = call.job.lanes[0]
    for position in range(4):
        found = orjson.loads(unasked_payload(call.job, lane, position, call.item, Unasked.stopped(STOP)))
        place = lane.unit(position)
        who = {
            "judge": f"a{place.agent}", "criterion_id": f"d{place.dimension}", "item_id": "i0",
            "replicate": place.replicate, "attempts": 0,
        }  # fmt: skip
        assert found["error"] == who | {
            "kind": "rejected", "message": f"not asked: {WHY}", "status_code": 401, "calls": 0, "elapsed_s": 0.0,
        }  # fmt: skip
        opinion = found["opinion"]
        assert (opinion["model"], opinion["latency_s"], opinion["metadata"]) == ("m", 0.0, {"lang": "de"})
        assert {name: opinion[name] for name in who} == who


@pytest.mark.parametrize("verdict", sorted(UNCLAIMABLE))
def test_a_unit_that_gets_no_call_says_why(told, verdict):
    call = a_call(verdict=verdict)
    kind, why = UNCLAIMABLE[verdict].kind, UNCLAIMABLE[verdict].words
    ends = {verdict: Unasked.because(UNCLAIMABLE[verdict], model="asked", pool="p")}
    results = unasked_results(call, call.claims, ends)
    assert [(r.position, r.fence, r.scored) for r in results] == [(4, 7, False), (5, 8, False)]
    for number, result in enumerate(results):
        found = orjson.loads(result.payload)
        assert found["error"] == unit(f"d{number}", attempts=2) | {
            "kind": kind, "message": why, "calls": 4, "elapsed_s": 2.5,
        }  # fmt: skip
        assert (found["opinion"]["argument"], found["opinion"]["model"]) == (f"Not evaluated: {why}", "asked")
    assert [(line["dimension"], line["status_code"], line["elapsed_s"], line["reason"]) for line in told] == [
        ("d0", None, 2.5, why), ("d1", None, 2.5, why)
    ]  # fmt: skip


def test_elapsed_times_are_rounded_to_milliseconds(told):
    call = a_call()
    decision = GiveUp(ErrorKind.TIMEOUT, "Evaluation failed", 3)
    (result, _) = given_up_results(call, Failed(ProviderFailure(FailureKind.TIMEOUT, "cut"), 0.12345678), decision, "m")
    assert orjson.loads(result.payload)["error"]["elapsed_s"] == told[0]["elapsed_s"] == 2.623


def test_a_call_is_logged_under_its_dimensions_names():
    lines = []
    a_call().log(lambda **fields: lines.append(fields), reason="r")
    assert lines == [{
        "dimension": "d0, d1", "agent": "a0", "job": "j", "item": "i0", "pool": "p", "unit": "0.4.b4", "reason": "r",
    }]  # fmt: skip


def test_what_is_told_of_a_call_stays_short():
    assert shortened("x" * SUMMARY_CHARS) == "x" * SUMMARY_CHARS
    assert shortened("x" * (SUMMARY_CHARS + 1)) == "x" * (SUMMARY_CHARS - 3) + "..."


def test_steps_of_two_writes_for_one_message_are_joined():
    first = NextSteps(False, plan=True, summary="error: lost: so", errors=[ErrorKind.LOST], failure="lost: so")
    second = NextSteps(True, gather=True, summary="scored d1 7", errors=[ErrorKind.TIMEOUT])
    assert second.following(first) == NextSteps(
        True, plan=True, gather=True, summary="error: lost: so; scored d1 7",
        errors=(ErrorKind.LOST, ErrorKind.TIMEOUT), failure="lost: so",
    )  # fmt: skip
    nothing = NextSteps(counts=True)
    assert second.following(nothing).summary == second.summary
    assert nothing.following(nothing).summary == nothing.summary == "nothing to do"


def test_a_unit_that_was_not_needed_has_no_error():
    call = a_call()
    for why, scoreless in ((NoCall.NOT_NEEDED, True), (NoCall.NO_OPINIONS, False)):
        found = orjson.loads(unasked_payload(call.job, call.lane, 0, call.item, Unasked.because(why)))
        assert (found["opinion"].get("not_needed", False), "error" in found) == (scoreless, not scoreless)
    assert found["error"]["message"] == "not asked: no other judge has an opinion"
    assert found["opinion"]["argument"] == "Not evaluated: no other judge has an opinion"


def test_the_governor_learns_what_an_answer_used_and_showed():
    headers = {"x-ratelimit-limit-requests": "100", "x-ratelimit-remaining-requests": "60",
               "x-ratelimit-reset-requests": "1s"}  # fmt: skip
    reply = ChatReply("{}", "m", Usage(input_tokens=70, output_tokens=30), True, headers=headers)
    outcome = outcome_of_reply(reply, "r", 1e9)
    assert (outcome.status, outcome.used, outcome.reporter) == (200, Cost(1.0, 70, 30), "r")
    assert len(outcome.readings.budgets) == 1
    failure = ProviderFailure(FailureKind.RATE_LIMITED, "429", status_code=429, headers=headers)
    assert outcome_of_failure(failure, "r", 1e9) == CallOutcome(
        429, readings=outcome.readings, reporter="r", error="429"
    )


def test_resets_that_are_dates_are_read_by_the_given_clock():
    headers = {
        "anthropic-ratelimit-requests-limit": "50", "anthropic-ratelimit-requests-remaining": "49",
        "anthropic-ratelimit-requests-reset": "2001-09-09T01:46:50Z",
    }  # fmt: skip
    reply = ChatReply("{}", "m", Usage(), True, headers=headers)
    failure = ProviderFailure(FailureKind.RATE_LIMITED, "429", status_code=429, headers=headers)
    early, late = (outcome_of_reply(reply, "r", wall_s).readings for wall_s in (1e9, 1e9 + 5))
    assert early != late and len(early.budgets) == 1
    told = outcome_of_failure(failure, "r", 1e9)
    assert told is not None and told.readings == early


@pytest.mark.parametrize(
    "kind, status, told",
    [
        (FailureKind.QUOTA_EXHAUSTED, 429, 402),
        (FailureKind.SERVER, 503, 503),
        (FailureKind.TIMEOUT, None, NO_ANSWER),
        (FailureKind.INTERNAL, 500, None),
    ],
)
def test_the_governor_learns_of_each_failure_what_concerns_the_pool(kind, status, told):
    outcome = outcome_of_failure(ProviderFailure(kind, "so", status_code=status), "r", 0.0)
    assert (outcome and outcome.status) == told


@pytest.mark.parametrize(
    "kind, reached, timeouts, unanswered",
    [
        (FailureKind.TIMEOUT, True, 1, 1),
        (FailureKind.CONNECTION, True, 0, 1),
        (FailureKind.CONNECTION, False, 0, 0),
        (FailureKind.SERVER, True, 0, 0),
    ],
)
def test_the_books_count_a_failed_call(kind, reached, timeouts, unanswered):
    counts = failure_counters(ProviderFailure(kind, "so", reached=reached))
    assert counts == {"calls": 1, "timeouts": timeouts, "calls_without_answer": unanswered}
