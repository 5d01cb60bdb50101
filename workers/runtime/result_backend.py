"""Celery's Redis result backend, for tasks that share one event loop.

    app.conf.result_backend = "dicast.workers.runtime.result_backend:RedisBackend+redis://host:6379/0"
    app.conf.result_backend = "dicast.workers.runtime.result_backend:RedisBackend+socket:///run/redis.sock?virtual_host=0"
    app.conf.result_backend = "dicast.workers.runtime.result_backend:SentinelBackend+sentinel://host:26379/0?master=mymaster"

Keys, values, scripts and chord joins are Celery's own code, so that any client with any Celery backend reads the
results. Only the way to the server differs: called in a task greenlet, commands travel through `redis.asyncio` and the
greenlet waits, so that the loop never waits for a socket; called anywhere else, it is Celery's backend.

Commands of greenlets that wait at the same time share a round trip: a thousand tasks that end together send some dozens
of pipelines instead of thousands of commands. A command is sent again when its connection breaks, for a few seconds;
storing and joining may be repeated without harm, as Celery's redeliveries require anyway: a chord's member counts once,
is added once, and the one that completes the chord gets that answer again. The pair SET and PUBLISH of a result is sent
in this order but not wrapped in MULTI.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import redis.asyncio
import redis.client
from celery.backends.redis import CHORD_PART_RETURN_LUA
from celery.backends.redis import RedisBackend as CeleryRedisBackend
from celery.result import AsyncResult
from celery.states import READY_STATES
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialBackoff

from dicast.workers.runtime.loop_bridge import await_, in_task_greenlet, loop_resource, off_loop
from dicast.workers.store.connection import DEMOTED, Batches, leave_demoted, raise_when_closed
from dicast.workers.store.scripts import script_text
from dicast.workers.store.sentinel import SentinelAddress, async_master_pool, master_pool

RETRIES = 8
RETRY_FIRST_S, RETRY_MAX_S = 0.1, 1.0

CHORD_PART = CHORD_PART_RETURN_LUA.replace(
    "if redis.call('SET', ckey, claim_token,", "if done_marker == claim_token or redis.call('SET', ckey, claim_token,"
)
"""Celery's script, except that a repeat by the member which completed the chord is answered as the first time. Else,
when that answer was lost, nobody would send the chord's body."""
CHORD_MEMBER = Path(__file__).parent / "chord_member.lua"
PROGRESS = "PROGRESS"
"""The state of a task that tells how far it is, as Celery's documentation calls it."""
PROGRESS_SCRIPT = Path(__file__).parent / "progress.lua"

_SENTINEL_PARAMS = (
    "max_connections",
    "socket_timeout",
    "socket_connect_timeout",
    "socket_keepalive",
    "retry_on_timeout",
)
_ASYNC_CONNECTIONS: dict[type[Any], type[Any]] = {
    redis.Connection: redis.asyncio.Connection,
    redis.SSLConnection: redis.asyncio.SSLConnection,
    redis.UnixDomainSocketConnection: redis.asyncio.UnixDomainSocketConnection,
}


