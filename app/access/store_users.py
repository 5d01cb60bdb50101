"""A user of the store for each node that joins over HTTP, with the rights of a worker and no others.

A node has its user as long as its token is valid. Revoking it deletes the user: its connections are closed at once, its
password is no longer valid, and whatever it still sends is refused. Users are not replicated between a store's servers,
nor kept over a restart: `reconcile` sets them again from what is recorded, and deletes those that are not. Passwords
follow from the installation's secret and are recorded as hashes alone.

The rights are the commands, keys and channels that a worker needs. A test compares the commands with those that the
scripts, the clients and kombu use, and runs a whole job with no more. Scripts run with the rights of their callers.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

import orjson
from pydantic import TypeAdapter, ValidationError
from redis.exceptions import ResponseError

from dicast.app.access.keys import AccessKeys, SecretMissing, TokenSecret
from dicast.errors import DicastError
from dicast.workers.store.connection import DEMOTED, StoreClient, is_passing
from dicast.workers.store.keys import Keys
from dicast.workers.store.scripts import script_text
from dicast.workers.store.sentinel import is_sentinel

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


TRIES = 5
"""The most tries, since connections may lead to a former master."""
_PLAIN = re.compile(r"[A-Za-z0-9_.]{1,40}")


class StoreUsersUnavailable(DicastError, RuntimeError):
    """The store does not allow users to be created: it is older than Redis 6, managed, or our own user may not."""

    problem = "store-users-refused"

    def __init__(self, error: Exception | str) -> None:
        super().__init__(
            f"the store does not let Dicast make users for nodes ({error}); nodes then need REDIS_URL instead of "
            "DICAST_SERVER_URL, or the server a user with the commands ACL and CLIENT KILL"
        )


@dataclass(frozen=True, slots=True)
class StoreCredentials:
    """The login with which a node reaches the store; `url` contains user and password, too."""

    url: str = field(repr=False)
    user: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class UserRecord:
    """The record of a node's user. `digest` is the SHA-256 of the password, `until` the unix s at which it ends."""

    user: str
    digest: str
    until: float


_RECORD = TypeAdapter(UserRecord)


