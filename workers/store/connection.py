"""Clients of the store with a deadline on every wait: no thread and no task waits for ever for a silent server.

Which errors of the store are temporary is decided here (`is_passing`), for every loop and every caller that retries.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import ExponentialBackoff
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    ClusterDownError,
    InvalidResponse,
    MasterDownError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as StoreConnectionError
from redis.exceptions import TimeoutError as StoreTimeoutError
from redis.retry import Retry

from dicast.workers.store.sentinel import async_master_pool, is_sentinel, master_pool
from dicast.workers.system.supervision import watch

BATCH_MAX = 64
"""The most callers that share one round trip; all of them go on in one turn of the loop when it is back."""
LANES = 4
"""The number of round trips under way at once."""

Command = tuple[tuple[Any, ...], dict[str, Any]]


class BatchingClient(redis.asyncio.Redis):
    """A `redis.asyncio.Redis` whose single commands and scripts travel in `Batches`. A command may be sent although its
    caller was cancelled, and sent again when its connection breaks: for commands that are safe to repeat. Pipelines and
    subscriptions are not batched."""

    def __init__(self, connection_pool: redis.asyncio.ConnectionPool, lanes: int) -> None:
        super().__init__(connection_pool=connection_pool)
        self.auto_close_connection_pool = True
        self._batches = Batches(redis.asyncio.Redis(connection_pool=connection_pool), lanes)

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        return (await self._batches.send([(args, options)]))[0]


class Batches:
    """Sends the commands of many callers in few round trips; for one event loop. At most `lanes` round trips are under
    way at once; meanwhile commands wait, and are then sent together. They are retried after the errors that redis-py
    retries.

    Commands of callers that wait at the same time share a round trip. A busy process then makes some dozens of round
    trips instead of thousands, and an idle one waits no longer. They use connections that are kept, since taking one
    out of the pool and putting it back for each round trip, as redis-py's pipelines do, costs CPU time.
    """

    def __init__(self, client: redis.asyncio.Redis, lanes: int = LANES) -> None:
        self._client, self._most_lanes = client, lanes
        self._waiting: deque[tuple[Sequence[Command], asyncio.Future[list[Any]]]] = deque()
        self._lanes: set[asyncio.Task[None]] = set()
        self._kept: list[redis.asyncio.Connection] = []

    async def send(self, commands: Sequence[Command]) -> list[Any]:
        """Return the replies, in order; raises the first error among them. Commands of a cancelled caller may still be
        sent."""
        replies: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        self._waiting.append((commands, replies))
        if len(self._lanes) < self._most_lanes:
            self._open_lane()
        return await replies

    def _open_lane(self) -> None:
        lane = asyncio.create_task(self._serve(), name="store-lane")
        self._lanes.add(lane)
        lane.add_done_callback(self._lane_ended)
        watch(lane, "store-lane")

    def _lane_ended(self, lane: asyncio.Task[None]) -> None:
        """Open another lane if commands wait, so that a failed one leaves no caller waiting."""
        self._lanes.discard(lane)
        if self._waiting and len(self._lanes) < self._most_lanes:
            self._open_lane()

    async def close(self) -> None:
        """Close the connections. Call this only when nobody sends commands any more."""
        await self._client.aclose()

    async def _serve(self) -> None:
        try:
            await self._empty()
        finally:  # in the same turn as the last look at what waits: no caller is left without a lane
            lane = asyncio.current_task()
            assert lane is not None
            self._lanes.remove(lane)

    async def _empty(self) -> None:
        while self._waiting:
            batch = [self._waiting.popleft() for _ in range(min(BATCH_MAX, len(self._waiting)))]
            pending = [(commands, replies) for commands, replies in batch if not replies.done()]
            try:
                if pending:
                    await self._round_trip(pending)
            except Exception as error:  # noqa: BLE001  (raised in every caller)
                for _, replies in pending:
                    if not replies.done():
                        replies.set_exception(error)
            finally:
                for _, replies in pending:
                    replies.cancel()

    async def _round_trip(self, batch: Sequence[tuple[Sequence[Command], asyncio.Future[list[Any]]]]) -> None:
        answers = iter(await self._ask([command for commands, _ in batch for command in commands]))
        for commands, replies in batch:
            results = [next(answers) for _ in commands]
            if replies.done():
                continue
            error = next((result for result in results if isinstance(result, Exception)), None)
            if error is None:
                replies.set_result(results)
            else:
                replies.set_exception(error)

    async def _ask(self, commands: Sequence[Command]) -> list[Any]:
        pool = self._client.connection_pool
        connection = self._kept.pop() if self._kept else await pool.get_connection()  # type: ignore[no-untyped-call]
        ask = partial(self._round_trip_over, connection, commands)
        try:
            answers = await connection.retry.call_with_retry(ask, lambda _: connection.disconnect())
        except (Exception, asyncio.CancelledError):
            await connection.disconnect(nowait=True)  # an answer that is still on its way is nobody's
            await pool.release(connection)
            raise
        if connection.should_reconnect():
            await pool.release(connection)
        else:
            self._kept.append(connection)
        return answers

    async def _round_trip_over(self, connection: redis.asyncio.Connection, commands: Sequence[Command]) -> list[Any]:
        """Send commands at once and return their answers; an error of the server is an answer."""
        await connection.send_packed_command(connection.pack_commands([args for args, _ in commands]))
        answers: list[Any] = []
        for args, options in commands:
            try:
                answers.append(await self._client.parse_response(connection, args[0], **options))
            except ResponseError as error:
                answers.append(error)
        return answers


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
    `dicast.workers.store.connection`)."""
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


