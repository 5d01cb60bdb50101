"""The common base of the ledger's verbs. Each verb is one script.

Every write names the fence of its claim, and every way to a job's end leads through the same scripts, so a message that
comes twice, late or never changes no outcome.

Every verb may be repeated, because its reply may be lost after it was executed: redis-py repeats commands by itself,
and so do callers (`retry_until_available` in app/pipeline/record.py). A verb whose repetition would not give the same
result takes the name of its attempt.
"""

from __future__ import annotations

import itertools
import secrets
from typing import Any

import orjson

from dicast.app.domain.intervals import STANDARD, Intervals
from dicast.app.ledger.client import HERE
from dicast.app.ledger.keys import LedgerKeys
from dicast.workers.store.connection import AsyncStoreClient
from dicast.workers.store.keys import Keys
from dicast.workers.store.scripts import script_text


class Verbs:
    """The store, the keys and the scripts of one event loop's ledger."""

    def __init__(
        self, client: AsyncStoreClient, keys: Keys, node: str, *, claim_ms: int, calls_max: int,
        intervals: Intervals = STANDARD,
    ) -> None:  # fmt: skip
        """Make the verbs of a node.

        `claim_ms` is how long a claim may last: longer than the longest call. `calls_max` is the most calls for one
        unit, including those whose worker died and those that were refused.
        """
        self._redis, self._node, self._claim_ms, self._calls_max = client, node, claim_ms, calls_max
        self.intervals = intervals
        self.keys = LedgerKeys(keys)
        self._due, self._clock, self._epoch = self.keys.due, keys.clock, keys.epoch
        self._assigned, self._beacons = keys.assigned, keys.node("")
        names = (
            "start", "open_page", "claim", "record", "defer", "take_due", "take_page", "close_page", "claim_finish",
            "complete", "find_lost", "list_claims", "release_claims", "assign", "mark_lost",
            "ripe", "lead", "waits", "bounds", "answer", "finish_failed", "gather_failed",
        )  # fmt: skip
        self._scripts = {name: client.register_script(script_text(HERE / f"{name}.lua")) for name in names}
        self._name, self._numbers = secrets.token_urlsafe(4), itertools.count(1)
        self._taking: int | None = None

    def attempt(self) -> str:
        """Return a name for an attempt at a verb, unique among all processes."""
        return f"{self._name}{next(self._numbers):x}"

    async def now_ms(self) -> int:
        """Return the lease clock as last written: at most a few hundred ms old while any node works."""
        return int(await self._redis.hget(self._clock, "now") or 0)


def dumps(value: Any) -> bytes:
    """Serialise to JSON, with named tuples as lists."""
    return orjson.dumps(value, default=list)
