"""How many messages wait in a queue, untaken: what the watchdog and the gates' logs ask, of whichever broker it is."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, Protocol

from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from dicast.workers.store.connection import AsyncStoreClient

BROKER_ERRORS = (RedisError, OperationalError, OSError)
"""What `QueueLengths.waiting` raises while the broker does not answer."""


class QueueLengths(Protocol):
    async def waiting(self, queue: str) -> int:
        """Raises one of `BROKER_ERRORS`."""


class StoreQueueLengths:
    """For a broker that is the store."""

    def __init__(self, client: AsyncStoreClient) -> None:
        self._client = client

    async def waiting(self, queue: str) -> int:
        return int(await self._client.llen(queue))


class DeclaredQueueLengths:
    """For any broker, over a connection of its own, in a helper thread."""

    def __init__(self, app: Any) -> None:
        self._app, self._lock = app, threading.Lock()
        self._connection: Any = None

    async def waiting(self, queue: str) -> int:
        return await asyncio.to_thread(self._waiting, queue)

    def _waiting(self, queue: str) -> int:
        with self._lock:
            connection = self._connection = self._connection or self._app.connection_for_read()
            try:
                declared = self._app.amqp.queues[queue](connection.default_channel).queue_declare(passive=True)
                return int(declared.message_count)
            except (*connection.connection_errors, *connection.channel_errors) as error:
                connection.collect()
                self._connection = None
                raise OperationalError(f"the broker does not tell of {queue}: {error}") from error

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.release()
                self._connection = None
