"""Clients of the store with a deadline on every wait: no thread and no task waits for a silent server for ever."""

from __future__ import annotations

from typing import Any

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import ExponentialBackoff
from redis.exceptions import BusyLoadingError, ReadOnlyError
from redis.exceptions import ConnectionError as StoreConnectionError
from redis.exceptions import TimeoutError as StoreTimeoutError
from redis.retry import Retry

from workers.store.batches import BatchingClient
from workers.store.sentinel import async_master_pool, is_sentinel, master_pool

# redis-py types every answer as bytes or str or more. These clients decode: their answers are text and numbers.
StoreClient = Any
AsyncStoreClient = Any

CONNECT_TIMEOUT_S = 3.0
ANSWER_TIMEOUT_S = 5.0
ASYNC_CONNECTIONS = 64
BATCHING_LANES = 2

_RETRIED: list[type[Exception]] = [StoreConnectionError, StoreTimeoutError, BusyLoadingError, ReadOnlyError]
"""Each by a new connection, which may find the primary where the old one has found a replica."""


def _options() -> dict[str, Any]:
    return {
        "decode_responses": True,
        "socket_connect_timeout": CONNECT_TIMEOUT_S,
        "socket_timeout": ANSWER_TIMEOUT_S,
        "health_check_interval": 15,
        "retry_on_error": _RETRIED,
    }


def connect(url: str, retries: int = 3) -> StoreClient:
    """A client for synchronous callers (submission, CLI, tests). Raises `ValueError` for a URL of another shape."""
    options = {**_options(), "retry": Retry(ExponentialBackoff(cap=0.5, base=0.02), retries)}
    if is_sentinel(url):
        return redis.Redis.from_pool(master_pool(url, **options))
    return redis.Redis.from_url(url, **options)


def connect_async(url: str) -> AsyncStoreClient:
    """A client for one event loop. Callers beyond `ASYNC_CONNECTIONS` wait for a connection, at most a few seconds."""
    return redis.asyncio.Redis.from_pool(_async_pool(url))


def connect_batching(url: str) -> AsyncStoreClient:
    """The same for many callers at once: their commands share round trips (see `workers.store.batches`)."""
    return BatchingClient(_async_pool(url), BATCHING_LANES)


def _async_pool(url: str) -> redis.asyncio.BlockingConnectionPool:
    options = {
        **_options(),
        "max_connections": ASYNC_CONNECTIONS,
        "timeout": ANSWER_TIMEOUT_S,
        "retry": AsyncRetry(ExponentialBackoff(cap=0.5, base=0.02), 3),
    }
    if is_sentinel(url):
        pool = async_master_pool(url, **options)
    else:
        pool = redis.asyncio.BlockingConnectionPool.from_url(url, **options)
    tell_of_closed(pool)
    return pool


def tell_of_closed(pool: redis.asyncio.ConnectionPool) -> None:
    """Have the pool's connections raise redis-py's `ConnectionError`, and so be retried, where they are found closed
    only when written to: uvloop raises RuntimeError then, which redis-py lets through."""
    base: Any = pool.connection_class

    class TellingConnection(base):  # type: ignore[misc]
        async def send_packed_command(self, command: Any, check_health: bool = True) -> None:
            try:
                await super().send_packed_command(command, check_health)
            except RuntimeError as error:
                await self.disconnect(nowait=True)
                raise StoreConnectionError(f"the connection was closed: {error}") from error

    pool.connection_class = TellingConnection
