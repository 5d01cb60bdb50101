"""Families of models, each with its pool, and parameters: each is sent, refused or dropped aloud, never lost.

How their providers are is said in tests/providers/dialects.py, by whom, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from dicast.app import logs
from dicast.app.application import create_app
from dicast.app.domain.panel import Agent
from dicast.app.domain.refusals import JobRefused
from dicast.app.ledger.troubles import StopStore
from dicast.app.providers.anthropic import AnthropicProvider
from dicast.app.providers.openai import OpenAIProvider
from dicast.config.pools import Pools, PoolSpec
from tests.command import JOB
from tests.ledger.bench import KEYS, a_job
from tests.providers.conftest import KEY
from tests.providers.dialects import PROVIDERS, Manners, Server, refusal

EXAMPLES = Path(__file__).parents[2] / "examples" / "providers.toml"
CLAUDE = """
[pools.claude]
provider = "anthropic"
model = "claude"
params = ["top_p", "stop"]
param_names = { stop = "stop_sequences" }
"""
POOLS = {**Pools.load(EXAMPLES).pools, **Pools.parse(CLAUDE).pools}
OF_ANTHROPIC = Manners(
    frozenset({
        "model", "messages", "system", "max_tokens", "temperature", "top_p", "top_k", "stop_sequences", "service_tier",
        "output_config", "thinking",
    }),
    "anthropic",
)  # fmt: skip
ASKED: Mapping[str, Any] = {
    "temperature": 0.2, "max_tokens": 300, "effort": "low", "seed": 7, "service_tier": "priority",
    "response_format": None, "top_p": 0.9, "stop": ["###"],
}  # fmt: skip
SENT, DROPPED, REFUSED, NOT_TAKEN, IN_WORDS = "sent", "dropped", "refused", "not taken", "in words"
"""What becomes of a parameter: it reaches the model; the model is asked without it, which log and report say; the unit
ends with the provider's error; the job is refused; or the pool says that schemas are put in words."""


class Family(NamedTuple):
    """Models of one pool that have the same parameters. `refuses` are those that the models refuse beside those that
    their provider does not know. `outcomes` are those of parameters that are not just sent."""

    pool: str
    outcomes: Mapping[str, str]
    refuses: Mapping[str, tuple[int, Any]] = {}
    unheeded: frozenset[str] = frozenset()
    structured: bool = True

    @property
    def spec(self) -> PoolSpec:
        spec = POOLS[self.pool]
        return spec if self.structured else spec.model_copy(update={"structured_output": False})


def each(style: str, *fields: str) -> dict[str, tuple[int, Any]]:
    return {field: refusal(style, field) for field in fields}


_NO_ENDPOINT = {"error": {"message": "No endpoints found that can handle the requested parameters.", "code": 404}}
_NO_THOUGHT = {"error": {"message": '"llama3.2" does not support thinking', "type": "api_error", "param": None}}
_TIERS = {"type": "invalid_request_error", "message": "service_tier: Input should be 'auto' or 'standard_only'"}
_OLD = {"type": "invalid_request_error", "message": "`temperature` is deprecated for this model."}
_STOP = {"code": "Client specified an invalid argument", "error": "Argument not supported on this model: stop"}
FAMILIES = {
    "gpt-4.1 at Azure": Family("azure", {"effort": DROPPED}, each("argument", "reasoning_effort")),
    "gpt-5 at Azure": Family(
        "azure", dict.fromkeys(["temperature", "top_p", "stop"], DROPPED),
        each("openai", "temperature", "top_p", "stop"),
    ),
    "gemini": Family("gemini", {"seed": DROPPED, "service_tier": DROPPED}),
    "gemini at Vertex": Family("vertex", {"seed": DROPPED, "service_tier": DROPPED}),
    "mistral": Family("mistral", {"effort": DROPPED, "service_tier": DROPPED}),
    "gpt-oss at Groq": Family("groq", {}),
    "llama at Groq": Family(
        "groq", {"effort": DROPPED, "response_format": IN_WORDS}, each("groq", "reasoning_effort"), structured=False
    ),
    "llama at Together": Family("together", {"effort": DROPPED, "service_tier": DROPPED}),
    "gpt-5 at OpenRouter": Family(
        "openrouter", {"temperature": DROPPED, "top_p": DROPPED}, each("openrouter", "temperature", "top_p")
    ),
    "claude at OpenRouter": Family(
        "openrouter", {"seed": REFUSED, "service_tier": REFUSED},
        dict.fromkeys(["seed", "service_tier"], (404, _NO_ENDPOINT)),
    ),
    "deepseek": Family(
        "deepseek",
        {
            **dict.fromkeys(["temperature", "seed", "service_tier", "top_p"], NOT_TAKEN),
            "response_format": IN_WORDS,
        },
        unheeded=frozenset({"temperature", "top_p"}),
    ),
    "grok": Family(
        "xai", dict.fromkeys(["effort", "service_tier", "stop"], DROPPED),
        {**each("xai", "reasoning_effort"), "stop": (400, _STOP)},
    ),
    "gpt-oss at Bedrock": Family("bedrock", {}),
    "claude 4": Family(
        "claude", {"seed": DROPPED, "service_tier": REFUSED},
        {"service_tier": (400, {"type": "error", "error": _TIERS})},
    ),
    "claude 5": Family("claude", {"seed": DROPPED, "temperature": DROPPED}, {
        "temperature": (400, {"type": "error", "error": _OLD})
    }),
    "qwen at vLLM": Family("vllm", {"effort": NOT_TAKEN, "service_tier": NOT_TAKEN}),
    "llama at TGI": Family(
        "tgi", {"effort": NOT_TAKEN, "service_tier": NOT_TAKEN, "response_format": IN_WORDS}
    ),
    "llama at Ollama": Family(
        "ollama", {"effort": REFUSED, "service_tier": NOT_TAKEN}, {"reasoning_effort": (400, _NO_THOUGHT)}
    ),
}  # fmt: skip


