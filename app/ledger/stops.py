"""Where jobs have stopped making calls, and which accounts have no money left: the ledger's part of fail_fast.py."""

from __future__ import annotations

from collections.abc import Mapping

from dicast.app.domain.stop import Stop
from dicast.app.ledger.client import HERE
from dicast.app.ledger.keys import LedgerKeys
from dicast.app.ledger.records import JobRecord
from dicast.workers.store.connection import AsyncStoreClient
from dicast.workers.store.keys import Keys
from dicast.workers.store.scripts import script_text

RETENTION_S = 7 * 86_400
EXHAUSTED_S = 86_400
"""An account that nobody has called for this long is assumed to have money again."""


class StopStore:
    """Stores jobs' stops and exhausted accounts, for one event loop. Store errors are raised unchanged."""

    def __init__(self, client: AsyncStoreClient, keys: Keys) -> None:
        self._redis, self._keys = client, LedgerKeys(keys)
        self._stop_asking = client.register_script(script_text(HERE / "stop_asking.lua"))
        self._give_up = client.register_script(script_text(HERE / "give_up.lua"))

    async def stops(self, job: JobRecord) -> dict[str, Stop]:
        """Return, by place, why the job makes no more calls there."""
        return (await self.load(job))[0]

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
