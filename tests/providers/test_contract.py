"""Both dialects, through both real SDKs, against the simulated server: what every provider promises."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from dicast.app.pipeline.call_facts import outcome_of_failure, outcome_of_reply
from dicast.app.providers.base import FailureKind
from lab.provider import Behaviour, SimulatedAccount, SimulatedConfig
from tests.providers.conftest import KEY, SCHEMA, chat, failure_of, until

PROMPT = "> the text\nEND OF MATERIAL 0123456789abcdef\nSCALE: 2..4\nNONCE: 0123456789abcdef\nJudge."


def config(**behaviour: Any) -> SimulatedConfig:
    return SimulatedConfig(behaviour=Behaviour().changed(behaviour))


async def test_plain_answers_are_text_with_usage_and_the_answering_model(dialect, provider_at):
    async with SimulatedAccount(config()) as sim:
        reply = await provider_at(dialect, sim.base_url).complete(chat(PROMPT))
    verdict = json.loads(reply.text)
    assert verdict["nonce"] == "0123456789abcdef"
    assert verdict["score"] in (2, 3, 4)
    assert (reply.structured, reply.truncated, reply.model) == (False, False, "judge")
    assert reply.usage.input_tokens > 10
    assert reply.usage.output_tokens > 10


@pytest.mark.parametrize(
    "dialect, channel", [("openai", "json_schema"), ("anthropic", "tool"), ("anthropic", "json_schema")]
)
async def test_structured_answers_keep_the_schema(dialect, channel, provider_at):
    async with SimulatedAccount(config()) as sim:
        provider = provider_at(dialect, sim.base_url, structured_channel=channel)
        reply = await provider.complete(chat(PROMPT, schema=SCHEMA))
    verdict = json.loads(reply.text)
    assert reply.structured
    assert set(verdict) == {"score", "argument", "cited_evidence"}
    assert verdict["score"] in (3, 4, 5)


async def test_without_structured_output_a_schema_is_not_sent(dialect, provider_at):
    async with SimulatedAccount(config()) as sim:
        provider = provider_at(dialect, sim.base_url, structured_output=False)
        reply = await provider.complete(chat(PROMPT, schema=SCHEMA))
    assert not reply.structured
    assert json.loads(reply.text)["nonce"] == "0123456789abcdef"


async def test_a_tool_that_was_ignored_is_no_structured_answer(provider_at):
    async with SimulatedAccount(config(faults={"chatter": 1})) as sim:
        reply = await provider_at("anthropic", sim.base_url).complete(chat(PROMPT, schema=SCHEMA))
    assert not reply.structured
    assert reply.text.startswith("Here is my verdict")


async def test_a_tool_call_with_a_key_twice_is_malformed(provider_at):
    async with SimulatedAccount(config(faults={"duplicate": 1})) as sim:
        failure = await failure_of(provider_at("anthropic", sim.base_url), chat(PROMPT, schema=SCHEMA))
    assert failure.kind is FailureKind.MALFORMED
    assert "twice" in failure.message


async def test_an_answer_cut_at_max_tokens_says_so(dialect, provider_at):
    async with SimulatedAccount(config()) as sim:
        reply = await provider_at(dialect, sim.base_url).complete(chat(PROMPT, max_tokens=1))
    assert reply.truncated


async def test_rate_limit_headers_come_with_answers_and_refusals(dialect, provider_at):
    async with SimulatedAccount(config(rpm=6, burst=10, tpm=1_000_000)) as sim:
        provider = provider_at(dialect, sim.base_url)
        reply = await provider.complete(chat(PROMPT))
        failure = await failure_of(provider)
    name = "x-ratelimit-remaining-requests" if dialect == "openai" else "anthropic-ratelimit-requests-remaining"
    assert reply.headers[name] == "0"
    assert failure.headers[name] == "0"
    assert "date" in reply.headers, "the provider's clock, which is not ours"
    kept = ("x-ratelimit-", "anthropic-ratelimit-", "retry-after", "date")
    assert all(key.startswith(kept) for key in reply.headers)
    assert failure.kind is FailureKind.RATE_LIMITED
    assert failure.status_code == 429
    assert failure.retry_after_s is not None
    assert 0 < failure.retry_after_s <= 11


@pytest.mark.parametrize(
    "behaviour, kinds",
    [
        ({"cap": 0}, {FailureKind.RATE_LIMITED}),
        ({"noise_429": 1}, {FailureKind.RATE_LIMITED}),
        ({"exhausted": True}, {FailureKind.QUOTA_EXHAUSTED}),
        ({"overload_529": 1}, {FailureKind.OVERLOADED}),
        ({"fail_5xx": 1}, {FailureKind.SERVER}),
        ({"faults": {"cut": 1}}, {FailureKind.CONNECTION}),
        ({"faults": {"html": 1}}, {FailureKind.MALFORMED}),
        ({"faults": {"invalid_json": 1}}, {FailureKind.MALFORMED}),
        ({"faults": {"huge": 1}}, {FailureKind.MALFORMED}),
        ({"faults": {"bomb": 1}}, {FailureKind.MALFORMED}),
    ],
    ids=str,
)
async def test_every_way_to_fail(dialect, provider_at, behaviour, kinds):
    async with SimulatedAccount(config(**behaviour)) as sim:
        failure = await failure_of(provider_at(dialect, sim.base_url))
        assert sim.stats()["calls"] == 1, "the SDK's own retries are off"
    assert failure.kind in kinds
    assert len(failure.message) <= 300


@pytest.mark.parametrize("errors_as", ["status", "number", "text", "kind"])
@pytest.mark.parametrize(
    "behaviour, kind, statuses",
    [
        ({"cap": 0}, FailureKind.RATE_LIMITED, {429}),
        ({"exhausted": True}, FailureKind.QUOTA_EXHAUSTED, {402, 429}),
        ({"overload_529": 1}, FailureKind.OVERLOADED, {529}),
        ({"fail_5xx": 1}, FailureKind.SERVER, {500, 502, 503, 504}),
    ],
    ids=str,
)
async def test_an_error_under_200_is_read_as_the_status_that_it_names(
    dialect, provider_at, behaviour, kind, statuses, errors_as
):
    """So that it spends what a refusal spends, and the governor hears of it."""
    async with SimulatedAccount(config(errors_as=errors_as, **behaviour)) as sim:
        failure = await failure_of(provider_at(dialect, sim.base_url))
        assert set(sim.stats()["by_status"]) <= ({"200"} if errors_as != "status" else {str(s) for s in statuses})
    assert failure.kind is kind, failure.message
    assert failure.status_code in statuses
    told = outcome_of_failure(failure, "u", 1.7e9)
    assert told.status == {
        FailureKind.RATE_LIMITED: 429,
        FailureKind.OVERLOADED: 529,
        FailureKind.QUOTA_EXHAUSTED: 402,
    }.get(kind, failure.status_code)


@pytest.mark.parametrize("errors_as", ["status", "number"])
async def test_a_wait_that_a_body_tells_is_read_like_a_header(dialect, provider_at, errors_as):
    async with SimulatedAccount(config(cap=0, retry_info=True, errors_as=errors_as)) as sim:
        failure = await failure_of(provider_at(dialect, sim.base_url))
    assert failure.retry_after_s == 1.0
    assert outcome_of_failure(failure, "u", 1.7e9).readings.retry_after_s == 1.0


async def test_a_wait_that_comes_with_an_answer_reaches_the_governor(dialect, provider_at):
    async with SimulatedAccount(config(answer_retry_after="7")) as sim:
        reply = await provider_at(dialect, sim.base_url).complete(chat(PROMPT))
    assert outcome_of_reply(reply, "u", 1.7e9).readings.retry_after_s == 7.0


async def test_a_wrong_key_is_rejected_and_never_shown(dialect, provider_at):
    async with SimulatedAccount(SimulatedConfig(api_key="sk-the-right-one")) as sim:
        failure = await failure_of(provider_at(dialect, sim.base_url))
        assert (failure.kind, failure.status_code) == (FailureKind.REJECTED, 401)
        assert KEY not in failure.message
        await provider_at(dialect, sim.base_url, key="sk-the-right-one").complete(chat())


async def test_temperature_and_limits_reach_the_provider(dialect, provider_at):
    async with SimulatedAccount(config(tpm=100_000, burst=60)) as sim:
        await provider_at(dialect, sim.base_url).complete(chat("x" * 400, max_tokens=5_000, temperature=0.5))
        charged = sim.stats()["tokens"]["charged"]
    assert charged == 5_000 if dialect == "openai" else 100 <= charged <= 120


async def test_a_silent_server_times_out(dialect, provider_at):
    async with SimulatedAccount(config(faults={"hang": 1})) as sim:
        failure = await failure_of(provider_at(dialect, sim.base_url, timeout_s=0.1))
    assert failure.kind is FailureKind.TIMEOUT


@pytest.mark.parametrize("fault", ["hang", "drip"])
async def test_cancelling_a_call_hangs_up(dialect, provider_at, fault):
    """The lease is released when the caller's total deadline cuts the call, so the provider must see it closed."""
    async with SimulatedAccount(config(faults={fault: 1})) as sim:
        call = asyncio.create_task(provider_at(dialect, sim.base_url).complete(chat(PROMPT)))
        await until(lambda: sim.stats()["faults"] == {fault: 1})
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await until(lambda: sim.stats()["open"] == 0)
        assert sim.stats()["by_status"] == {"0": 1}