def agent_of(parameter: str, **more: Any) -> Agent:
    value = ASKED[parameter]
    own = {"params": {parameter: value}} if parameter in ("top_p", "stop") else {parameter: value}
    return Agent.model_validate({"name": "a", **more, **({} if parameter == "response_format" else own)})


def value_at(body: Any, path: str) -> Any:
    for step in path.split("."):
        body = body.get(step) if isinstance(body, dict) else None
    return body


def field_of(spec: PoolSpec, parameter: str) -> str:
    if parameter == "response_format":
        return "output_config.format" if spec.dialect == "anthropic" else parameter
    return spec.max_tokens_field if parameter == "max_tokens" else spec.field_of(parameter)


@pytest.fixture
def dropped_lines(monkeypatch):
    lines: list[dict[str, Any]] = []
    monkeypatch.setattr(logs, "parameter_dropped", lambda **line: lines.append(line))
    return lines


@pytest.fixture
def taken(environ, tmp_path):
    """Whether a job is taken whose judge is this one."""
    path = tmp_path / "ready.toml"
    path.write_text(EXAMPLES.read_text() + CLAUDE)
    app = create_app({**environ, "DICAST_POOLS_FILE": str(path)})

    def is_taken(agent: Agent) -> bool:
        try:
            app.prepared({**JOB, "agents": [agent.model_dump(exclude_defaults=True)]})
        except JobRefused as refused:
            assert f"pool {agent.pool!r}" in str(refused) and ", got " in str(refused)
            return False
        return True

    yield is_taken
    app.close()


@pytest.mark.parametrize("parameter", list(ASKED))
@pytest.mark.parametrize("family", list(FAMILIES))
async def test_no_parameter_is_lost_in_silence(bench, desk, dropped_lines, taken, family, parameter):
    of = FAMILIES[family]
    spec, outcome = of.spec, of.outcomes.get(parameter, SENT)
    if not taken(agent_of(parameter, pool=spec.name)):
        assert outcome == NOT_TAKEN
        return
    manners = OF_ANTHROPIC if of.pool == "claude" else PROVIDERS[of.pool]
    build: Any = AnthropicProvider if spec.dialect == "anthropic" else OpenAIProvider
    async with Server(manners, refuses=of.refuses, unheeded=of.unheeded) as server:
        job = a_job(items=2, dimensions=1).model_copy(update={"agents": [agent_of(parameter, model="judge")]})
        ref = await bench.started(job, units=2)
        judge = desk(build(spec, api_key=KEY, base_url=server.base_url, timeout_s=10.0, max_response_bytes=100_000))
        await judge.again(ref, 0, 2 if outcome == DROPPED else 1)
        await judge.provider.close()
        told = await StopStore(bench.asyncs, KEYS).dropped(await judge.job(ref))
        result = (await judge.results(ref))[0]
    field = field_of(spec, parameter)
    sent, heeded = ([value_at(body, field) for body in bodies] for bodies in (server.bodies, server.heeded))
    asked = sent[0] if parameter == "response_format" else ASKED[parameter]
    names = [parameter] if outcome == DROPPED else []
    assert [dropped.name for dropped in told] == [line["parameter"] for line in dropped_lines] == names
    assert result.get("error", {}).get("kind") == ("rejected" if outcome == REFUSED else None), result
    if outcome == DROPPED:
        assert (sent, heeded) == ([asked, None], [None])
        assert f"without {parameter}" in told[0].reason
    elif outcome == SENT:
        assert asked is not None and sent == heeded == [asked]
    elif outcome == IN_WORDS:
        assert sent == [None] and not spec.structured_output
    else:
        assert (outcome, sent, heeded) == (REFUSED, [asked], [])
    assert bench.client.status("j").counters["retries"] == 0


def test_the_table_has_families_enough():
    assert len(FAMILIES) >= 12 and len(ASKED) >= 8
    assert {family.pool for family in FAMILIES.values()} == set(POOLS)


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ("response_format", "This model does not support response format `json_schema`."),
        ("max_tokens", "Unsupported parameter: 'max_tokens' is not supported with this model. "
                       "Use 'max_completion_tokens' instead."),
    ],
)  # fmt: skip
async def test_what_each_call_needs_is_never_left_out(bench, desk, dropped_lines, field, words):
    """A model that refuses it ends the unit, with the provider's words."""
    error = {"error": {"message": words, "type": "invalid_request_error", "param": field, "code": "unsupported"}}
    async with Server(PROVIDERS["groq"], refuses={field: (400, error)}) as server:
        job = a_job(items=2, dimensions=1).model_copy(update={"agents": [agent_of("temperature", model="judge")]})
        ref = await bench.started(job, units=2)
        judge = desk(OpenAIProvider(
            POOLS["groq"], api_key=KEY, base_url=server.base_url, timeout_s=10.0, max_response_bytes=100_000
        ))  # fmt: skip
        await judge.do(ref, 0)
        await judge.provider.close()
    found = (await judge.results(ref))[0]["error"]
    assert (found["kind"], found["calls"], dropped_lines) == ("rejected", 1, [])
    assert words[:40] in found["message"]
