"""Replicates that one call answers: one prompt is paid for, and each answer is an opinion of its own."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dicast.app.domain.cost import read_books
from dicast.app.domain.price import Place, Price, TokenRates
from dicast.app.ledger.records import MessageId
from lab.provider import Behaviour, SimulatedAccount, SimulatedConfig
from tests.ledger.bench import a_job
from tests.providers.conftest import make

REPLICATES = 8
RATES = TokenRates(100, 800, 10, 100)


def account(**behaviour: Any) -> SimulatedAccount:
    return SimulatedAccount(SimulatedConfig(behaviour=Behaviour().changed(behaviour)))


class Page:
    """A judge whose pool gives eight answers to a call, on one page of a job's units."""

    def __init__(self, bench: Any, judge: Any, ref: Any) -> None:
        self.bench, self.judge, self.ref = bench, judge, ref

    async def all_of_it(self, *tokens: str) -> None:
        """Do these messages and all that follows from them, as often as they come again."""
        waiting = list(tokens)
        async with asyncio.timeout(60):
            while waiting:
                token = waiting.pop(0)
                await self.bench.asyncs.hdel(self.bench.one.keys.page(self.ref), f"w:{token}")
                steps = await self.judge.do(self.ref, token, early=True)
                waiting += [token] if steps.retry else []
                waiting += map(str, steps.follow_ups)

    async def opinions(self) -> list[dict[str, Any]]:
        return [result["opinion"] for _, result in sorted((await self.judge.results(self.ref)).items())]

    @property
    def counters(self) -> Any:
        return self.bench.client.status("j").counters


@pytest.fixture
async def page8(bench, desk):
    providers = []

    async def start(sim: SimulatedAccount, *, batched: bool = False, text: str = "", **more: Any) -> Page:
        job = a_job(**{"items": 2, "dimensions": 1, "replicates": REPLICATES, **more})
        if text:
            job = job.model_copy(update={"items": [item.model_copy(update={"text": text}) for item in job.items]})
        units = len(job.items) * len(job.dimensions) * job.rounds
        ref = await bench.started(job, batched=batched, units=units, answers=REPLICATES)
        providers.append(make("openai", sim.base_url))
        return Page(bench, desk(providers[-1]), ref)

    yield start
    for provider in providers:
        await provider.close()


async def test_one_call_gives_an_opinion_for_each_replicate(bench, page8):
    async with account() as sim:
        at = await page8(sim)
        await at.all_of_it("b0", "b8")
        stats, calls = sim.stats(), sim.log()
    opinions = await at.opinions()
    assert [(o["item_id"], o["replicate"]) for o in opinions] == [(f"i{i}", r) for i in (0, 1) for r in range(8)]
    assert len({(o["score"], o["argument"]) for o in opinions}) > 8, "each is an answer of its own"
    assert len({entry["nonce"] for entry in calls}) == len(calls) == 2, "one call an item, each with its own nonce"
    assert (at.counters["calls"], at.counters["scored"], at.counters["retries"]) == (2, 16, 0)
    book = read_books(
        bench.redis.hgetall(bench.one.keys.job("j")), ["a0"], [[Place("p", "m", Price(RATES))]]
    )[0].spending  # fmt: skip
    assert (book.input_tokens, book.output_tokens) == (stats["tokens"]["input"], stats["tokens"]["output"])
    for name in ("input_tokens", "output_tokens"):
        assert sum(o["usage"][name] for o in opinions) == getattr(book, name), "divided as billed"


async def test_eight_replicates_cost_at_most_five_times_one(page8):
    """At 2,000 tokens of input and 150 of output, at outputs that cost 4 to 8 times the input."""
    async with account(answer_chars=250) as sim:
        at = await page8(sim, items=1, text="The driver sells tickets, and so the bus waits. " * 145)
        await at.all_of_it("b0")
        tokens = sim.stats()["tokens"]
    assert tokens["input"] == pytest.approx(2000, rel=0.05) and tokens["output"] / 8 == pytest.approx(150, rel=0.1)
    for output_price in (4, 5, 8):
        assert tokens["input"] + tokens["output"] * output_price <= 5 * (
            tokens["input"] + tokens["output"] / 8 * output_price
        )


