"""What the simulated provider answers to each question of a job, worked out beside it: its answers follow from the
question alone, so an opinion that differs is the answer to another."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dicast.app.domain.dimension import Dimension
from dicast.app.domain.item import Item
from dicast.app.domain.panel import Agent
from dicast.app.domain.prompt import single_prompt
from dicast.app.providers.simulated import SimulatedJudge
from lab.provider import SimulatedConfig

MODEL = "simulated-judge"
_NONCE = "0" * 16


def foreign(job: Mapping[str, Any], opinions: Iterable[Mapping[str, Any]]) -> list[str]:
    """The scored opinions of a job, asked one by one, that are not what the provider says to their questions."""
    agents = {agent["name"]: Agent.model_validate(agent) for agent in job["agents"]}
    dimensions = {dimension["id"]: Dimension.model_validate(dimension) for dimension in job["dimensions"]}
    items = {item["id"]: Item.model_validate(item) for item in job["items"]}
    found = []
    for told in opinions:
        judge, criterion, item = told["judge"], told["criterion_id"], told["item_id"]
        if told["score"] is None or item not in items:
            continue
        if (told["score"], told["argument"]) != answer(agents[judge], dimensions[criterion], items[item]):
            found.append(f"{judge}, {criterion}, {item}")
    return found


def answer(agent: Agent, dimension: Dimension, item: Item) -> tuple[int, str]:
    """The score and the argument that the provider gives."""
    config = SimulatedConfig()
    prompt = single_prompt(agent, dimension, item, _NONCE, structured=True)
    assert prompt.schema is not None
    judge = SimulatedJudge(config.seed, MODEL, f"{prompt.system}\n{prompt.user}", config.behaviour.answer_chars)
    answer = judge.instance(prompt.schema)
    return answer["score"], answer["argument"].strip()
