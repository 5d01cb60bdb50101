"""Fails, with the name of what moved, when a private hook of Celery or kombu that we rest on is no longer there."""

import ast
import importlib
import inspect
import pkgutil
import re
from importlib.metadata import version
from pathlib import Path

import pytest
from celery.app.control import Control
from celery.app.task import Task
from celery.app.trace import build_tracer
from celery.apps.beat import Beat
from celery.backends.redis import RedisBackend
from celery.beat import Service
from celery.concurrency.base import BasePool, apply_target
from celery.worker import control, state
from celery.worker.consumer import Consumer
from celery.worker.request import Request, create_request_cls
from celery.worker.strategy import default as default_strategy
from kombu import messaging
from kombu.asynchronous import Hub
from kombu.connection import Connection
from kombu.messaging import Producer
from kombu.transport import pyamqp, virtual
from kombu.transport import redis as transport

import dicast.app
import dicast.workers
from dicast.workers.runtime.consumer import AdmissionConsumer
from dicast.workers.system import private


def parameters(function):
    return list(inspect.signature(function).parameters)


@pytest.mark.parametrize("package", ["celery", "kombu"])
def test_the_versions_are_those_that_were_read(package):
    assert version(package) == "5.7.0", f"{package} changed: read its changes against workers/, then pin it anew"


@pytest.mark.parametrize(
    ("function", "first"),
    [
        (BasePool.apply_async, ["self", "target"]),
        (apply_target, ["target", "args", "kwargs", "callback", "accept_callback"]),
        (Consumer.bucket_for_task, ["self", "type"]),
        (Consumer._limit_task, ["self", "request", "bucket", "tokens"]),
        (Consumer._limit_post_eta, ["self", "request", "bucket", "tokens"]),
        (Consumer.register_with_event_loop, ["self", "hub"]),
        (Consumer.create_task_handler, ["self"]),
        (Consumer.on_close, ["self"]),
        (Consumer.on_connection_error_after_connected, ["self", "exc"]),
        (Consumer.on_send_event_buffered, ["self"]),
        (Consumer._flush_events, ["self"]),
        (Request.acknowledge, ["self"]),
        (Request.reject, ["self", "requeue"]),
        (Request.revoked, ["self"]),
        (Request.terminate, ["self", "pool", "signal"]),
        (Request.send_event, ["self", "type", "fields"]),
        (Request._announce_revoked, ["self", "reason", "terminated", "signum", "expired"]),
        (control.revoke, ["state", "task_id", "terminate", "signal", "kwargs"]),
        (control.rate_limit, ["state", "task_name", "rate_limit", "kwargs"]),
        (control.time_limit, ["state", "task_name", "hard", "soft", "kwargs"]),
        (Consumer._update_prefetch_count, ["self", "index"]),
        (
            Control.broadcast,
            [
                "self",
                "command",
                "arguments",
                "destination",
                "connection",
                "reply",
                "timeout",
                "limit",
                "callback",
                "channel",
                "pattern",
                "matcher",
                "extra_kwargs",
            ],
        ),
        (RedisBackend.on_chord_part_return, ["self", "request", "state", "result"]),
        (RedisBackend.set_chord_size, ["self", "group_id", "chord_size"]),
        (transport.QoS.restore_by_tag, ["self", "tag", "client", "leftmost"]),
        (transport.QoS.ack, ["self", "delivery_tag"]),
        (transport.Channel._receive_one, ["self", "c"]),
        (transport.Channel._do_restore_message, ["self", "payload", "exchange", "routing_key"]),
        (Consumer.on_unknown_message, ["self", "body", "message"]),
        (Consumer.on_unknown_task, ["self", "body", "message", "exc"]),
        (Consumer.on_invalid_task, ["self", "body", "message", "exc"]),
        (Consumer.on_decode_error, ["self", "message", "exc"]),
        (Consumer.ensure_connected, ["self", "conn"]),
        (Consumer.connection_for_write, ["self", "url", "heartbeat"]),
        (
            Connection._ensure_connection,
            ["self", "errback", "max_retries", "interval_start", "interval_step", "interval_max"],
        ),
        (pyamqp.Transport.on_readable, ["self", "connection", "loop"]),
        (messaging.Consumer.qos, ["self", "prefetch_size", "prefetch_count", "apply_global"]),
        (Hub.call_soon, ["self", "callback"]),
        (Producer.batch, ["self", "max_size"]),
        (Beat.install_sync_handler, ["self", "service"]),
        (Service.stop, ["self"]),
    ],
    ids=lambda value: getattr(value, "__qualname__", ""),
)
def test_signatures(function, first):
    assert parameters(function)[: len(first)] == first


def test_the_strategy_asks_for_a_bucket_and_hands_over():
    source = inspect.getsource(default_strategy)
    for hook in ("task_buckets.__getitem__", "_limit_task", "_limit_post_eta"):
        assert f"consumer.{hook}" in source
    assert "symbol_by_name(task.Request)" in source


def test_a_request_passes_its_own_dict_to_the_tracer():
    """The gate puts the lease into it."""
    assert "self.request_dict" in inspect.getsource(create_request_cls)
    assert "_request_dict" in inspect.getsource(Request.request_dict.fget)
    assert "_message" in inspect.getsource(Request.__init__)
    assert hasattr(state, "active_requests")


