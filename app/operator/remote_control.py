"""Celery's remote control, `celery control`, `app.control` and Flower's buttons, where it means something else here.

Importing this replaces some of the commands that a worker answers; `Control` is the callers' side. What cannot be done
is refused by both: a worker's reply is an error, and a caller who waits for no reply gets an exception.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import celery.app.control
from celery.utils.functional import maybe_list
from celery.utils.serialization import strtobool
from celery.worker import control as celerys
from celery.worker import state as worker_state
from celery.worker.control import Panel, nok, ok
from redis.exceptions import RedisError

from dicast.app.cluster.view import NodeView
from dicast.app.ledger.client import UnknownJob
from dicast.app.ledger.keys import PageRef
from dicast.app.ledger.records import JobState, MessageId, UnitState
from dicast.app.logs import JsonFormatter
from dicast.app.pipeline.messages import CONTROL_QUEUE, FINISH_JOB
from dicast.errors import DicastError
from dicast.workers.admission.request import QUEUE_PREFIX
from dicast.workers.broker.profiles import plain

if TYPE_CHECKING:
    from dicast.app.application import Dicast

logger = logging.getLogger(__name__)
Command = TypeVar("Command", bound=Callable[..., Any])

REVOKED = "revoked"
"""The message of Celery's `TaskRevokedError` for a caller that waits for a revoked job."""


class Revocation(NamedTuple):
    """The outcome for each id, in sentences for people. `jobs` and `units` may have open calls; `unknown` ids belong to
    no job or unit; `rejected` tells that one of the ids cannot be revoked."""

    lines: tuple[str, ...] = ()
    jobs: frozenset[str] = frozenset()
    units: frozenset[str] = frozenset()
    unknown: tuple[str, ...] = ()
    rejected: bool = False

    def plus(self, other: Revocation) -> Revocation:
        return Revocation(
            self.lines + other.lines, self.jobs | other.jobs, self.units | other.units, self.unknown + other.unknown,
            self.rejected or other.rejected,
        )  # fmt: skip


def revoke_ids(dicast: Dicast, ids: Iterable[str], *, cut: bool) -> Revocation:
    """Revoke jobs and units. `cut` tells that their open calls will be cut. Raises redis errors.

    The revocation is in the ledger, whoever asks for it, with or without a worker. Celery keeps revoked ids in its
    workers and has them discard messages. Here a discarded message would be sent again for ever, and a worker that
    starts later would not know the id. A revocation may be repeated.
    """
    revocation = Revocation()
    for name in dict.fromkeys(map(str, ids)):
        try:
            ref, token = PageRef.of_name(name)
        except ValueError:
            revocation = revocation.plus(_job(dicast, name, cut=cut))
        else:
            revocation = revocation.plus(_unit(dicast, name, ref, token, cut=cut))
    return revocation


def _job(dicast: Dicast, name: str, *, cut: bool) -> Revocation:
    ledger = dicast.ledger
    try:
        job = ledger.job_of_task(name)
        before, finish = ledger.cancel(job, revoked=REVOKED)
        is_revoked = ledger.is_revoked(job)
    except UnknownJob:
        return Revocation(unknown=(name,))
    if finish:
        dicast.send_task(FINISH_JOB, args=(job,), queue=CONTROL_QUEUE)
    if is_revoked and not before.ended:
        # Callers that wait get their answer now; the report follows when the open calls have ended.
        dicast.backend.mark_as_revoked(name, REVOKED)
        calls = "are cut" if cut else "end and count"
        return Revocation((f"job {job} is revoked: open calls {calls}, no new ones are made",), jobs=frozenset({job}))
    if before is JobState.CANCELLING:
        return Revocation((f"job {job} was cancelled before",), jobs=frozenset({job}))
    return Revocation((f"job {job} has ended ({before}): nothing is left to revoke",))


def _unit(dicast: Dicast, name: str, ref: PageRef, token: str, *, cut: bool) -> Revocation:
    if not token:
        return Revocation(
            (f"{name} gathers a page, which cannot be revoked: revoke its job, {ref.job}",), rejected=True
        )
    try:
        states = set(dicast.ledger.revoke_unit(ref, MessageId.parse(token)))
    except UnknownJob:
        return Revocation((f"no job holds unit {name}: nothing is revoked",))
    if states & {UnitState.OPEN, UnitState.REVOKED}:
        call = "is cut" if cut else "ends and counts"
        open_call = f"its open call {call}, and none is made again" if UnitState.OPEN in states else "it gets no call"
        return Revocation((f"unit {name} is revoked: {open_call}",), units=frozenset({name}))
    if UnitState.CANCELLED in states:
        return Revocation((f"unit {name} ends with its job, which is cancelled",), units=frozenset({name}))
    where = "has ended" if UnitState.ENDED in states else "is not in work"
    return Revocation((f"unit {name} {where}: nothing is revoked",))


OURS = "dicast."
"""The prefix of the names of this application's tasks."""
LEDGER = "ledger"
"""The name under which the ledger replies where no worker does."""
REVOKES = ("revoke", "terminate")

