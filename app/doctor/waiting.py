"""Finds out why a job stands still, for its watchers, `jobs show` and the doctor."""

from __future__ import annotations

from collections.abc import Sequence

from kombu.exceptions import OperationalError

from dicast.app.application import Dicast
from dicast.app.doctor.workers import depth
from dicast.app.ledger.client import JobStatus
from dicast.app.ledger.states import JobState
from dicast.app.monitoring.snapshot import SharedState, read_shared
from dicast.app.pipeline.messages import CONTROL_QUEUE
from dicast.workers.admission.open_leases import OpenLease
from dicast.workers.admission.pool_state import PoolState, kept_words
from dicast.workers.admission.request import QUEUE_PREFIX
from dicast.workers.policy.parameters import BreakerPhase


def reason(dicast: Dicast, status: JobStatus, shared: SharedState | None = None) -> str | None:
    """Return what a job waits for, or None if that is not known. `shared` saves reading the state again. Blocks, so it
    is not for an event loop.

    Checked in this order: the reason that a worker has recorded (a full disk, a file that is gone), no worker, no
    worker with the pool's key or the labels that it demands, a pool that is down (also while a call probes it), leases
    of cut calls that take all slots, messages that nobody takes. Raises redis errors.
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
    waiting_pools = [name for name in names if isinstance(waiting, dict) and QUEUE_PREFIX + name in waiting]
    if untaken := [why for name in waiting_pools if (why := unsatisfied.get(name)) is not None]:
        return "; ".join(untaken)
    shared = shared or read_shared(dicast.store_url, dicast.keys)
    states = {state.pool: state for state in shared.pools}
    troubled = [state for name in names if (state := states.get(name)) is not None]
    open_calls = dicast.ledger.open_calls()
    calls = open_calls.get(f"j:{status.id}", 0)
    down = [said for state in troubled if (said := _down(state)) is not None and (state.down or not calls)]
    if down:
        return "; ".join(down)
    if (taken_slots := _slots_taken(status, calls, open_calls.get("all", 0), troubled, shared)) is not None:
        return taken_slots
    return None if calls else _untaken(waiting)


def _slots_taken(
    status: JobStatus, calls: int, calls_of_all: int, pools: Sequence[PoolState], shared: SharedState
) -> str | None:
    """Say whether a job stands still because the slots of its pools, its own limit or that of all jobs are taken by
    calls that nobody waits for any more; None while it has a call whose end somebody waits for."""
    living_ids = {node.id for node, _ in shared.nodes}
    lost_leases = [lease for lease in shared.leases if lease.cut or lease.node not in living_ids]
    job_leases = [lease for lease in lost_leases if lease.job == status.id]
    if calls > len(job_leases):
        return None
    if full := [f"pool {state.pool}: {taken}" for state in pools if (taken := state.kept) is not None]:
        return "; ".join(full)
    if job_leases and status.limit is not None and len(job_leases) >= status.limit:
        return f"of the {status.limit:,} calls that the job may have open {_words(job_leases)}"
    most = max((state.job_limit for state in shared.pools), default=0)
    if lost_leases and calls_of_all >= most > 0:
        return f"of the {most:,} calls that may be open in all pools {_words(lost_leases)}"
    return None


def _words(leases: Sequence[OpenLease]) -> str:
    cut, silent = ([lease.left_s for lease in leases if lease.cut is is_cut] for is_cut in (True, False))
    return kept_words(len(cut), max(cut, default=0.0), len(silent), max(silent, default=0.0))


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
