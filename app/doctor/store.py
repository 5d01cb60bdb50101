"""The store: does it answer, does it keep what it is given, and who can reach it?"""

from __future__ import annotations

import ipaddress
import statistics
import time
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import redis
from redis.exceptions import RedisError, ResponseError

from app.celery import Dicast
from app.doctor.finding import Finding, Severity
from workers.resident import ResidentError
from workers.store.embedded import broker_url

PINGS = 5
SAFETY = frozenset({"persistence", "eviction", "access"})
"""Areas in which an error means that jobs may be lost silently, or that anybody may reach them."""
SLOW_STORE_MS = 20.0
STORE_TIMEOUT_S = 3.0
MEMORY_SHARE = 0.8
URL_SHAPES = "redis://[user:password@]host:port/db, rediss://... or unix:///path, special characters %-encoded"


def understood(url: str) -> bool:
    """Whether broker, results and ledger can all read this URL.

    To be asked first: their own complaints may quote a piece of what should have been the password.
    """
    try:
        broker_url(url)
        redis.ConnectionPool.from_url(url)
    except ValueError:
        return False
    return True


def store(dicast: Dicast) -> Iterator[Finding]:
    given = dicast.settings.redis_url
    if given and not understood(given):
        yield Finding(Severity.ERROR, "store", "REDIS_URL cannot be understood", f"it looks like {URL_SHAPES}")
        return
    try:
        url = dicast.store_url
    except ResidentError as error:
        yield Finding(Severity.ERROR, "store", f"the embedded Valkey does not start: {error}", "set REDIS_URL instead")
        return
    client: Any = redis.Redis.from_url(
        url, decode_responses=True, socket_timeout=STORE_TIMEOUT_S, socket_connect_timeout=STORE_TIMEOUT_S, retry=None
    )
    place = _place(url) if given else f"the embedded Valkey of {dicast.settings.state_dir}"
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
        yield from _access(client, url)


def _ping_ms(client: Any) -> float:
    started = time.perf_counter()
    client.ping()
    return 1000 * (time.perf_counter() - started)


def _version(info: Mapping[str, Any]) -> str:
    return f"Valkey {info['valkey_version']}" if "valkey_version" in info else f"Redis {info.get('redis_version', '?')}"


def _keeping(client: Any, info: Mapping[str, Any]) -> Iterator[Finding]:
    """Does it keep what it is given?"""
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
    """A value of the server's configuration; '' where it may not be read, as in managed stores."""
    try:
        return str(client.config_get(name).get(name, ""))
    except ResponseError:
        return ""


def _access(client: Any, url: str) -> Iterator[Finding]:
    parts = urlsplit(url)
    if parts.scheme == "unix":
        return
    private = _loopback(parts.hostname or "localhost")
    password = parts.password or "password=" in parts.query
    everywhere = _config(client, "protected-mode") == "no" and not all(
        _loopback(address.lstrip("-")) for address in (_config(client, "bind") or "*").split()
    )
    if not password and (not private or everywhere):
        yield Finding(
            Severity.ERROR, "access", "no password, and other hosts can reach it", "set requirepass, or bind 127.0.0.1"
        )
    elif not private and parts.scheme == "redis":
        yield Finding(
            Severity.WARNING, "access", "not encrypted: texts and the password cross the network in clear",
            "use rediss://, or a private network",
        )  # fmt: skip
    else:
        yield Finding(Severity.OK, "access", "with a password" if password else "from this machine only")


def _place(url: str) -> str:
    parts = urlsplit(url)
    return parts.path if parts.scheme == "unix" else f"{parts.hostname or 'localhost'}:{parts.port or 6379}"


def _loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