NO_RATE = "has no rate limit of its own; its pool's: dicast governor set --pool NAME --rpm N"
NO_TIME = "has no time limit; a call's is LLM_CALL_TIMEOUT, or its pool's timeout_s"
NO_STAMPS = "jobs and units are not known by stamps: revoke them by their ids"
NO_ELECTION = "workers hold no elections: who leads is in the store"
NO_RESTART = "the execution pool cannot be restarted: stop the worker (SIGTERM) and start it again"


class CommandRefused(DicastError, ValueError):
    """A command that workers do not carry out; the text says why."""


def rejection_reason(command: str, arguments: Mapping[str, Any]) -> str | None:
    """Return why a command is refused, or None if it is not."""
    task = str(arguments.get("task_name") or "")
    if command == "rate_limit" and task.startswith(OURS):
        return f"{task} {NO_RATE}"
    if command == "time_limit" and task.startswith(OURS):
        return f"{task} {NO_TIME}"
    reasons = {"revoke_by_stamped_headers": NO_STAMPS, "pool_restart": NO_RESTART, "election": NO_ELECTION}
    return reasons.get(command)


class Control(celery.app.control.Control):  # type: ignore[misc]
    """The callers' side. A revocation is in the ledger when a method returns, with or without a worker."""

    def broadcast(
        self, command: str, arguments: Mapping[str, Any] | None = None, destination: Sequence[str] | None = None,
        connection: Any = None, reply: bool = False, timeout: float = 1.0, limit: int | None = None,
        callback: Callable[[Any], None] | None = None, channel: Any = None, pattern: str | None = None,
        matcher: str | None = None, **more: Any,
    ) -> Any:  # fmt: skip
        """Broadcast as Celery does. Raises `CommandRefused`, unless a reply is waited for, which then says so."""
        all_arguments = {**(arguments or {}), **more}
        if not reply and (why := rejection_reason(command, all_arguments)):
            raise CommandRefused(why)
        revoked = None
        if command in REVOKES:
            cut = command == "terminate" or bool(all_arguments.get("terminate"))
            revoked = revoke_ids(self.app, maybe_list(all_arguments.get("task_id")) or (), cut=cut)
        replies = super().broadcast(
            command, all_arguments, destination, connection, reply, timeout, limit, callback, channel, pattern, matcher
        )
        if revoked is None:
            return replies
        if not reply and revoked.rejected:
            raise CommandRefused("; ".join(revoked.lines))
        if reply and not replies and revoked.lines:
            replies = [{LEDGER: _reply(revoked)}]
            if callback is not None:
                callback(replies[0])
        return replies

    def revoke_by_stamped_headers(self, headers: Any, *_: Any, **__: Any) -> Any:
        """Raise `CommandRefused`: jobs and units have no stamps."""
        raise CommandRefused(NO_STAMPS)


def _reply(revoked: Revocation) -> Any:
    text = "; ".join(revoked.lines)
    return nok(text) if revoked.rejected else ok(text)


# ------------------------------------------------------------------------------------------ a worker's side, on its hub
def _command(**about: Any) -> Callable[[Command], Command]:
    register: Callable[[Command], Command] = Panel.register(**about)
    return register


@_command(variadic="task_id", signature="[id1 [id2 [... [idN]]]]")
def revoke(state: Any, task_id: Any, terminate: bool = False, signal: str | None = None, **more: Any) -> Any:
    """Revoke jobs and units by their ids; with terminate, cut their open calls."""
    revoked = revoke_ids(state.app, maybe_list(task_id) or (), cut=terminate)
    control_work = [name for name in revoked.unknown if _is_control_work(name)]
    unknown = [name for name in revoked.unknown if name not in control_work]
    lines = list(revoked.lines)
    lines += [f"{name} is work of Dicast's own, which cannot be revoked: revoke its job" for name in control_work]
    if terminate:
        _cut(state, revoked)
    if unknown:
        theirs = celerys.revoke(state, unknown, terminate, signal, **more)
        lines.append(f"no job or unit is called {', '.join(unknown)}; as of other tasks: {theirs['ok']}")
    for line in lines:
        logger.info("%s", line, extra={"event": "revoke"})
    return _reply(Revocation(tuple(lines), rejected=revoked.rejected or bool(control_work)))


def _is_control_work(name: str) -> bool:
    request = worker_state.requests.get(name)
    return request is not None and str(request.task.name).startswith(OURS)


def _cut(state: Any, revoked: Revocation) -> None:
    state.consumer.pool.catch_up()
    for request in tuple(worker_state.active_requests):
        unit = getattr(request, "unit", None)
        if request.id in revoked.units or (unit is not None and unit.job in revoked.jobs):
            request.terminate(state.consumer.pool)


@_command(variadic="task_id", args=[("signal", str)], signature="<signal> [id1 [id2 [... [idN]]]]")
def terminate(state: Any, signal: str, task_id: Any, **_: Any) -> Any:
    """Revoke jobs and units by their ids, and cut their open calls."""
    return revoke(state, task_id, terminate=True, signal=signal)


