"""Checks the options of `celery worker`: how many calls may be open, and which options are refused.

No option is silently ignored: one that belongs to Celery's own pools, or would break a guarantee of the ledger, ends
the worker before it starts, with a message that says what to use instead.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import click
from celery.utils.sysinfo import is_auto_concurrency
from celery.utils.text import str_to_list
from click.core import ParameterSource

from dicast.app.domain.text import printable
from dicast.config.settings import label
from dicast.errors import DicastError, alternatives
from dicast.workers.runtime.pool import TaskPool

_OWN_PROCESSES = "it is about child processes, and this worker has none: its calls share one event loop"
_CALLS_OWN = "a call's time is limited by LLM_CALL_TIMEOUT, and by its pool's timeout_s"
QUEUE_SHOWN = 100
REJECTED_OPTIONS = {
    "time_limit": ("--time-limit", _CALLS_OWN),
    "soft_time_limit": ("--soft-time-limit", _CALLS_OWN),
    "max_tasks_per_child": ("--max-tasks-per-child", _OWN_PROCESSES),
    "max_memory_per_child": ("--max-memory-per-child", _OWN_PROCESSES),
    "pool_start_method": ("--pool-start-method", _OWN_PROCESSES),
    "disable_prefetch": ("--disable-prefetch", "units are taken from the broker only as there is room for calls"),
}


class OptionRefused(DicastError, ValueError):
    """An option that a worker cannot accept; the text says why and what to use instead."""


def given_options() -> frozenset[str]:
    """Return the names of the options that were set by flags or by Celery's environment variables."""
    context = click.get_current_context(silent=True)
    if context is None:
        return frozenset()
    sources = (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT)
    return frozenset(name for name in context.params if context.get_parameter_source(name) in sources)


def check(options: Mapping[str, Any], given_names: frozenset[str]) -> None:
    """Raise `OptionRefused` for the first option that cannot be accepted."""
    for name, (flag, why) in REJECTED_OPTIONS.items():
        if name in given_names:
            raise OptionRefused(f"{flag} is refused: {why}")
    pool = options.get("pool")
    if isinstance(pool, type) and pool is not TaskPool:
        raise OptionRefused("--pool is refused: tasks run on this worker's own event loop; leave it out")
    if is_auto_concurrency(options.get("concurrency")):
        raise OptionRefused("-c auto is refused: calls wait for a provider, not for a CPU; give their number, or none")


def reject_zero_concurrency() -> None:
    """Have Celery's command reject `-c 0`, which it would take for the default."""
    command = sys.modules.get("celery.bin.worker")
    if command is None:  # not Celery's command line
        return
    option = next(param for param in command.worker.params if param.name == "concurrency")
    parse = option.callback

    def parsed(context: click.Context, param: click.Parameter, value: Any) -> Any:
        number = parse(context, param, value)
        if str(value).strip().isdecimal() and int(value) == 0:
            raise click.BadParameter(
                "a worker may have at least 1 call open, got 0; leave it out for DICAST_WORKER_SLOTS"
            )
        return number

    option.callback = parsed


def check_queues(options: Mapping[str, Any], queue_names: Collection[str]) -> None:
    """Raise `OptionRefused` for a queue of `-Q` or `-X` that this application does not have."""
    for name, flag in (("queues", "-Q"), ("exclude_queues", "-X")):
        for queue in str_to_list(options.get(name)) or ():
            if queue not in queue_names:
                printed = printable(queue, QUEUE_SHOWN)
                hint = alternatives(queue, sorted(queue_names))
                raise OptionRefused(f"{flag} names no queue of this application: {printed}{hint}")


def check_roles(roles: Iterable[str], role_names: Collection[str]) -> None:
    """Raise `OptionRefused` for a role that is neither a pool's name nor 'control': nobody would notice that this
    worker does not read what was meant."""
    for role in roles:
        if role not in role_names:
            printed = printable(role, QUEUE_SHOWN)
            raise OptionRefused(
                f"DICAST_NODE_ROLES names no pool and no role: {printed}{alternatives(role, role_names)}"
            )


def labels(options: Mapping[str, Any]) -> dict[str, str]:
    """Return the labels of `--label`. Raises `OptionRefused` for a text that is no label."""
    try:
        return dict(label(text) for text in options.get("label") or ())
    except ValueError as error:
        raise OptionRefused(f"--label {error}") from None


def calls(options: Mapping[str, Any], default: int) -> int:
    """Return the most calls that the worker may have open: `-c`, or the larger number of `--autoscale`."""
    if options.get("autoscale"):
        return int(max(options["autoscale"]))
    return int(options.get("concurrency") or default)
