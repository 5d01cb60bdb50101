"""Parameters that models refuse in jobs that are strict, those that pools do not allow, and what parameters mean to
questions; what else becomes of them is in tests/judge/test_families.py."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple

import pytest

from dicast.app import logs
from dicast.app.domain.material import question_digest
from dicast.app.domain.panel import Agent, Deployment
from dicast.app.pipeline.pools import ServedPools
from dicast.config.pools import Pools, PoolsError
from lab.provider import Behaviour, SimulatedAccount, SimulatedConfig
from tests.ledger.bench import a_job
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
    "gpt-5": Family({"temperature", "top_p"}, "openai"),
    "claude": Family({"seed", "temperature", "top_p"}, "anthropic", "anthropic"),
    "mistral": Family({"effort", "service_tier"}, "mistral", names={"seed": "random_seed"}),
}


def account(family: Family, names: set[str]) -> SimulatedAccount:
    refuses = ",".join(family.fields[name] for name in sorted(names))
    return SimulatedAccount(
        SimulatedConfig(behaviour=Behaviour().changed({"refuses": refuses, "refuses_as": family.style}))
    )


def judge_of(sim: SimulatedAccount, family: Family, desk: Any) -> Any:
    return desk(make(family.dialect, sim.base_url, params=["top_p"], param_names=dict(family.names)))


def job_of(name: str, **more: Any) -> Any:
    own = {name: ASKED[name]} if name != "top_p" else {"params": {"top_p": ASKED["top_p"]}}
    return a_job(items=3, dimensions=1, **more).model_copy(update={"agents": [Agent(name="a", model="judge", **own)]})


@pytest.fixture
def dropped_lines(monkeypatch):
    lines: list[dict[str, Any]] = []
    monkeypatch.setattr(logs, "parameter_dropped", lambda **line: lines.append(line))
    return lines


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
    """Also where the worker's pools file is another than that of whoever has submitted the job."""
    async with account(FAMILIES["gpt-5"], set()) as sim:
        ref = await bench.started(job_of("top_p"), units=3)
        judge = desk(make("openai", sim.base_url))
        await judge.do(ref, 0)
        await judge.provider.close()
        assert sim.stats()["calls"] == 0
    error = (await judge.results(ref))[0]["error"]
    assert error["kind"] == "rejected"
    assert "'top_p'" in error["message"]


async def test_a_parameter_that_the_provider_lacks_is_not_sent(bench, desk):
    async with account(FAMILIES["gpt-5"], set()) as sim:
        ref = await bench.started(job_of("seed"), units=3)
        judge = desk(make("openai", sim.base_url, param_names={"seed": ""}))
        await judge.do(ref, 0)
        await judge.provider.close()
        assert sim.stats()["calls"] == 0
    error = (await judge.results(ref))[0]["error"]
    assert (error["kind"], "has no parameter 'seed'" in error["message"]) == ("rejected", True)


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


@pytest.mark.parametrize("line", ['effort = "low"', 'param_names = { seed = "random_seed" }', "body = { top_k = 4 }"])
def test_what_a_pool_adds_to_its_calls_makes_other_questions(line):
    """So that an opinion that is remembered was given to the same request."""
    table = '[pools.p]\nprovider = "openai"\nmodel = "m"\n'
    asked = [
        ServedPools(SimpleNamespace(pools=Pools.parse(text))).asked_at(Deployment())  # type: ignore[arg-type]
        for text in (table, table + line)
    ]
    assert asked[0] != asked[1]
