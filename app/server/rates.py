"""How many requests a token and an address may make: buckets in the store, so that several servers agree."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from dicast.app.server.keys import ServerKeys
from dicast.workers.store.connection import StoreClient
from dicast.workers.store.scripts import script_text


class RequestRate(NamedTuple):
    """At most `burst` requests at once, and `per_s` a second in the long run."""

    burst: float
    per_s: float

    @classmethod
    def of_minute(cls, requests: int) -> RequestRate:
        """So many a minute, a sixth of them at once."""
        return cls(max(1.0, requests / 6), requests / 60)

    def times(self, factor: float) -> RequestRate:
        """So many times as many requests."""
        return RequestRate(self.burst * factor, self.per_s * factor)


class Taken(NamedTuple):
    """`wait_s` until a request is taken, 0 if this one was; `first`: the first refusal since one was taken."""

    wait_s: float
    first: bool


class Rates:
    """The buckets of one installation."""

    def __init__(self, client: StoreClient, keys: ServerKeys) -> None:
        self._keys = keys
        self._take = client.register_script(script_text(Path(__file__).with_name("take.lua")))

    def take(self, kind: str, whose: str, rate: RequestRate, now_ms: int | None = None) -> Taken:
        """Take one request of a token's or an address's. Raises redis errors."""
        wait_ms, first = self._take(
            keys=[self._keys.rate(kind, whose)], args=["" if now_ms is None else now_ms, rate.burst, rate.per_s]
        )
        return Taken(int(wait_ms) / 1000, bool(first))
