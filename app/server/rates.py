"""How many requests a token and an address may make: buckets in the store, so that several servers agree."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from dicast.app.server.keys import ServerKeys
from dicast.workers.store.connection import StoreClient
from dicast.workers.store.scripts import script_text


class RequestRate(NamedTuple):
    """A rate: it allows at most `burst` requests at once, and `per_s` per second in the long run."""

    burst: float
    per_s: float

    @classmethod
    def of_minute(cls, requests: int) -> RequestRate:
        """Return a rate of so many requests a minute, a sixth of which may come at once."""
        return cls(max(1.0, requests / 6), requests / 60)

    def times(self, factor: float) -> RequestRate:
        """Return this rate multiplied by `factor`."""
        return RequestRate(self.burst * factor, self.per_s * factor)


class Taken(NamedTuple):
    """The result of a request: `wait_s` until one is accepted, 0 if this one was; `first` says that it is the first
    refusal since one was accepted."""

    wait_s: float
    first: bool


class Rates:
    """The buckets of one installation."""

    def __init__(self, client: StoreClient, keys: ServerKeys) -> None:
        self._keys = keys
        self._take = client.register_script(script_text(Path(__file__).with_name("take.lua")))

    def take(self, kind: str, whose: str, rate: RequestRate, now_ms: int | None = None) -> Taken:
        """Count one request of a token or an address. Raises redis errors."""
        wait_ms, first = self._take(
            keys=[self._keys.rate(kind, whose)], args=["" if now_ms is None else now_ms, rate.burst, rate.per_s]
        )
        return Taken(int(wait_ms) / 1000, bool(first))