@_command(variadic="headers", signature="[key1=value1 [key2=value2 [... [keyN=valueN]]]]")
def revoke_by_stamped_headers(state: Any, **arguments: Any) -> Any:
    """Refused: jobs and units are revoked by their ids."""
    return nok(rejection_reason("revoke_by_stamped_headers", arguments))


@_command(args=[("task_name", str), ("rate_limit", str)], signature="<task_name> <rate_limit (e.g., 5/s | 5/m | 5/h)>")
def rate_limit(state: Any, task_name: str, rate_limit: str, **more: Any) -> Any:
    """Refused for Dicast's tasks, whose rate is their pool's; for others as in Celery."""
    why = rejection_reason("rate_limit", {"task_name": task_name})
    return nok(why) if why else celerys.rate_limit(state, task_name, rate_limit, **more)


@_command(args=[("task_name", str), ("soft", float), ("hard", float)], signature="<task_name> <soft_secs> [hard_secs]")
def time_limit(state: Any, task_name: str = "", hard: float | None = None, soft: float | None = None, **_: Any) -> Any:
    """Refused for Dicast's tasks, whose calls have a time limit of their own; for others as in Celery."""
    why = rejection_reason("time_limit", {"task_name": task_name})
    return nok(why) if why else celerys.time_limit(state, task_name, hard, soft)


@_command(
    args=[("queue", str), ("exchange", str), ("exchange_type", str), ("routing_key", str)],
    signature="<queue> [exchange [type [routing_key]]]",
)
def add_consumer(state: Any, queue: str, *args: Any, **options: Any) -> Any:
    """Read a queue from now on: a pool's, or another."""
    if state.consumer.reads(queue):
        return ok(f"{queue} is read already")
    if queue.startswith(QUEUE_PREFIX) and queue not in known_queues(state.app):
        return nok(f"no pool of this worker is called {queue.removeprefix(QUEUE_PREFIX)}")
    if why := state.app.unserved.get(plain(queue).removeprefix(QUEUE_PREFIX)):
        return nok(f"{queue} is left to other workers: {why}")
    return celerys.add_consumer(state, queue, *args, **options)


@_command(args=[("queue", str)], signature="<queue>")
def cancel_consumer(state: Any, queue: str, **_: Any) -> Any:
    """Stop reading a queue. Open calls end; messages that wait for a lease go back to the queue."""
    return celerys.cancel_consumer(state, queue) if state.consumer.reads(queue) else nok(f"{queue} is not read here")


@_command(type="inspect")
def active_queues(state: Any) -> list[Any]:
    """Return the queues that are read now."""
    return [dict(queue.as_dict(recurse=True)) for queue in state.consumer.queues]


def known_queues(app: Any) -> set[str]:
    """Return the names of all queues: the plain ones and those at the broker."""
    return {name for queue in app.amqp.queues.values() for name in (queue.name, queue.alias)}


@_command()
def cordon(state: Any, **_: Any) -> Any:
    """Begin no more calls. Open calls end; messages that wait for a lease go back to their queue."""
    return _give_order(state, "cordon", state.app.cluster.cordon)


@_command()
def uncordon(state: Any, **_: Any) -> Any:
    """Take work again."""
    return _give_order(state, "uncordon", state.app.cluster.uncordon)


@_command(args=[("deadline", float)], signature="[deadline_secs=60]")
def drain(state: Any, deadline: float = 60.0, **_: Any) -> Any:
    """Begin no more calls. Those that are open at the deadline are cut and made elsewhere. The worker stays alive."""
    return _give_order(state, "drain", state.app.cluster.drain, deadline_s=deadline)


def _give_order(state: Any, verb: str, operation: Callable[..., NodeView], **more: Any) -> Any:
    """Carry out an order for this worker itself, and return the reply."""
    try:
        node = operation(state.app.node.id, by=f"celery control {verb}", **more)
    except (DicastError, RedisError) as error:
        return nok(str(error))
    return ok(f"{node.status}: {node.reason}" if node.reason else str(node.status))


@_command(type="inspect")
def cluster(state: Any, **_: Any) -> Any:
    """Return this worker as a node: its status, what it serves, and what it does."""
    return asdict(state.app.cluster.node(state.app.node.id))


@_command()
def pool_restart(state: Any, **_: Any) -> Any:
    """Refused: a worker is stopped and started again."""
    return nok(NO_RESTART)


@_command(type="inspect", alias="dump_conf", signature="[include_defaults=False]", args=[("with_defaults", strtobool)])
def conf(state: Any, with_defaults: bool = False, **_: Any) -> Any:
    """Return the worker's configuration, without secrets."""
    return JsonFormatter(state.app.secrets()).masked(celerys.conf(state, with_defaults=with_defaults))


@_command()
def election(state: Any, **_: Any) -> Any:
    """Refused: who leads is in the store."""
    return nok(NO_ELECTION)
