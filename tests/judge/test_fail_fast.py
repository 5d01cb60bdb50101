"""When a job stops asking, and what becomes of the units that are not asked."""

from __future__ import annotations

import pytest

from dicast.app import logs
from dicast.app.domain.opinion import FailureKind
from dicast.app.domain.panel import Agent
from dicast.app.providers.base import ProviderFailure
from tests.judge.desk import Scripted, failing, good
from tests.ledger.bench import a_job


def rejected(status, message):
    return failing(ProviderFailure(FailureKind.REJECTED, message, status_code=status))


WRONG_KEY = rejected(401, "401 invalid_api_key: Incorrect API key")
EXHAUSTED = failing(ProviderFailure(FailureKind.QUOTA_EXHAUSTED, "429 insufficient_quota", status_code=429))
LIMITED = failing(ProviderFailure(FailureKind.RATE_LIMITED, "429", status_code=429))


@pytest.fixture
def stopped(monkeypatch):
    """What the log says of stops."""
    found = []
    monkeypatch.setattr(logs, "stopped_asking", lambda **fields: found.append(fields))
    return found


async def job_of(bench, items=100, **more):
    return await bench.started(a_job(items=items, dimensions=1, **more), units=items)


async def test_a_wrong_key_costs_so_many_calls_and_no_more(bench, desk, stopped):
    ref = await job_of(bench)
    judge = desk(Scripted(WRONG_KEY), fail_fast=20)
    for position in range(100):
        await judge.do(ref, position)
    assert len(judge.provider.asked) == 20
    errors = [result["error"] for _, result in sorted((await judge.results(ref)).items())]
    assert [error["kind"] for error in errors] == ["rejected"] * 20 + ["not_asked"] * 80
    assert {error["message"] for error in errors[20:]} == {
        "not asked: the first 20 calls of asked-model in pool 'p' ended in: 401 invalid_api_key: Incorrect API key"
    }
    assert {(error["status_code"], error["calls"]) for error in errors[20:]} == {(401, 0)}
    assert [(line["pool"], line["model"], line["after"]) for line in stopped] == [("p", "asked-model", 20)]
    status = bench.client.status("j")
    assert (status.counters["calls"], status.counters["failed"], status.done) == (20, 100, 100)


async def test_two_workers_stop_together(bench, desk, stopped):
    ref = await job_of(bench)
    one, two = desk(Scripted(WRONG_KEY)), desk(Scripted(WRONG_KEY))
    job = await one.job(ref)
    for position in range(0, 100, 2):
        await one.do(ref, position)
        await two.do(ref, position + 1)
        for judge in (one, two):
            judge.asking._view(job).read_at = float("-inf")  # a moment later
    assert len(one.provider.asked) + len(two.provider.asked) == 20
    assert len(stopped) == 1


async def test_a_failure_that_is_told_twice_counts_once(bench, desk, stopped):
    """An answer of the store's may be lost, and the same told again."""
    ref = await job_of(bench)
    judge = desk(Scripted(WRONG_KEY), fail_fast=3)
    job = await judge.job(ref)
    failure = ProviderFailure(FailureKind.REJECTED, "401", status_code=401)
    for unit in ("0.0.1", "0.0.1", "0.0.1", "0.0.2"):
        await judge.asking.note_failure(job, "p", "m", failure, unit=unit, item=1, was_made=True)
    assert stopped == []
    await judge.asking.note_failure(job, "p", "m", failure, unit="0.0.3", item=1, was_made=True)
    await judge.asking.note_failure(job, "p", "m", failure, unit="0.0.4", item=1, was_made=True)
    assert len(stopped) == 1


@pytest.mark.parametrize(
    "answers",
    [
        [good, WRONG_KEY],  # it has worked
        [WRONG_KEY, rejected(403, "403 forbidden"), WRONG_KEY],  # not the same error
        [rejected(400, "400: 9001 tokens are too many"), rejected(400, "400: 9002 tokens are too many"), WRONG_KEY],
    ],
)
async def test_a_job_goes_on_where_not_all_of_its_first_calls_end_alike(bench, desk, stopped, answers):
    ref = await job_of(bench, items=30)
    judge = desk(Scripted(*answers), fail_fast=5)
    for position in range(30):
        await judge.do(ref, position)
    assert len(judge.provider.asked) == 30 and stopped == []


async def test_what_may_pass_by_itself_neither_counts_nor_clears(bench, desk, stopped):
    ref = await job_of(bench, items=10)
    judge = desk(Scripted(WRONG_KEY, LIMITED, WRONG_KEY), fail_fast=3)
    for position in range(5):
        await judge.do(ref, position)
    assert len(judge.provider.asked) == 4 and len(stopped) == 1


async def test_one_text_that_is_refused_does_not_stop_the_others(bench, desk, stopped):
    """The same 400 for every dimension of one item says something of the item."""
    ref = await bench.started(a_job(items=4, dimensions=10), units=40)
    judge = desk(Scripted(rejected(400, "400 content_filter")), fail_fast=5)
    for position in range(20):
        await judge.do(ref, position)
    assert len(judge.provider.asked) == 20 and stopped == []
    for position in range(20, 40):
        await judge.do(ref, position)
    assert len(judge.provider.asked) == 21, "three items say enough"


async def test_other_models_and_pools_are_asked_on(bench, desk, stopped):
    job = a_job(items=10, dimensions=1)
    agents = [Agent(name="one"), Agent(name="two", model="right")]
    ref = await bench.started(job.model_copy(update={"agents": agents}), units=20)

    def by_model(request):
        return good(request) if request.model == "right" else WRONG_KEY(request)

    judge = desk(Scripted(by_model), fail_fast=3)
    for position in range(20):
        await judge.do(ref, position)
    assert [request.model for request in judge.provider.asked].count("right") == 10
    assert len(judge.provider.asked) == 13 and len(stopped) == 1