PASSING_CODES = frozenset({
    "BUSY", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "MISCONF", "NOREPLICAS", "NOSCRIPT", "OOM", "READONLY", "TRYAGAIN",
})  # fmt: skip
"""First words of error answers that end by themselves, or when an operator has made room."""

_PASSING = (
    StoreConnectionError, StoreTimeoutError, InvalidResponse,
    ClusterDownError, NoScriptError, OutOfMemoryError, ReadOnlyError, TryAgainError,
)  # fmt: skip
"""redis-py's own classes of such errors."""

_CODE = re.compile(r"(?:Command # \d+ .* of pipeline caused error: )?([A-Z]+)\b", re.DOTALL)
"""A pipeline of redis-py puts a prefix of its own before the server's message."""


class NotReady(RedisError):
    """The store answers, but cannot do what was requested yet."""


def is_passing(error: BaseException) -> bool:
    """Return whether the same command may succeed later. A rejected login counts as temporary: until it is fixed
    nothing can be written.

    Temporary are: a connection that is refused, lost or silent, and a server that answers but cannot execute the
    command now. Permanent are all errors that the same command would meet again: a fault in a script, a wrong type, a
    forbidden command.
    """
    if isinstance(error, (*_PASSING, NotReady)):
        return True
    if isinstance(error, ResponseError):
        return code(error) in PASSING_CODES
    return isinstance(error, ConnectionError | TimeoutError)


def code(error: ResponseError) -> str:
    """Return the first word of a server's error answer, such as 'WRONGTYPE'; 'ERR' if it has no other."""
    if error.status_code:
        return str(error.status_code)
    match = _CODE.match(str(error))
    return match[1] if match else "ERR"


class EmptyStore:
    """Answers as an empty store would, without one; it has only commands that read. A script answers an empty string,
    as do those that find nothing to work on."""

    def get(self, key: str) -> None:
        return None

    def hget(self, key: str, field: str) -> None:
        return None

    def hgetall(self, key: str) -> dict[str, str]:
        return {}

    def hmget(self, key: str, *fields: str) -> list[None]:
        return [None] * len(fields)

    def exists(self, key: str) -> int:
        return 0

    def zrevrange(self, key: str, start: int, end: int) -> list[str]:
        return []

    def register_script(self, text: str) -> Callable[..., Any]:
        return lambda **_: ""
