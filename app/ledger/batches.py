"""Batches in the ledger: what was handed over to a provider's batch API, or is about to be.

A batch is a page's call. It claims units as a node does, under its own name, and the claims last as long as its record.
The record is the **intent**: it names the batch's identity, place, size and units before the provider is sent
anything, so that whoever finds it knows what to look for there.

A batch has a stage. `collecting`: it claims units, and nothing was sent. `sealed`: its units are fixed, and it may have
been sent. `sent`: the provider has confirmed it, or it was found there. When the ends of all its units are written, its
record goes.

One worker at a time works on a batch, and every write names its turn; see take_batch.lua and write_batch.lua.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from hashlib import blake2s
from pathlib import Path
from typing import Any, NamedTuple, Self

import orjson

from dicast.app.domain.deadlines import RoadChange
from dicast.app.domain.plan import STANDARD, Intervals, Lane, place
from dicast.app.ledger.keys import LedgerKeys, PageRef
from dicast.app.ledger.records import MessageId
from dicast.workers.store.connection import AsyncStoreClient, StoreClient
from dicast.workers.store.keys import Keys
from dicast.workers.store.scripts import script_text

HERE = Path(__file__).parent
PREFIX = "@"
SOON_MS = 1000
"""Units whose time comes this soon go into a batch with those whose time has come."""
OVER_KEPT = 200
"""How many batches that are over are remembered, for people."""
RELEASED_TOGETHER = 1000
TURNAROUNDS_KEPT = 10
"""Of how many batches of a pool and model it is remembered how long they took."""


class BatchStage(StrEnum):
    COLLECTING = "collecting"
    SEALED = "sealed"
    SENT = "sent"


class LaneRef(NamedTuple):
    """Names a lane of one incarnation of a job."""

    job: str
    incarnation: str
    lane: int

    def __str__(self) -> str:
        return f"{self.job}|{self.incarnation}|{self.lane}"

    @classmethod
    def parse(cls, text: str) -> Self:
        job, incarnation, lane = text.split("|")
        return cls(job, incarnation, int(lane))

    def page(self, number: int) -> PageRef:
        return PageRef(self.job, self.incarnation, self.lane, number)


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """A batch as the store knows it. Times are Unix seconds, 0 for what has not happened.

    `formed_at`: its record was made. `sending_at`: a request to create it began; whether it was obeyed is not known
    before the stage is `sent`. `doubted_at`: since when it is looked for in its provider's list. `sent_at`: it was
    confirmed. `number` counts its identities: each is used for one request to create it. `tokens` is an estimate.
    `state`, `done` and `failed` are as the provider tells. `turn` is the caller's, who holds it.
    """

    name: str
    lane: LaneRef
    pool: str
    model: str
    stage: BatchStage
    requests: int = 0
    tokens: int = 0
    digest: str = ""
    number: int = 1
    tries: int = 0
    formed_at: float = 0.0
    sending_at: float = 0.0
    doubted_at: float = 0.0
    sent_at: float = 0.0
    provider_id: str = ""
    others: tuple[str, ...] = ()
    """Batches at the provider that were taken for this one, and are not."""
    state: str = ""
    state_since: float = 0.0
    done: int = 0
    failed: int = 0
    note: str = ""
    cancelled: bool = False
    """Whether somebody wants it cancelled."""
    guessed: bool = False
    """Whether `provider_id` may be another's batch: it was found there without its identity."""
    turn: int = 0

    @property
    def identity(self) -> str:
        """The mark of the batch at its provider (app/providers/batches.py)."""
        return f"{self.name.removeprefix(PREFIX)}-{self.number}"

    @property
    def place(self) -> str:
        return place(self.pool, self.model)

    @property
    def progress(self) -> str:
        """What it does now, in words."""
        if self.stage is BatchStage.COLLECTING:
            return "is being formed"
        if self.stage is BatchStage.SENT:
            return f"{self.state}, {self.done + self.failed:,} of {self.requests:,} requests done"
        return "is looked for at its provider" if self.doubted_at else "is being sent"

    def custom_id(self, ref: PageRef, token: MessageId) -> str:
        """Return the id of a unit's request: a digest of the unit and of the claim by which the batch has it."""
        return blake2s(f"{ref}|{token}|{self.name}".encode(), digest_size=16).hexdigest()

    def fields(self) -> dict[str, str]:
        """Return the fields of its record, without its name and its turn."""
        text = {name: str(getattr(self, name)) for name in _TEXTS}
        numbers = {name: repr(getattr(self, name)) for name in (*_WHOLE, *_TIMES)}
        flags = {name: str(int(getattr(self, name))) for name in _FLAGS}
        return {"lane": str(self.lane), "others": orjson.dumps(self.others).decode(), **text, **numbers, **flags}

    @classmethod
    def read(cls, name: str, fields: Mapping[str, str]) -> Self | None:
        """Parse the fields of a record; None if there is none."""
        if "stage" not in fields:
            return None
        values: dict[str, Any] = {key: fields.get(key, "") for key in _TEXTS}
        values |= {key: int(fields.get(key, 0)) for key in (*_WHOLE, "turn")}
        values |= {key: float(fields.get(key, 0)) for key in _TIMES}
        values |= {"stage": BatchStage(fields["stage"]), "lane": LaneRef.parse(fields["lane"])}
        values |= {key: fields.get(key) == "1" for key in _FLAGS}
        values["others"] = tuple(orjson.loads(fields.get("others", "[]")))
        return cls(name=name, **values)


