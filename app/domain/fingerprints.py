"""Digests of what a score depends on beside the item: who judged, on which model, and how it was asked.

A dimension's own digest is `Dimension.rubric`. Equal digests mean equal wording; another one says that scores may be
of another kind, as a calibration has to know.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from pydantic_core import to_json

from dicast.app.domain.dimension import Dimension
from dicast.app.domain.item import Item
from dicast.app.domain.job import Agent, EvaluationJob
from dicast.app.domain.prompt import batch_prompt, single_prompt

_CODE = "5f0c2a9be1d47783"
_ASKED = Dimension(id="criterion", name="Criterion", instructions="Is it so?", levels={1: "no"}, examples={1: ["no"]})
_SHOWN = Item(id="item", text="A text.", prompt="A task.", reference="A reference.")


def digest(value: Any) -> str:
    """16 hexadecimal digits, equal for equal plain data."""
    return hashlib.sha256(to_json(value)).hexdigest()[:16]


def judge_digest(agent: Agent) -> str:
    """Of what makes a judge beside his model: name, persona and temperature."""
    return digest([agent.name, agent.persona, agent.temperature])


def model_digest(model: str) -> str:
    """Of the models that a judge is asked on, as `ReportAgent.model` names them."""
    return digest(model)


def panel_digest(judges: Sequence[str], rule: Any) -> str:
    """Of a whole panel: its judges' digests in their order, and how their scores become one."""
    return digest([list(judges), rule])


def prompt_digest(job: EvaluationJob) -> str:
    """Of the words in which this version of Dicast asks a judge of this job, without rubric and persona, which have
    digests of their own."""
    asked = job.agents[0].model_copy(update={"persona": "", "max_tokens": 1024})
    prompts = [
        single_prompt(asked, _ASKED, _SHOWN, _CODE, structured=True),
        batch_prompt(asked, [_ASKED], _SHOWN, _CODE),
    ]
    told: list[Any] = [[prompt.system, prompt.user, prompt.schema] for prompt in prompts]
    return digest(told if job.template is None else [*told, job.template])
