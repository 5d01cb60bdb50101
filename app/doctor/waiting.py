"""Finds out why a job stands still, for its watchers, `jobs show` and the doctor."""

from __future__ import annotations

from kombu.exceptions import OperationalError

from dicast.app.application import Dicast
from dicast.app.doctor.workers import depth
from dicast.app.ledger.client import JobStatus
from dicast.app.ledger.states import JobState
from dicast.app.monitoring.snapshot import SharedState, read_shared
from dicast.app.pipeline.messages import CONTROL_QUEUE
from dicast.workers.admission.pool_state import PoolState
from dicast.workers.admission.request import QUEUE_PREFIX
from dicast.workers.policy.parameters import BreakerPhase


def reason(dicast: Dicast, status: JobStatus, shared: SharedState | None = None) -> str | None:
    """Return what a job waits for, or None if that is not known. `shared` saves reading the state again. Blocks, so it
    is not for an event loop.

    Checked in this order: the reason that a worker has recorded (a full disk, a file that is gone), no worker, no
    worker with the pool's key or the labels that it demands, a pool that is down (also while a call probes it),
    messages that nobody takes. Raises redis errors.
    """
    if status.state.ended:
        return None
    if status.waits_for is not None:
        return status.waits_for
    if not dicast.registry.alive():
        return "no worker is alive; start one: celery -A dicast worker"
    if status.state in (JobState.SUBMITTED, JobState.FINISHING):
        return _untaken(_messages(dicast, [CONTROL_QUEUE]))
    if status.state is not JobState.RUNNING:
        return None
    names = dicast.ledger.pools(status.id)
    # Counted once: with two counts, a page that is published in between would be explained wrongly.
    waiting = _messages(dicast, [QUEUE_PREFIX + name for name in names])
    unsatisfied = dicast.cluster.unsatisfied()
    held = [name for name in names if isinstance(waiting, dict) and QUEUE_PREFIX + name in waiting]
    if untaken := [why for name in held if (why := unsatisfied.get(name)) is not None]:
        return "; ".join(untaken)
    states = {state.pool: state for state in (shared or read_shared(dicast.store_url, dicast.keys)).pools}
    troubled = [state for name in names if (state := states.get(name)) is not None]
    calls = dicast.ledger.open_calls().get(f"j:{status.id}")
    down = [said for state in troubled if (said := _down(state)) is not None and (state.down or not calls)]
    if down or calls:
        return "; ".join(down) or None
    return _untaken(waiting)


def _down(state: PoolState) -> str | None:
    if state.down is not None:
        rest = f"; its circuit breaker is open for {state.breaker_for_s:.0f} s more" if state.breaker_for_s else ""
        return f"pool {state.pool} has been {state.down}{rest}"
    if state.breaker == BreakerPhase.CLOSED.value:
        return None
    failures = ", ".join(f"{code or 'no answer'}: {n:,}" for code, n in state.statuses.items() if code != 200)
    until = f"for {state.breaker_for_s:.0f} s more" if state.breaker_for_s else "until one call has tried it"
    return f"pool {state.pool} is down, its circuit breaker is open {until}" + (f" ({failures})" if failures else "")


def _messages(dicast: Dicast, queues: list[str]) -> dict[str, int] | str:
    """Count the messages in each of these queues that holds any; or return why that is not possible."""
    try:
        return {queue: count for queue in queues if (count := depth(dicast, queue))}
    except (OperationalError, OSError) as error:
        return f"the broker does not answer: {error}"


def _untaken(waiting: dict[str, int] | str) -> str | None:
    if isinstance(waiting, str):
        return waiting
    if not waiting:
        return None
    names = ", ".join(f"{queue} ({count:,})" for queue, count in waiting.items())
    return f"messages wait in {names} and nobody takes them: does a worker serve that queue (celery worker -Q)?"