_TEXTS = ("pool", "model", "stage", "digest", "provider_id", "state", "note")
_WHOLE = ("requests", "tokens", "number", "tries", "done", "failed")
_FLAGS = ("cancelled", "guessed")
_TIMES = ("formed_at", "sending_at", "doubted_at", "sent_at", "state_since")


def new_name() -> str:
    """Return a name that no batch has had."""
    return secrets.token_hex(6)


def new_batch(lane: LaneRef, pool: str, model: str, formed_at: float) -> BatchRecord:
    """Return the record of a batch that has no units yet, under a new name."""
    return BatchRecord(PREFIX + new_name(), lane, pool, model, BatchStage.COLLECTING, formed_at=formed_at)


class TurnLost(Exception):
    """Another worker has taken the batch, or it is over."""


@dataclass(frozen=True, slots=True)
class DueWork:
    """What a worker is to look after: a batch, or a lane of which batches are to be formed."""

    batch: BatchRecord | None = None
    lane: LaneRef | None = None


class BatchStore:
    """Reads and writes batches on one event loop. Every verb may be repeated; all raise redis errors."""

    def __init__(self, client: AsyncStoreClient, keys: Keys, node: str, intervals: Intervals = STANDARD) -> None:
        self._redis, self._node, self._intervals = client, node, intervals
        self.keys, self._clock, self._beacons = LedgerKeys(keys), keys.clock, keys.node("")
        self._name, self._numbers, self._taking = secrets.token_urlsafe(4), itertools.count(1), ""
        self._writes = itertools.count(1)
        names = ("take_batch", "write_batch", "list_claims")
        self._scripts = {name: client.register_script(script_text(HERE / f"{name}.lua")) for name in names}

    async def schedule(self, lane: LaneRef, in_ms: int, *, later: bool = False) -> None:
        """Have batches of a lane's free units formed after a while, or sooner where that is wanted already. With
        `later`, others wait for this, too."""
        await self._redis.zadd(self.keys.batches, {str(lane): await self._now_ms() + in_ms}, lt=not later)

    async def _now_ms(self) -> int:
        return int(await self._redis.hget(self._clock, "now") or 0)

    async def take(self) -> DueWork | None:
        """Take what is due, if anything is: a batch is this worker's from then on, for `Intervals.batch_held_ms`."""
        keys = [self.keys.batches, self._clock, self.keys.batch_taken(self._node)]
        self._taking = self._taking or f"{self._name}{next(self._numbers):x}"
        args = ["", self._node, self._beacons, self._intervals.batch_held_ms, self._taking]
        reply, self._taking = await self._scripts["take_batch"](keys=keys, args=args), ""
        if not reply:
            return None
        member, turn = reply
        if not member.startswith(PREFIX):
            return DueWork(lane=LaneRef.parse(member))
        batch = await self.read(member)
        return None if batch is None or batch.turn != turn else DueWork(batch)

    async def read(self, name: str) -> BatchRecord | None:
        return BatchRecord.read(name, await self._redis.hgetall(self.keys.batch(name)))

    async def begin(self, batch: BatchRecord) -> BatchRecord:
        """Put a new batch into the store, held by this worker."""
        begun = replace(batch, turn=1)
        fields = begun.fields() | {"turn": "1", "holder": self._node}
        await self._run(
            begun, "begin", self._intervals.batch_held_ms, *(part for pair in fields.items() for part in pair)
        )
        return begun

    async def hold(self, batch: BatchRecord, **changes: Any) -> BatchRecord:
        """Write what has changed, and go on holding the batch. Raises `TurnLost`."""
        return await self._write(batch, "hold", self._intervals.batch_held_ms, changes)

    async def rest(self, batch: BatchRecord, in_ms: int, **changes: Any) -> BatchRecord:
        """Write what has changed, and let the batch go until somebody looks after it again. Raises `TurnLost`."""
        return await self._write(batch, "rest", in_ms, changes)

    async def resend(self, batch: BatchRecord) -> BatchRecord:
        """Prepare a batch that may have been sent for being sent again, under its next identity; its requests count as
        possibly paid twice. Raises `TurnLost`."""
        await self._run(batch, "resend", self._intervals.batch_held_ms)
        return replace(batch, number=batch.number + 1, sending_at=0.0, doubted_at=0.0)

    async def _write(self, batch: BatchRecord, kind: str, ms: int, changes: Mapping[str, Any]) -> BatchRecord:
        changed = replace(batch, **changes)
        fields = changed.fields()
        await self._run(batch, kind, ms, *(part for name in changes for part in (name, fields[name])))
        return changed

    async def drop(self, batch: BatchRecord, summary: Mapping[str, Any] | None = None) -> None:
        """Forget a batch of which no unit is claimed any more; its `summary` is remembered for people. Raises
        `TurnLost`."""
        await self._run(batch, "drop", OVER_KEPT, orjson.dumps(summary) if summary else "")

    async def _run(self, batch: BatchRecord, kind: str, number: int, *args: Any) -> None:
        k = self.keys
        keys = [
            k.batch(batch.name), k.batches, self._clock, k.batch_members(batch.name), k.batches_over,
            k.job(batch.lane.job),
        ]  # fmt: skip
        numbered = ["", batch.name, batch.turn, kind, number, next(self._writes), *args]
        if not await self._scripts["write_batch"](keys=keys, args=numbered):
            raise TurnLost(batch.name)

    # ------------------------------------------------------------------ units
    async def add_members(self, batch: BatchRecord, page: int, tokens: Sequence[MessageId]) -> None:
        """Write which messages of a page the batch is about to claim, each once. Raises `TurnLost`."""
        group = " ".join(map(str, tokens))
        await self._run(batch, "add", self._intervals.batch_held_ms, f"{page}.{tokens[0]}", group)

    async def live_members(self, batch: BatchRecord, lane: Lane) -> dict[PageRef, list[MessageId]]:
        """Return the messages of a batch whose units it still has, by page, in the order of its requests."""
        groups = await self._redis.hgetall(self.keys.batch_members(batch.name))
        by_page: dict[int, set[MessageId]] = {}
        for name, group in groups.items():
            by_page.setdefault(int(name.partition(".")[0]), set()).update(map(MessageId.parse, group.split()))
        live: dict[PageRef, list[MessageId]] = {}
        for page in sorted(by_page):
            ref = batch.lane.page(page)
            flat = await self._scripts["list_claims"](keys=[self.keys.page(ref)], args=[batch.name])
            claimed = set(map(int, flat[::2]))
            if tokens := [token for token in sorted(by_page[page]) if claimed & set(token.positions(lane))]:
                live[ref] = tokens
        return live

    async def free_messages(self, lane_ref: LaneRef, lane: Lane) -> dict[PageRef, list[MessageId]]:
        """Return the messages of a lane that wait for a batch: of units that nobody has tried, and those that are due.
        Some of them may be claimed by others already."""
        pages = sorted(
            int(number.partition(".")[2])
            for member in await self._redis.smembers(self.keys.pages(lane_ref.job))
            for lane_number, _, number in [member.partition("|")]
            if int(lane_number) == lane_ref.lane and number.partition(".")[0] == lane_ref.incarnation
        )
        free = {}
        for page in pages:
            ref = lane_ref.page(page)
            if tokens := await self._free_in(ref, lane):
                free[ref] = tokens
        return free

    async def _free_in(self, ref: PageRef, lane: Lane) -> list[MessageId]:
        key = self.keys.page(ref)
        names = set(await self._redis.hkeys(key))
        first, units = await self._redis.hmget(key, "first", "units")
        if first is None:
            return []
        begin, end = int(first), int(first) + int(units)
        tokens, touched = [], dict[int, list[int]]()
        for group in range(begin, end, lane.stride):
            unended = [p for p in range(group, group + lane.stride) if f"r:{p}" not in names]
            if unended and not any(f"u:{p}" in names for p in unended):
                tokens.append(MessageId.of(lane, group))
            elif unended:
                touched[group] = unended
        if touched:
            wholes = [MessageId(group, batch=True) for group in touched if lane.grouped]
            possible = [*wholes, *(MessageId(p) for unended in touched.values() for p in unended)]
            now_ms = await self._now_ms()
            scores = await self._redis.zmscore(self.keys.due, [f"{ref}|{t}" for t in possible])
            due = {
                t for t, at in zip(possible, scores, strict=True)
                if at is not None and (at <= now_ms + SOON_MS or f"w:{t}" not in names)
            }  # fmt: skip
            for group, unended in touched.items():  # a unit goes by one message alone: a batch claims both for itself
                whole, single = MessageId(group, batch=True), [MessageId(p) for p in unended if MessageId(p) in due]
                tokens += [whole] if whole in due and len(single) < len(unended) else single
        return sorted(tokens)

    # ------------------------------------------------------------------ what was learned
    async def most_tokens(self, batch_place: str) -> int | None:
        """Return the most tokens that a batch at a place is given; None: no queue was found full there."""
        learned = await self._redis.hget(self.keys.batch_limits, batch_place)
        return None if learned is None else int(learned)

    async def learn_most_tokens(self, batch_place: str, most: int) -> None:
        await self._redis.hset(self.keys.batch_limits, batch_place, str(most))

    async def turnarounds(self, batch_place: str) -> list[float]:
        """Return how long the last batches at a place took at their provider, in seconds, oldest first."""
        learned = await self._redis.hget(self.keys.batch_limits, f"|{batch_place}")
        return list(orjson.loads(learned or "{}").values())

    async def learn_turnaround(self, batch: BatchRecord, took_s: float) -> None:
        """Remember how long a batch took. Of two at the same instant one may be forgotten."""
        field = f"|{batch.place}"  # no place begins like this
        durations: dict[str, float] = orjson.loads(await self._redis.hget(self.keys.batch_limits, field) or "{}")
        durations.pop(batch.name, None)
        durations[batch.name] = round(took_s, 3)
        latest = dict(list(durations.items())[-TURNAROUNDS_KEPT:])
        await self._redis.hset(self.keys.batch_limits, field, orjson.dumps(latest).decode())

    async def release(self, lane_ref: LaneRef, lane: Lane) -> int:
        """Make the lane's messages that wait for a batch due now, as messages of their own; return their number."""
        free = await self.free_messages(lane_ref, lane)
        members = [f"{ref}|{token}" for ref, tokens in free.items() for token in tokens]
        now_ms = await self._now_ms()
        for first in range(0, len(members), RELEASED_TOGETHER):
            some = members[first : first + RELEASED_TOGETHER]
            await self._redis.zadd(self.keys.due, dict.fromkeys(some, now_ms), lt=True)
        return len(members)

    async def all(self) -> list[BatchRecord]:
        """Return all batches that are not over, oldest first."""
        names = [m for m in await self._redis.zrange(self.keys.batches, 0, -1) if m.startswith(PREFIX)]
        pipe = self._redis.pipeline(transaction=False)
        for name in names:
            pipe.hgetall(self.keys.batch(name))
        return _sorted_records(names, await pipe.execute() if names else [])

    async def hasten(self, job: str) -> None:
        """Have a job's batches looked after at once."""
        if names := [batch.name for batch in await self.all() if batch.lane.job == job]:
            await self._redis.zadd(self.keys.batches, dict.fromkeys(names, 0), xx=True, lt=True)


