"""OpenAI's Responses API: the same questions, answers, failures and usage as by chat completions."""

from __future__ import annotations

import inspect
import json
from typing import Any

import httpx2
import pytest
from openai.resources.responses import AsyncResponses
from openai.types.responses import Response

from dicast.app.providers.base import FailureKind, ImagePart, ProviderFailure
from dicast.app.providers.openai import ResponsesProvider
from dicast.app.providers.simulated import Responses, SimulatedAnswer
from dicast.config.pools import Pools, PoolsError, PoolSpec
from lab.provider import Behaviour, SimulatedAccount, SimulatedConfig
from tests.providers.conftest import KEY, SCHEMA, chat


def account(**behaviour: Any) -> SimulatedAccount:
    return SimulatedAccount(SimulatedConfig(behaviour=Behaviour().changed(behaviour)))


def provider_of(base_url: str, **options: Any) -> ResponsesProvider:
    spec = PoolSpec(name="p", provider="simulated", api="responses", model="judge", **{"logprobs": 20, **options})
    return ResponsesProvider(spec, api_key=KEY, base_url=base_url, timeout_s=10.0, max_response_bytes=100_000)


async def reply_of(sim: SimulatedAccount, request: Any = None, **options: Any) -> Any:
    provider = provider_of(sim.base_url, **options)
    try:
        return await provider.complete(request or chat(schema=SCHEMA))
    finally:
        await provider.close()


async def failure_of(sim: SimulatedAccount, **options: Any) -> ProviderFailure:
    with pytest.raises(ProviderFailure) as raised:
        await reply_of(sim, **options)
    return raised.value


@pytest.mark.parametrize("calls", ["direct", "sdk"])
async def test_an_answer_and_what_it_took(calls):
    async with account(reasoning=50, cache_minimum=0) as sim:
        reply = await reply_of(sim, calls=calls)
        tokens = sim.stats()["tokens"]
    assert 3 <= json.loads(reply.text)["score"] <= 5
    assert (reply.model, reply.structured, reply.truncated) == ("judge", True, False)
    assert (reply.usage.input_tokens, reply.usage.output_tokens) == (tokens["input"], tokens["output"])
    assert reply.usage.reasoning_tokens == 50


def test_the_request_is_as_documented():
    provider = provider_of("http://localhost/v1", params=["top_p"], effort="low", service_tier="priority")
    image = ImagePart(5, "image/png", "AAAA", detail="low")
    body = provider.body(chat(schema=SCHEMA, images=[image], params={"top_p": 0.5}, temperature=0.2, logprobs=True))
    assert body == {
        "model": "judge", "instructions": "You are a judge.", "store": False, "max_output_tokens": 200,
        "input": [{"role": "user", "content": [
            {"type": "input_text", "text": "Judge"},
            {"type": "input_image", "image_url": "data:image/png;base64,AAAA", "detail": "low"},
            {"type": "input_text", "text": " this."},
        ]}],
        "temperature": 0.2, "top_p": 0.5, "reasoning": {"effort": "low"}, "service_tier": "priority",
        "include": ["message.output_text.logprobs"], "top_logprobs": 20,
        "text": {"format": {"type": "json_schema", "name": "opinion", "strict": True, "schema": SCHEMA}},
    }  # fmt: skip
    assert body.keys() <= inspect.signature(AsyncResponses.create).parameters.keys(), "the SDK knows all of them"


async def test_the_simulated_answer_is_one_that_the_sdk_reads():
    wire = Responses()
    call = wire.read({"model": "m", "input": [{"role": "user", "content": "SCALE: 1..5"}], "max_output_tokens": 900})
    response = Response.model_validate_json(wire.reply_body(call, [SimulatedAnswer('{"score":3}')], 1))
    assert response.output_text == '{"score":3}' and response.usage is not None


@pytest.mark.parametrize(
    ("behaviour", "kind"),
    [
        ({"faults": {"refusal": 1.0}}, FailureKind.REFUSED),
        ({"faults": {"filtered": 1.0}}, FailureKind.FILTERED),
        ({"reasoning": 5000}, FailureKind.OUT_OF_TOKENS),
        ({"noise_429": 1.0}, FailureKind.RATE_LIMITED),
        ({"exhausted": True}, FailureKind.QUOTA_EXHAUSTED),
        ({"fail_5xx": 1.0}, FailureKind.SERVER),
    ],
)
async def test_a_failure_is_of_its_kind(behaviour, kind):
    async with account(**behaviour) as sim:
        assert (await failure_of(sim)).kind is kind


async def test_a_parameter_that_is_refused_is_named():
    async with account(refuses="reasoning.effort", refuses_as="openai") as sim:
        assert (await failure_of(sim, effort="high")).refused_params == ("effort",)


async def test_the_probabilities_of_the_scores_tokens_are_read():
    async with account(quality_noise=0.5) as sim:
        question = "SCALE: 1..5\nThe text has quality 0.5."
        reply = await reply_of(sim, chat(question, logprobs=True))
    assert b"".join(token.data for token in reply.tokens).decode() == reply.text
    assert any(len(token.chances) > 1 for token in reply.tokens)


@pytest.mark.parametrize("body", [
    b"[]", b"{}", b'{"output": {}}', b'{"output": []}', b'{"output": [{"type": "message"}]}',
    b'{"output": [{"type": "message", "content": [{"type": "output_text", "text": 3}]}]}',
    b'{"output": [{"type": "message", "content": [{"type": "output_text", "text": ""}]}], "incomplete_details": []}',
])  # fmt: skip
async def test_what_is_no_answer_is_malformed(body):
    provider = provider_of("http://localhost/v1")
    response = Reply(body)
    with pytest.raises(ProviderFailure) as raised:
        provider.read(response, chat(schema=SCHEMA))  # type: ignore[arg-type]
    assert raised.value.kind is FailureKind.MALFORMED
    await provider.close()


class Reply:
    """A response with status 200."""

    status_code, is_success, content_type = 200, True, "application/json"

    def __init__(self, content: bytes) -> None:
        self.content, self.headers = content, httpx2.Headers()


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ('provider = "anthropic"\nmodel = "m"\napi = "responses"', "api is for dialect 'openai'"),
        ('provider = "openai"\nmodel = "m"\napi = "responses"\nanswers_per_call = 2', "answers_per_call must be 1"),
        ('provider = "openai"\nmodel = "m"\napi = "responses"\nroad = "batch"', "road must be 'online'"),
        ('provider = "openai"\nmodel = "m"\napi = "completions"', "api must be one of chat, responses"),
        ('provider = "openai"\nmodel = "m"\nanswers_per_call = 0', "answers_per_call must be a whole number"),
        ('provider = "anthropic"\nmodel = "m"\nanswers_per_call = 2', "that API has no n"),
    ],
)
def test_what_the_api_does_not_have_is_refused(lines, message):
    with pytest.raises(PoolsError, match=message):
        Pools.parse(f"[pools.p]\n{lines}\n")
