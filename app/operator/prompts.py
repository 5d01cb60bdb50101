"""Prompts as judges are sent them, made without a call: the first of a job, and those of a finished one.

A prompt made here holds another nonce than the one that was sent, unless its secret is given.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dicast.app import datasets
from dicast.app.domain.arrangement import arrangement_of
from dicast.app.domain.dimension import Dimension
from dicast.app.domain.item import Item, ItemSource
from dicast.app.domain.job import EvaluationJob
from dicast.app.domain.material import nonce_for
from dicast.app.domain.panel import Agent
from dicast.app.domain.prompt import Prompt, batch_prompt, single_prompt
from dicast.app.ledger.client import UnknownJob
from dicast.app.operator.rating import FORGOTTEN
from dicast.app.submission.rendering import shared
from dicast.app.submission.submit import Prepared
from dicast.errors import DicastError

if TYPE_CHECKING:
    from dicast.app.application import Dicast


class NoPrompt(DicastError, LookupError):
    """A prompt cannot be made anew; the message says why."""

    problem = "not-found"


@dataclass(frozen=True, slots=True)
class ShownPrompt:
    """The prompt of one call: about which item and dimensions, and which judge is asked."""

    item: str
    agent: str
    dimensions: list[str]
    prompt: Prompt


def first_unit(dicast: Dicast, ready: Prepared, key: bytes | None = None) -> ShownPrompt:
    """Return the prompt of a job's first call. Only the nonce differs from what will be sent, unless its secret is
    `key`."""
    job, lane = ready.job, ready.lanes[0]
    unit = lane.unit(0)
    source = job.items
    first = datasets.read_page(source, None, 1)[0][0] if isinstance(source, ItemSource) else source[0]
    item = next(arrangement_of(job).expanded(iter([first.without(job.rating_columns)])))
    dimensions = job.dimensions if lane.batched else [job.dimensions[unit.dimension]]
    replicates = list(dict.fromkeys(lane.unit(position).replicate for position in lane.group_of(0)))
    return _prompt(dicast, job, job.agents[unit.agent], dimensions, item, key, replicates, batched=lane.batched)


def prompt_of(dicast: Dicast, job_id: str, item: Item, judge: str, dimension: str) -> ShownPrompt:
    """Return the prompt with which a judge of a finished job was asked about an item and a dimension, with a nonce that
    is drawn anew. Raises `NoPrompt`."""
    try:
        job, _ = dicast.ledger.submitted_job(job_id)
    except UnknownJob:
        raise NoPrompt(FORGOTTEN) from None
    agent = next((agent for agent in job.agents if agent.name == judge), None)
    chosen = next((entry for entry in job.dimensions if entry.id == dimension), None)
    if agent is None or chosen is None:
        raise NoPrompt("the job has no such judge or dimension")
    if job.chief == judge:
        raise NoPrompt("a panel's chief is shown the others' opinions, and its prompt is not kept")
    if item.candidates is not None:
        raise NoPrompt("of a list, each pair is a prompt of its own")
    try:
        return _prompt(dicast, job, agent, [chosen], item.without(job.rating_columns), None, [0], batched=False)
    except DicastError as error:
        raise NoPrompt(str(error)) from None


def _prompt(
    dicast: Dicast, job: EvaluationJob, agent: Agent, dimensions: Sequence[Dimension], item: Item, key: bytes | None,
    replicates: Sequence[int], *, batched: bool,
) -> ShownPrompt:  # fmt: skip
    dimensions = [dimension.asked_about(item.criteria) for dimension in dimensions]
    template = job.template_for(agent, dimensions[0])
    nonce = nonce_for(key or secrets.token_bytes(32), agent, dimensions, item, replicates, template)
    arranged = None if template is None else shared.lines(template, item, nonce)
    spec = dicast.pools.get(agent.choices[0].pool)
    fixed = spec.nonce_in_schema
    if batched:
        prompt = batch_prompt(agent, dimensions, item, nonce, fixed_nonce=fixed, arranged=arranged)
    else:
        structured = spec.structured_output
        prompt = single_prompt(
            agent, dimensions[0], item, nonce, structured=structured, fixed_nonce=fixed, arranged=arranged
        )
    return ShownPrompt(item.id, agent.name, [dimension.id for dimension in dimensions], prompt)
