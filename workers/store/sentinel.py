"""A store that is monitored by Redis Sentinel: its address, and connection pools that follow the master.

    sentinel://[user:password@]host[:port][;sentinel://host[:port]...]/db?master=mymaster

User and password are the data servers'. The sentinels' own are `sentinel_username` and `sentinel_password` in the
query; `ssl=true`, with `ssl_ca_certs`, `ssl_certfile`, `ssl_keyfile` and `ssl_cert_reqs` beside it, encrypts the way to
both. Every new connection asks the sentinels, one after the other, who is master now; none is found while they decide.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

import redis.asyncio.sentinel
import redis.sentinel

SCHEME = "sentinel"
PORT = 26379
ASK_TIMEOUT_S = 1.0
"""How long to wait for one sentinel before the next one is asked."""
_SSL = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs")


def is_sentinel(url: str) -> bool:
    return url.startswith(f"{SCHEME}://")


@dataclass(frozen=True, slots=True)
class SentinelAddress:
    """The addresses of the sentinels, and the name that they have for the store."""

    sentinels: tuple[tuple[str, int], ...]
    master: str
    db: int
    username: str | None
    password: str | None
    sentinel_username: str | None
    sentinel_password: str | None
    ssl: Mapping[str, str] | None
    """The options of an encrypted connection; None if it is not encrypted."""

    @classmethod
    def parse(cls, url: str) -> SentinelAddress:
        """Parse a URL. Raises `ValueError`, which quotes nothing of the URL."""
        parts = [urlsplit(chunk) for chunk in url.split(";")]
        login = next((p for p in parts if p.password or p.username), parts[0])
        query = {name: value for p in parts for name, value in parse_qsl(p.query, keep_blank_values=True)}
        databases = {p.path.strip("/") for p in parts} - {""}
        if any(p.scheme != SCHEME or not p.hostname for p in parts) or len(databases) > 1:
            raise ValueError("a sentinel URL has hosts, separated by ';', and one database")
        ssl = {name: query.pop(name) for name in _SSL if name in query}
        encrypted = query.pop("ssl", "false")
        address = cls(
            sentinels=tuple((str(p.hostname), p.port or PORT) for p in parts),
            master=query.pop("master", "mymaster"),
            db=int(databases.pop()) if databases else 0,
            username=unquote(login.username) if login.username else None,
            password=unquote(login.password) if login.password else None,
            sentinel_username=query.pop("sentinel_username", None),
            sentinel_password=query.pop("sentinel_password", None),
            ssl=({"ssl_cert_reqs": "required"} | ssl) if encrypted == "true" else None,
        )
        if query or encrypted not in {"true", "false"} or (ssl and address.ssl is None):
            raise ValueError("a sentinel URL's query has master, sentinel_username, sentinel_password, ssl and ssl_*")
        return address

    def url(self) -> str:
        """Return the URL for kombu's transport and Celery's result backend, which want login and database for each
        host."""
        login = ""
        if self.username or self.password:
            login = f"{quote(self.username or '', safe='')}:{quote(self.password or '', safe='')}@"
        hosts = [f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.sentinels]
        return ";".join(f"{SCHEME}://{login}{host}/{self.db}" for host in hosts)

    def asking(self) -> dict[str, Any]:
        """Return redis-py's options for connections to the sentinels."""
        login = {"username": self.sentinel_username, "password": self.sentinel_password}
        return {
            "socket_timeout": ASK_TIMEOUT_S,
            "socket_connect_timeout": ASK_TIMEOUT_S,
            "retry": None,  # redis-py's own would sleep for seconds before the next sentinel is asked
            **{name: value for name, value in login.items() if value is not None},
            **({"ssl": True, **self.ssl} if self.ssl is not None else {}),
        }

    def working(self) -> dict[str, Any]:
        """Return redis-py's options for connections to the master."""
        login = {"username": self.username, "password": self.password}
        return {
            "db": self.db,
            **{name: value for name, value in login.items() if value is not None},
            **({"ssl": True, **self.ssl} if self.ssl is not None else {}),
        }


def master_pool(url: str, **options: Any) -> redis.ConnectionPool:
    """Return a pool of connections to the master, for threads. `options` are redis-py's."""
    address = SentinelAddress.parse(url)
    sentinel: Any = redis.sentinel.Sentinel  # redis-py's constructors have no types
    pool: Any = _Pool
    manager = sentinel(address.sentinels, sentinel_kwargs=address.asking())
    connections: redis.ConnectionPool = pool(address.master, manager, **address.working(), **options)
    return connections


def async_master_pool(url: str, **options: Any) -> redis.asyncio.BlockingConnectionPool:
    """Return a pool of connections to the master, for one event loop; callers wait if none is free."""
    address = SentinelAddress.parse(url)
    sentinel: Any = redis.asyncio.sentinel.Sentinel
    pool: Any = _AsyncPool
    manager = sentinel(address.sentinels, sentinel_kwargs=address.asking())
    connections: redis.asyncio.BlockingConnectionPool = pool(address.master, manager, **address.working(), **options)
    return connections


class _Pool(redis.sentinel.SentinelConnectionPool):
    sentinel_manager: Any

    def disconnect(self, inuse_connections: bool = True) -> None:
        """Close the connections to the sentinels as well, which redis-py leaves open."""
        super().disconnect(inuse_connections)
        if inuse_connections:
            self.sentinel_manager.close()


class _AsyncPool(redis.asyncio.sentinel.SentinelConnectionPool, redis.asyncio.BlockingConnectionPool):
    sentinel_manager: Any

    async def disconnect(self, inuse_connections: bool = True) -> None:
        await super().disconnect(inuse_connections)
        if inuse_connections:
            for sentinel in self.sentinel_manager.sentinels:
                await sentinel.aclose()