@pytest.mark.parametrize("fault", ["chatter", "wrong_nonce", "out_of_range"])
async def test_replicates_whose_answer_cannot_be_read_are_asked_for_again_one_by_one(page8, fault):
    async with account(faults={fault: 1.0}) as sim:
        at = await page8(sim, items=1)
        steps = await at.judge.do(at.ref, "b0")
        assert steps.follow_ups == [MessageId(7)], "seven of eight answers were good"
        sim.control({"faults": {}})
        await at.all_of_it(*map(str, steps.follow_ups))
    assert (at.counters["calls"], at.counters["scored"], at.counters["retries"]) == (2, 8, 1)


async def test_a_server_that_ignores_n_is_asked_for_one_answer_at_a_time(bench, page8):
    async with account(most_answers=1) as sim:
        at = await page8(sim)
        await at.all_of_it("b0", "b8")
        assert sim.stats()["calls"] == 16, "nothing was paid for twice"
    assert (at.counters["calls"], at.counters["scored"], at.counters["retries"]) == (16, 16, 0)
    assert {o["attempts"] for o in await at.opinions()} == {1}, "what was not asked costs no attempt"
    (dropped,) = await at.judge.asking.dropped(await at.judge.job(at.ref))
    assert (dropped.name, dropped.message) == ("n", "8 answers were asked for in one call, and fewer came")


async def test_what_was_never_asked_is_asked_where_each_call_may_be_made_once(page8):
    async with account(most_answers=1) as sim:
        at = await page8(sim, items=1, spend="at_most_once")
        await at.all_of_it("b0")
        assert sim.stats()["calls"] == 8
    assert at.counters["scored"] == 8


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("words", ["openai", "mistral", "tgi", "gemini"])
async def test_a_server_that_refuses_n_is_asked_for_one_answer_at_a_time(page8, words, strict):
    async with account(refuses="n", refuses_as=words) as sim:
        at = await page8(sim, strict_params=strict)
        await at.all_of_it("b0", "b8")
        assert sim.stats()["by_status"]["200"] == 16
    assert at.counters["scored"] == 16
    assert [parameter.name for parameter in await at.judge.asking.dropped(await at.judge.job(at.ref))] == ["n"]


async def test_all_dimensions_of_all_replicates_fit_into_one_call(page8):
    async with account() as sim:
        at = await page8(sim, batched=True, dimensions=3, replicates=4)
        await at.all_of_it("b0", "b12")
        assert sim.stats()["calls"] == 2
    opinions = await at.opinions()
    cells = [(i, r, f"d{d}") for i in ("i0", "i1") for r in range(4) for d in range(3)]
    assert [(o["item_id"], o["replicate"], o["criterion_id"]) for o in opinions] == cells
    assert len({(o["score"], o["argument"]) for o in opinions}) > 8


async def test_half_of_the_replicates_are_asked_for_where_the_others_have_ended(bench, page8):
    async with account() as sim:
        at = await page8(sim, items=1)
        for position in range(0, 8, 2):
            await at.all_of_it(str(position))
        await at.all_of_it("b0")
        assert sim.stats()["calls"] == 5
    assert [o["replicate"] for o in await at.opinions()] == list(range(8))


async def test_a_model_that_has_reasoned_all_answers_away_gets_more_room_for_each(page8):
    async with account(reasoning=5000) as sim:
        at = await page8(sim, items=1)
        steps = await at.judge.do(at.ref, "b0")
        assert steps.retry and not steps.follow_ups
        await at.all_of_it("b0")
        assert sim.stats()["calls"] == 2
    assert at.counters["scored"] == 8


async def test_a_call_that_may_be_made_once_loses_what_was_not_answered(page8):
    async with account(faults={"missing": 1.0}) as sim:
        at = await page8(sim, items=1, spend="at_most_once")
        await at.all_of_it("b0")
        assert sim.stats()["calls"] == 1
    results = await at.judge.results(at.ref)
    assert [result["opinion"].get("score") is None for _, result in sorted(results.items())] == [False] * 7 + [True]


async def test_what_a_call_may_take_is_reserved_for_all_its_answers(bench, page8):
    async with account(latency=0.3) as sim:
        at = await page8(sim, items=1, max_tokens=10**6)
        doing = asyncio.ensure_future(at.judge.do(at.ref, "b0"))
        async with asyncio.timeout(20):
            while not sim.stats()["open"]:  # noqa: ASYNC110  the provider sets no event
                await asyncio.sleep(0.01)
        reserved = int(bench.redis.hget(bench.one.keys.job("j"), "reserved_tokens"))
        await doing
        assert reserved > 8 * 1024 > sim.stats()["tokens"]["output"]
    assert bench.redis.hget(bench.one.keys.job("j"), "reserved_tokens") == "0"