class RedisBackend(CeleryRedisBackend):  # type: ignore[misc]
    """The backend described above. One instance may serve several loops and threads."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.connection_errors: tuple[type[Exception], ...] = (*self.connection_errors, *DEMOTED)
        self._loop_client = loop_resource(self._make_loop_client, _LoopClient.close_batches)

    @property
    def client(self) -> redis.Redis:
        """The client that suits the caller: a waiting one in a task greenlet, a blocking one elsewhere."""
        return self._loop_client() if in_task_greenlet() else self._blocking_client

    @functools.cached_property
    def _blocking_client(self) -> redis.Redis:
        client: redis.Redis = self._create_client(**self.connparams)
        leave_demoted(client.connection_pool)
        return client

    def _make_loop_client(self) -> _LoopClient:
        params = {name: value for name, value in self.connparams.items() if name != "max_connections"}
        pool = self._loop_pool(
            retry=Retry(ExponentialBackoff(cap=RETRY_MAX_S, base=RETRY_FIRST_S), RETRIES),
            retry_on_error=[redis.BusyLoadingError],
            **params,
        )
        raise_when_closed(pool)
        return _LoopClient(Batches(redis.asyncio.Redis.from_pool(pool)), self._blocking_client.connection_pool)

    def _loop_pool(self, connection_class: type[Any] = redis.Connection, **params: Any) -> redis.asyncio.ConnectionPool:
        return redis.asyncio.ConnectionPool(_ASYNC_CONNECTIONS[connection_class], **params)

    @functools.cached_property
    def _chord_part_return_script(self) -> Any:
        return self._blocking_client.register_script(CHORD_PART)

    @functools.cached_property
    def _chord_member_script(self) -> Any:
        return self._blocking_client.register_script(script_text(CHORD_MEMBER))

    @functools.cached_property
    def _progress_script(self) -> Any:
        return self._blocking_client.register_script(script_text(PROGRESS_SCRIPT))

    def store_progress(self, task_id: str, info: Mapping[str, Any]) -> bool:
        """Store that a task is in `PROGRESS`, with `info` as its `AsyncResult.info`. If the task's end is stored
        already, returns False and changes nothing."""
        meta: dict[str, Any] = {
            "task_id": task_id,
            "status": PROGRESS,
            "result": dict(info),
            "traceback": None,
            "children": [],
        }
        keys, args = [self.get_key_for_task(task_id)], [self.encode(meta), int(self.expires or 0)]
        return bool(self._progress_script(keys=keys, args=args, client=self.client))

    def add_to_chord(self, group_id: str, result: Any) -> None:
        keys = [self.get_key_for_group(group_id, end) for end in (".d", ".t")]
        self._chord_member_script(keys=keys, args=[result.id, self.chord_expires or 0], client=self.client)

    def restore_group(self, group_id: str, cache: bool = True) -> Any:
        """Restore a group in a helper thread: a chord whose header holds groups is joined by Celery's result consumer,
        which subscribes and sleeps."""
        group = off_loop(super().restore_group, group_id, cache=cache)
        if group is not None and in_task_greenlet():
            group.join_native = functools.partial(off_loop, group.join_native)
        return group

    def iter_native(self, result: Any, **options: Any) -> Iterator[tuple[str, Any]]:
        """Yield all results. Celery's own method misses a result that arrives between its check and its wait, or that
        went to another waiter of this process."""
        reported = set()
        for task_id, meta in super().iter_native(result, **options):
            reported.add(task_id)
            yield task_id, meta
        for node in result.results:
            if node.id not in reported and isinstance(node, AsyncResult):
                meta = self.get_task_meta(node.id)
                if meta["status"] in READY_STATES:
                    yield node.id, meta

    def on_task_call(self, producer: Any, task_id: str) -> None:
        """Subscribe to results, except in a task, which never waits for the results of what it publishes."""
        if not in_task_greenlet():
            super().on_task_call(producer, task_id)

    def _sleep(self, amount: float) -> None:
        if in_task_greenlet():
            await_(asyncio.sleep(amount))
        else:
            super()._sleep(amount)

    def on_connection_error(self, max_retries: int | None, exc: Exception, intervals: Any, retries: int) -> float:
        """Return the wait until the next try, s. In a greenlet it is waited for here, and 0 is returned."""
        wait_s: float = super().on_connection_error(max_retries, exc, intervals, retries)
        if not in_task_greenlet():
            return wait_s
        await_(asyncio.sleep(wait_s))
        return 0.0


class SentinelBackend(RedisBackend):
    """The same for a store whose address is Sentinel's (workers/store/sentinel.py)."""

    def _params_from_url(self, url: str, defaults: dict[str, Any]) -> dict[str, Any]:
        """Return the options that the URL itself does not contain."""
        return {name: defaults[name] for name in _SENTINEL_PARAMS if name in defaults}

    def _get_pool(self, **params: Any) -> redis.ConnectionPool:
        return master_pool(self.url, **params)

    def _loop_pool(self, **params: Any) -> redis.asyncio.ConnectionPool:  # type: ignore[override]
        return async_master_pool(self.url, **params)

    def as_uri(self, include_password: bool = False) -> str:
        if include_password:
            return str(self.url)
        address = SentinelAddress.parse(self.url)
        return replace(address, username=None, password=None).url()


class _LoopClient(redis.Redis):
    """A `redis.Redis` for task greenlets: its commands travel by `batches`."""

    def __init__(self, batches: Batches, connection_pool: redis.ConnectionPool) -> None:
        super().__init__(connection_pool=connection_pool)
        self.batches = batches

    def execute_command(self, *args: Any, **options: Any) -> Any:
        return await_(self.batches.send([(args, options)]))[0]

    def pipeline(self, transaction: bool = True, shard_hint: str | None = None) -> _LoopPipeline:
        return _LoopPipeline(self)

    async def close_batches(self) -> None:
        await self.batches.close()


class _LoopPipeline(redis.client.Pipeline):
    """Collects commands as its base does; `execute` sends them by the client's batches."""

    def __init__(self, client: _LoopClient) -> None:
        super().__init__(client.connection_pool, client.response_callbacks, False, None)
        self._batches = client.batches

    def execute(self, raise_on_error: bool = True) -> list[Any]:
        commands, self.command_stack = self.command_stack, []
        return await_(self._batches.send(commands))
