"""The broker's profiles: messages wait in the store itself (Redis, Valkey, also behind Sentinel), or in RabbitMQ.

RabbitMQ's are quorum queues. A profile has all settings of Celery that differ. Leases, ledger and results are in the
store in both cases.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from dicast.workers.store.embedded import backend_url, broker_url
from dicast.workers.store.keys import encode
from dicast.workers.store.sentinel import SentinelAddress, is_sentinel

MAX_CONNECTIONS = 1000
ANSWER_TIMEOUT_S, CONNECT_TIMEOUT_S = 10.0, 5.0

HEARTBEAT_S = 10.0
"""RabbitMQ takes back the messages of a worker that it has not heard from for twice as long."""
DELIVERIES = 20
"""How often RabbitMQ redelivers a message before it drops it; the ledger sends it anew if it is still needed."""


@dataclass(frozen=True, slots=True)
class Broker:
    """A broker profile. `settings` are Celery's, `queue_arguments` are for every queue; `is_store` says that messages
    wait in the store."""

    settings: Mapping[str, Any]
    is_store: bool
    queue_arguments: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def for_urls(cls, store_url: str, rabbitmq_url: str | None = None) -> Broker:
        """Return the profile for these URLs. Raises `ValueError` for a URL of neither kind; the message quotes nothing
        of it."""
        return rabbitmq(rabbitmq_url) if rabbitmq_url else store(store_url)

    def short_lived(self, for_s: float, most: int) -> Mapping[str, Any]:
        """Return queue arguments for messages that soon expire, of which few are enough, since nobody may take them. In
        the store such messages stay."""
        bounds = {} if self.is_store else {"x-message-ttl": round(1000 * for_s), "x-max-length": most}
        return {**self.queue_arguments, **bounds}


def store(url: str) -> Broker:
    """Return the profile of the store as broker."""
    options: dict[str, Any] = {
        "max_connections": MAX_CONNECTIONS,
        "socket_timeout": ANSWER_TIMEOUT_S,
        "socket_connect_timeout": CONNECT_TIMEOUT_S,
        "socket_keepalive": True,
        "body_encoding": None,  # bodies are JSON, which is text: base64 would make them a third longer
    }
    settings: dict[str, Any] = {"broker_url": broker_url(url), "broker_transport_options": options}
    if is_sentinel(url):
        address = SentinelAddress.parse(url)
        options |= {"master_name": address.master, "sentinel_kwargs": address.asking()}
        settings["broker_use_ssl"] = dict(address.ssl) if address.ssl is not None else None
    return Broker(settings, is_store=True)


def rabbitmq(url: str) -> Broker:
    """Return the profile of RabbitMQ 3.10 or newer, at `amqp://` or `amqps://`; nodes of a cluster are separated by
    ';'.

    Every message is confirmed by a majority of the queue's replicas before it counts as sent.
    """
    if any(urlsplit(node).scheme not in {"amqp", "amqps"} for node in url.split(";")):
        raise ValueError("the broker's URL must begin with amqp:// or amqps://")
    settings = {
        "broker_url": url,
        "broker_transport_options": {"confirm_publish": True},
        "broker_heartbeat": HEARTBEAT_S,
        "broker_connection_timeout": CONNECT_TIMEOUT_S,
        # RabbitMQ closes a channel over a message that was held for longer than its `consumer_timeout`.
        "broker_channel_error_retry": True,
        # About a minute, in which a node restarts or another one takes its place.
        "task_publish_retry_policy": {
            "max_retries": 60,
            "interval_start": 0,
            "interval_step": 0.2,
            "interval_max": 1.0,
        },
    }
    return Broker(settings, is_store=False, queue_arguments={"x-queue-type": "quorum", "x-delivery-limit": DELIVERIES})


def result_backend(store_url: str) -> str:
    """Return Celery's `result_backend` for the store."""
    backend = "SentinelBackend" if is_sentinel(store_url) else "RedisBackend"
    return f"dicast.workers.runtime.result_backend:{backend}+{backend_url(store_url)}"


_MARK = "@"


@dataclass(frozen=True, slots=True)
class Names:
    """The names of one installation; without a namespace they are plain.

    They are the names of its queues and exchanges, where several installations share a broker.

        Names().qualify("provider.openai")        -> provider.openai
        Names("blue").qualify("provider.openai")  -> provider.openai@blue

    Names of two installations are never equal, since neither plain names nor encoded namespaces contain '@'.
    """

    namespace: str = ""

    def qualify(self, plain: str) -> str:
        return f"{plain}{_MARK}{encode(self.namespace)}" if self.namespace else plain


def plain(name: str) -> str:
    """Return the name without its namespace."""
    return name.partition(_MARK)[0]
