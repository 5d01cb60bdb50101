"""Fails, with the name of what moved, when a private hook of Celery or kombu that we rest on is no longer there."""

import inspect
from importlib.metadata import version

import pytest
from celery.app.control import Control
from celery.app.task import Task
from celery.app.trace import build_tracer
from celery.backends.redis import RedisBackend
from celery.concurrency.base import BasePool, apply_target
from celery.worker import control, state
from celery.worker.consumer import Consumer
from celery.worker.request import Request, create_request_cls
from celery.worker.strategy import default as default_strategy
from kombu import messaging
from kombu.asynchronous import Hub
from kombu.connection import Connection
from kombu.messaging import Producer
from kombu.transport import pyamqp
from kombu.transport import redis as transport

from dicast.workers.runtime.consumer import AdmissionConsumer


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