def _sorted_records(names: Sequence[str], found: Iterable[Mapping[str, str]]) -> list[BatchRecord]:
    records = [BatchRecord.read(name, fields) for name, fields in zip(names, found, strict=True)]
    return sorted((record for record in records if record is not None), key=lambda record: record.formed_at)


# ---------------------------------------------------------------------- for people, who have a synchronous client
def list_batches(client: StoreClient, k: LedgerKeys) -> list[BatchRecord]:
    """Return all batches that are not over, oldest first."""
    names = [member for member in client.zrange(k.batches, 0, -1) if member.startswith(PREFIX)]
    pipe = client.pipeline(transaction=False)
    for name in names:
        pipe.hgetall(k.batch(name))
    return _sorted_records(names, pipe.execute() if names else [])


def list_batches_over(client: StoreClient, k: LedgerKeys) -> list[dict[str, Any]]:
    """Return the summaries of the last batches that are over, newest first."""
    return [orjson.loads(text) for text in client.lrange(k.batches_over, 0, -1)]


def list_changes(client: StoreClient, k: LedgerKeys, job: str, incarnation: str) -> list[RoadChange]:
    """Return where units of a job's road `auto` went online, and why."""
    fields = sorted(client.hgetall(k.asking(job, incarnation)).items())
    return [RoadChange.model_validate_json(text) for name, text in fields if name.startswith("online:")]


def cancel_batch(client: StoreClient, k: LedgerKeys, name: str) -> bool:
    """Have a batch cancelled; False if there is none of this name. Its units go into a later batch, unless their job is
    cancelled."""

    def mark(pipe: Any) -> bool:
        is_there = bool(pipe.exists(k.batch(name)))
        pipe.multi()
        if is_there:
            pipe.hset(k.batch(name), "cancelled", "1")
            pipe.zadd(k.batches, {name: 0}, xx=True)
        return is_there

    # Watched: a mark on a batch that is over meanwhile would stay for ever.
    return bool(client.transaction(mark, k.batch(name), value_from_callable=True))
