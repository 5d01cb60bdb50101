"""What a pool that is down costs a unit that tried it."""

from __future__ import annotations

import pytest

from dicast.app.domain.opinion import FailureKind
from dicast.app.domain.panel import Agent
from dicast.app.providers.base import ProviderFailure
from dicast.workers.admission.leases import LeaseStore, Returned, Want
from dicast.workers.policy.calls import CallOutcome
from dicast.workers.policy.parameters import BreakerPhase
from tests.judge.desk import Scripted, failing, good
from tests.ledger.bench import KEYS, a_job
from tests.workers.pools import obey, parameters

REFUSED = ProviderFailure(FailureKind.CONNECTION, "connection failed (ConnectionRefusedError)", reached=False)
RESET = ProviderFailure(FailureKind.CONNECTION, "connection failed (ConnectionResetError)")
SILENT = ProviderFailure(FailureKind.TIMEOUT, "no answer in time")
OVERLOADED = ProviderFailure(FailureKind.OVERLOADED, "status 529", status_code=529)
MALFORMED = ProviderFailure(FailureKind.MALFORMED, "no object")


NOW_S = 2_000_000_000


def status(code):
    return ProviderFailure(FailureKind.SERVER, f"status {code}", status_code=code)


async def down(bench, units=8, *, breaker_s=0.0):
    """The pool has failed `units` units in a row."""
    # The lease clock stands still, for it takes the server's for one that was put back.
    await bench.asyncs.hset(KEYS.clock, mapping={"wall": 10**15, "now": NOW_S * 1000})
    await obey(bench.asyncs, KEYS, "p", parameters())
    store = LeaseStore(bench.asyncs, KEYS)
    for n in range(units):
        times = {"pool": "p", "node": "n", "ttl_ms": 60_000, "now_ms": (NOW_S - 10) * 1000 + n}
        await bench.asyncs.hset(KEYS.job_limits, "j", 50)
        assert (await store.admit(wants=[Want(f"l{n}", "j", "proj")], give_back=[], **times)).verdicts == [1]
        gone = Returned(f"l{n}", CallOutcome(503, reporter=f"u{n}", error="status 503"))
        await store.admit(wants=[], give_back=[gone], **times)
    if breaker_s:
        until = parameters(breaker=BreakerPhase.OPEN, breaker_until=NOW_S + breaker_s)
        await obey(bench.asyncs, KEYS, "p", until)


async def spent(bench, ref, position=0):
    unit = await bench.asyncs.hget(bench.one.keys.page(ref), f"u:{position}")
    _, _, attempts, requeues, *_ = unit.split("|")
    return int(attempts), int(requeues)


@pytest.mark.parametrize(
    "failure, units, probe, attempts",
    [
        (REFUSED, 1, True, 0),
        (status(503), 1, True, 0),
        (OVERLOADED, 1, True, 0),
        (status(503), 8, False, 1),  # it was open when the pool went down
        (status(500), 4, True, 1),  # four units may be such as make it fail
        (status(500), 5, True, 0),
        (SILENT, 4, True, 1),
        (SILENT, 5, True, 0),
        (RESET, 4, True, 1),
        (MALFORMED, 8, True, 1),  # the provider answers
    ],
)
async def test_a_probe_that_finds_its_pool_down_costs_its_unit_nothing(bench, desk, failure, units, probe, attempts):
    ref = await bench.started()
    await down(bench, units)
    await desk(Scripted(failing(failure))).do(ref, 0, probe=probe)
    assert await spent(bench, ref) == (attempts, 0)
    assert bench.client.status("j").counters["calls"] == 1, "it is counted as a call all the same"


async def test_an_outage_longer_than_all_attempts_is_survived(bench, desk):
    ref = await bench.started()
    await down(bench)
    judge = desk(Scripted(*[failing(status(503))] * 40, good), max_attempts=2, requeue_budget=1)
    for _ in range(40):
        await judge.again(ref, 0, 1, probe=True)
    assert await judge.results(ref) == {}
    await judge.again(ref, 0, 1, probe=True)
    assert (await judge.results(ref))[0]["opinion"].get("score") is not None
    assert bench.client.status("j").counters["calls"] == 41


async def test_its_error_tells_all_calls_that_were_made_for_it(bench, desk):
    ref = await bench.started()
    await down(bench)
    judge = desk(Scripted(failing(status(503))), max_attempts=1)
    await judge.again(ref, 0, 20, probe=True)
    await judge.again(ref, 0, 1)
    error = (await judge.results(ref))[0]["error"]
    assert (error["kind"], error["attempts"], error["calls"]) == ("provider", 1, 21)


async def test_a_broken_model_beside_one_that_answers_is_no_outage(bench, desk):
    agents = [Agent(name="one"), Agent(name="two", model="right")]
    ref = await bench.started(a_job(items=10, dimensions=1).model_copy(update={"agents": agents}), units=20)

    def by_model(request):
        return good(request) if request.model == "right" else failing(status(503))(request)

    judge = desk(Scripted(by_model))
    await judge.do(ref, 1)
    await down(bench)
    await judge.do(ref, 0, probe=True)
    assert await spent(bench, ref) == (1, 0)


async def test_what_may_have_been_paid_for_is_not_asked_again_for_all_that(bench, desk):
    ref = await bench.started(a_job(spend="at_most_once"))
    await down(bench)
    judge = desk(Scripted(failing(RESET)))
    await judge.do(ref, 0, probe=True)
    assert (await judge.results(ref))[0]["error"]["kind"] == "outcome_unknown"


async def test_the_log_promises_no_call_before_the_breaker_lets_one_pass(bench, desk, monkeypatch):
    found = []
    monkeypatch.setattr("dicast.app.logs.retrying", lambda **fields: found.append(fields))
    ref = await bench.started()
    await down(bench, breaker_s=12.0)
    outcome = await desk(Scripted(failing(status(503)))).do(ref, 0)
    assert found[0]["delay_s"] == 12.0
    assert outcome.summary == "waits 12.0 s after server: status 503"
