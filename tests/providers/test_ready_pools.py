"""The pools of examples/providers.toml against their providers, by real clients over real HTTP: what each sends, and
what it makes of answers, errors, limits and filters. How the providers are is said in tests/providers/dialects.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dicast.app.pipeline.call_facts import outcome_of_failure, outcome_of_reply
from dicast.app.providers.base import FailureKind
from dicast.app.providers.openai import OpenAIProvider
from dicast.config.pools import Pools, PoolSpec
from tests.providers.conftest import KEY, SCHEMA, chat, failure_of
from tests.providers.dialects import FLAGGED, OF_ALL, PROVIDERS, REASONED, Server, refusal

POOLS = Pools.load(Path(__file__).parents[2] / "examples" / "providers.toml").pools
NAMES = tuple(PROVIDERS)
SEED = {"mistral": "random_seed"}
WITHOUT_SCHEMA = {"deepseek", "tgi"}
OWN_MACHINE = {"vllm", "tgi", "ollama"}
SAMPLE = {"temperature": 0.5, "effort": "low", "seed": 3, "service_tier": "priority"}
PROMPT = "> the text\nEND OF MATERIAL 0123456789abcdef\nSCALE: 3..5\nNONCE: 0123456789abcdef\nJudge."


def client(spec: PoolSpec, server: Server) -> OpenAIProvider:
    return OpenAIProvider(spec, api_key=KEY, base_url=server.base_url, timeout_s=10.0, max_response_bytes=100_000)


def asked(spec: PoolSpec, **params: Any) -> Any:
    """A request with all parameters that the pool does not say to lack."""
    known = {name: value for name, value in SAMPLE.items() if spec.field_of(name)}
    temperature = known.pop("temperature", None)
    return chat(PROMPT, model=spec.model, schema=SCHEMA, temperature=temperature, params={**known, **params})


def lenient(name: str) -> dict[str, Any]:
    """The provider, where it takes what it would refuse, so that an answer is seen."""
    manners = PROVIDERS[name]
    fields = {POOLS[name].field_of(parameter).partition(".")[0] for parameter in SAMPLE}
    return {"manners": manners._replace(takes=manners.takes | (fields if manners.unknown else set()))}


def test_all_are_there():
    assert tuple(POOLS) == NAMES


@pytest.mark.parametrize("name", NAMES)
async def test_a_ready_pool_sends_what_its_provider_takes(name):
    spec = POOLS[name]
    async with Server(**lenient(name)) as server:
        provider = client(spec, server)
        reply = await provider.complete(asked(spec, top_p=0.9) if "top_p" in spec.params else asked(spec))
        await provider.close()
    assert reply.text and reply.usage.output_tokens
    (body,), (heeded,) = server.bodies, server.heeded
    assert body == heeded, "nothing is left out without a word"
    sent = {parameter: value_at(body, spec.field_of(parameter)) for parameter in SAMPLE if spec.field_of(parameter)}
    assert sent == {parameter: SAMPLE[parameter] for parameter in sent}
    assert body["model"] == spec.model
    assert body["max_completion_tokens" if name == "azure" else "max_tokens"] == 200
    assert not {"max_completion_tokens", "max_tokens"} <= body.keys()
    assert ("random_seed" in body, "seed" in body) == (name == "mistral", name not in ("mistral", "deepseek"))
    assert ("response_format" in body) == reply.structured == (name not in WITHOUT_SCHEMA)
    assert body.get("provider") == ({"require_parameters": True} if name == "openrouter" else None)
    assert ("/deployments/DEPLOYMENT/" in server.paths[0]) == (name == "azure")


def value_at(body: Any, path: str) -> Any:
    for step in path.split("."):
        body = body.get(step) if isinstance(body, dict) else None
    return body


@pytest.mark.parametrize("name", NAMES)
async def test_an_unknown_parameter_is_told_from_those_that_were_sent_with_it(name):
    """Also where the error lists all parameters that there are. Whoever leaves it out says nothing: then what the pool
    sends must be known."""
    manners, spec = PROVIDERS[name], POOLS[name].model_copy(update={"params": ["top_p", "top_k"]})
    async with Server(**lenient(name)) as server:
        provider = client(spec, server)
        if manners.unknown:
            failure = await failure_of(provider, asked(spec, top_k=40))
            assert failure.refused_params == ("top_k",), failure.message
            assert (failure.kind, failure.status_code in (400, 422)) == (FailureKind.REJECTED, True)
        else:
            await provider.complete(asked(spec, top_k=40))
            left = server.bodies[0].keys() - server.heeded[0].keys()
            assert left == {"top_k"}, "a pool that allowed it would send it in vain"
        await provider.close()


@pytest.mark.parametrize("name", NAMES)
async def test_limits_are_read_as_the_provider_tells_them(name):
    budgets = {"budgets": "bucket:1/60+bucket:100000/60:tokens", "retry_after": True}
    async with Server(**lenient(name), **budgets) as server:
        provider = client(POOLS[name], server)
        reply = await provider.complete(asked(POOLS[name]))
        failure = await failure_of(provider, asked(POOLS[name]))
        await provider.close()
    told, refused = (
        outcome.readings for outcome in (outcome_of_reply(reply, "u", 1.7e9), outcome_of_failure(failure, "u", 1.7e9))
    )
    assert (failure.kind, told.unknown, refused.unknown) == (FailureKind.RATE_LIMITED, (), ())
    expected = {"silent": 0, "openrouter": 0}.get(PROVIDERS[name].told, 2)
    assert len(told.budgets) == expected
    assert len(refused.budgets) == (1 if name == "openrouter" else expected)
    assert all(reading.remaining == 0 for reading in refused.budgets if reading.unit == "requests")
    assert refused.retry_after_s is not None


@pytest.mark.parametrize("name", [name for name in NAMES if PROVIDERS[name].filtered])
async def test_a_filter_is_a_kind_of_its_own(name):
    async with Server(**lenient(name), filtered=True) as server:
        provider = client(POOLS[name], server)
        failure = await failure_of(provider, asked(POOLS[name]))
        await provider.close()
    assert (failure.kind, failure.refused_params) == (FailureKind.FILTERED, ())
    assert FLAGGED not in failure.message


@pytest.mark.parametrize("name", [name for name in NAMES if PROVIDERS[name].thinks])
async def test_reasoning_is_no_part_of_the_answer_and_is_counted(name):
    spec = POOLS[name]
    async with Server(**lenient(name)) as server:
        provider = client(spec, server)
        plain = await provider.complete(asked(spec))
        await provider.close()
    async with Server(**lenient(name), reasoning=REASONED) as server:
        provider = client(spec, server)
        reply = await provider.complete(asked(spec))
        await provider.close()
    assert json.loads(reply.text).keys() == json.loads(plain.text).keys()
    assert reply.usage.output_tokens == plain.usage.output_tokens + REASONED


@pytest.mark.parametrize("name", [name for name in NAMES if PROVIDERS[name].thinks])
async def test_reasoning_that_leaves_no_room_is_a_kind_of_its_own(name):
    async with Server(**lenient(name), reasoning=500) as server:
        provider = client(POOLS[name], server)
        failure = await failure_of(provider, asked(POOLS[name]))
        await provider.close()
    assert failure.kind is FailureKind.OUT_OF_TOKENS
    assert failure.usage.output_tokens == 200


@pytest.mark.parametrize("name", ["openrouter"])
async def test_an_error_of_the_models_provider_is_read_within_the_gateways(name):
    refuses = {"temperature": refusal("openrouter", "temperature")}
    async with Server(**lenient(name), refuses=refuses) as server:
        provider = client(POOLS[name], server)
        failure = await failure_of(provider, asked(POOLS[name]))
        await provider.close()
    assert failure.refused_params == ("temperature",)
    assert "Provider returned error: Unsupported value: 'temperature'" in failure.message


async def test_an_error_under_200_refuses_a_parameter_as_others_do():
    _, body = refusal("openrouter", "temperature")
    async with Server(**lenient("openrouter"), refuses={"temperature": (200, body)}) as server:
        provider = client(POOLS["openrouter"], server)
        failure = await failure_of(provider, asked(POOLS["openrouter"]))
        await provider.close()
    assert (failure.kind, failure.status_code) == (FailureKind.REJECTED, 400)
    assert failure.refused_params == ("temperature",)


@pytest.mark.parametrize("name", NAMES)
def test_keys_are_named_for_all_but_the_own_machine(name):
    spec = POOLS[name]
    assert (spec.api_key_env is None) == (name in OWN_MACHINE)
    assert str(spec.base_url).startswith("http:" if name in OWN_MACHINE else "https:")
    assert not spec.prompt_caching
    assert set(spec.params) <= OF_ALL