def test_the_tracer_counts_a_chord_by_the_tasks_own_request():
    """A unit that has to come again leaves its chord by `self.request.chord = None`."""
    assert "mark_as_done" in inspect.getsource(build_tracer)
    assert "request.chord" in inspect.getsource(RedisBackend.mark_as_done)
    assert hasattr(Task, "add_to_chord")


def test_messages_are_read_where_they_are_looked_at():
    source = inspect.getsource(transport.Channel._brpop_read)
    assert "self.client.parse_response(" in source
    assert "'BRPOP'" in source
    assert "raise Empty()" in source


def test_unacknowledged_messages_have_keys_of_the_channels_own():
    for option in ("unacked_key", "unacked_index_key", "unacked_mutex_key", "visibility_timeout"):
        assert option in transport.Channel.from_transport_options
    assert "can_consume" in inspect.getsource(transport.MultiChannelPoller.on_poll_start)


def test_a_hub_looks_each_turn_and_nobody_makes_queues_for_delays():
    """RabbitMQ's consumers are given leave once a turn; delays wait in the ledger."""
    assert "in copy(self.on_tick)" in inspect.getsource(Hub.create_loop)
    assert [step for step in Consumer.Blueprint.default_steps if step.endswith(":DelayedDelivery")]
    assert not [step for step in AdmissionConsumer.Blueprint.default_steps if "delayed" in step]


# ---------------------------------------------------------------------------------------------------- private parts
THEIRS = ("celery", "kombu")
PYTHONS = {"_asdict", "_replace", "_fields", "_current_frames", "_exit"}
SDKS = {"_custom_headers"}
"""Of the providers' SDKs: tests/providers hold them."""


def our_classes():
    for package in (dicast.app, dicast.workers):
        for found in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
            if not found.name.endswith(("__main__", "app.statistics")):  # the latter only warns
                module = importlib.import_module(found.name)
                yield from (c for c in vars(module).values() if inspect.isclass(c) and c.__module__ == found.name)


def replaced():
    """(class of theirs, private name) for each method of ours that takes the place of one of theirs."""
    for ours in our_classes():
        for name in vars(ours):
            theirs = [c for c in ours.__mro__[1:] if name in vars(c) and c.__module__.partition(".")[0] in THEIRS]
            if theirs and name.startswith("_") and not name.startswith("__"):
                yield f"{theirs[0].__module__}.{theirs[0].__name__}.{name}"


def test_every_private_method_that_is_replaced_has_its_reason():
    assert set(replaced()) == set(private.REPLACED)


@pytest.mark.parametrize("path", [*private.REPLACED, *private.CALLED])
def test_what_is_replaced_or_called_is_still_there(path):
    owner, _, name = path.rpartition(".")
    module, _, kind = owner.rpartition(".")
    theirs = getattr(importlib.import_module(module), kind)
    assert hasattr(theirs, name) or f"self.{name} =" in inspect.getsource(theirs)
    assert re.fullmatch(r"[a-zS`].{15,}[^.]", {**private.REPLACED, **private.CALLED}[path])


def foreign_names(path):
    """Underscored attributes that nothing in the file defines."""
    text = path.read_text()
    if not re.search(r"\._[a-z]", text):
        return
    tree = ast.parse(text)
    defined = {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)}
    stored = {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and re.match(r"_[a-z]", node.attr):
            on_self = isinstance(node.value, ast.Name) and node.value.id == "self"
            if not (on_self and node.attr in defined | stored):
                yield node.attr, on_self


def test_private_names_are_used_in_one_module_alone():
    """A name that is defined anywhere in this project is its own."""
    files = [p for part in (dicast.app, dicast.workers) for p in Path(part.__path__[0]).rglob("*.py")]
    ours = set()
    for path in files:
        tree = ast.parse(path.read_text())
        ours |= {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)}
        ours |= {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store)}
    called = {path.rpartition(".")[2] for path in private.CALLED}
    for path in files:
        if path.name != "private.py":
            known = PYTHONS | SDKS | called | (ours - OF_KOMBU)
            assert {name for name, _ in foreign_names(path)} <= known, path


OF_KOMBU = {"_qos", "_in_poll"}
"""Stored to in private.py, so that the test above would take them for this project's own."""


@pytest.mark.parametrize(
    ("where", "names"),
    [
        (transport.Channel, {"_create_client", "_in_poll", "_flush_brpop_reauth", "_lookup", "_receive_one", "_qos"}),
        (virtual.Transport, {"_deliver"}),
        (virtual.QoS, {"_delivered", "_on_collect"}),
        (build_tracer, {"_orig_run"}),
    ],
    ids=lambda value: getattr(value, "__qualname__", ""),
)
def test_what_is_read_of_kombu_and_celery_is_still_there(where, names):
    source = inspect.getsource(inspect.getmodule(where)) + inspect.getsource(virtual.base)
    if where is build_tracer:
        source = inspect.getsource(importlib.import_module("celery.app.autoretry"))
    assert {name for name in names if name not in source} == set()
    used = inspect.getsource(private)
    assert {name for name in names if name not in used} == set()
