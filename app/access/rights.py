"""The rights of a node in the store: the commands, keys and channels that a worker needs.

A test compares the commands with those that the scripts, the clients and kombu use, and runs a whole job with no more.
Scripts run with the rights of their callers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from dicast.workers.store.keys import Keys

COMMANDS = (
    # the connection
    "auth", "hello", "ping", "select", "quit", "reset", "client|setname",
    # transactions, and scripts: to load one does not let it do more
    "multi", "exec", "discard", "watch", "unwatch", "evalsha", "script|load", "script|exists",
    # the server's clock, and whether it is the same one as before, and safe
    "time", "info",
    # keys
    "del", "exists", "expire", "pexpire", "persist", "pttl", "rename", "ttl", "type", "unlink",
    # the names of keys, which the governor goes through for the pools that are in use
    "scan",
    # strings
    "get", "getrange", "incr", "mget", "set", "setex", "setrange",
    # hashes
    "hdel", "hexists", "hget", "hgetall", "hincrby", "hincrbyfloat", "hkeys", "hlen", "hmget", "hscan", "hset",
    "hsetnx", "hvals",
    # lists, which are kombu's queues too
    "blpop", "brpop", "lindex", "llen", "lpos", "lpush", "lrange", "lrem", "ltrim", "rpop", "rpush",
    # sets
    "sadd", "scard", "sismember", "smembers", "srem",
    # sorted sets
    "zadd", "zcard", "zcount", "zmscore", "zrange", "zrangebyscore", "zrem", "zremrangebyscore", "zrevrange",
    "zrevrangebyscore", "zscan", "zscore",
    # streams
    "xadd", "xlen", "xrange", "xtrim",
    # channels
    "publish", "subscribe", "unsubscribe", "psubscribe", "punsubscribe",
)  # fmt: skip
"""Commands in lower case, as in ACL rules. None is in the categories @admin and @dangerous, except INFO."""

PRIORITIES = "\x06\x16[369]"
"""The suffixes that kombu appends to a queue's name for messages of other priorities than 0."""
RESULTS = ("celery-task-meta-*", "celery-taskset-meta-*", "chord-unlock-*")


@dataclass(frozen=True, slots=True)
class StoreBroker:
    """The names that Celery and kombu use in this installation, where its broker is the store."""

    queues: tuple[str, ...] = ()
    """Names of the queues with work."""
    exchange: str = "dicast"
    control: str = "celery"
    """The exchange of remote control."""
    events: str = "celeryev"
    db: int = 0
    plain_results: bool = True
    """Whether results have Celery's plain names; else they are under the installation's prefix."""


def key_patterns(namespace: str, broker: StoreBroker | None) -> list[str]:
    """Return the patterns of all keys; `broker` is None if it is not the store."""
    patterns = [literal(Keys(namespace).at("")) + "*"]
    if broker is None or broker.plain_results:
        patterns += RESULTS
    if broker is not None:
        pidbox = f"*.{literal(broker.control)}.pidbox"
        for queue in [*map(literal, broker.queues), pidbox]:
            patterns += [queue, queue + PRIORITIES]
        exchanges = [broker.exchange, f"{broker.control}.pidbox", f"reply.{broker.control}.pidbox", broker.events]
        for exchange in map(literal, exchanges):
            patterns += [f"_kombu.binding.{exchange}", f"_kombu.binding_permanent.{exchange}"]
        patterns.append("_kombu.binding_deadlines")
    return patterns


def channel_patterns(namespace: str, broker: StoreBroker | None) -> list[str]:
    """Return the patterns of all channels. A subscribed wildcard must be listed exactly as it is subscribed to."""
    patterns = [literal(Keys(namespace).at("")) + "*"]
    if broker is None or broker.plain_results:
        patterns.append("celery-task-meta-*")
    if broker is not None:
        patterns += [f"/{broker.db}.{literal(broker.control)}.pidbox", f"/{broker.db}.{literal(broker.events)}/*"]
    return patterns


def rules(namespace: str, broker: StoreBroker | None) -> list[str]:
    """Return the arguments of ACL SETUSER, after a reset."""
    return [
        *(f"+{command}" for command in COMMANDS),
        *(f"~{pattern}" for pattern in _once(key_patterns(namespace, broker))),
        *(f"&{pattern}" for pattern in _once(channel_patterns(namespace, broker))),
    ]


def literal(name: str) -> str:
    """Return a pattern that only this name matches."""
    return re.sub(r"([*?\[\]\\^])", r"\\\1", name)


def _once(patterns: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(patterns))
