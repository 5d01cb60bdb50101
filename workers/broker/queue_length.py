"""How many messages wait in a queue, untaken, and what those say that are next: what the watchdog and the gates' logs
ask, of whichever broker it is."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import orjson
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from dicast.workers.store.connection import AsyncStoreClient

BROKER_ERRORS = (RedisError, OperationalError, OSError)
"""What `QueueLengths` raise while the broker does not answer."""
READ_MOST = 1_000
"""Messages of a queue that are looked at together: those that are taken next."""


class QueuedMessages(NamedTuple):
    """The headers of the messages that were looked at, and how many more wait."""

    headers: Sequence[Mapping[str, Any]]
    others: int


class QueueLengths(Protocol):
    async def waiting(self, queue: str) -> int:
        """Raises one of `BROKER_ERRORS`."""

    async def peek(self, queue: str) -> QueuedMessages:
        """Look at what waits without taking it, as far as the broker lets one. Raises one of `BROKER_ERRORS`."""


class StoreQueueLengths:
    """For a broker that is the store."""

    def __init__(self, client: AsyncStoreClient) -> None:
        self._client = client

    async def waiting(self, queue: str) -> int:
        return int(await self._client.llen(queue))

    async def peek(self, queue: str) -> QueuedMessages:
        pipe = self._client.pipeline()
        pipe.llen(queue).lrange(queue, -READ_MOST, -1)
        total, messages = await pipe.execute()
        headers = [parsed for message in messages if (parsed := _headers(message)) is not None]
        return QueuedMessages(headers, int(total) - len(headers))


class DeclaredQueueLengths:
    """Works for any broker, over a connection of its own, in a helper thread."""

    def __init__(self, app: Any) -> None:
        self._app, self._lock = app, threading.Lock()
        self._connection: Any = None

    async def waiting(self, queue: str) -> int:
        return await asyncio.to_thread(self._waiting, queue)

    async def peek(self, queue: str) -> QueuedMessages:
        """None is looked at: it would be taken, and come again as a message that was delivered before."""
        return QueuedMessages((), await self.waiting(queue))

    def _waiting(self, queue: str) -> int:
        with self._lock:
            connection = self._connection = self._connection or self._app.connection_for_read()
            try:
                declared = self._app.amqp.queues[queue](connection.default_channel).queue_declare(passive=True)
                return int(declared.message_count)
            except (*connection.connection_errors, *connection.channel_errors) as error:
                connection.collect()
                self._connection = None
                raise OperationalError(f"the broker does not report on {queue}: {error}") from error

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.release()
                self._connection = None


def _headers(message: str) -> Mapping[str, Any] | None:
    """None for what is no message of Celery's; it is set aside when it is taken."""
    try:
        headers = orjson.loads(message)["headers"]
    except (ValueError, TypeError, KeyError):
        return None
    return headers if isinstance(headers, dict) else None