async def test_a_closed_port_is_a_connection_failure(dialect, provider_at):
    async with SimulatedAccount() as sim:
        base_url = sim.base_url
    failure = await failure_of(provider_at(dialect, base_url))
    assert failure.kind is FailureKind.CONNECTION


async def test_hundreds_of_calls_are_open_at_once(dialect, provider_at):
    """aiohttp's own default would stop at 100."""
    async with SimulatedAccount(config(latency=60)) as sim:
        provider = provider_at(dialect, sim.base_url)
        calls = [asyncio.create_task(provider.complete(chat(PROMPT))) for _ in range(300)]
        await until(lambda: sim.stats()["open"] == 300, 20)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)


@pytest.mark.parametrize(
    "behaviour, kind",
    [
        ({"reasoning": 500}, FailureKind.OUT_OF_TOKENS),
        ({"faults": {"refusal": 1}}, FailureKind.REFUSED),
        ({"faults": {"filtered": 1}}, FailureKind.FILTERED),
    ],
    ids=str,
)
async def test_an_answer_without_words_says_why_and_what_it_took(dialect, provider_at, behaviour, kind):
    async with SimulatedAccount(config(**behaviour)) as sim:
        failure = await failure_of(provider_at(dialect, sim.base_url), chat(PROMPT, schema=SCHEMA))
    assert (failure.kind, failure.status_code) == (kind, 200)
    assert failure.usage.output_tokens == 200
    assert outcome_of_failure(failure, "unit", 0.0).used.output_tokens == 200


async def test_reasoning_that_leaves_room_is_an_answer_like_others(dialect, provider_at):
    async with SimulatedAccount(config(reasoning=100)) as sim:
        reply = await provider_at(dialect, sim.base_url).complete(chat(PROMPT, schema=SCHEMA))
    assert reply.usage.output_tokens > 100
    assert not reply.truncated
