"""Checks the nodes, the beat's ticks, and what waits in the queues."""

from __future__ import annotations

from collections.abc import Iterator

from kombu.exceptions import OperationalError

from dicast.app.application import Dicast
from dicast.app.doctor.finding import Finding, Severity
from dicast.app.pipeline.messages import BEAT_QUEUE, CONTROL_QUEUE
from dicast.workers.admission.request import QUEUE_PREFIX
from dicast.workers.nodes.orders import Orders

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
