"""The record of a lease in the store, as Python reads it; release.lua and grant.lua read and write it."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import unquote

import orjson


class Holder(NamedTuple):
    """The holder of a lease: who has a call open, and since when (lease-clock ms).

    A `probe` tries a pool whose circuit breaker is not closed. Nobody waits for a call that was `cut`, but the provider
    may still be working on it. What is reserved for the call is known to the scripts only.
    """

    pool: str
    job: str
    project: str
    node: str
    sent_ms: int
    probe: bool
    model: str = ""
    cut: bool = False


def read_holder(record: str) -> Holder:
    """Parse a value of the hash `holders` (holder.lua)."""
    if not record.startswith("{"):  # left behind by a worker of version 0.1
        pool, job, project, node, sent_ms, _, probe = record.split("|", 7)[:7]
        return Holder(pool, job, unquote(project), node, int(sent_ms), probe == "1")
    fields = orjson.loads(record)
    return Holder(**{name: fields[name] for name in Holder._fields if name in fields})
