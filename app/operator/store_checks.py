"""Checks the store and, where RabbitMQ is the broker, RabbitMQ; and what the result of any check is (`Finding`)."""

from __future__ import annotations

import ipaddress
import statistics
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from urllib.parse import urlsplit

from redis.exceptions import RedisError, ResponseError

from dicast.app.application import Dicast
from dicast.workers.broker.profiles import Broker
from dicast.workers.store.connection import connect
from dicast.workers.store.daemon import DaemonError
from dicast.workers.store.embedded import server_version
from dicast.workers.store.sentinel import SentinelAddress, is_sentinel


class Severity(StrEnum):
    OK = "ok"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check. `advice` is empty where nothing is to be done."""

    severity: Severity
    area: str
    message: str
    advice: str = ""


PINGS = 5
SAFETY = frozenset({"persistence", "eviction", "access"})
"""Areas in which an error means that jobs may be lost silently, or that anybody can reach them."""
SLOW_STORE_MS = 20.0
MEMORY_SHARE = 0.8
SENTINELS_MIN = 3
URL_SHAPES = (
    "redis://[user:password@]host:port/db, rediss://..., unix:///path or "
    "sentinel://host:port;sentinel://host:port/db?master=name, special characters %-encoded"
)


def understood(url: str) -> bool:
    """Whether broker, results and ledger can all parse this URL.

    Call this first: their own error messages may quote a part of the password.
    """
    try:
        Broker.for_urls(url)
        connect(url)
    except ValueError:
        return False
    return True


def store_program(dicast: Dicast) -> Finding:
    """Check that the embedded store could be started, where it has never run."""
    try:
        version = server_version()
    except DaemonError as error:
        return _does_not_start(error)
    return Finding(
        Severity.OK, "store",
        f"the embedded Valkey of {dicast.settings.state_dir}: Valkey {version}, which the first job or worker starts",
    )  # fmt: skip


def _does_not_start(error: DaemonError) -> Finding:
    return Finding(Severity.ERROR, "store", f"the embedded Valkey does not start: {error}", "set REDIS_URL instead")


def store(dicast: Dicast) -> Iterator[Finding]:
    """Check that the store answers and keeps its data, and who can reach it."""
    configured_url = dicast.settings.redis_url
    if configured_url and not understood(configured_url):
        yield Finding(Severity.ERROR, "store", "REDIS_URL cannot be understood", f"it looks like {URL_SHAPES}")
        return
    try:
        url = dicast.store_url
    except DaemonError as error:
        yield _does_not_start(error)
        return
    client: Any = connect(url, retries=0)
    place = (
        _place(url)
        if configured_url or dicast.settings.joins
        else f"the embedded Valkey of {dicast.settings.state_dir}"
    )
    with client:
        try:
            latency_ms = statistics.median(_ping_ms(client) for _ in range(PINGS))
            info = client.info()
        except RedisError as error:
            yield Finding(
                Severity.ERROR, "store", f"{place} does not answer: {type(error).__name__}: {error}",
                "start it, or correct REDIS_URL",
            )  # fmt: skip
            return
        slow = latency_ms > SLOW_STORE_MS
        yield Finding(
            Severity.WARNING if slow else Severity.OK, "store",
            f"{place}: {_version(info)}, answers in {latency_ms:.1f} ms",
            "workers ask it several times a unit: bring them nearer to it" if slow else "",
        )  # fmt: skip
        yield from _keeping(client, info)
        if is_sentinel(url):
            address = SentinelAddress.parse(url)
            yield from _watched(client, info, address)
            host, _ = client.connection_pool.get_master_address()
            yield from _access(client, host, bool(address.password), address.ssl is not None)
        elif (parts := urlsplit(url)).scheme != "unix":
            password = bool(parts.password or "password=" in parts.query)
            yield from _access(client, parts.hostname or "localhost", password, parts.scheme == "rediss")


def _ping_ms(client: Any) -> float:
    started = time.perf_counter()
    client.ping()
    return 1000 * (time.perf_counter() - started)


def _version(info: Mapping[str, Any]) -> str:
    return f"Valkey {info['valkey_version']}" if "valkey_version" in info else f"Redis {info.get('redis_version', '?')}"


def _keeping(client: Any, info: Mapping[str, Any]) -> Iterator[Finding]:
    """Check persistence, eviction and memory."""
    advice = "set appendonly yes"
    if info.get("aof_enabled"):
        yield Finding(Severity.OK, "persistence", "append-only file")
    elif _config(client, "save"):
        yield Finding(
            Severity.WARNING, "persistence", "snapshots only: a crash loses the minutes since the last one", advice
        )
    else:
        yield Finding(Severity.ERROR, "persistence", "none: a restart of the store loses every job", advice)
    policy, most, used = info.get("maxmemory_policy", "?"), int(info.get("maxmemory", 0)), int(info["used_memory"])
    if policy != "noeviction":
        yield Finding(
            Severity.ERROR if most else Severity.WARNING, "eviction",
            f"maxmemory-policy is {policy}: a full store drops jobs silently", "set maxmemory-policy noeviction",
        )  # fmt: skip
    else:
        yield Finding(Severity.OK, "eviction", "noeviction")
    if most and used > MEMORY_SHARE * most:
        yield Finding(
            Severity.WARNING, "memory", f"{used >> 20} of {most >> 20} MiB are used: a full store takes no more jobs",
            "raise maxmemory",
        )  # fmt: skip


def _config(client: Any, name: str) -> str | None:
    """Return a value of the server's configuration; "" where it may not be read, as in managed stores."""
    try:
        return str(client.config_get(name).get(name, ""))
    except ResponseError:
        return ""


