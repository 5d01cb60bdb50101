"""The places where a judge may be asked. A place is a pool's model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from dicast.app.domain.job import Deployment
from dicast.app.domain.plan import Lane
from dicast.app.domain.stop import Stop, place
from dicast.app.ledger.records import JobRecord


class Models(Protocol):
    """Knows the pools' models (see `dicast.app.pipeline.pools.ServedPools`)."""

    def model(self, deployment: Deployment) -> str: ...


class Stops(Protocol):
    """Knows where jobs have stopped asking (see `dicast.app.ledger.stops.StopStore`)."""

    async def stops(self, job: JobRecord) -> Mapping[str, Stop]: ...


def places_of(job: JobRecord, lane: Lane, agent: int, models: Models) -> list[str]:
    """Return the places where a judge may be asked, in the order of its deployments."""
    choices = zip(lane.pools, job.spec.agents[agent].choices, strict=True)
    return [place(pool, models.model(deployment)) for pool, deployment in choices]
