"""The text of an item is paid for once where the provider can cache it, and each call keeps a nonce of its own."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dicast.app.domain.cost import read_books
from dicast.app.domain.price import Place, Price, TokenRates
from dicast.app.pipeline.call import BEGINNINGS_KEPT, CACHE_TTL_S, FIRST_GUESS_S, Warmth
from lab.provider import Behaviour, SimulatedAccount, SimulatedConfig
from tests.ledger.bench import a_job
from tests.providers.conftest import make

TEXT = "The driver sells tickets, and so the bus waits. " * 600  # about 7,200 tokens
ITEMS, DIMENSIONS = 3, 4
PRICES = {"openai": TokenRates(100, 800, 10, 100), "anthropic": TokenRates(100, 500, 10, 125)}


def long_job(dimensions: int = DIMENSIONS, **more: Any) -> Any:
    job = a_job(items=ITEMS, dimensions=dimensions, **more)
    items = [item.model_copy(update={"text": f"{item.id} {TEXT}"}) for item in job.items]
    return job.model_copy(update={"items": items})


def account(**behaviour: Any) -> SimulatedAccount:
    options = {"cache_minimum": 1024, "latency": 0.05, **behaviour}
    return SimulatedAccount(SimulatedConfig(behaviour=Behaviour().changed(options)))


def nonces_of(sim: SimulatedAccount) -> list[str]:
    return [entry["nonce"] for entry in sim.log() if entry["status"] == 200]


async def judge_all(bench: Any, desk: Any, sim: SimulatedAccount, dialect: str, job: Any, **options: Any) -> Any:
    """All units of the job, at once and as often as they have to wait."""
    units = len(job.items) * len(job.dimensions)
    ref = await bench.started(job, units=units)
    judge = desk(make(dialect, sim.base_url, prompt_caching=True, **options))
    judge.judge._caller._warmth._latency_s = 0.05
    waiting = list(range(units))
    async with asyncio.timeout(60):
        while waiting:
            steps = await asyncio.gather(*(judge.do(ref, position, early=True) for position in waiting))
            waiting = [position for position, step in zip(waiting, steps, strict=True) if step.retry]
            await asyncio.sleep(0.01)
    await judge.provider.close()
    return judge


CHANNELS = [("openai", "json_schema"), ("anthropic", "json_schema"), ("anthropic", "tool")]


@pytest.mark.parametrize("dialect, channel", CHANNELS)
async def test_four_dimensions_of_a_text_cost_less_than_half_of_their_input(bench, desk, dialect, channel):
    async with account() as sim:
        await judge_all(bench, desk, sim, dialect, long_job(), structured_channel=channel)
        tokens, nonces = sim.stats()["tokens"], nonces_of(sim)
    rates = PRICES[dialect]
    plain = tokens["input"] - tokens["cached"] - tokens["written"]
    cost = plain * rates.input + tokens["cached"] * rates.cached_input + tokens["written"] * rates.cache_write
    assert cost <= 0.45 * tokens["input"] * rates.input
    assert len(set(nonces)) == len(nonces) == ITEMS * DIMENSIONS
    counters = bench.client.status("j").counters
    assert (counters["scored"], counters["calls"], counters["retries"]) == (ITEMS * DIMENSIONS, ITEMS * DIMENSIONS, 0)
    place = Place("p", "m", Price(rates))
    book = read_books(bench.redis.hgetall(bench.one.keys.job("j")), ["a0"], [[place]])[0].spending
    assert (book.input_tokens, book.cached_input_tokens) == (tokens["input"], tokens["cached"])
    assert book.cache_write_tokens == tokens["written"]


@pytest.mark.parametrize("dialect", ["openai", "anthropic"])
async def test_a_cache_that_forgets_at_once_costs_no_more_calls(bench, desk, dialect):
    async with account(cache_ttl=0.0) as sim:
        await judge_all(bench, desk, sim, dialect, long_job())
        assert sim.stats()["tokens"]["cached"] == 0
        assert sim.stats()["calls"] == ITEMS * DIMENSIONS


async def test_a_single_dimension_is_neither_written_nor_waited_for(bench, desk):
    async with account() as sim:
        await judge_all(bench, desk, sim, "anthropic", long_job(dimensions=1))
        assert sim.stats()["tokens"]["written"] == 0


async def test_a_text_below_the_models_minimum_is_not_marked(bench, desk):
    async with account() as sim:
        await judge_all(bench, desk, sim, "anthropic", a_job(items=2, dimensions=4))
        assert sim.stats()["tokens"]["written"] == 0


# ---------------------------------------------------------------------- who waits
def test_the_others_wait_until_the_first_is_answered():
    warmth = Warmth()
    assert warmth.begin("a", 0.0, 60.0) == 0.0
    assert warmth.begin("a", 0.1, 60.0) == FIRST_GUESS_S
    assert warmth.begin("b", 0.1, 60.0) == 0.0
    warmth.end("a", 0.0, 1.0, is_warm=True)
    assert [warmth.begin("a", 1.1, 60.0), warmth.begin("a", 1.1, 60.0)] == [0.0, 0.0]


def test_after_a_failure_the_next_one_tries():
    warmth = Warmth()
    warmth.begin("a", 0.0, 60.0)
    warmth.end("a", 0.0, 1.0, is_warm=False)
    assert warmth.begin("a", 1.0, 60.0) == 0.0
    assert warmth.begin("a", 1.0, 60.0) > 0


def test_a_failure_of_a_follower_cools_nothing():
    warmth = Warmth()
    warmth.begin("a", 0.0, 60.0)
    warmth.end("a", 0.0, 1.0, is_warm=True)
    warmth.end("a", 1.0, 2.0, is_warm=False)
    assert [warmth.begin("a", 2.0, 60.0), warmth.begin("a", 2.0, 60.0)] == [0.0, 0.0]


def test_what_was_forgotten_is_warmed_by_one_again():
    warmth = Warmth()
    warmth.begin("a", 0.0, 60.0)
    warmth.end("a", 0.0, 1.0, is_warm=True)
    later = 1.0 + CACHE_TTL_S
    assert warmth.begin("a", later, 60.0) == 0.0
    assert warmth.begin("a", later, 60.0) > 0


def test_a_first_call_that_is_lost_holds_nobody_for_longer_than_a_call_may_take():
    warmth = Warmth()
    warmth.begin("a", 0.0, 60.0)
    assert warmth.begin("a", 59.5, 60.0) == 0.5
    assert warmth.begin("a", 60.0, 60.0) == 0.0


def test_memory_is_bounded():
    warmth = Warmth()
    for number in range(BEGINNINGS_KEPT + 10):
        warmth.begin(str(number), 0.0, 60.0)
    assert len(warmth._until) == BEGINNINGS_KEPT
