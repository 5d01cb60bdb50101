"""Starts and ends workers and beats: receivers of Celery's signals, which are connected by importing this module.

The application includes it, so that every worker and beat does, by whatever name `-A` finds the application.
"""
# ruff: noqa: PLC0415  (a worker loads what only workers need)

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import os
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from celery import signals
from celery.platforms import EX_FAILURE

from dicast.app import logs
from dicast.app.application import app
from dicast.app.cluster import snapshot
from dicast.app.pipeline.messages import BEAT_QUEUE, CONTROL_QUEUE
from dicast.workers.admission.request import QUEUE_PREFIX
from dicast.workers.system.supervision import end_worker, watch

logger = logging.getLogger(__name__)

CONTROL_ROLE = "control"
"""The role of a worker that reads the queues of control work."""


@signals.setup_logging.connect
def _json_logs(loglevel: Any = None, logfile: str | None = None, **_: Any) -> None:
    """Set up JSON logs. `-l` and `-f` mean what they do in Celery; the defaults are the settings' level and standard
    error."""
    from dicast.app.operator.worker_options import given_options

    level = loglevel if "loglevel" in given_options() else app.settings.log_level
    # Open as long as the process lives.
    stream = Path(logfile).open("a", buffering=1, encoding="ascii") if logfile else None  # noqa: SIM115
    formatter = logs.configure(level, app.secrets(), stream)
    if app.node is not None:
        formatter.bind(node=app.node.id)


@signals.worker_ready.connect
def _keep_house(sender: Any, **_: Any) -> None:
    """Start the housekeeping with the worker and not with its first task: messages that a dead worker holds may be the
    reason why no task comes."""
    from dicast.app.assembly import services
    from dicast.app.providers.registry import load_sdks
    from dicast.workers.system.host import keep_imports

    served = [spec for name, spec in app.pools.pools.items() if name not in app.unserved]

    async def begin() -> None:
        services()
        await asyncio.to_thread(load_sdks, served)
        keep_imports()

    watch(sender.pool.submit(begin()), "the worker's housekeeping", end_worker)
    if app.settings.metrics_port:
        app.metrics_server.start()


@signals.worker_shutdown.connect
def _close_the_metrics(**_: Any) -> None:
    app.metrics_server.stop()
    if app.tracer is not None:
        app.tracer.close()


@signals.worker_shutdown.connect
def _leave(**_: Any) -> None:
    """Leave the installation after the last call has ended and is recorded, since the store's login ends with the
    membership."""
    if app.member is not None:
        app.member.leave()
        _forget_the_store()


def _forget_the_store() -> None:
    from dicast.app.cluster.joining import forget

    if app.member is not None:
        with contextlib.suppress(OSError):
            forget(app.settings.state_dir, app.member.registration.store_url)


def _refuse_an_unsafe_store() -> None:
    """End the process if the store would lose jobs silently or lets anybody in, or if RabbitMQ's queues have other
    arguments than they should. An unavailable store or broker is no reason to end."""
    from dicast.app.operator.store_checks import QUEUE_TYPE, SAFETY, Severity, broker, store

    unsafe = [f for f in store(app) if f.area in SAFETY and f.severity is Severity.ERROR]
    for finding in (f for f in broker(app) if f.area == QUEUE_TYPE):
        sys.exit(f"{finding.message}; {finding.advice}")
    for finding in unsafe:
        print(f"the store is not safe: {finding.area}: {finding.message}; {finding.advice}", file=sys.stderr)  # noqa: T201
    if unsafe and not app.settings.allow_unsafe_store:
        sys.exit("this worker does not start on such a store; DICAST_ALLOW_UNSAFE_STORE=true lets it")


def _silence_console(worker: Any) -> None:
    """Suppress the banner and the lines with which Celery answers signals, and log the warnings that it gives before it
    has set up its logs."""
    import celery.apps.worker

    logs.configure(app.settings.log_level, app.secrets())
    worker.quiet = True
    celery.apps.worker.safe_say = lambda *_: None


@signals.beat_init.connect
def _mark_ticks(**_: Any) -> None:
    """Record each tick that the broker took, so that health checks can see that the beat is alive."""
    signals.after_task_publish.connect(_ticked, weak=False)