@pytest.mark.parametrize("fail_fast, calls", [(None, 20), (0, 60), (7, 7)])
async def test_the_job_may_say_how_many(bench, desk, fail_fast, calls):
    ref = await job_of(bench, items=60, fail_fast=fail_fast)
    judge = desk(Scripted(WRONG_KEY))
    for position in range(60):
        await judge.do(ref, position)
    assert len(judge.provider.asked) == calls


async def test_a_provider_that_cannot_be_made_is_found_out_by_the_first_unit(bench, desk, stopped):
    ref = await job_of(bench, items=10)
    judge = desk(ProviderFailure(FailureKind.REJECTED, "pool 'p' needs OPENAI_API_KEY, which is not set"))
    for position in range(10):
        await judge.do(ref, position)
    errors = [result["error"] for _, result in sorted((await judge.results(ref)).items())]
    assert errors[1]["message"] == (
        "not asked: pool 'p' cannot be used: pool 'p' needs OPENAI_API_KEY, which is not set"
    )
    assert bench.client.status("j").counters["calls"] == 0 and len(stopped) == 1


async def test_a_unit_that_passed_the_gate_knows_why_at_once(bench, desk):
    """Though this worker has looked a moment ago, when nothing had stopped yet."""
    ref = await job_of(bench)
    one, two = desk(Scripted(WRONG_KEY), fail_fast=20), desk(Scripted(good))
    assert await two.asking.stop_or_wait(await two.job(ref), "p", "asked-model") is None
    for position in range(20):
        await one.do(ref, position)
    await two.do(ref, 20, lease_s=0)
    assert (await two.results(ref))[20]["error"]["kind"] == "not_asked"
    assert not two.provider.asked


async def test_a_resumed_job_asks_again(bench, desk):
    ref = await job_of(bench, items=4)
    judge = desk(Scripted(WRONG_KEY), fail_fast=2)
    for position in range(4):
        await judge.do(ref, position)
    job = await judge.job(ref)
    assert len(await judge.asking.stops(job)) == 1
    await bench.asyncs.hset(bench.one.keys.job("j"), "state", "completed")
    bench.client.resume("j")
    assert await judge.asking.stops(job) == {}


async def test_the_notes_leave_the_store_by_themselves(bench, desk):
    ref = await job_of(bench, items=4)
    await desk(Scripted(WRONG_KEY)).do(ref, 0)
    assert 0 < await bench.asyncs.ttl(bench.one.keys.asking("j", ref.incarnation)) <= 7 * 86_400


# ------------------------------------------------------------------------------------------------- no money left
async def test_the_first_answer_of_an_exhausted_account_ends_the_asking(bench, desk, stopped):
    ref = await job_of(bench, items=50)
    judge = desk(Scripted(EXHAUSTED))
    for position in range(50):
        await judge.do(ref, position)
    assert len(judge.provider.asked) == 1
    errors = [result["error"] for result in (await judge.results(ref)).values()]
    assert {error["kind"] for error in errors} == {"quota_exhausted"} and len(stopped) == 1


async def test_a_job_may_wait_for_money_and_looks_once_in_a_while(bench, desk, stopped):
    ref = await job_of(bench, items=10, on_exhausted="wait")
    judge, other = desk(Scripted(EXHAUSTED, EXHAUSTED, good)), desk(Scripted(good))
    told = [(await judge.do(ref, position)).summary for position in range(10)]
    assert set(told) == {"waits 60 s: the account of pool 'p' has no money left"}
    assert len(judge.provider.asked) == 1 and stopped == [] and await judge.results(ref) == {}
    assert (await other.do(ref, 3)).summary == "nothing to do"  # it waits in the ledger
    await other.again(ref, 3, 1)
    assert other.provider.asked == [], "other workers know"

    await bench.asyncs.delete(bench.one.keys.rechecked("p"))  # a minute later
    for position in range(10):
        await judge.again(ref, position, 1)
    assert len(judge.provider.asked) == 2, "one looks, and finds nothing"

    await bench.asyncs.delete(bench.one.keys.rechecked("p"))
    for position in range(10):
        await judge.again(ref, position, 1)
    await judge.again(ref, 0, 1)
    assert len(await judge.results(ref)) == 10, "the one that looked had an answer, and the others follow"
    assert bench.client.status("j").counters["calls"] == len(judge.provider.asked) == 12


async def test_waiting_for_money_spends_neither_attempts_nor_calls_of_the_unit(bench, desk):
    ref = await job_of(bench, items=1, on_exhausted="wait")
    judge = desk(Scripted(*[EXHAUSTED] * 30, good), max_attempts=2, requeue_budget=1)
    for _ in range(31):
        await bench.asyncs.delete(bench.one.keys.rechecked("p"))
        await judge.again(ref, 0, 1)
    assert (await judge.results(ref))[0]["opinion"].get("score") is not None


async def test_units_whose_pool_no_worker_has_do_not_stop_the_others(bench, desk, stopped):
    """No call told anything of the pool: when a worker has it again, it is asked."""
    ref = await job_of(bench)
    judge = desk(Scripted(), fail_fast=3)
    gone = ProviderFailure(FailureKind.REJECTED, "the pool p is in no worker's configuration")
    for position in range(30):
        await judge.do(ref, position, rejection=gone)
    assert stopped == []
    await judge.do(ref, 30)
    results = await judge.results(ref)
    errors = [results[position]["error"] for position in range(30)]
    assert {(error["kind"], error["calls"], error["attempts"]) for error in errors} == {("rejected", 0, 0)}
    assert "error" not in results[30]
