"""A batch API in memory that keeps an invoice, and the parts that send units by it."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from dicast.app.domain.opinion import FailureKind
from dicast.app.domain.plan import Intervals
from dicast.app.ledger.batches import BatchStore
from dicast.app.ledger.keys import PageRef
from dicast.app.ledger.records import JobRecord, MessageId
from dicast.app.pipeline.batches import BatchRoad, Desk
from dicast.app.pipeline.plan import PageMessages
from dicast.app.providers.base import ChatReply, ChatRequest, ProviderFailure
from dicast.app.providers.batches import (
    BatchCounts,
    BatchError,
    BatchLimits,
    BatchRequest,
    BatchResult,
    BatchState,
    BatchStatus,
    CreateFailed,
    RequestFate,
    UnusableBatch,
)
from dicast.workers.admission.pool_state import ModelHealth, PoolHealth
from tests.judge.desk import good
from tests.ledger.bench import KEYS

Reply = Callable[[ChatRequest], ChatReply]


class Killed(BaseException):
    """The process is dead from here on."""


@dataclass
class Kept:
    """A batch at the provider."""

    status: BatchStatus
    requests: list[BatchRequest]
    fates: dict[str, RequestFate] = field(default_factory=dict)
    listed: bool = True
    failing: set[str] = field(default_factory=set)


class Shelf:
    """An account. `paid` counts how often each question was billed. `kill` names the step at which the process dies,
    once."""

    def __init__(self, *, most: int = 50_000, most_bytes: int = 10**8) -> None:
        self.limits = BatchLimits(most, most_bytes, one_model=True)
        self.batches: dict[str, Kept] = {}
        self.paid: Counter[bytes] = Counter()
        self.calls: Counter[str] = Counter()
        self.kill = ""
        self.refuse: Exception | None = None
        self.listed = True
        self.reply: Reply = good
        self.results_read = 0
        self.unanswered: set[int] = set()

    def dies(self, step: str) -> None:
        if self.kill == step:
            self.kill = ""
            raise Killed(step)

    # ------------------------------------------------------------------ the API
    def body(self, request: ChatRequest) -> bytes:
        left_out = {"dropped": sorted(request.dropped)} if request.dropped else {}
        return orjson.dumps({"model": request.model, "user": request.user, **left_out})

    def read(self, result: BatchResult, request: ChatRequest) -> ChatReply:
        if result.fate is not RequestFate.ANSWERED:
            raise ProviderFailure(FailureKind.UNAVAILABLE, result.fate.value)
        if result.line == b"error":
            raise ProviderFailure(FailureKind.SERVER, "500", status_code=500)
        return self.reply(request)

    async def create(self, requests: AsyncIterable[BatchRequest], identity: str) -> BatchStatus:
        self.calls["create"] += 1
        self.dies("before upload")
        taken = [request async for request in requests]
        self.dies("after upload")
        if self.refuse is not None:
            refuse, self.refuse = self.refuse, None
            raise refuse
        size = sum(len(request.body) for request in taken)
        if len(taken) > self.limits.requests or size > self.limits.bytes:
            raise UnusableBatch("too large")
        number = len(self.batches)
        status = BatchStatus(f"batch_{number}", BatchState.RUNNING, 1000.0, identity, BatchCounts(len(taken)))
        self.batches[status.id] = Kept(status, taken, listed=self.listed)
        self.dies("after create")
        await asyncio.sleep(0)
        return status

    async def get(self, batch_id: str) -> BatchStatus:
        self.calls["get"] += 1
        self.dies("in progress")
        return self.batches[batch_id].status

    async def list(self, since: float) -> AsyncIterator[BatchStatus]:
        for kept in self.batches.values():
            if kept.listed:
                yield kept.status

    async def find(
        self, identity: str, *, since: float, requests: int, known: Collection[str] = ()
    ) -> BatchStatus | None:
        self.calls["find"] += 1
        for kept in self.batches.values():
            if kept.listed and kept.status.identity == identity and kept.status.id not in known:
                return kept.status
        return None

    async def results(self, batch: BatchStatus, identity: str) -> AsyncIterator[BatchResult]:
        self.dies("before download")
        kept = self.batches[batch.id]
        assert kept.status.identity == identity
        for number, request in enumerate(reversed(kept.requests)):
            if number == len(kept.requests) // 2:
                self.dies("during the download")
            fate = kept.fates.get(request.custom_id, RequestFate.ANSWERED)
            self.results_read += 1
            yield BatchResult(request.custom_id, fate, b"error" if request.custom_id in kept.failing else b"ok")
        self.dies("after download")

    async def cancel(self, batch_id: str) -> BatchStatus:
        self.calls["cancel"] += 1
        kept = self.batches[batch_id]
        if not kept.status.state.is_over:
            self.end(batch_id, BatchState.CANCELLED, made=0)
        return kept.status

    async def close(self) -> None: ...

    # ------------------------------------------------------------------ what tests do at the provider
    def end(self, batch_id: str, state: BatchState = BatchState.ENDED, made: int | None = None) -> None:
        """The batch ends; the first `made` of its requests were made, and are billed."""
        kept = self.batches[batch_id]
        made = len(kept.requests) if made is None else made
        fate = RequestFate.EXPIRED if state is BatchState.EXPIRED else RequestFate.CANCELLED
        kept.fates = {request.custom_id: fate for request in kept.requests[made:]}
        kept.failing = {kept.requests[number].custom_id for number in self.unanswered}
        self.paid.update(r.body for r in kept.requests[:made] if r.custom_id not in kept.failing)
        kept.status = replace(kept.status, state=state, ended_at=2000.0)

    def fail(self, batch_id: str, code: str) -> None:
        kept = self.batches[batch_id]
        kept.status = replace(kept.status, state=BatchState.FAILED, errors=(BatchError(code, "no"),))

    def end_all(self) -> None:
        for batch_id, kept in self.batches.items():
            if not kept.status.state.is_over:
                self.end(batch_id)


def not_created(kind: FailureKind, *, uncertain: bool) -> CreateFailed:
    return CreateFailed(ProviderFailure(kind, "no batch"), uncertain=uncertain)


@dataclass
class Clock:
    """Unix time, as tests want it."""

    at: float = 1000.0

    def __call__(self) -> float:
        return self.at


class TimedShelf(Shelf):
    """An account whose batches end by themselves, in time by `clock`: each after `takes()` seconds, its requests made
    evenly in that time. One that is cancelled goes on for `cancelling()` seconds, and makes what falls into these. The
    requests in `unanswered` fail in the first batch that ends."""

    def __init__(self, clock: Clock, takes: Callable[[], float], cancelling: Callable[[], float] = lambda: 0.0) -> None:
        super().__init__()
        self.clock, self.takes, self.cancelling = clock, takes, cancelling
        self.begun: dict[str, float] = {}
        self.lasts: dict[str, float] = {}
        self.cuts: dict[str, float] = {}

    async def create(self, requests: AsyncIterable[BatchRequest], identity: str) -> BatchStatus:
        status = await super().create(requests, identity)
        self.begun[status.id], self.lasts[status.id] = self.clock(), self.takes()
        kept = self.batches[status.id]
        kept.status = replace(kept.status, created_at=self.clock())
        return kept.status

    async def get(self, batch_id: str) -> BatchStatus:
        self.calls["get"] += 1
        kept, begun, lasts = self.batches[batch_id], self.begun[batch_id], self.lasts[batch_id]
        if kept.status.state.is_over:
            return kept.status
        ends, cut = begun + lasts, self.cuts.get(batch_id)
        if self.clock() >= ends and (cut is None or ends <= cut):
            self.end(batch_id, BatchState.ENDED)
            kept.status = replace(kept.status, ended_at=ends)
        elif cut is not None and self.clock() >= cut:
            self.end(batch_id, BatchState.CANCELLED, made=int(len(kept.requests) * (cut - begun) / lasts))
        self.unanswered = set() if kept.status.state.is_over else self.unanswered
        return kept.status

    async def cancel(self, batch_id: str) -> BatchStatus:
        self.calls["cancel"] += 1
        kept = self.batches[batch_id]
        if not kept.status.state.is_over and batch_id not in self.cuts:
            self.cuts[batch_id] = self.clock() + self.cancelling()
            kept.status = replace(kept.status, state=BatchState.CANCELLING)
        return await self.get(batch_id)


class Sent:
    """Messages that were sent: control messages, and those of units, which are to be called online."""

    def __init__(self) -> None:
        self.gathered: list[PageRef] = []
        self.planned: list[tuple[str, str, int]] = []
        self.units: deque[tuple[PageRef, MessageId]] = deque()

    async def page(self, job: JobRecord, page: PageMessages) -> None:
        self.units += [(page.ref, token) for token in page.tokens]

    async def gather(self, ref: PageRef) -> None:
        self.gathered.append(ref)

    async def plan(self, *place: Any) -> None:
        self.planned.append(place)


class NoStops:
    async def dropped(self, _: Any) -> list[Any]:
        return []

    async def stops(self, _: Any) -> dict[str, Any]:
        return {}


class Paced:
    """What is known of a pool of which so many calls may be open, each for so long."""

    def __init__(self, limit: int = 5, call_s: float = 2.0) -> None:
        self.limit, self.call_s = limit, call_s

    async def read(self, pools: Iterable[str]) -> dict[str, PoolHealth]:
        health = {"asked-model": ModelHealth(1.0, 1.0, self.call_s)}
        return {pool: PoolHealth(self.limit, 0, 0, False, health) for pool in pools}


class Road:
    """What sends a bench's units by batches, as one worker."""

    def __init__(
        self, bench: Any, worker: Any, shelf: Shelf, clock: Clock, node: int = 0, pace: Paced | None = None,
        intervals: Intervals | None = None,
    ) -> None:  # fmt: skip
        self.bench, self.shelf, self.clock, self.worker = bench, shelf, clock, worker
        worker.pools.batch_api = lambda _: shelf
        ledger = bench.one if node == 0 else bench.two
        ledger.intervals = intervals or Intervals()
        self.store = BatchStore(bench.asyncs, KEYS, bench.nodes[node].id, ledger.intervals)
        self.messages = Sent()
        desk = Desk(
            ledger, worker.jobs, worker.judge, worker.caller, worker.outcomes, self.messages, NoStops(), pace or Paced()
        )
        self.batches = BatchRoad(self.store, desk, worker.pools, {"p"})
        self.batches.now = clock

    async def due(self) -> None:
        """All that waits for its time has come to it."""
        keys = self.store.keys
        for zset in (keys.batches, keys.due):
            if members := await self.bench.asyncs.zrange(zset, 0, -1):
                await self.bench.asyncs.zadd(zset, dict.fromkeys(members, 0))

    async def look(self, times: int = 1) -> None:
        for _ in range(times):
            await self.due()
            await self.batches.step_once()

    async def until_idle(self, most: int = 40) -> None:
        for _ in range(most):
            self.shelf.end_all()
            await self.due()
            if not await self.batches.step_once():
                return
        raise AssertionError("it goes on and on")