def _ticked(**_: Any) -> None:
    with contextlib.suppress(OSError):  # a full disk stops no beat; the health check then sees an old mark
        snapshot.mark(app.settings.state_dir)


@signals.beat_init.connect
def _beat_where_the_store_is(**_: Any) -> None:
    if app.settings.joins and app.member is None:
        from dicast.app.cluster.joining import NotJoined

        sys.exit(f"celery beat: {NotJoined()}")


REJECTED_GRACE_S = 5.0
"""A worker that may no longer work here ends after this time, even with open calls: it could not record them."""


def _end_soon(reason: str) -> None:
    end_worker(reason)
    timer = threading.Timer(REJECTED_GRACE_S, _end_now)
    timer.daemon = True
    timer.start()


def _end_now() -> None:
    try:
        _forget_the_store()
    finally:
        os._exit(EX_FAILURE)


def _join(name: str) -> None:
    """Get the store's address from the server. Waits while no server answers; ends the process if it is rejected."""
    from dicast.app.cluster.joining import Member, NodeRejected, ServerClient, remember
    from dicast.app.operator.store_checks import loopback
    from dicast.workers.store.connection import rejects_login

    settings = app.settings
    logs.configure(settings.log_level, app.secrets())
    address = urlsplit(str(settings.server_url))
    if address.scheme == "http" and not loopback(address.hostname or ""):
        logger.warning("DICAST_SERVER_URL is not encrypted: tokens and the store's password cross the network in clear")
    client = ServerClient(str(settings.server_url), str(settings.node_token), ca_file=settings.server_ca_file)
    try:
        member = Member(client, name, end=_end_soon, is_shut=rejects_login)
    except NodeRejected as error:
        sys.exit(f"celery worker: {error}")
    app.join(member)
    with contextlib.suppress(OSError):  # a full disk stops no worker; its health check cannot see it then
        remember(settings.state_dir, member.registration.store_url)
    member.start()
    atexit.register(_leave)  # whatever ends this process before it has begun to work


@signals.celeryd_init.connect
def _become_a_node(sender: str, instance: Any, conf: Any, options: Any = None, **_: Any) -> None:
    """Make this worker a node before it connects: check its options and the store, and give it an id, under which its
    unacknowledged messages are kept."""
    from dicast.app.operator import remote_control, worker_options

    assert remote_control, "its commands take the place of Celery's"
    try:
        worker_options.check(options or {}, worker_options.given_options())
        worker_options.labels(options or {})
        worker_options.check_queues(options or {}, remote_control.known_queues(app))
        worker_options.check_roles(app.settings.roles, [*app.pools.pools, CONTROL_ROLE])
    except worker_options.OptionRefused as error:
        sys.exit(f"celery worker: {error}")
    calls = worker_options.calls(options or {}, app.settings.slots)
    if app.settings.log_json_only:
        _silence_console(instance)
    if app.settings.joins:
        _join(sender)
    _refuse_an_unsafe_store()
    node = app.become(sender, slots=calls, labels=worker_options.labels(options or {}))
    if app.member is not None:
        node = app.node = replace(node, id=app.member.registration.node)
    conf.broker_transport_options = app.transport_options(node.id)


@signals.celeryd_after_setup.connect
def _leave_queues_to_others(**_: Any) -> None:
    """Deselect queues after Celery has chosen them: those of pools that this worker cannot call and, without -Q, those
    outside its roles. Other workers read them."""
    from dicast.app.operator import worker_options

    queues = app.amqp.queues
    left_pools = dict(app.unserved)
    if app.settings.roles and "queues" not in worker_options.given_options():
        roles = app.settings.roles
        own_pools = app.pools.with_models(roles)
        left_pools |= {pool: "it is none of this worker's roles" for pool in app.pools.pools if pool not in own_pools}
        if CONTROL_ROLE not in roles:
            queues.deselect([app.names.qualify(name) for name in (CONTROL_QUEUE, BEAT_QUEUE)])
    for pool, why in left_pools.items():
        name = app.names.qualify(QUEUE_PREFIX + pool)
        if name in queues.consume_from:
            queues.deselect([name])
            logger.warning("pool %s is left to other workers: %s", pool, why,
                           extra={"event": "pool_unserved", "pool": pool, "reason": why})  # fmt: skip
