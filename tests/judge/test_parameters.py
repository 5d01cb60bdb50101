"""Parameters that models refuse: left out once and told, or an error where the job is strict; never silently."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest

from dicast.app import logs
from dicast.app.domain.nonce import question_digest
from dicast.app.domain.panel import Agent
from dicast.app.ledger.troubles import StopStore
from dicast.config.pools import Pools, PoolsError
from lab.provider import Behaviour, SimulatedAccount, SimulatedConfig
from tests.ledger.bench import KEYS, a_job
from tests.providers.conftest import make

ASKED = {"temperature": 0.2, "effort": "low", "seed": 7, "service_tier": "priority", "top_p": 0.9}
FIELDS = {name: name for name in ASKED}
OF_OPENAI = {**FIELDS, "effort": "reasoning_effort"}
OF_ANTHROPIC = {**FIELDS, "effort": "output_config.effort"}


class Family(NamedTuple):
    """Models that have the same parameters. `names` are what its pool says that it calls them."""

    refuses: set[str]
    style: str
    dialect: str = "openai"
    names: Mapping[str, str] = MappingProxyType({})

    @property
    def fields(self) -> dict[str, str]:
        return {**(OF_OPENAI if self.dialect == "openai" else OF_ANTHROPIC), **self.names}


FAMILIES = {
    "gpt-4.1": Family({"effort"}, "openai"),
    "gpt-5": Family({"temperature", "top_p"}, "openai"),
    "azure o4": Family({"temperature", "top_p", "service_tier"}, "openai"),
    "claude": Family({"seed", "temperature", "top_p"}, "anthropic", "anthropic"),
    "gemini": Family({"seed", "service_tier"}, "gemini"),
    "mistral": Family({"effort", "service_tier"}, "mistral", names={"seed": "random_seed"}),
    "groq": Family({"effort"}, "groq"),
    "grok": Family({"effort", "service_tier"}, "xai"),
    "together": Family({"effort", "service_tier"}, "openai"),
    "openrouter": Family({"temperature"}, "openai", names={"effort": "reasoning.effort"}),
    "bedrock": Family({"seed", "service_tier"}, "bedrock"),
    "vllm": Family({"service_tier"}, "fastapi"),
    "tgi": Family({"effort", "service_tier"}, "tgi"),
}


def value_at(body: Any, path: str) -> Any:
    for step in path.split("."):
        body = body.get(step) if isinstance(body, dict) else None
    return body


class Kept(SimulatedAccount):
    """Keeps the bodies of requests."""

    async def serve(self, request: Any, wire: Any, call: Any) -> Any:
        self.bodies = [*getattr(self, "bodies", []), call.body]
        return await super().serve(request, wire, call)


def account(family: Family, names: set[str]) -> Kept:
    refuses = ",".join(family.fields[name] for name in sorted(names))
    return Kept(SimulatedConfig(behaviour=Behaviour().changed({"refuses": refuses, "refuses_as": family.style})))


def judge_of(sim: Kept, family: Family, desk: Any) -> Any:
    return desk(make(family.dialect, sim.base_url, params=["top_p"], param_names=dict(family.names)))


def job_of(name: str, **more: Any) -> Any:
    own = {name: ASKED[name]} if name != "top_p" else {"params": {"top_p": ASKED["top_p"]}}
    return a_job(items=3, dimensions=1, **more).model_copy(update={"agents": [Agent(name="a", model="judge", **own)]})


@pytest.fixture
def dropped_lines(monkeypatch):
    lines: list[dict[str, Any]] = []
    monkeypatch.setattr(logs, "parameter_dropped", lambda **line: lines.append(line))
    return lines


@pytest.mark.parametrize("name", list(ASKED))
@pytest.mark.parametrize("family", list(FAMILIES))
async def test_no_parameter_changes_silently(bench, desk, dropped_lines, family, name):
    """Of each family: a parameter reaches the model, or is refused once for the job, told and then left out."""
    of = FAMILIES[family]
    async with account(of, of.refuses) as sim:
        ref = await bench.started(job_of(name), units=3)
        judge = judge_of(sim, of, desk)
        await judge.again(ref, 0, 2 if name in of.refuses else 1)
        await judge.do(ref, 1)
        sent = [value_at(body, of.fields[name]) for body in sim.bodies]
        await judge.provider.close()
        job = await judge.job(ref)
    told = await StopStore(bench.asyncs, KEYS).dropped(job)
    if name in of.refuses:
        assert sent == [ASKED[name], None, None]
        assert [(parameter.pool, parameter.model, parameter.name) for parameter in told] == [("p", "judge", name)]
        assert [line["parameter"] for line in dropped_lines] == [name]
        assert f"without {name}" in told[0].reason
    else:
        assert sent == [ASKED[name]] * 2
        assert (told, dropped_lines) == ([], [])
    counters = bench.client.status("j").counters
    assert (counters["scored"], counters["retries"]) == (2, 0)


@pytest.mark.parametrize("family", ["gpt-5", "claude", "mistral"])
async def test_a_strict_job_ends_such_units(bench, desk, dropped_lines, family):
    of = FAMILIES[family]
    name = sorted(of.refuses)[0]
    async with account(of, of.refuses) as sim:
        ref = await bench.started(job_of(name, strict_params=True), units=3)
        judge = judge_of(sim, of, desk)
        await judge.do(ref, 0)
        await judge.provider.close()
    error = (await judge.results(ref))[0]["error"]
    assert (error["kind"], error["calls"], dropped_lines) == ("rejected", 1, [])


async def test_a_parameter_that_the_pool_does_not_allow_is_not_sent(bench, desk):
    async with account(FAMILIES["gpt-5"], set()) as sim:
        ref = await bench.started(job_of("top_p"), units=3)
        judge = desk(make("openai", sim.base_url))
        await judge.do(ref, 0)
        await judge.provider.close()
        assert sim.stats()["calls"] == 0
    error = (await judge.results(ref))[0]["error"]
    assert error["kind"] == "rejected"
    assert "'top_p'" in error["message"]


def test_each_replicate_has_a_seed_of_its_own():
    assert [Agent(name="a", seed=7).parameters(replicate)["seed"] for replicate in range(3)] == [7, 8, 9]


def test_parameters_count_for_what_is_asked_and_their_absence_changes_nothing():
    job = a_job(items=1, dimensions=1)
    ask = [question_digest(agent, job.dimensions, job.items[0], 0) for agent in (
        Agent(name="a"), Agent(name="a", seed=1), Agent(name="a", effort="low"), Agent(name="a", params={"top_p": 1}),
    )]  # fmt: skip
    assert len(set(ask)) == 4
    assert "effort" not in json.loads(Agent(name="a").model_dump_json(exclude=Agent(name="a").unset))


def test_a_pool_says_what_its_calls_are_asked_with():
    text = """
        [pools.p]
        provider = "openai"
        model = "m"
        effort = "low"
        service_tier = "priority"
        params = ["top_p"]
        param_names = { seed = "random_seed" }
    """
    pools = Pools.parse(text)
    assert Pools.parse(pools.to_toml()) == pools
    assert (pools.get("p").effort, pools.get("p").params) == ("low", ["top_p"])
    with pytest.raises(PoolsError, match="road"):
        Pools.parse(text.replace("priority", "flex"))
