"""Records what keeps jobs from going on: why, how often it was met, and which pools any living worker knows.

A note expires when the trouble is not met again. Only tries at different times count, so ten lanes that fail at once
are one try.
"""

from __future__ import annotations

from collections.abc import Iterable

from dicast.app.domain.intervals import STANDARD, Intervals
from dicast.app.ledger.keys import LedgerKeys, PageRef
from dicast.app.ledger.records import MessageId
from dicast.workers.store.connection import AsyncStoreClient
from dicast.workers.store.keys import Keys

REMEMBERED_S = 300


class Troubles:
    """The notes of one event loop. Raises redis errors."""

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
