"""The work that every contender is given: one job's units for Dicast, the very same chat completions for the others."""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from typing import Any

from dicast.app.domain.job import EvaluationJob
from dicast.app.domain.plan import Lane
from dicast.app.domain.prompt import single_prompt
from tests.e2e.cluster import a_job

MODEL = "gpt-4.1-mini"  # a name that every peer knows; the provider takes any
AGENTS, DIMENSIONS = 3, 10
UNITS_A_STEP = AGENTS * DIMENSIONS


def job(units: int, name: str) -> dict[str, Any]:
    """A job of so many units (a multiple of `UNITS_A_STEP`), each a call of its own."""
    if units % UNITS_A_STEP:
        raise ValueError(f"units must be a multiple of {UNITS_A_STEP}, got {units}")
    return a_job(AGENTS, DIMENSIONS, units // UNITS_A_STEP, id=name)


def calls(units: int) -> list[dict[str, Any]]:
    """What Dicast sends for that job: an id, the judged text, the criterion, and the body of the chat completion."""
    spec = EvaluationJob.model_validate(job(units, "bench"))
    lane = Lane(("",), tuple(range(AGENTS)), DIMENSIONS, 1, False)
    made = []
    items = spec.items
    assert isinstance(items, list)
    for position in range(units):
        unit = lane.unit(position)
        item, agent, dimension = items[unit.item], spec.agents[unit.agent], spec.dimensions[unit.dimension]
        prompt = single_prompt(agent, dimension, item, secrets.token_hex(8), structured=True)
        schema = {"name": "opinion", "strict": True, "schema": prompt.schema}
        body = {
            "model": MODEL,
            "messages": [{"role": "system", "content": prompt.system}, {"role": "user", "content": prompt.user}],
            "max_completion_tokens": prompt.max_tokens,
            "response_format": {"type": "json_schema", "json_schema": schema},
        }
        made.append({"id": str(position), "text": item.text, "criterion": dimension.instructions, "body": body})
    return made


def write_calls(path: Path, units: int) -> None:
    path.write_text("".join(json.dumps(call) + "\n" for call in calls(units)))
