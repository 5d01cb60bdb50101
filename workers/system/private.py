"""The private parts of Celery and kombu 5.7 that Dicast needs, each with the reason.

No other module reads, calls or replaces a private name of theirs, except for the methods in `REPLACED` and `CALLED`,
which belong to base classes of other modules. tests/test_celery_hooks.py checks all of it against the pinned versions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

REPLACED = {
    "celery.app.amqp.AMQP._create_task_sender": "messages leave by helper threads, so that no broker blocks the loop",
    "celery.app.base.Celery._load_config": "a thread does not see settings that another one is loading",
    "celery.backends.base.Backend._sleep": "a task greenlet waits on the loop, not in the thread",
    "celery.backends.redis.RedisBackend._chord_part_return_script": "registered once, not for each client",
    "celery.backends.redis.RedisBackend._get_pool": "Sentinel's clients follow the master",
    "celery.backends.redis.RedisBackend._params_from_url": "Sentinel's URL is the store's, with its own passwords",
    "celery.concurrency.base.BasePool._get_info": "`inspect stats` tells of this pool",
    "celery.worker.consumer.consumer.Consumer._limit_post_eta": "a unit enters the pool through its gate",
    "celery.worker.consumer.consumer.Consumer._limit_task": "a unit enters the pool through its gate",
    "celery.worker.consumer.consumer.Consumer._update_prefetch_count": "all slots serve queues without a gate",
}
"""Methods that classes here override."""
CALLED = {
    "celery.backends.redis.RedisBackend._create_client": "a second client, for the loop",
    "celery.worker.consumer.consumer.Consumer._flush_events": "events leave a few times a second",
    "celery.worker.consumer.consumer.Consumer._update_qos_eventually": "how Celery itself applies a prefetch count",
    "celery.worker.request.Request._already_revoked": "control work that came too late is looked at once",
    "celery.worker.request.Request._announce_revoked": "control work that comes too late ends as Celery's would",
    "celery.worker.request.Request._context": "listeners to `task_revoked` are given what Celery gives them",
}
"""Private methods and attributes of base classes that classes here use."""


def replace_qos(channel: Any, kind: type) -> None:
    """Have a Redis channel keep its unacknowledged messages in an instance of `kind`, which kombu makes at first use.

    Raises RuntimeError if the channel has received messages already.
    """
    unused = channel._qos
    if unused is not None:
        if unused._delivered:
            raise RuntimeError("the channel has received messages already")
        unused._on_collect.cancel()  # or it would be kept until the process exits
    channel.QoS, channel._qos = kind, None


def qos_of(channel: Any) -> Any:
    """Return the channel's QoS object; None if it has none yet, where the public attribute would make one."""
    return channel._qos


def new_client(channel: Any) -> Any:
    """Return another client of the channel's server than the one that waits for messages."""
    return channel._create_client()


def queue_of(channel: Any, exchange: str, routing_key: str) -> str:
    """Return the queue to which a message goes back."""
    return next(iter(channel._lookup(exchange, routing_key)), routing_key)


def deliver(channel: Any, payload: Any, queue: str) -> None:
    """Deliver a message that did not come by kombu's pop."""
    channel.connection._deliver(payload, queue)


def waits_for_pop(channel: Any) -> bool:
    """Return whether a blocking pop is under way, whose answer may contain a message."""
    return bool(channel._in_poll)


def end_pop(channel: Any) -> None:
    """Do what kombu does after it has read the answer to its pop."""
    channel._in_poll = None
    channel._flush_brpop_reauth()


def wrap_broadcasts(channels: Any, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Wrap the method with which a class of Redis channels reads one broadcast; only once."""
    receive = channels._receive_one
    if not hasattr(receive, "__wrapped__"):
        channels._receive_one = wrap(receive)


def body_of(task: Any) -> str:
    """Return the attribute that holds a task's function: the one beneath Celery's autoretry, if there is one."""
    return "_orig_run" if hasattr(task, "_orig_run") else "run"
