"""Finds out why a job stands still; checks the nodes, the beat's ticks, and what waits in the queues.

Watchers of a job, `jobs show` and the doctor ask here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kombu.exceptions import OperationalError

from dicast.app.application import Dicast
from dicast.app.cluster.snapshot import SharedState, read_shared
from dicast.app.ledger.client import JobStatus
from dicast.app.ledger.records import JobState
from dicast.app.operator.store_checks import Finding, Severity
from dicast.app.pipeline.messages import BEAT_QUEUE, CONTROL_QUEUE
from dicast.workers.admission.leases import OpenLease
from dicast.workers.admission.pool_state import PoolState, kept_words, span
from dicast.workers.admission.request import QUEUE_PREFIX
from dicast.workers.nodes.registry import Orders
from dicast.workers.policy.parameters import BreakerPhase

NO_WORKER = Finding(
    Severity.WARNING, "worker", "none is alive: jobs wait", "celery -A dicast worker, or dicast run --local"
)


def workers(dicast: Dicast) -> Iterator[Finding]:
    alive = dicast.registry.alive()
    heard_ids = {node.id for node in alive}
    orders = Orders(dicast.store, dicast.keys).all()
    for node, _ in dicast.registry.registered():
        is_heard = node.id in heard_ids
        facts = f"{node.name} (pid {node.pid} on {node.host})"
        if is_heard and node.stuck:
            yield Finding(Severity.ERROR, "worker", f"{facts} takes no work: {node.stuck}", "restart it")
        elif is_heard and not node.judges:
            yield Finding(
                Severity.WARNING, "worker", f"{facts} judges nothing: it reads no pool's queue",
                "start it without -Q or -X, or: celery -A dicast control add_consumer provider.<pool>",
            )  # fmt: skip
        elif is_heard and (order := orders.get(node.id)):
            yield Finding(
                Severity.INFO, "worker", f"{facts} takes no units: {order.kind} by {order.by}",
                f"dicast cluster uncordon {node.id}",
            )  # fmt: skip
        elif is_heard:
            lacks = f"; no key for {', '.join(node.missing_keys)}" if node.missing_keys else ""
            yield Finding(Severity.OK, "worker", f"{facts}: {node.slots} slots, limit {node.limit}{lacks}")
        else:
            yield Finding(Severity.WARNING, "worker", f"{facts} is silent; others take its work over")
    if not alive:
        yield NO_WORKER
        return
    limits = {node.limit for node in alive}
    if len(limits) > 1:
        yield Finding(
            Severity.WARNING, "limit", f"workers disagree ({', '.join(map(str, sorted(limits)))}); the smallest binds",
            "give all the same MAX_CONCURRENT_LLM_CALLS and restart them",
        )  # fmt: skip
    elif limits != {dicast.settings.max_concurrent_llm_calls}:
        yield Finding(
            Severity.INFO, "limit",
            f"{limits.pop()} for the workers, {dicast.settings.max_concurrent_llm_calls} here; theirs binds",
        )  # fmt: skip
    names = [node.name for node in alive]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield Finding(
            Severity.WARNING, "worker", f"{names.count(name)} are called {name}", "start each with its own -n"
        )
    leader = dicast.store.get(dicast.keys.beat)
    if leader:
        yield Finding(Severity.OK, "beat", f"ticks, last at {leader.partition('|')[0].partition(' ')[0]}")
    else:
        yield Finding(
            Severity.WARNING, "beat", "no tick for some seconds: lost work is not found",
            "celery -A dicast beat; or see the workers' logs, one of which should take its place",
        )  # fmt: skip


def unserved(dicast: Dicast) -> Iterator[Finding]:
    """Yield pools whose units no living worker takes: a warning if units wait, or if the pools file demands labels."""
    status = dicast.cluster.status()
    for pool, why in dicast.cluster.unsatisfied(status.nodes).items():
        serious = pool in status.waiting or dicast.pools.pools[pool].labels
        yield Finding(
            Severity.WARNING if serious else Severity.INFO, f"pool {pool}", why,
            "start a worker with its key and its labels; dicast cluster nodes shows what each has",
        )  # fmt: skip


def bounds(dicast: Dicast) -> Iterator[Finding]:
    """Yield pools whose own limits are cut by the limit over all calls."""
    most = min([node.limit for node in dicast.living_nodes()] or [dicast.settings.max_concurrent_llm_calls])
    for spec in dicast.pools.pools.values():
        cut = spec.cut_to(most)
        if cut is not None:
            yield Finding(
                Severity.WARNING, f"pool {spec.name}", cut,
                "raise MAX_CONCURRENT_LLM_CALLS for all workers (above "
                f"{dicast.settings.max_concurrent_llm_calls_range}, DICAST_MAX_CONCURRENT_LLM_CALLS_RANGE first)",
            )  # fmt: skip


def queues(dicast: Dicast) -> Iterator[Finding]:
    names = [CONTROL_QUEUE, BEAT_QUEUE, *(QUEUE_PREFIX + pool for pool in dicast.pools.pools)]
    try:
        queue_lengths = {name: depth(dicast, name) for name in names}
    except (OperationalError, OSError) as error:
        yield Finding(Severity.ERROR, "queues", f"the broker does not answer: {error}", "is it the store's own URL?")
        return
    waiting = ", ".join(f"{name} {depth:,}" for name, depth in queue_lengths.items() if depth)
    yield Finding(Severity.INFO if waiting else Severity.OK, "queues", waiting or "no message waits")


def depth(dicast: Dicast, name: str) -> int:
    """Count the messages that no worker has taken; a queue that is not declared yet is empty."""
    with dicast.connection_for_read() as connection:
        channel = connection.default_channel
        try:
            return int(dicast.amqp.queues[name](channel).queue_declare(passive=True).message_count)
        except connection.channel_errors:
            return 0


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
    down = [text for state in troubled if (text := _down(state)) is not None and (state.down or not calls)]
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
        rest = f"; its circuit breaker is open for {span(state.breaker_for_s)} more" if state.breaker_for_s else ""
        return f"pool {state.pool} has been {state.down}{rest}"
    if state.breaker == BreakerPhase.CLOSED.value:
        return None
    failures = ", ".join(f"{code or 'no answer'}: {n:,}" for code, n in state.statuses.items() if code != 200)
    until = f"for {span(state.breaker_for_s)} more" if state.breaker_for_s else "until one call has tried it"
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
