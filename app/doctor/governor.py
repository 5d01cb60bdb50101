"""Checks the pools' limits, and explains those that are not what they should be."""

from __future__ import annotations

from collections.abc import Iterator

from dicast.app.application import Dicast
from dicast.app.doctor.finding import Finding, Severity
from dicast.app.monitoring.snapshot import read_shared
from dicast.workers.admission.pool_state import findings

AREA = "governor"


def governor(dicast: Dicast) -> Iterator[Finding]:
    """Yield findings on each pool that has been used."""
    states = read_shared(dicast.store_url, dicast.keys).pools
    advice = "see dicast governor show"
    calm = []
    for state in states:
        said = findings(state)
        if not said:
            calm.append(f"{state.pool} {state.limit}")
        for finding in said:
            yield Finding(Severity.WARNING, AREA, f"pool {state.pool}: {finding}", advice)
    if states and states[0].slo is not None:
        yield Finding(Severity.INFO, AREA, f"no pool's limit is above {states[0].slo}", "dicast governor slo none")
    if calm:
        yield Finding(Severity.OK, AREA, f"limits: {', '.join(calm)}")