def _watched(client: Any, info: Mapping[str, Any], address: SentinelAddress) -> Iterator[Finding]:
    """Check that a replica can take over, and that a master that is cut off stops accepting writes."""
    replicas, sentinels = int(info.get("connected_slaves", 0)), len(address.sentinels)
    if not replicas:
        yield Finding(Severity.WARNING, "fail-over", "the master has no replica", "add two")
    if sentinels < SENTINELS_MIN:
        yield Finding(
            Severity.WARNING, "fail-over", f"REDIS_URL names {sentinels} of the sentinels: if they are away, all is",
            f"run {SENTINELS_MIN} on machines of their own, and name them all",
        )  # fmt: skip
    if _config(client, "min-replicas-to-write") == "0":
        yield Finding(
            Severity.WARNING, "fail-over",
            "a master that is cut off from its replicas goes on granting calls beside its successor",
            "set min-replicas-to-write 1, and min-replicas-max-lag no longer than down-after-milliseconds",
        )  # fmt: skip
    elif replicas and sentinels >= SENTINELS_MIN:
        yield Finding(Severity.OK, "fail-over", f"{replicas} replicas, {sentinels} sentinels")


def _access(client: Any, host: str, password: bool, encrypted: bool) -> Iterator[Finding]:
    private = loopback(host)
    everywhere = _config(client, "protected-mode") == "no" and not all(
        loopback(address.lstrip("-")) for address in (_config(client, "bind") or "*").split()
    )
    if not password and (not private or everywhere):
        yield Finding(
            Severity.ERROR, "access", "no password, and other hosts can reach it", "set requirepass, or bind 127.0.0.1"
        )
    elif not private and not encrypted:
        yield Finding(
            Severity.WARNING, "access", "not encrypted: texts and the password cross the network in clear",
            "use rediss://, or a private network",
        )  # fmt: skip
    else:
        yield Finding(Severity.OK, "access", "with a password" if password else "from this machine only")


def _place(url: str) -> str:
    if is_sentinel(url):
        address = SentinelAddress.parse(url)
        return f"{address.master} behind {len(address.sentinels)} sentinels"
    parts = urlsplit(url)
    return parts.path if parts.scheme == "unix" else f"{parts.hostname or 'localhost'}:{parts.port or 6379}"


def loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


OLDEST = (3, 10)
"""The oldest version that expires messages of quorum queues."""
QUEUE_TYPE = "queue type"


def broker(dicast: Dicast) -> Iterator[Finding]:
    """Check the broker; yields nothing where messages wait in the store.

    The checks are whether RabbitMQ answers, its version, its queues, and its encryption.
    """
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
