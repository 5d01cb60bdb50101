"""The record of a lease in the store, as Python reads it; release.lua and grant.lua read and write it."""

from __future__ import annotations

from typing import NamedTuple

import orjson


class Holder(NamedTuple):
    """Who has a call open, and since when (lease-clock ms); a `probe` tries a pool whose circuit breaker is not closed.
    What the call was reserved is for the scripts alone."""

    pool: str
    job: str
    project: str
    node: str
    sent_ms: int
    probe: bool


def read_holder(record: str) -> Holder:
    """A value of the hash `holders` (holder.lua)."""
    fields = orjson.loads(record)
    return Holder(*(fields[name] for name in Holder._fields))
