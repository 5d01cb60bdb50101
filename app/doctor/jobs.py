"""The jobs that have not ended: does one wait for something?"""

from __future__ import annotations

from collections.abc import Iterator

from dicast.app.application import Dicast
from dicast.app.doctor import waiting
from dicast.app.doctor.finding import Finding, Severity
from dicast.app.ledger.states import JobState
from dicast.app.monitoring.snapshot import read_shared

LOOKED_AT = 100
"""The newest; older ones that still run are told by `dicast jobs show`."""
TOLD = 5


def jobs(dicast: Dicast) -> Iterator[Finding]:
    """Those that say what they wait for, and how many go on."""
    going = [status for status in dicast.ledger.jobs(LOOKED_AT) if not status.state.ended]
    if not going:
        return
    shared = read_shared(dicast.store_url, dicast.keys)
    # Without a worker all wait for one, which is told once, beside the workers.
    waits = [(status, waiting.reason(dicast, status, shared)) for status in going] if dicast.registry.alive() else []
    told = [(status, why) for status, why in waits if why is not None]
    for status, why in told[:TOLD]:
        yield Finding(Severity.WARNING, "jobs", f"job {status.id} waits: {why}", f"dicast jobs show {status.id}")
    if len(told) > TOLD:
        yield Finding(Severity.WARNING, "jobs", f"{len(told) - TOLD} more jobs wait", "dicast jobs list")
    others = len(going) - len(told)
    if others:
        cancelling = sum(status.state is JobState.CANCELLING for status in going)
        yield Finding(
            Severity.OK, "jobs", f"{others} under way" + (f", {cancelling} being cancelled" if cancelling else "")
        )
