"""Clients of the store with a deadline on every wait: no thread and no task waits for ever for a silent server."""

from __future__ import annotations

from typing import Any

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import ExponentialBackoff
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    MasterDownError,
    NoPermissionError,
    ReadOnlyError,
)
from redis.exceptions import ConnectionError as StoreConnectionError
from redis.exceptions import TimeoutError as StoreTimeoutError
from redis.retry import Retry

from dicast.workers.store.batches import BatchingClient
from dicast.workers.store.sentinel import async_master_pool, is_sentinel, master_pool

# redis-py types every answer as bytes or str or more. These clients decode: their answers are text and numbers.
StoreClient = Any
AsyncStoreClient = Any

CONNECT_TIMEOUT_S = 3.0
ANSWER_TIMEOUT_S = 5.0
ASYNC_CONNECTIONS = 64
BATCHING_LANES = 2

DEMOTED = (ReadOnlyError, MasterDownError)
"""The errors of a server that is no longer a primary, whose connections may stay alive for ever."""
_RETRIED: list[type[Exception]] = [StoreConnectionError, StoreTimeoutError, BusyLoadingError, *DEMOTED]
"""Errors after which a command is retried over a new connection, which may lead to the new primary."""


def _options() -> dict[str, Any]:
    return {
        "decode_responses": True,
        "socket_connect_timeout": CONNECT_TIMEOUT_S,
        "socket_timeout": ANSWER_TIMEOUT_S,
        "health_check_interval": 15,
        "retry_on_error": _RETRIED,
    }


def connect(url: str, retries: int = 3) -> StoreClient:
    """Return a client for synchronous callers (submission, CLI, tests). Raises `ValueError` for a malformed URL."""
    options = {**_options(), "retry": Retry(ExponentialBackoff(cap=0.5, base=0.02), retries)}
    pool = master_pool(url, **options) if is_sentinel(url) else redis.ConnectionPool.from_url(url, **options)
    leave_demoted(pool)
    return redis.Redis.from_pool(pool)


def rejects_login(url: str) -> bool:
    """Return whether the store answers and rejects this login. Takes one connection, and at most a few seconds."""
    try:
        with connect(url, retries=0) as client:
            client.ping()
    except (AuthenticationError, NoPermissionError):
        return True
    except (redis.RedisError, OSError):
        return False
    return False


def connect_async(url: str) -> AsyncStoreClient:
    """Return a client for one event loop. Callers beyond `ASYNC_CONNECTIONS` wait up to a few seconds for a
    connection."""
    return redis.asyncio.Redis.from_pool(_async_pool(url))


def connect_batching(url: str) -> AsyncStoreClient:
    """Return a client for many callers at once, whose commands share round trips (see
    `dicast.workers.store.batches`)."""
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
    raise_when_closed(pool)
    return pool


def leave_demoted(pool: redis.ConnectionPool) -> None:
    """Have the pool close connections over which a server has answered that it is not a primary, so that the next one
    looks up the primary again. redis-py does so only for commands that it retries itself, and not for one that was
    rejected within a pipeline."""
    base: Any = pool.connection_class

    class LeavingConnection(base):  # type: ignore[misc]
        def read_response(self, *args: Any, **kwargs: Any) -> Any:
            try:
                return super().read_response(*args, **kwargs)
            except DEMOTED:
                self.mark_for_reconnect()
                raise

    pool.connection_class = LeavingConnection


def raise_when_closed(pool: redis.asyncio.ConnectionPool) -> None:
    """Have the pool's connections raise redis-py's `ConnectionError`, which is retried, when a write finds them closed:
    uvloop raises RuntimeError then, which redis-py lets through. Connections to a former primary are closed (see
    `leave_demoted`)."""
    base: Any = pool.connection_class

    class TellingConnection(base):  # type: ignore[misc]
        async def send_packed_command(self, command: Any, check_health: bool = True) -> None:
            try:
                await super().send_packed_command(command, check_health)
            except RuntimeError as error:
                await self.disconnect(nowait=True)
                raise StoreConnectionError(f"the connection was closed: {error}") from error

        async def read_response(self, *args: Any, **kwargs: Any) -> Any:
            try:
                return await super().read_response(*args, **kwargs)
            except DEMOTED:
                self.mark_for_reconnect()
                raise

    pool.connection_class = TellingConnection
