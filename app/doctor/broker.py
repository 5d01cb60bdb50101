"""Checks RabbitMQ where it is the broker: that it answers, its version, its queues, and its encryption."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from dicast.app.application import Dicast
from dicast.app.doctor.finding import Finding, Severity
from dicast.app.doctor.store import loopback

OLDEST = (3, 10)
"""The oldest version that expires messages of quorum queues."""
QUEUE_TYPE = "queue type"


def broker(dicast: Dicast) -> Iterator[Finding]:
    """Check the broker; yields nothing where messages wait in the store."""
    if dicast.broker.is_store:
        return
    with dicast.connection_for_read() as connection:
        try:
            properties = connection.connection.server_properties
            version = properties.get("version", "?")
            yield _broker_version(connection, properties.get("product", "?"), version)
            yield from _queues(dicast, connection)
        except (*connection.connection_errors, *connection.channel_errors) as error:
            yield Finding(
                Severity.ERROR, "broker", f"{_addresses(dicast)} does not answer: {type(error).__name__}: {error}",
                "start it, or correct DICAST_BROKER_URL",
            )  # fmt: skip
            return
    yield from _broker_access(dicast)


def _broker_version(connection: Any, product: str, version: str) -> Finding:
    product_line = f"{connection.host}: {product} {version}"
    version_numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
    if product == "RabbitMQ" and version_numbers >= OLDEST:
        return Finding(Severity.OK, "broker", product_line)
    oldest = ".".join(map(str, OLDEST))
    return Finding(Severity.ERROR, "broker", f"{product_line} is not RabbitMQ {oldest} or newer", "install a newer one")


def _queues(dicast: Dicast, connection: Any) -> Iterator[Finding]:
    """Check that existing queues have the arguments that they should have. Creates no queue."""
    for name, queue in dicast.amqp.queues.items():
        with connection.channel() as channel:
            try:
                queue(channel).queue_declare(passive=True)
            except connection.channel_errors:  # it is not there
                continue
        with connection.channel() as channel:
            try:
                queue(channel).queue_declare()
            except connection.channel_errors as error:
                yield Finding(
                    Severity.ERROR, QUEUE_TYPE, f"queue {name} was made with other arguments: {error}",
                    "let its messages be worked off and delete it, or use a virtual host of Dicast's own",
                )  # fmt: skip


def _broker_access(dicast: Dicast) -> Iterator[Finding]:
    nodes = [urlsplit(node) for node in str(dicast.settings.broker_url).split(";")]
    if any(node.scheme == "amqp" and not loopback(node.hostname or "localhost") for node in nodes):
        yield Finding(
            Severity.WARNING, "broker access", "not encrypted: the password crosses the network in clear",
            "use amqps://, or a private network",
        )  # fmt: skip


def _addresses(dicast: Dicast) -> str:
    nodes = [urlsplit(node) for node in str(dicast.settings.broker_url).split(";")]
    return ", ".join(f"{node.hostname or 'localhost'}:{node.port or 5672}" for node in nodes)