class StoreUsers:
    """Makes and deletes nodes' users; `client` must be allowed ACL and CLIENT KILL. `url` is the store's as nodes reach
    it, without a login; the first of `all_secrets` makes passwords. `broker` None: it is not the store."""

    def __init__(
        self, client: StoreClient, namespace: str, url: str, all_secrets: Iterable[TokenSecret],
        broker: StoreBroker | None = None, clock: Callable[[], float] | None = None,
    ) -> None:  # fmt: skip
        self._redis, self._url, self._clock = client, url, clock
        self._key, self._mark = AccessKeys(namespace).store_users, AccessKeys(namespace).master_mark
        self._requires_password = False
        self._secret = next(iter(all_secrets), None)
        plain = namespace if _PLAIN.fullmatch(namespace) else hashlib.sha256(namespace.encode()).hexdigest()[:16]
        self._prefix = f"dicast-{plain}-"
        self._ours = re.compile(re.escape(self._prefix) + "[0-9a-f]{16}")
        self._rules = rules(namespace, broker)
        self._extend = client.register_script(script_text(Path(__file__).parent / "extend_user.lua"))

    def create(self, node: str, *, until: float, generation: int = 0) -> StoreCredentials:
        """Create the node's user, or replace it; it is valid until `until`, unix s. A node has the same password
        throughout a generation. Raises `StoreUsersUnavailable`, `SecretMissing`."""
        if self._secret is None:
            raise SecretMissing
        self._check_requires_password()
        password = self._secret.key(f"store user {generation} {node}").hex()
        record = UserRecord(self.name(node), hashlib.sha256(password.encode()).hexdigest(), until)
        # The record comes first: a user without one is deleted by `reconcile`.
        self._redis.hset(self._key, node, orjson.dumps(record))
        self._set(record)
        return StoreCredentials(with_login(self._url, record.user, password), record.user, password)

    def extend(self, node: str, until: float) -> bool:
        """Extend the node's user until then; returns False if it has none."""
        while (text := self._redis.hget(self._key, node)) and (record := _read(text)) is not None:
            longer = orjson.dumps(replace(record, until=until))
            if self._extend(keys=[self._key], args=[node, text, longer]):  # else it was deleted or made anew meanwhile
                return True
        return False

    def delete(self, node: str) -> int:
        """End the node's user; returns how many connections were closed. Holds on return: it can do nothing."""
        self._redis.hdel(self._key, node)
        return self._remove(self.name(node))

    def has(self, node: str) -> bool:
        """Return whether the node has a user."""
        return bool(self._redis.hexists(self._key, node))

    def nodes(self) -> dict[str, UserRecord]:
        """Return every node that has a user, with its record."""
        records = {node: _read(text) for node, text in self._redis.hgetall(self._key).items()}
        return {node: record for node, record in records.items() if record is not None}

    def reconcile(self, *, renew: bool = False) -> tuple[int, int]:
        """Make the users of the present master match the records; returns how many were set and how many deleted. Call
        it every few seconds; with `renew` it also sets the rights of existing users again."""
        (users,) = self._at_master(["ACL", "USERS"])
        there = {name for name in users if self._ours.fullmatch(name)}
        now, recorded = self._now(), self.nodes()
        for node in [node for node, record in recorded.items() if record.until <= now]:
            self._redis.hdel(self._key, node)
            del recorded[node]
        created = 0
        for node, record in recorded.items():
            if renew or record.user not in there:
                self._set(record)
                created += 1
                if self._record(node) is None:  # deleted while it was set
                    self._remove(record.user)
        obsolete = there - {record.user for record in recorded.values()}
        for name in obsolete:
            self._remove(name)
        return created, len(obsolete)

    def name(self, node: str) -> str:
        """Return the name of the node's user in the store."""
        return self._prefix + hashlib.sha256(node.encode()).hexdigest()[:16]

    def _set(self, record: UserRecord) -> None:
        self._at_master(["ACL", "SETUSER", record.user, "reset", "on", f"#{record.digest}", *self._rules])

    def _remove(self, user: str) -> int:
        """Remove a user; returns how many connections were closed. It is disabled first, so that it cannot log in again
        while its connections are closed."""
        _, killed, _ = self._at_master(
            ["ACL", "SETUSER", user, "off"], ["CLIENT", "KILL", "USER", user], ["ACL", "DELUSER", user]
        )
        return int(killed)

    def _at_master(self, *commands: Sequence[str]) -> list[Any]:
        """Execute commands at the master and return the replies. A former master answers such commands, too, over
        connections that outlive the fail-over: a write before them, on the same connection, detects that."""
        for tries_left in reversed(range(TRIES)):
            pipe = self._redis.pipeline(transaction=False).set(self._mark, "1")
            for command in commands:
                pipe.execute_command(*command)
            try:
                return list(pipe.execute()[1:])
            except DEMOTED:
                if not tries_left:
                    raise
            except ResponseError as error:
                if is_passing(error):
                    raise
                raise StoreUsersUnavailable(error) from None
        raise AssertionError

    def _check_requires_password(self) -> None:
        """Raise `StoreUsersUnavailable` if the default user needs no password: then deleting a user would keep nobody
        out. A unix socket is protected by its file permissions."""
        if self._requires_password or self._url.startswith("unix://"):
            return
        (facts,) = self._at_master(["ACL", "GETUSER", "default"])
        flags = facts["flags"] if isinstance(facts, dict) else facts[facts.index("flags") + 1]
        if "nopass" in flags and "on" in flags:
            raise StoreUsersUnavailable(
                "its default user has no password, so revoking would keep nobody out: set requirepass"
            )
        self._requires_password = True

    def _record(self, node: str) -> UserRecord | None:
        text = self._redis.hget(self._key, node)
        return _read(text) if text else None

    def _now(self) -> float:
        if self._clock is not None:
            return self._clock()
        seconds, micros = self._redis.time()
        return float(seconds + micros / 1e6)


def with_login(url: str, user: str, password: str) -> str:
    """Return the store's URL with this login instead of its own; each of several addresses gets it."""
    if is_sentinel(url):
        return ";".join(_one_with_login(part, user, password) for part in url.split(";"))
    return _one_with_login(url, user, password)


def _one_with_login(url: str, user: str, password: str) -> str:
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    query = [pair for pair in parts.query.split("&") if pair and pair.partition("=")[0] not in ("username", "password")]
    login = f"{quote(user, safe='')}:{quote(password, safe='')}"
    if parts.scheme == "unix":  # a socket's path follows at once: redis-py reads the login before it
        return f"unix://{login}@{host}{parts.path}" + (f"?{'&'.join(query)}" if query else "")
    return urlunsplit(parts._replace(netloc=f"{login}@{host}", query="&".join(query)))


def _read(text: str) -> UserRecord | None:
    try:
        return _RECORD.validate_json(text)
    except ValidationError:
        return None
