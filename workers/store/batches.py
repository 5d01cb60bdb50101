"""Commands of callers that wait at the same time share a round trip.

A busy process then makes some dozens of round trips instead of thousands, and an idle one waits no longer. They use
connections that are kept, since taking one out of the pool and putting it back for each round trip, as redis-py's
pipelines do, costs CPU time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Any

import redis.asyncio
from redis.exceptions import ResponseError

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
    retries."""

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
