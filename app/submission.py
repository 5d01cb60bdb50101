"""From a caller's job to the ledger: checked as a whole, stored as a whole, or refused with a reason."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from app import datasets
from app.domain.job import Agent, EvaluationJob, Item, ItemSource
from app.domain.plan import lanes
from app.ledger.client import LedgerClient
from config.pools import Pools, PoolSpec
from config.settings import Settings


class JobRefused(ValueError):
    """The job is well formed and still cannot be taken; the message names the field and the value."""


def checked(job: EvaluationJob | Mapping[str, Any]) -> EvaluationJob:
    """The job, validated, with an id. Raises pydantic's `ValidationError` (a `ValueError`)."""
    if not isinstance(job, EvaluationJob):
        job = EvaluationJob.model_validate(dict(job))
    return job if job.id is not None else job.model_copy(update={"id": new_job_id()})


def new_job_id() -> str:
    """Sortable by the eye, unique by chance (64 bits)."""
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(8)}"


def submit(job: EvaluationJob | Mapping[str, Any], *, ledger: LedgerClient, pools: Pools, settings: Settings) -> str:
    """Store a job in the ledger; returns its id. Nothing is sent yet.

    Raises `ValidationError`, `UnknownPool`, `JobRefused`, `datasets.DatasetError` or `JobConflict`.
    """
    job = checked(job)
    job_id = job.id
    assert job_id is not None
    specs = [_deployed(agent, pools) for agent in job.agents]
    batching = settings.batching_enabled if job.batching is None else job.batching
    plan = lanes(
        [tuple(spec.name for spec in of_agent) for of_agent in specs],
        len(job.dimensions),
        job.replicates,
        [batching and all(spec.structured_output for spec in of_agent) for of_agent in specs],
    )
    extra = {}
    if isinstance(job.items, ItemSource):
        # Workers read the file too, from wherever they run.
        source = job.items.model_copy(update={"path": str(Path(job.items.path).resolve())})
        job = job.model_copy(update={"items": source})
        found = datasets.survey(source, max_text_bytes=settings.max_text_bytes)
        count, extra["fingerprint"] = found.items, found.fingerprint
    else:
        count = len(job.items)
        for item in job.items:
            _check_size(item, settings.max_text_bytes)
    if count == 0:
        raise JobRefused("items: at least one is needed, got 0")
    units = count * len(job.agents) * len(job.dimensions) * job.replicates
    ledger.submit(job, plan, units, extra)
    return job_id


def _deployed(agent: Agent, pools: Pools) -> list[PoolSpec]:
    """The pools of an agent's deployments; raises `UnknownPool`, or `JobRefused` if two are the same."""
    specs = [pools.get(deployment.pool) for deployment in agent.choices]
    seen: set[tuple[str, str]] = set()
    for spec, deployment in zip(specs, agent.choices, strict=True):
        place = spec.name, deployment.model or spec.model
        if place in seen:
            raise JobRefused(f"agents: {agent.name!r} names model {place[1]!r} of pool {place[0]!r} twice")
        seen.add(place)
    return specs


def _check_size(item: Item, most: int) -> None:
    size = sum(len(text.encode("utf-8", "surrogatepass")) for text in (item.text, item.prompt, item.reference) if text)
    if size > most:
        raise JobRefused(f"items: {item.id!r} holds {size} bytes of text, at most {most} (DICAST_MAX_TEXT_BYTES)")
