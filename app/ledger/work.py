"""The work left of jobs that have not ended, for observers such as metrics and autoscalers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from dicast.app.domain.cost import PurseStanding, standing_fields
from dicast.app.ledger.keys import LedgerKeys
from dicast.app.ledger.records import JobState
from dicast.workers.policy.wanted import WaitingCalls
from dicast.workers.store.connection import StoreClient
from dicast.workers.store.keys import Keys

LOOKED_AT = 500
"""The most unended jobs that are read, those first that wait longest to be looked after; all are counted."""


class LedgerWork(NamedTuple):
    """The number of jobs that have not ended or whose end is not announced; of the running ones, all units and those
    that have ended; and the calls that are still to be made or open, also of jobs that have not started, by the pools
    that they may go to."""

    unended: int
    units: int
    done: int
    calls: Sequence[WaitingCalls]


def unended_work(client: StoreClient, keys: Keys) -> LedgerWork:
    """Return the work of all unended jobs in a few round trips, however many jobs there are. Raises redis errors."""
    k = LedgerKeys(keys)
    pipe = client.pipeline(transaction=False)
    pipe.zcard(k.unfinished)
    pipe.scard(k.outbox)
    pipe.zrange(k.unfinished, 0, LOOKED_AT - 1)
    unfinished, unannounced, jobs = pipe.execute()
    pipe = client.pipeline(transaction=False)
    for job in jobs:
        pipe.hmget(k.job(job), "state", "units", "done", "lanes", "incarnation")
    rows = [(job, fields) for job, fields in zip(jobs, pipe.execute(), strict=True) if all(fields[:2])]
    active = [
        (job, int(units), int(done or 0), orjson.loads(lanes), state == JobState.RUNNING)
        for job, (state, units, done, lanes, _) in rows
        if state in {JobState.SUBMITTED, JobState.RUNNING} and lanes
    ]
    layouts = {job: (lanes or "[]", incarnation) for job, (_, _, _, lanes, incarnation) in rows}
    waits = _without_workers(client, k, layouts)
    pipe = client.pipeline(transaction=False)
    for job, _, _, lanes, _ in active:
        pipe.hmget(k.job(job), [f"{name}:{number}" for number in range(len(lanes)) for name in ("open", "cursor")])
    calls: dict[tuple[str, ...], int] = {}
    for (job, units, _, lanes, _), fields in zip(active, pipe.execute() if active else [], strict=True):
        items = units // sum(map(_units_per_item, lanes))
        for number, (lane, opened, cursor) in enumerate(zip(lanes, fields[::2], fields[1::2], strict=True)):
            if (job, number) in waits:
                continue  # no worker is of use to it
            open_units = int(opened or 0) + _unplanned(lane, items, cursor)
            pools = tuple(lane["pools"])
            calls[pools] = calls.get(pools, 0) + math.ceil(open_units / _stride(lane))
    return LedgerWork(
        unended=int(unfinished) + int(unannounced),
        units=sum(units for _, units, _, _, runs in active if runs),
        done=sum(done for _, _, done, _, runs in active if runs),
        calls=[WaitingCalls(pools, n) for pools, n in calls.items() if n > 0],
    )


def _without_workers(
    client: StoreClient, k: LedgerKeys, jobs: Mapping[str, tuple[str, str | None]]
) -> set[tuple[str, int]]:
    """Return the lanes that go by batches now, of jobs with these lanes, as JSON, and incarnations."""
    roads = {
        (job, number): lane.get("road")
        for job, (lanes, _) in jobs.items()
        for number, lane in enumerate(orjson.loads(lanes))
    }
    undecided = [at for at, road in roads.items() if road == "auto"]
    pipe = client.pipeline(transaction=False)
    for job, number in undecided:
        pipe.hexists(k.asking(job, jobs[job][1] or ""), f"online:{number}")
    online = {at for at, is_online in zip(undecided, pipe.execute() if undecided else [], strict=True) if is_online}
    return {at for at, road in roads.items() if road in ("batch", "auto")} - online


def read_purses(client: StoreClient, keys: Keys) -> list[PurseStanding]:
    """Return all purses in the present periods, by name. Raises redis errors."""
    k = LedgerKeys(keys)
    seconds, microseconds = client.time()
    now_ms = int(seconds) * 1000 + int(microseconds) // 1000
    names = sorted(client.smembers(k.purses))
    pipe = client.pipeline(transaction=False)
    for name in names:
        pipe.hmget(k.purse(name), standing_fields(now_ms))
    fields = pipe.execute() if names else []
    return [PurseStanding.from_fields(name, now_ms, texts) for name, texts in zip(names, fields, strict=True)]


def _units_per_item(lane: Mapping[str, Any]) -> int:
    return int(lane["replicates"]) * len(lane["agents"]) * int(lane["dimensions"])


def _stride(lane: Mapping[str, Any]) -> int:
    return (int(lane["dimensions"]) if lane["batched"] else 1) * int(lane.get("together", 1))


def _unplanned(lane: Mapping[str, Any], items: int, cursor: str | None) -> int:
    """Return how many units of a lane are in no page yet; the cursor is '' at its end."""
    if cursor == "":
        return 0
    planned = orjson.loads(cursor)["position"] if cursor else 0
    return max(0, items * _units_per_item(lane) - int(planned))
