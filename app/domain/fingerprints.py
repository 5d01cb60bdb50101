"""Digests of what a score depends on besides the item: the judge, the model, and the prompt.

A dimension's own digest is `Dimension.rubric`. Equal digests mean equal wording; a different digest means that scores
may not be comparable, which a calibration has to know.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from pydantic_core import to_json

from dicast.app.domain.dimension import Dimension
from dicast.app.domain.item import Item, JudgedKind, VisibleOpinion
from dicast.app.domain.job import EvaluationJob
from dicast.app.domain.panel import Agent
from dicast.app.domain.prompt import batch_prompt, single_prompt

_CODE = "5f0c2a9be1d47783"
_SAMPLE_DIMENSION = Dimension(
    id="criterion", name="Criterion", instructions="Is it so?", levels={1: "no"}, examples={1: ["no"]}
)
_COMMON: dict[str, Any] = {"id": "item", "prompt": "A task.", "reference": "A reference."}
_TALK = [{"role": "user", "content": "A question."}, {"role": "assistant", "content": "An answer."}]
_SAMPLE_FIELDS: dict[JudgedKind, dict[str, Any]] = {
    "text": {"text": "A text."},
    "pair": {"text_a": "A text.", "text_b": "Another."},
    "last_answer": {"messages": _TALK, "judged": "last_answer"},
    "conversation": {"messages": _TALK, "judged": "conversation"},
}
_SAMPLE_OPINIONS = [VisibleOpinion(round=0, criterion="criterion", judge=1, said="1", argument="So.")]
_PICTURE = {"images": [{"image": "https://example.org/image.png", "description": "An image."}]}


def digest(value: Any) -> str:
    """Return 16 hexadecimal digits, equal for equal plain data."""
    return hashlib.sha256(to_json(value)).hexdigest()[:16]


def judge_digest(agent: Agent) -> str:
    """Return the digest of what defines a judge besides its model: name, persona, temperature, what further
    parameters it has, and where its scores come from unless that is the answer."""
    more = agent.parameters(0)
    scores = [] if agent.score_from == "answer" else [agent.score_from]
    return digest([agent.name, agent.persona, agent.temperature, *([more] if more else []), *scores])


def model_digest(model: str) -> str:
    """Return the digest of the models that a judge is called on, as `ReportAgent.model` names them."""
    return digest(model)


def panel_digest(judges: Sequence[str], rule: Any) -> str:
    """Return the digest of a whole panel: its judges' digests in order, and how their scores are combined."""
    return digest([list(judges), rule])


def prompt_digest(job: EvaluationJob) -> str:
    """Return the digest of the prompts that this version of Dicast sends to a judge of this job for items of its kinds,
    without rubric and persona, which have digests of their own."""
    judge = job.agents[0].model_copy(update={"persona": "", "max_tokens": 1024})
    wordings = [wording for item in _sample_items(job) for wording in _wordings(judge, item)]
    return digest([*wordings, *_templates(job)])


@cache
def wording_digest(kind: JudgedKind, *, has_images: bool, has_opinions: bool) -> str:
    """Return the digest of the words that this version of Dicast puts around an item of this kind, with images or a
    chief's opinions or without."""
    fields = {**_COMMON, **_SAMPLE_FIELDS[kind], **(_PICTURE if has_images else {})}
    item = Item.model_validate(fields).model_copy(update={"opinions": _SAMPLE_OPINIONS if has_opinions else None})
    return digest(_wordings(Agent(name="judge"), item))


def _wordings(judge: Agent, item: Item) -> list[Any]:
    single = single_prompt(judge, _SAMPLE_DIMENSION, item, _CODE, structured=True)
    prompts = single, batch_prompt(judge, [_SAMPLE_DIMENSION], item, _CODE)
    return [[prompt.system, prompt.user, prompt.schema] for prompt in prompts]


def template_digest(job: EvaluationJob) -> str:
    """Return the digest of the templates by which this job's judges are shown the material; '' without any."""
    templates = _templates(job)
    return digest(templates) if templates else ""


def _templates(job: EvaluationJob) -> list[Any]:
    """Return the job's template, and those of its judges and dimensions by name."""
    agents = {agent.name: agent.template for agent in job.agents if agent.template is not None}
    dimensions = {d.id: d.template for d in job.dimensions if d.template is not None}
    if agents or dimensions:
        return [job.template, agents, dimensions]
    return [] if job.template is None else [job.template]


def _sample_items(job: EvaluationJob) -> Iterator[Item]:
    """Yield an item of each kind that the job has, with an image as well if its items have images, and each as a chief
    is shown it if there is one."""
    for kind in job.item_kinds or ["text"]:
        for pictures in [{}] if job.item_images == "none" else [{}, _PICTURE]:
            item = Item.model_validate({**_COMMON, **_SAMPLE_FIELDS[kind], **pictures})
            yield item
            if job.chief:
                yield item.model_copy(update={"opinions": _SAMPLE_OPINIONS})
