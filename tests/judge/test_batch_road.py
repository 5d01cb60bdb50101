"""Units that go by a provider's batch API: none is lost, and none is paid for twice, whenever a worker dies."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import orjson
import pytest

from dicast.app.domain.deadlines import UNBOUNDED, Bounds
from dicast.app.domain.opinion import FailureKind
from dicast.app.domain.plan import lanes
from dicast.app.ledger.batches import LaneRef, TurnLost
from dicast.app.ledger.keys import PageRef
from dicast.app.ledger.records import MessageId
from dicast.app.providers.base import ChatReply, ChatRequest, ProviderFailure
from dicast.app.providers.batches import BatchState, DamagedResults, ForeignBatch
from tests.judge.desk import Scripted, good
from tests.judge.shelf import Clock, Killed, Road, Shelf, not_created
from tests.ledger.bench import a_job

UNITS = 12


async def opened(
    bench: Any, job: Any = None, *, batched: bool = False, units: int = UNITS, extra: Any = None, road: Any = "batch",
    bounds: Bounds = UNBOUNDED, answers: int = 1,
) -> PageRef:  # fmt: skip
    """A started job whose one page goes by batches."""
    job = job or a_job(items=UNITS, dimensions=1)
    count = len(job.agents)
    most = [answers] * count
    plan = lanes([("p",)] * count, len(job.dimensions), job.rounds, [batched] * count, None, [road] * count, most)
    bench.client.submit(job, plan, len(job.items) * count * len(job.dimensions) * job.rounds, extra or {})
    await bench.one.start(job.id, 5, bounds=bounds)
    ref = PageRef(job.id, bench.incarnation(job.id), 0, 0)
    items = dict(enumerate(await bench.one.items(job.id, range(len(job.items)))))
    opening = bench.one.open_page(ref, 0, units, "", 1, items, capped=job.is_capped, unchorded=True)
    assert await opening == units
    await bench.one.published(ref)
    return ref


async def wanted(road: Road, ref: PageRef) -> None:
    await road.store.schedule(LaneRef(ref.job, ref.incarnation, ref.lane), 0)


async def killed_after_create(bench: Any, desk: Any, shelf: Shelf, clock: Clock, ref: PageRef) -> Road:
    """What looks after a batch that was created, whose answer nobody heard, and which is not listed yet."""
    road = Road(bench, desk(Scripted()), shelf, clock)
    await wanted(road, ref)
    await road.look()
    shelf.kill, shelf.listed = "after create", False
    with pytest.raises(Killed):
        await road.look()
    await bench.asyncs.hdel(road.store.keys.batch((await road.store.all())[0].name), "holder")
    return road


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


async def test_a_job_by_batch(bench: Any, desk: Any, shelf: Shelf) -> None:
    ref = await opened(bench)
    road = Road(bench, desk(Scripted()), shelf, Clock())
    await wanted(road, ref)
    await road.look()
    assert await road.store.all() and not shelf.batches, "the intent is in the ledger before anything is sent"
    await road.look()
    assert list(shelf.batches) == ["batch_0"] and bench.client.status("j").done == 0
    await road.look()
    waits = bench.client.status("j").waits_for or ""
    assert "running, 0 of 12" in waits
    await road.until_idle()
    counters = bench.client.status("j").counters
    assert (counters["scored"], counters["calls"], counters["possible_double_charges"]) == (UNITS, UNITS, 0)
    assert road.messages.gathered == [ref]
    assert set(shelf.paid.values()) == {1} and len(shelf.paid) == UNITS
    assert await road.store.all() == []


STEPS = [
    "before upload", "after upload", "after create", "in progress", "before download", "during the download",
    "after download",
]  # fmt: skip


@pytest.mark.parametrize("step", STEPS)
async def test_a_worker_dies(bench: Any, desk: Any, shelf: Shelf, step: str) -> None:
    """Another worker goes on, and sends again only what the provider does not have."""
    ref, clock = await opened(bench), Clock()
    first = Road(bench, desk(Scripted()), shelf, clock)
    await wanted(first, ref)
    shelf.kill = step
    with pytest.raises(Killed):
        await first.until_idle()
    bench.kill(0)
    second = Road(bench, desk(Scripted()), shelf, clock, node=1)
    await second.look()
    if step in ("before upload", "after upload"):
        assert not shelf.batches, "it may be listed yet"
        clock.at += 200
    await second.until_idle()
    counters = bench.client.status("j").counters
    assert counters["scored"] == UNITS
    assert sorted(shelf.paid.values()) == [1] * UNITS
    assert len(shelf.batches) == 1
    doubted = UNITS if step in ("before upload", "after upload") else 0
    assert counters["possible_double_charges"] == doubted
    assert [*first.messages.gathered, *second.messages.gathered] == [ref]


async def test_a_lost_answer_to_create_is_found_by_its_identity(bench: Any, desk: Any, shelf: Shelf) -> None:
    ref, clock = await opened(bench), Clock()
    road = await killed_after_create(bench, desk, shelf, clock, ref)
    for _ in range(3):
        await road.look()
    assert shelf.calls["create"] == 1, "it is looked for as long as it may be listed yet"
    shelf.batches["batch_0"].listed = True
    await road.until_idle()
    assert shelf.calls["create"] == 1 and sorted(shelf.paid.values()) == [1] * UNITS


async def test_a_worker_that_stops_after_it_has_looked_looks_again(bench: Any, desk: Any, shelf: Shelf) -> None:
    """What it saw in the list is old when it goes on; the batch may be listed meanwhile."""
    ref, clock = await opened(bench), Clock()
    road = await killed_after_create(bench, desk, shelf, clock, ref)
    await road.look()
    find = shelf.find

    async def find_and_stop(identity: str, **more: Any) -> Any:
        seen = await find(identity, **more)
        clock.at += 200
        shelf.batches["batch_0"].listed = True
        return seen

    shelf.find = find_and_stop  # type: ignore[method-assign]
    await road.look()
    shelf.find = find  # type: ignore[method-assign]
    await road.until_idle()
    assert shelf.calls["create"] == 1 and sorted(shelf.paid.values()) == [1] * UNITS
    assert bench.client.status("j").counters["possible_double_charges"] == 0


async def test_what_is_listed_too_late_is_cancelled(bench: Any, desk: Any, shelf: Shelf) -> None:
    ref, clock = await opened(bench), Clock()
    road = await killed_after_create(bench, desk, shelf, clock, ref)
    await road.look()
    clock.at += 200
    shelf.listed = True
    await road.look()
    assert list(shelf.batches) == ["batch_0", "batch_1"]
    shelf.batches["batch_0"].listed = True
    await road.look()
    assert shelf.batches["batch_0"].status.state is BatchState.CANCELLED
    await road.until_idle()
    counters = bench.client.status("j").counters
    assert (counters["scored"], counters["possible_double_charges"]) == (UNITS, UNITS)
    assert sorted(shelf.paid.values()) == [1] * UNITS


@pytest.mark.parametrize(
    ("spends", "ends"),
    [({"max_calls": UNITS}, "capped"), ({"spend": "at_most_once"}, "outcome_unknown")],
    ids=["cap", "at most once"],
)
async def test_what_may_be_paid_for_once_is_not_sent_again(
    bench: Any, desk: Any, shelf: Shelf, spends: dict[str, Any], ends: str
) -> None:
    """A batch that was created, and is not listed in time, may be charged: a second one would pass the cap."""
    ref, clock = await opened(bench, a_job(items=UNITS, dimensions=1, **spends)), Clock()
    if "max_calls" in spends:
        bench.redis.hset(bench.one.keys.job("j"), "max_calls", UNITS)
    road = await killed_after_create(bench, desk, shelf, clock, ref)
    await road.look()
    clock.at += 200
    await road.until_idle()
    counters = bench.client.status("j").counters
    assert (counters["failed"], counters["calls"], counters["calls_without_answer"]) == (UNITS, UNITS, UNITS)
    assert list(shelf.batches) == ["batch_0"] and await road.store.all() == []
    written = bench.redis.hgetall(bench.one.keys.page(ref))
    results = [orjson.loads(text[text.index("{") :]) for name, text in written.items() if name.startswith("r:")]
    assert {result["error"]["kind"] for result in results} == {ends}


async def test_failures_come_again_in_a_later_batch(bench: Any, desk: Any, shelf: Shelf) -> None:
    ref = await opened(bench)
    road = Road(bench, desk(Scripted()), shelf, Clock())
    shelf.unanswered = {3, 5}
    await wanted(road, ref)
    await road.look(3)
    shelf.end_all()
    shelf.unanswered = set()
    await road.until_idle()
    assert [len(kept.requests) for kept in shelf.batches.values()] == [UNITS, 2]
    counters = bench.client.status("j").counters
    assert (counters["scored"], counters["retries"], counters["calls"]) == (UNITS, 2, UNITS + 2)
    assert sorted(shelf.paid.values()) == [1] * UNITS


async def test_what_a_model_refuses_is_left_out_of_the_next_batch(bench: Any, desk: Any, shelf: Shelf) -> None:
    def refusing(_: ChatRequest) -> ChatReply:
        why = "status 400: temperature is not supported"
        raise ProviderFailure(FailureKind.REJECTED, why, status_code=400, refused_params=["temperature"])

    job = a_job(items=UNITS, dimensions=1)
    job = job.model_copy(update={"agents": [job.agents[0].model_copy(update={"temperature": 0.5})]})
    ref = await opened(bench, job)
    road = Road(bench, desk(Scripted()), shelf, Clock())
    shelf.reply = refusing
    await wanted(road, ref)
    await road.look(3)
    shelf.end_all()
    await road.look()
    shelf.reply = good
    await road.until_idle()
    first, second = ([orjson.loads(request.body) for request in kept.requests] for kept in shelf.batches.values())
    assert [body.get("dropped") for body in first] == [None] * UNITS
    assert [body.get("dropped") for body in second] == [["temperature"]] * UNITS
    assert bench.client.status("j").counters["scored"] == UNITS


@pytest.mark.parametrize("state", [BatchState.EXPIRED, BatchState.CANCELLED])
async def test_what_an_expired_batch_has_done_counts(bench: Any, desk: Any, shelf: Shelf, state: BatchState) -> None:
    ref = await opened(bench)
    road = Road(bench, desk(Scripted()), shelf, Clock())
    await wanted(road, ref)
    await road.look(2)
    shelf.end("batch_0", state, made=5)
    await road.until_idle()
    assert [len(kept.requests) for kept in shelf.batches.values()] == [UNITS, UNITS - 5]
    counters = bench.client.status("j").counters
    assert (counters["scored"], counters["calls"], counters["possible_double_charges"]) == (UNITS, UNITS, 0)
    assert sorted(shelf.paid.values()) == [1] * UNITS


async def test_a_cancelled_job_cancels_its_batch_and_keeps_what_was_done(bench: Any, desk: Any, shelf: Shelf) -> None:
    ref = await opened(bench)
    worker = desk(Scripted())
    road = Road(bench, worker, shelf, Clock())
    await wanted(road, ref)
    await road.look(2)
    bench.client.cancel("j")
    shelf.cancel = cancel_after(shelf, 4)  # type: ignore[method-assign]
    await road.look(2)
    assert shelf.calls["cancel"] == 1
    for position in range(UNITS):
        await worker.do(ref, position, lease_s=0.0, early=True)
    counters = bench.client.status("j").counters
    assert (counters["scored"], counters["done"], counters["calls"]) == (4, UNITS, 4)
    assert await road.store.all() == []


def cancel_after(shelf: Shelf, made: int) -> Any:
    async def cancel(batch_id: str) -> Any:
        shelf.calls["cancel"] += 1
        shelf.end(batch_id, BatchState.CANCELLED, made)
        return shelf.batches[batch_id].status

    return cancel


async def test_a_refused_batch_is_sent_again_later_or_ends_its_units(bench: Any, desk: Any, shelf: Shelf) -> None:
    ref = await opened(bench)
    road = Road(bench, desk(Scripted()), shelf, Clock())
    await wanted(road, ref)
    shelf.refuse = not_created(FailureKind.RATE_LIMITED, uncertain=False)
    await road.look(2)
    assert not shelf.batches and shelf.calls["find"] == 0
    shelf.refuse = not_created(FailureKind.REJECTED, uncertain=False)
    await road.until_idle()
    counters = bench.client.status("j").counters
    assert (counters["failed"], counters["calls"]) == (UNITS, 0)


async def test_a_full_queue_makes_smaller_batches(bench: Any, desk: Any, shelf: Shelf) -> None:
    ref = await opened(bench)
    road = Road(bench, desk(Scripted()), shelf, Clock())
    await wanted(road, ref)
    await road.look(2)
    shelf.fail("batch_0", "token_limit_exceeded")
    await road.until_idle()
    sizes = [len(kept.requests) for kept in shelf.batches.values()][1:]
    assert len(sizes) > 1 and sum(sizes) == UNITS
    counters = bench.client.status("j").counters
    assert (counters["scored"], counters["calls"], counters["requeues"]) == (UNITS, UNITS, 0)


class SmallQueue(Shelf):
    """An account whose queue holds batches of eight requests at most."""

    async def create(self, requests: Any, identity: str) -> Any:
        status = await super().create(requests, identity)
        if len(self.batches[status.id].requests) > 8:
            self.fail(status.id, "token_limit_exceeded")
        return status


async def test_two_batches_that_are_refused_at_once_become_smaller(bench: Any, desk: Any) -> None:
    """Neither is taken for what fills the queue: else both would come again together, for ever."""
    shelf = SmallQueue()
    refs = [await opened(bench), await opened(bench, a_job(job_id="k", items=UNITS, dimensions=1))]
    road = Road(bench, desk(Scripted()), shelf, Clock())
    for ref in refs:
        await wanted(road, ref)
    for _ in range(40):
        shelf.end_all()
        await road.due()
        taken = [work for work in [await road.store.take(), await road.store.take()] if work is not None]
        await asyncio.gather(*map(road.batches.work, taken))
    assert sorted(road.messages.gathered) == sorted(refs)
    assert set(shelf.paid.values()) == {2}, "each job pays for its own"


async def test_no_batch_is_larger_than_the_provider_takes(bench: Any, desk: Any) -> None:
    ref, shelf = await opened(bench), Shelf(most=5)
    road = Road(bench, desk(Scripted()), shelf, Clock())
    await wanted(road, ref)
    await road.until_idle()
    assert sorted(len(kept.requests) for kept in shelf.batches.values()) == [2, 5, 5]
    assert bench.client.status("j").counters["scored"] == UNITS


async def test_all_dimensions_of_an_item_in_one_request(bench: Any, desk: Any, shelf: Shelf) -> None:
    ref = await opened(bench, a_job(items=3, dimensions=2), batched=True, units=6)
    road = Road(bench, desk(Scripted()), shelf, Clock())
    await wanted(road, ref)
    await road.until_idle()
    assert [len(kept.requests) for kept in shelf.batches.values()] == [3]
    counters = bench.client.status("j").counters
    assert (counters["scored"], counters["calls"]) == (6, 3)


async def test_all_replicates_of_a_question_in_one_request(bench: Any, desk: Any, shelf: Shelf) -> None:
    def answers(request: ChatRequest) -> ChatReply:
        assert request.answers == 4
        return replace(good(request), others=[good(request)] * 3, choices=4)

    ref = await opened(bench, a_job(items=3, dimensions=1, replicates=4), answers=4)
    road = Road(bench, desk(Scripted()), shelf, Clock())
    shelf.reply = answers
    await wanted(road, ref)
    await road.until_idle()
    assert [len(kept.requests) for kept in shelf.batches.values()] == [3]
    counters = bench.client.status("j").counters
    assert (counters["scored"], counters["calls"]) == (12, 3)


async def test_a_cap_holds_over_batches(bench: Any, desk: Any, shelf: Shelf) -> None:
    """What a batch may take at most is reserved as a whole, and what it did not take goes to the next one."""
    ref = await opened(bench, a_job(items=UNITS, dimensions=1, max_calls=5))
    bench.redis.hset(bench.one.keys.job("j"), "max_calls", 5)
    road = Road(bench, desk(Scripted()), shelf, Clock())
    await wanted(road, ref)
    await road.look(2)
    assert [len(kept.requests) for kept in shelf.batches.values()] == [5]
    assert bench.redis.hget(bench.one.keys.job("j"), "reserved_calls") == "5"
    await road.until_idle()
    counters = bench.client.status("j").counters
    assert (counters["scored"], counters["failed"], counters["calls"]) == (5, UNITS - 5, 5)
    assert bench.redis.hget(bench.one.keys.job("j"), "reserved_calls") == "0"


async def test_a_revoked_unit_goes_into_no_later_batch(bench: Any, desk: Any, shelf: Shelf) -> None:
    ref = await opened(bench)
    road = Road(bench, desk(Scripted()), shelf, Clock())
    await wanted(road, ref)
    await road.look(2)
    assert bench.client.revoke_unit(ref, MessageId(3)) == ["open"]
    shelf.end("batch_0", BatchState.EXPIRED, made=2)
    await road.until_idle()
    assert [len(kept.requests) for kept in shelf.batches.values()] == [UNITS, UNITS - 3]
    assert bench.client.status("j").counters["scored"] == UNITS - 1


async def test_a_batch_that_an_operator_cancels_before_it_is_sent(bench: Any, desk: Any, shelf: Shelf) -> None:
    ref = await opened(bench)
    road = Road(bench, desk(Scripted()), shelf, Clock())
    await wanted(road, ref)
    await road.look()
    [batch] = bench.client.batches()
    assert bench.client.cancel_batch(batch.name) and not bench.client.cancel_batch("@none")
    await road.look()
    assert not shelf.batches and bench.client.batches() == []
    assert [over["requests"] for over in bench.client.batches_over()] == [UNITS]
    await road.until_idle()
    assert bench.client.status("j").counters["scored"] == UNITS


async def test_two_workers_do_not_work_on_one_batch(bench: Any, desk: Any, shelf: Shelf) -> None:
    ref = await opened(bench)
    first = Road(bench, desk(Scripted()), shelf, Clock())
    second = Road(bench, desk(Scripted()), shelf, Clock(), node=1)
    await wanted(first, ref)
    await first.look()
    await first.due()
    taken = await first.store.take()
    assert taken is not None and taken.batch is not None
    await second.due()
    assert await second.store.take() is None, "a living worker holds it"
    bench.kill(0)
    await second.due()
    again = await second.store.take()
    assert again is not None and again.batch is not None and again.batch.turn == taken.batch.turn + 1
    with pytest.raises(TurnLost):
        await first.store.hold(taken.batch)


async def test_another_batch_that_was_taken_for_this_one_is_let_go(bench: Any, desk: Any, shelf: Shelf) -> None:
    """Anthropic has no place for an identity: whose results they are shows when they are read."""
    ref, clock = await opened(bench), Clock()
    road = Road(bench, desk(Scripted()), shelf, clock)
    await wanted(road, ref)
    await road.look()
    shelf.kill = "after create"
    with pytest.raises(Killed):
        await road.look()
    await bench.asyncs.hdel(road.store.keys.batch((await road.store.all())[0].name), "holder")
    foreign = replace(shelf.batches["batch_0"].status, id="foreign", identity="somebody-elses", state=BatchState.ENDED)
    shelf.batches["foreign"] = replace(shelf.batches["batch_0"], status=foreign)
    find, results = shelf.find, shelf.results

    async def find_foreign(identity: str, *, known: Any = (), **more: Any) -> Any:
        return foreign if "foreign" not in known else await find(identity, known=known, **more)

    async def results_of(batch: Any, identity: str) -> Any:
        if batch.id == "foreign":
            raise ForeignBatch("not ours")
        async for result in results(batch, identity):
            yield result

    shelf.find, shelf.results = find_foreign, results_of  # type: ignore[method-assign]
    await road.until_idle()
    counters = bench.client.status("j").counters
    assert (counters["scored"], counters["possible_double_charges"], shelf.calls["create"]) == (UNITS, 0, 1)


async def test_a_batch_that_may_be_anothers_is_not_cancelled(bench: Any, desk: Any, shelf: Shelf) -> None:
    """Found by its time and size alone, as at Anthropic. Its results tell whose it was."""
    ref, clock = await opened(bench), Clock()
    road = Road(bench, desk(Scripted()), shelf, clock)
    await wanted(road, ref)
    await road.look()
    shelf.kill = "after create"
    with pytest.raises(Killed):
        await road.look()
    await bench.asyncs.hdel(road.store.keys.batch((await road.store.all())[0].name), "holder")
    own = shelf.batches["batch_0"].status

    async def find_without_identity(identity: str, **_: Any) -> Any:
        return replace(own, identity="")

    shelf.find = find_without_identity  # type: ignore[method-assign]
    await road.look()
    bench.client.cancel("j")
    await road.look(2)
    (batch,) = await road.store.all()
    assert (shelf.calls["cancel"], batch.provider_id, batch.guessed) == (0, own.id, True)
    assert "not cancelled" in batch.note
    await road.until_idle()
    assert bench.client.status("j").counters["scored"] == UNITS, "it was ours, and is paid for"


@pytest.mark.parametrize("cut, times, scored", [(True, 1, UNITS), (False, 3, UNITS), (False, 4, UNITS - 1)])
async def test_damaged_results(bench: Any, desk: Any, shelf: Shelf, cut: bool, times: int, scored: int) -> None:
    """What broke off, or is missing, is fetched again; what is missing for good may have been paid for."""
    ref = await opened(bench, a_job(items=UNITS, dimensions=1, spend="at_most_once"))
    road = Road(bench, desk(Scripted()), shelf, Clock())
    await wanted(road, ref)
    results, damaged = shelf.results, [True] * times

    async def damaged_results(batch: Any, identity: str) -> Any:
        found = [result async for result in results(batch, identity)]
        for result in found[1:] if damaged else found:
            yield result
        if damaged:
            damaged.pop()
            raise DamagedResults(cut=cut, missing=int(not cut))

    shelf.results = damaged_results  # type: ignore[method-assign]
    await road.until_idle()
    counters = bench.client.status("j").counters
    assert (counters["scored"], counters["failed"], len(shelf.batches)) == (scored, UNITS - scored, 1)


async def test_a_cap_in_money_reserves_the_price_of_batches(bench: Any, desk: Any, shelf: Shelf) -> None:
    """So twice as many requests fit into a batch as calls into the cap at the whole price."""
    reserved = {}
    for share in ("1", "0.5"):
        price = {"rates": [10, 20, 10, 10], "currency": "USD", "date": "", "source": "", "tiers": [], "batch": share}
        places = orjson.dumps([[{"pool": "p", "model": "asked-model", "price": price}]]).decode()
        job = a_job(f"j{share}", items=UNITS, dimensions=1, max_cost="1")
        ref = await opened(bench, job, extra={"max_cost": str(10**12), "places": places})
        road = Road(bench, desk(Scripted()), shelf, Clock())
        await wanted(road, ref)
        await road.look()
        reserved[share] = int(bench.redis.hget(bench.one.keys.job(ref.job), "reserved_cost"))
        await road.until_idle()
        assert bench.redis.hget(bench.one.keys.job(ref.job), "reserved_cost") == "0"
        spent = int(bench.redis.hget(bench.one.keys.job(ref.job), "spent"))
        assert spent == UNITS * (70 * 10 + 30 * 20) * float(share)
    assert reserved["1"] == 2 * reserved["0.5"]
