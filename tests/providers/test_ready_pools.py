"""The pools of examples/providers.toml: each can be used as it is, and sends what its provider is said to expect."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dicast.app.providers.openai import OpenAIProvider
from dicast.config.pools import Pools
from lab.provider import SimulatedAccount
from tests.providers.conftest import KEY, SCHEMA, chat

POOLS = Pools.load(Path(__file__).parents[2] / "examples" / "providers.toml").pools
NAMES = (
    "azure", "gemini", "mistral", "groq", "together", "openrouter", "deepseek", "xai", "bedrock", "vertex", "vllm",
    "tgi", "ollama",
)  # fmt: skip
SEED = {"mistral": "random_seed"}
WITHOUT_SCHEMA = {"deepseek", "tgi"}
OWN_MACHINE = {"vllm", "tgi", "ollama"}


class Kept(SimulatedAccount):
    """Keeps the requests' paths and bodies."""

    async def serve(self, request: Any, wire: Any, call: Any) -> Any:
        self.path, self.body = request.path, call.body
        return await super().serve(request, wire, call)


def test_all_are_there():
    assert tuple(POOLS) == NAMES


@pytest.mark.parametrize("name", NAMES)
async def test_a_ready_pool_speaks_to_its_provider(name):
    spec = POOLS[name]
    asked = chat(model=spec.model, schema=SCHEMA, temperature=0.5, params={"effort": "low", "seed": 3})
    async with Kept() as sim:
        provider = OpenAIProvider(
            spec, api_key=KEY, base_url=sim.base_url, timeout_s=10.0, max_response_bytes=100_000
        )  # fmt: skip
        reply = await provider.complete(asked)
        await provider.close()
    assert reply.text and reply.usage.output_tokens
    body = sim.body
    assert (body["model"], body["temperature"]) == (spec.model, 0.5)
    assert body[SEED.get(name, "seed")] == 3
    assert (body.get("reasoning", {}).get("effort") if name == "openrouter" else body["reasoning_effort"]) == "low"
    assert body["max_completion_tokens" if name == "azure" else "max_tokens"] == 200
    assert ("response_format" in body) == reply.structured == (name not in WITHOUT_SCHEMA)
    assert ("/deployments/DEPLOYMENT/" in sim.path) == (name == "azure")


@pytest.mark.parametrize("name", NAMES)
def test_keys_are_named_for_all_but_the_own_machine(name):
    spec = POOLS[name]
    assert (spec.api_key_env is None) == (name in OWN_MACHINE)
    assert str(spec.base_url).startswith("http:" if name in OWN_MACHINE else "https:")
    assert not spec.prompt_caching
