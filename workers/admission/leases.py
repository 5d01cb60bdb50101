"""Leases in the store, each the right to have one call open. One round trip gives back and grants in batches.

`release.lua` and `grant.lua` read and write the record of a lease, which Python reads as a `Holder`. `open_leases`
gives those that are open, for display.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote

import orjson

from dicast.workers.store.connection import AsyncStoreClient
from dicast.workers.store.keys import Keys
from dicast.workers.store.scripts import Epoch, freeing, script_text

if TYPE_CHECKING:
    from dicast.workers.policy.calls import CallOutcome

logger = logging.getLogger(__name__)


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


_HERE = Path(__file__).parent

EVENTS_KEPT = 5000
"""The most entries in a pool's event stream, one for each step that granted or ended calls. The governor usually trims
it earlier."""
DECIDE_EVERY_MS = 50
ERROR_CHARS = 200
FREE = -1


class LeaseVerdict(IntEnum):
    DENIED = 0
    GRANTED = 1
    PASS = 2
    """The job makes no more calls: its units pass without a lease, and are closed without a call."""


class Want(NamedTuple):
    """A request for one lease.

    The id `lease` is chosen by the requester and never used twice. Tokens are estimates. `jitter` in [-1, 1] is drawn
    once for each request and decides this grant's part of the pacing. `last` says that the unit is one of the last that
    wait.
    """

    lease: str
    job: str
    project: str
    model: str = ""
    input_tokens: float = 0.0
    output_tokens: float = 0.0
    jitter: float = 0.0
    last: bool = False


class Returned(NamedTuple):
    """A lease that is given back.

    Without an outcome its call was not made, or nobody knows how it ended. If the provider may still be working on the
    call, the lease counts until its deadline or for `counts_on_s` from now, whichever is later; None frees it at once.
    """

    lease: str
    outcome: CallOutcome | None = None
    counts_on_s: float | None = None


def log_ended(flat: Sequence[str], reason: str) -> int:
    """Log leases (`{id, holder, ...}`) that ended without their holders, as the holders would have; return how many.

    So whoever counts open calls from logs finds the end of each, even if its holder is dead or unreachable.
    """
    ended = dict(zip(flat[::2], flat[1::2], strict=True))
    for lease, record in ended.items():
        holder = read_holder(record)
        logger.info(
            "lease %s has ended without its holder", lease,
            extra={"event": "released", "lease": lease, "pool": holder.pool, "job": holder.job, "node": holder.node,
                   "reason": reason},
        )  # fmt: skip
    return len(ended)


@dataclass(frozen=True, slots=True)
class Admission:
    """The answer to one batch, in the order of the requests.

    `retry_after_ms` is -1 if there is nothing to wait for but a freed lease. `reason` is that of the first denial.
    `decide` says that the governor has something to decide, and that this requester is to have it do so. `limit` is the
    pool's limit in force; `projects` is how many have calls open or request some. `probe` is the index of the request
    that was granted to try a broken pool, None if there is none. For a request whose project has its share already,
    `widths` has the project's open calls and `shares` that share.
    """

    verdicts: Sequence[LeaseVerdict]
    open_in_pool: int
    open_in_all: int
    retry_after_ms: int
    reason: str
    decide: bool
    limit: int
    projects: int
    reasons: Sequence[str]
    waits_ms: Sequence[int]
    probe: int | None = None
    widths: Sequence[int] = ()
    shares: Sequence[int] = ()


class LeaseStore:
    """The store's side of admission, for one event loop. `epoch` is what the process knows of the store's epoch."""

    def __init__(self, client: AsyncStoreClient, keys: Keys, epoch: Epoch | None = None) -> None:
        self._keys, self._epoch = keys, epoch or Epoch()
        self._client = client
        text = script_text(_HERE / "admit.lua")
        self._admit, self._only_give_back = client.register_script(text), client.register_script(freeing(text))

    async def admit(
        self,
        *,
        pool: str,
        node: str,
        ttl_ms: int,
        give_back: Sequence[str | Returned],
        wants: Sequence[Want],
        cut_frees: bool = True,
        now_ms: int | None = None,
    ) -> Admission:
        """Give back and request leases of one pool; verdicts are in the order of `wants`.

        `ttl_ms` is the call's deadline: the lease lives that long at most. It is freed earlier only by its holder, or
        on proof of the holder's death; on that proof only if `cut_frees`, which says that the pool's provider ends a
        call when its connection is closed. Raises redis errors when the store cannot answer; then nothing is known of
        the batch, and no call may be made. A store whose memory is full still takes leases back, if none is requested
        at the same time.
        """
        k, knowledge = self._keys, self._epoch.knowledge(node)
        script = self._admit if wants else self._only_give_back
        reply = await script(
            keys=[
                k.clock, k.leases, k.holders, k.open, k.governor(pool), k.job_limits, k.rates, k.waiting,
                k.events(pool), k.counters(pool), k.short, k.epoch, k.orders,
            ],
            args=[
                "" if now_ms is None else now_ms, pool, node, ttl_ms, k.freed,
                orjson.dumps([_encoded(r) for r in give_back]), orjson.dumps(wants, default=list),
                EVENTS_KEPT, DECIDE_EVERY_MS, *knowledge, max(ttl_ms, self._epoch.grace_ms),
                int(cut_frees),
            ],
        )  # fmt: skip
        open_in_pool, open_in_all, retry_after_ms, reason, decide, limit, projects, *rest = reply
        verdicts, reasons, waits_ms, number, answers, over, probe, widths, shares = rest
        log_ended(over, "expired")
        self._epoch.learn(node, number, answers)
        return Admission(
            verdicts=[LeaseVerdict(v) for v in verdicts],
            open_in_pool=open_in_pool,
            open_in_all=open_in_all,
            retry_after_ms=retry_after_ms,
            reason=reason,
            decide=bool(decide),
            limit=limit,
            projects=projects,
            reasons=reasons,
            waits_ms=waits_ms,
            probe=probe - 1 if probe else None,
            widths=widths,
            shares=shares,
        )


def _encoded(returned: str | Returned) -> list[object]:
    if isinstance(returned, str):
        return [returned, FREE]
    lease, outcome, counts_on_s = returned
    further_ms = FREE if counts_on_s is None else math.ceil(1000 * counts_on_s)
    if outcome is None:
        return [lease, further_ms]
    readings = orjson.dumps(outcome.readings, default=list).decode() if outcome.readings else ""
    used = outcome.used
    error = outcome.error[:ERROR_CHARS].encode("utf-8", "replace").decode()
    return [
        lease, further_ms, outcome.status, used.input_tokens, used.output_tokens, readings, outcome.reporter, error,
    ]  # fmt: skip


@dataclass(frozen=True, slots=True)
class OpenLease:
    """The lease of one open call.

    `age_s` is the time since the grant, `left_s` the time to its deadline, both by the lease clock. A `probe` decides
    whether its pool's circuit breaker closes. `node` is the holder's id; `unit` is the place in the job (lane, page,
    position), '' if it is not known. Nobody waits any longer for a call that was `cut`; its lease counts because the
    provider may still be working on it.
    """

    lease: str
    pool: str
    project: str
    job: str
    node: str
    age_s: float
    left_s: float
    probe: bool
    unit: str = ""
    model: str = ""
    cut: bool = False


async def open_leases(client: AsyncStoreClient, keys: Keys) -> list[OpenLease]:
    """Return all open leases, the oldest first. Raises redis errors."""
    pipe = client.pipeline(transaction=False)
    pipe.hget(keys.clock, "now")
    pipe.hgetall(keys.holders)
    pipe.zrange(keys.leases, 0, -1, withscores=True)
    now, holders, deadlines = await pipe.execute()
    ends = dict(deadlines)
    now_ms = float(now or 0)
    leases = []
    for lease, record in holders.items():
        holder = read_holder(record)
        left_s = max(0.0, ends.get(lease, now_ms) - now_ms) / 1000
        age_s = max(0.0, now_ms - holder.sent_ms) / 1000
        place = holder.pool, holder.project, holder.job, holder.node
        unit = lease.partition("~")[2]
        leases.append(
            OpenLease(lease, *place, age_s, left_s, holder.probe, unit=unit, model=holder.model, cut=holder.cut)
        )
    return sorted(leases, key=lambda lease: (-lease.age_s, lease.lease))
