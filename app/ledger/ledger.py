"""The ledger for workers: start, open a page, claim, record, defer, gather, complete."""

from __future__ import annotations

from collections.abc import AsyncIterator

from dicast.app.ledger.job_verbs import JobVerbs
from dicast.app.ledger.page_verbs import PageVerbs
from dicast.app.ledger.unit_verbs import UnitVerbs


class Ledger(JobVerbs, PageVerbs, UnitVerbs):
    """All verbs, for one event loop. Store errors are raised unchanged: the outcome of that write is unknown."""

    async def lead(self, for_ms: int) -> bool:
        """Return whether no beat has ticked for `for_ms`; this node then leads for as long."""
        return await self._lead(for_ms, ticked=False)

    async def led(self, for_ms: int) -> None:
        """Record a tick, so that nobody else leads."""
        await self._lead(for_ms, ticked=True)

    async def _lead(self, for_ms: int, *, ticked: bool) -> bool:
        keys = [self.keys.base.beat, self.keys.base.clock]
        mine = f"{self._node} {self.attempt()}"
        return bool(await self._scripts["lead"](keys=keys, args=["", mine, for_ms, int(ticked)]))

    async def overdue(self, zset: str, again_ms: int, most: int = 100) -> AsyncIterator[str]:
        """Yield members of `watch` or `unfinished` whose time has passed; each is due again after `again_ms`."""
        now = await self.now_ms()
        for member in await self._redis.zrangebyscore(zset, "-inf", now, start=0, num=most):
            await self._redis.zadd(zset, {member: now + again_ms}, xx=True)
            yield member

    async def look_soon(self) -> None:
        """Have every open page and every job checked soon, after a node or the store has died, or a worker's connection
        broke.

        The check comes when messages that were put back have had time to be claimed. A job's planning may have been
        requested from the node that died, or have been popped by the broken connection.
        """
        soon = await self.now_ms() + self.intervals.look_soon_ms
        for zset in (self.keys.watch, self.keys.unfinished):
            if later := await self._redis.zrangebyscore(zset, f"({soon}", "+inf"):
                await self._redis.zadd(zset, dict.fromkeys(later, soon), xx=True, lt=True)

    async def pool_rate(self, pool: str) -> tuple[float, int]:
        """Return the calls per second that end in a pool at present, and the number of running jobs."""
        pipe = self._redis.pipeline(transaction=False)
        pipe.hget(self.keys.base.rates, pool)
        pipe.hlen(self.keys.base.job_limits)
        rate, jobs = await pipe.execute()
        return (float(rate.split("|")[0]) if rate else 0.0), int(jobs)

    async def wall_ms(self) -> int:
        """Return the store's wall clock in ms, which dates jobs."""
        seconds, microseconds = await self._redis.time()
        return int(seconds) * 1000 + int(microseconds) // 1000
