"""Records what keeps jobs from going on: troubles, stops, and accounts without money."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dicast.app.domain.plan import STANDARD, DroppedParameter, Intervals, Stop, place
from dicast.app.ledger.client import HERE
from dicast.app.ledger.keys import LedgerKeys, PageRef
from dicast.app.ledger.records import JobRecord, MessageId
from dicast.workers.store.connection import AsyncStoreClient
from dicast.workers.store.keys import Keys
from dicast.workers.store.scripts import script_text

REMEMBERED_S = 300


class Troubles:
    """The notes of one event loop. Raises redis errors.

    A note says why, and how often it was met, and which pools any living worker knows. A note expires when the trouble
    is not met again. Only tries at different times count, so ten lanes that fail at once are one try.
    """

    def __init__(self, client: AsyncStoreClient, keys: Keys, intervals: Intervals = STANDARD) -> None:
        self._redis, self.keys, self._intervals = client, LedgerKeys(keys), intervals

    async def note(self, job: str, why: str) -> int:
        """Record what keeps a job from going on; return how often in a row this very thing was tried."""
        key, now = self.keys.trouble(job), await self._now_ms()
        before, tries, at = await self._redis.hmget(key, "why", "tries", "at")
        if before != why:
            tries = 0
        elif now < int(at or 0) + self._intervals.try_every_ms:
            return int(tries)
        pipe = self._redis.pipeline(transaction=False)
        pipe.hset(key, mapping={"why": why, "tries": int(tries) + 1, "at": now})
        pipe.expire(key, REMEMBERED_S)
        await pipe.execute()
        return int(tries) + 1

    # ------------------------------------------------------------------ pools
    async def announce_pools(self, pools: Iterable[str]) -> None:
        """Announce that a living worker knows these pools."""
        now = await self._now_ms()
        await self._redis.zadd(self.keys.known_pools, dict.fromkeys(pools, now))

    async def unannounced_ms(self, pools: Iterable[str]) -> int:
        """Return for how long no worker has announced any of these pools. For a pool that was never announced, the
        first call starts the count."""
        now, names = await self._now_ms(), list(pools)
        pipe = self._redis.pipeline(transaction=False)
        pipe.zadd(self.keys.known_pools, dict.fromkeys(names, now - self._intervals.pool_seen_ms), nx=True)
        pipe.zmscore(self.keys.known_pools, names)
        _, announced_ms = await pipe.execute()
        return max(0, now - max(map(int, announced_ms)))

    # ------------------------------------------------------------------ messages that this worker cannot send
    async def due_again(self, messages: Iterable[tuple[PageRef, MessageId]]) -> None:
        """Make messages that were due and could not be published due again soon, unless they were claimed meanwhile."""
        delay_ms = self._intervals.due_again_ms
        due = {f"{ref}|{token}": await self._now_ms() + delay_ms for ref, token in messages}
        if due:
            await self._redis.zadd(self.keys.due, due, xx=True)

    async def extent(self, ref: PageRef) -> range:
        """Return the positions of a page; empty if it no longer exists."""
        first, units = await self._redis.hmget(self.keys.page(ref), "first", "units")
        return range(int(first or 0), int(first or 0) + int(units or 0))

    async def _now_ms(self) -> int:
        return int(await self._redis.hget(self.keys.base.clock, "now") or 0)


RETENTION_S = 7 * 86_400
EXHAUSTED_S = 86_400
"""An account that nobody has called for this long is assumed to have money again."""


class StopStore:
    """Stores jobs' stops and exhausted accounts, for one event loop. Store errors are raised unchanged.

    A stop says where a job makes no more calls; an exhausted account has no money left. app/pipeline/pool_trouble.py
    decides on both.
    """

    def __init__(self, client: AsyncStoreClient, keys: Keys) -> None:
        self._redis, self._keys = client, LedgerKeys(keys)
        self._stop_asking = client.register_script(script_text(HERE / "stop_asking.lua"))
        self._give_up = client.register_script(script_text(HERE / "give_up.lua"))

    async def stops(self, job: JobRecord) -> dict[str, Stop]:
        """Return, by place, why the job makes no more calls there."""
        return (await self.load(job))[0]

    async def dropped(self, job: JobRecord) -> list[DroppedParameter]:
        """Return the parameters that models have refused, and that the job's calls are made without."""
        fields: Mapping[str, str] = await self._redis.hgetall(self._keys.asking(job.id, job.incarnation))
        texts = [text for name, text in sorted(fields.items()) if name.startswith("dropped:")]
        return [DroppedParameter.model_validate_json(text) for text in texts]

    async def drop(self, job: JobRecord, parameter: DroppedParameter) -> None:
        """Record that the job's calls at a place are made without a parameter."""
        key = self._keys.asking(job.id, job.incarnation)
        name = f"dropped:{parameter.name}:{place(parameter.pool, parameter.model)}"
        pipe = self._redis.pipeline(transaction=False)
        pipe.hsetnx(key, name, parameter.model_dump_json())
        pipe.expire(key, RETENTION_S)
        await pipe.execute()

    async def load(self, job: JobRecord) -> tuple[dict[str, Stop], set[str]]:
        """Return `stops`, and the places that are known to have answered."""
        fields: Mapping[str, str] = await self._redis.hgetall(self._keys.asking(job.id, job.incarnation))
        stops = {
            name.removeprefix("stopped:"): Stop.model_validate_json(text)
            for name, text in fields.items()
            if name.startswith("stopped:")
        }
        return stops, {name.removeprefix("answered:") for name in fields if name.startswith("answered:")}

    async def failed(
        self, job: JobRecord, unit: str, item: int, error: str, stop: Stop, *, units: int, items: int
    ) -> bool:
        """Record a unit that ended in `error`; return whether it is the one that stops the job at `stop.place`."""
        return bool(
            await self._stop_asking(
                keys=[self._keys.asking(job.id, job.incarnation)],
                args=[stop.place, unit, item, error, stop.model_dump_json(), units, items, RETENTION_S],
            )
        )

    async def give_up(self, job: JobRecord, stop: Stop) -> bool:
        """Stop the job's calls at `stop.place`, whatever answers it had; return whether this is the stop in force."""
        keys = [self._keys.asking(job.id, job.incarnation)]
        return bool(await self._give_up(keys=keys, args=[stop.place, stop.model_dump_json(), RETENTION_S]))

    async def silence(self, job: str) -> None:
        """Record that the job makes no more calls: its published units pass the gates without a lease."""
        await self._redis.hdel(self._keys.base.job_limits, job)

    async def mark_answered(self, job: JobRecord, place: str) -> None:
        """Record that the job had an answer at a place: it is never stopped there any more."""
        pipe = self._redis.pipeline(transaction=False)
        key = self._keys.asking(job.id, job.incarnation)
        pipe.hset(key, f"answered:{place}", 1)
        pipe.expire(key, RETENTION_S)
        await pipe.execute()

    # ------------------------------------------------------------------ accounts
    async def exhausted(self, pool: str) -> bool:
        return bool(await self._redis.exists(self._keys.exhausted(pool)))

    async def exhaust(self, pool: str, recheck_ms: int) -> None:
        """Record that the pool's account has no money left; nobody is to try it again before `recheck_ms`."""
        pipe = self._redis.pipeline(transaction=False)
        pipe.set(self._keys.exhausted(pool), 1, ex=EXHAUSTED_S)
        pipe.set(self._keys.rechecked(pool), 1, px=recheck_ms)
        await pipe.execute()

    async def may_recheck(self, pool: str, recheck_ms: int) -> bool:
        """Return whether the caller may try the account again now. If the reply is lost, nobody does before the time
        has come once more."""
        return bool(await self._redis.set(self._keys.rechecked(pool), 1, nx=True, px=recheck_ms))

    async def restored(self, pool: str) -> None:
        """Record that the account has answered."""
        await self._redis.delete(self._keys.exhausted(pool))
