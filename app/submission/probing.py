"""Checks that a job can try out what its probes ask for."""

from __future__ import annotations

from collections.abc import Sequence

from dicast.app.domain.job import EvaluationJob
from dicast.app.domain.plan import Lane
from dicast.app.domain.probes import variant_probes
from dicast.app.refusals import JobRefused


def check_probes(job: EvaluationJob, lanes: Sequence[Lane]) -> None:
    """Raise `JobRefused` for a probe that would compare a thing with itself, or that would never be reached."""
    if job.question is not None and (probes := variant_probes(job.probes)):
        raise JobRefused(
            f"probes: {probes[0].probe!r} is tried out behind all items, and a job with a question ends before; "
            "ask it in a job of its own"
        )
    for probe in variant_probes(job.probes):
        if probe.probe not in ("batching", "order"):
            continue
        if len(job.dimensions) < 2:
            raise JobRefused(f"probes: {probe.probe!r} needs two dimensions or more, got {len(job.dimensions)}")
        single = [job.agents[at].name for lane in lanes if not lane.batched for at in lane.agents]
        if single:
            raise JobRefused(
                f"probes: {probe.probe!r} needs judges that are asked for all dimensions in one call, and "
                f"{single[0]!r} is not (say `batching: true`, on pools with structured output)"
            )
