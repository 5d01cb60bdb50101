"""The ledger as workers see it: start, open a page, claim, record, defer, gather, complete. One script a verb.

Every write names the fence of its claim, and every way to a job's end leads through the same scripts, so that a
message that comes twice, late or never changes no outcome.

Every verb may be repeated, for its answer may be lost after it was obeyed: redis-py sends a command again by itself,
and callers do (`retry_until_available` in app/pipeline/record.py). What would not come out the same twice names its
attempt.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import orjson

from dicast.app.domain.deadlines import UNBOUNDED, Bounds
from dicast.app.domain.intervals import STANDARD, Intervals
from dicast.app.domain.job import EvaluationJob, Item
from dicast.app.domain.pieces import PIECE_BYTES
from dicast.app.domain.plan import Lane
from dicast.app.domain.text import shown
from dicast.app.ledger.client import HERE, JobState
from dicast.app.ledger.keys import LedgerKeys, PageRef, new_incarnation
from dicast.app.ledger.records import (
    Bounded,
    Claim,
    ClaimAnswer,
    Deferral,
    Due,
    JobRecord,
    LaneState,
    MessageId,
    OpenPage,
    Recorded,
    Started,
    UnitResult,
    Written,
)
from dicast.workers.store.connection import AsyncStoreClient
from dicast.workers.store.errors import NotReady
from dicast.workers.store.keys import Keys
from dicast.workers.store.scripts import script_text

POISON_DEATHS = 3
"""A unit that was in the hands of so many dead workers is recorded as lost instead of killing another."""
DUE_TOGETHER = 500
WAITS_CHARS = 300
ITEMS_FIRST, ITEMS_MOST = 8, 64
"""Items read at once, more each time: how large they are is known when they are there."""


class Unheard(NotReady):
    """The store does not hear this node, as after a cut: what it claims now others would take from it at once."""

    def __str__(self) -> str:
        return f"the store does not hear {self.args[0]} yet"


class Ledger:
    """All verbs, for one event loop. Store errors are raised as they come: nothing is known of that write."""

    def __init__(
        self, client: AsyncStoreClient, keys: Keys, node: str, *, claim_ms: int, calls_max: int,
        intervals: Intervals = STANDARD,
    ) -> None:  # fmt: skip
        """`claim_ms` is how long a claim may last: longer than the longest call; `calls_max` the calls that may be made
        for one unit, those whose worker died and those that were refused included."""
        self._redis, self._node, self._claim_ms, self._calls_max = client, node, claim_ms, calls_max
        self._intervals = intervals
        self.keys = LedgerKeys(keys)
        self._due, self._clock, self._epoch = self.keys.due, keys.clock, keys.epoch
        self._assigned, self._beacons = keys.assigned, keys.node("")
        names = (
            "start", "open_page", "claim", "record", "defer", "take_due", "take_page", "close_page", "claim_finish",
            "complete", "find_lost", "list_claims", "release_claims", "assign", "mark_lost",
            "ripe", "lead", "waits", "bounds",
        )  # fmt: skip
        self._scripts = {name: client.register_script(script_text(HERE / f"{name}.lua")) for name in names}
        self._name, self._numbers = secrets.token_urlsafe(4), itertools.count(1)
        self._taking: int | None = None

    def attempt(self) -> str:
        """A name for an attempt at a verb, which no other of any process has."""
        return f"{self._name}{next(self._numbers):x}"

    # ------------------------------------------------------------------ jobs
    async def job(self, job: str) -> JobRecord | None:
        """The job, or None if the ledger does not hold it."""
        spec, lanes, units, limit, fingerprint, incarnation, resumed = await self._redis.hmget(
            self.keys.job(job), "spec", "lanes", "units", "limit", "fingerprint", "incarnation", "resumed"
        )
        if spec is None:
            return None
        if incarnation is None:  # submitted by a version that knew of none
            await self._redis.hsetnx(self.keys.job(job), "incarnation", new_incarnation())
            return await self.job(job)
        return JobRecord(
            id=job,
            # Items of the job itself are kept apart, so the stored spec has an empty list of them.
            spec=EvaluationJob.model_construct(**_spec_fields(spec)),
            lanes=[
                Lane(**{**lane, "pools": tuple(lane["pools"]), "agents": tuple(lane["agents"])})
                for lane in orjson.loads(lanes)
            ],
            units=int(units),
            limit=int(limit or 0),
            fingerprint=fingerprint,
            incarnation=incarnation,
            resumed=int(resumed or 0),
        )

    async def start(self, job: str, limit: int, resumed: int = 0, bounds: Bounds = UNBOUNDED) -> Started:
        """Freeze the limit and the bounds of a submitted job. One that was resumed more often than `resumed` is left
        alone, and one that should have been started sooner."""
        k = self.keys
        state, started, expired = await self._scripts["start"](
            keys=[k.job(job), k.base.job_limits, self._clock, k.bounded],
            args=["", job, limit, resumed, self.attempt(), *("" if bound is None else bound for bound in bounds)],
        )
        return Started(JobState(state) if state else None, bool(started), bool(expired))

    async def bounds(self, job: str) -> Bounded | None:
        """What a running job is bounded by; it is looked at again when its bounds make that worthwhile. None if it does
        not run."""
        k = self.keys
        found = await self._scripts["bounds"](keys=[k.job(job), k.bounded, self._clock], args=["", job])
        if not found:
            return None
        now_ms, began_ms, *bounds = map(int, found)
        return Bounded(now_ms, began_ms, *(None if bound < 0 else bound for bound in bounds))

    async def unended(self, job: str) -> list[OpenPage]:
        """The job's open pages, with the units that have no result."""
        refs = sorted(
            PageRef(job, incarnation, int(lane), int(page))
            for member in await self._redis.smembers(self.keys.pages(job))
            for lane, _, number in [member.partition("|")]
            for incarnation, _, page in [number.partition(".")]
        )
        pipe = self._redis.pipeline(transaction=False)
        for ref in refs:
            pipe.hmget(self.keys.page(ref), "first", "units", "opened_ms")
            pipe.hkeys(self.keys.page(ref))
        answers = await pipe.execute() if refs else []
        pages = []
        for ref, (first, units, opened_ms), names in zip(refs, answers[::2], answers[1::2], strict=True):
            if first is not None:
                positions, ended = range(int(first), int(first) + int(units)), set(names)
                pages.append(OpenPage(ref, int(opened_ms), [p for p in positions if f"r:{p}" not in ended]))
        return pages

    async def assignments(self, ref: PageRef) -> dict[MessageId, str]:
        """The pools that were chosen for messages of a page which nobody has worked on."""
        found = await self._redis.hgetall(self.keys.assignments(ref))
        return {MessageId.parse(token): pool for token, pool in found.items()}

    async def attended(self, job: str) -> None:
        """Somebody looks after this job now: the sweeper need not, for a while."""
        unattended_ms = await self.now_ms() + self._intervals.unattended_ms
        await self._redis.zadd(self.keys.unfinished, {job: unattended_ms}, xx=True)

    async def now_ms(self) -> int:
        """The lease clock as last written: at most a few hundred ms old while anybody works."""
        return int(await self._redis.hget(self._clock, "now") or 0)

    async def wall_ms(self) -> int:
        """The store's wall clock, which dates jobs."""
        seconds, microseconds = await self._redis.time()
        return int(seconds) * 1000 + int(microseconds) // 1000

    async def progress(self, job: str) -> dict[str, str]:
        fields: dict[str, str] = await self._redis.hgetall(self.keys.job(job))
        fields.pop("spec", None)
        return fields

    async def claim_finish(self, job: str) -> bool:
        """Whether this node may write the report of a finishing job; not while another living node is at it."""
        return bool(await self._scripts["claim_finish"](keys=[self.keys.job(job)], args=[self._node, self._beacons]))

    async def complete(self, job: str, incarnation: str, report: bytes, retention_s: int, attempt: str = "") -> bool:
        """End a finishing job with its report; True for the one attempt that did it, however often it is repeated."""
        k = self.keys
        return bool(
            await self._scripts["complete"](
                keys=[
                    k.job(job),
                    k.items(job),
                    k.pages(job),
                    k.base.job_limits,
                    k.unfinished,
                    k.outbox,
                    k.jobs,
                    k.bounded,
                ],
                args=["", job, report, retention_s, k.job(""), attempt or self.attempt(), incarnation],
            )
        )

    async def announced(self, job: str, continued: Sequence[str] = ()) -> None:
        """The job's waiters have been told, and these task ids have had what follows its end sent."""
        if continued:
            await self._redis.hdel(self.keys.continuations(job), *continued)
        await self._redis.srem(self.keys.outbox, job)

    async def continuations(self, job: str) -> dict[str, str]:
        """What follows the job's end, by task id."""
        found: dict[str, str] = await self._redis.hgetall(self.keys.continuations(job))
        return found

    async def unfinished(self) -> list[str]:
        """Jobs that have not ended, those without a message to their name included."""
        return list(await self._redis.zrange(self.keys.unfinished, 0, -1))

    async def facts(self, jobs: Sequence[str]) -> list[dict[str, str] | None]:
        """What is to be known of jobs should the store lose them; None for one that it does not hold."""
        names = ("project", "units", "created_ms")
        pipe = self._redis.pipeline(transaction=False)
        for job in jobs:
            pipe.hmget(self.keys.job(job), *names)
        return [dict(zip(names, values, strict=True)) if all(values) else None for values in await pipe.execute()]

    async def waits(self, job: str, reason: str) -> None:
        """Tell those who watch a job for what it waits. It is shown for a while, so a lasting trouble is told again."""
        await self._scripts["waits"](keys=[self.keys.job(job)], args=["", shown(reason, WAITS_CHARS)])

    async def mark_lost(self, job: str, facts: Mapping[str, str], retention_s: int) -> bool:
        """Put a job on record as lost; True for the one call that did it, False if there is a job of this id. Its
        waiters are to be told, as of one that completed (see `unannounced`)."""
        k, fields = self.keys, [part for pair in facts.items() for part in pair]
        return bool(
            await self._scripts["mark_lost"](
                keys=[k.job(job), k.jobs, k.outbox], args=["", job, retention_s, self.attempt(), *fields]
            )
        )

    # ------------------------------------------------------------------ planning
    async def lane(self, job: str, lane: int) -> LaneState:
        state, cursor, page, open_units = await self._redis.hmget(
            self.keys.job(job), "state", f"cursor:{lane}", f"page:{lane}", f"open:{lane}"
        )
        return LaneState(state or "", cursor, int(page or 0), int(open_units or 0))

    async def lane_count(self, ref: PageRef) -> int:
        """How many lanes a page's job has; 0 if the ledger does not hold it, or another job of its id."""
        lanes, incarnation = await self._redis.hmget(self.keys.job(ref.job), "lanes", "incarnation")
        return len(orjson.loads(lanes)) if incarnation == ref.incarnation else 0

    async def planned(self, job: str, lane: int) -> None:
        """The next unit that empties the lane's window asks for planning again."""
        await self._redis.hdel(self.keys.job(job), f"planning:{lane}")

    async def items(self, job: str, numbers: range) -> list[Item]:
        """Items that came with the job; [] once it has ended, for they leave with it."""
        texts = await self._redis.hmget(self.keys.items(job), [str(n) for n in numbers])
        return [] if None in texts else [Item.model_validate_json(text) for text in texts]

    async def items_within(self, job: str, numbers: range, most_bytes: int = PIECE_BYTES) -> list[Item]:
        """The first of these items, at least one, until their texts reach `most_bytes`; [] once the job has ended."""
        found: list[Item] = []
        size, together = 0, ITEMS_FIRST
        while len(found) < len(numbers) and size < most_bytes:
            more = await self.items(job, numbers[len(found) : len(found) + together])
            if not more:
                return []
            for item in more:
                if size < most_bytes:
                    found.append(item)
                    size += item.text_bytes
            together = min(2 * together, ITEMS_MOST)
        return found

    async def item_count(self, job: str) -> int:
        """How many items that came with the job the ledger holds."""
        return int(await self._redis.hlen(self.keys.items(job)))

    async def put_items(self, job: str, first: int, items: Sequence[Item]) -> None:
        """Items of a resumed job come back."""
        texts = {str(n): item.model_dump_json(exclude_defaults=True) for n, item in enumerate(items, first)}
        await self._redis.hset(self.keys.items(job), mapping=texts)

    async def open_page(
        self, ref: PageRef, first: int, units: int, cursor: str, low_water: int, items: Mapping[int, Item],
        results: Mapping[int, bytes] | None = None, attempt: str = "", failed: int = 0,
    ) -> int:  # fmt: skip
        """Put a page into the ledger before its messages; units open in the lane then, or -1 if another did. To be
        repeated with the same `attempt`, a name of its own, until there is an answer.

        `results` are those that units have already, from before the job was resumed, or without being asked; `failed`
        of them have no score.
        """
        k, results = self.keys, results or {}
        fields = [part for n, item in items.items() for part in (f"i:{n}", item.model_dump_json(exclude_defaults=True))]
        fields += [part for position, payload in results.items() for part in (f"r:{position}", f";{payload.decode()}")]
        return int(
            await self._scripts["open_page"](
                keys=[k.job(ref.job), k.page(ref), k.pages(ref.job), k.watch, self._clock, self._epoch],
                args=[
                    "",
                    ref.lane,
                    ref.page,
                    units,
                    cursor,
                    str(ref),
                    self._intervals.page_still_ms,
                    low_water,
                    len(results),
                    attempt or self.attempt(),
                    ref.incarnation,
                    failed,
                    "first",
                    first,
                    "planner",
                    self._node,
                    *fields,
                ],
            )
        )

    async def published(self, ref: PageRef) -> None:
        """All messages of a page have been sent: it does not depend on its planner any more."""
        await self._redis.hdel(self.keys.page(ref), "planner")

    async def look_soon(self) -> None:
        """A node has died, or the store: let every open page and every job be looked at, when messages that were put
        back have had the time to be claimed. A job's planning may have been asked for from the one who died."""
        soon = await self.now_ms() + self._intervals.look_soon_ms
        for zset in (self.keys.watch, self.keys.unfinished):
            if later := await self._redis.zrangebyscore(zset, f"({soon}", "+inf"):
                await self._redis.zadd(zset, dict.fromkeys(later, soon), xx=True, lt=True)

    async def pool_rate(self, pool: str) -> tuple[float, int]:
        """Calls per second that end in a pool at present, and how many jobs run."""
        pipe = self._redis.pipeline(transaction=False)
        pipe.hget(self.keys.base.rates, pool)
        pipe.hlen(self.keys.base.job_limits)
        rate, jobs = await pipe.execute()
        return (float(rate.split("|")[0]) if rate else 0.0), int(jobs)

    # ------------------------------------------------------------------ units
    async def claim(
        self, ref: PageRef, token: MessageId, positions: Sequence[int], item: int, attempt: str = "",
        *, again_ms: int | None = None, early: bool = False,
    ) -> tuple[JobState | None, Item | None, list[Claim]]:  # fmt: skip
        """Claim units of one item for the message `token`; (None, None, []) when the page is no more. To be repeated
        with the same `attempt` until there is an answer. If others own one of them, the message comes again after
        `again_ms`, if that is given. `early`: units that wait for their time are claimed, too. Raises `Unheard`."""
        k = self.keys
        state, text, *claims = await self._scripts["claim"](
            keys=[k.job(ref.job), k.page(ref), self._due, self._clock, k.assignments(ref), self._assigned, self._epoch],
            args=[
                "",
                self._node,
                self._beacons,
                (name := str(token)),
                f"{ref}|{name}",
                POISON_DEATHS,
                self._claim_ms,
                f"i:{item}",
                self._calls_max,
                attempt or self.attempt(),
                "" if again_ms is None else again_ms,
                int(early),
                *positions,
            ],
        )
        if not state:
            return None, None, []
        if state == "unheard":
            raise Unheard(self._node)
        found = Item.model_validate_json(text) if text else None
        return (
            JobState(state),
            found,
            [Claim(p, ClaimAnswer(c[0]), *map(int, c[1:])) for p, c in zip(positions, claims, strict=True)],
        )

    async def calls_again(self, ref: PageRef, positions: Sequence[int]) -> bool:
        """Whether any of these units may still be called: neither they nor their job are revoked or cancelled."""
        state = await self._redis.hget(self.keys.job(ref.job), "state")
        revoked = await self._redis.hget(self.keys.page(ref), "revoked") or ""
        return bool(state == JobState.RUNNING and any(f",{position}," not in revoked for position in positions))

    async def assign(self, ref: PageRef, pools: Mapping[MessageId, str]) -> None:
        """Count messages for the pools that were chosen for them, until they are claimed."""
        k = self.keys
        await self._scripts["assign"](
            keys=[k.page(ref), k.assignments(ref), self._assigned],
            args=[part for token, pool in pools.items() for part in (str(token), pool)],
        )

    async def record(self, ref: PageRef, counters: Mapping[str, int], results: Sequence[UnitResult]) -> Recorded:
        """Write results, each at most once; `counters` are added if any of these claims had not told its end before."""
        k = self.keys
        left, plan, gather, news, *written = await self._scripts["record"](
            keys=[k.job(ref.job), k.page(ref), self._epoch, self._due, self._clock],
            args=[
                "",
                ref.lane,
                ref.number,
                _dumps(counters),
                _dumps([[p, f, r.decode(), int(s)] for p, f, r, s in results]),
                f"{ref}|",
                self._node,
                self._beacons,
            ],
        )
        return Recorded(int(left), bool(plan), bool(gather), [Written(w) for w in written], bool(news))

    async def defer(
        self, ref: PageRef, counters: Mapping[str, int], deferrals: Sequence[Deferral], due: Sequence[Due]
    ) -> list[Written]:
        """Give units up until their messages come (again); `counters` as of `record`."""
        k = self.keys
        _, *written = await self._scripts["defer"](
            keys=[k.job(ref.job), k.page(ref), self._due, self._clock, self._epoch],
            args=[
                "",
                ref.lane,
                ref.number,
                f"{ref}|",
                _dumps(counters),
                _dumps(deferrals),
                _dumps([[str(d.token), d.delay_ms, int(d.wait)] for d in due]),
            ],
        )
        return [Written(w) for w in written]

    async def take_due(self) -> list[tuple[PageRef, MessageId]]:
        """Messages to publish now. Each stays due, a minute later, until somebody claims it. After an error, the next
        call is given what was taken by the one whose answer was lost."""
        k = self.keys
        if self._taking is None:
            self._taking = next(self._numbers)
        members = await self._scripts["take_due"](
            keys=[self._due, self._clock, k.taken(self._node)],
            args=["", DUE_TOGETHER, self._intervals.unclaimed_ms, k.base.at("job") + ":", self._taking],
        )
        self._taking = None
        taken = []
        for member in members:
            ref, token = member.rsplit("|", 1)
            taken.append((PageRef.parse(ref), MessageId.parse(token)))
        return taken

    # ------------------------------------------------------------------ gathering
    async def take_page(self, ref: PageRef) -> dict[int, str] | None:
        """The results of a whole page, by position; {} when it is gathered already, None while units are open."""
        fields = await self._scripts["take_page"](keys=[self.keys.page(ref)])
        if not fields:
            return None if await self._redis.exists(self.keys.page(ref)) else {}
        pairs = zip(fields[::2], fields[1::2], strict=True)
        # Without the claim that brought each, which those of an earlier version's workers do not have.
        return {int(name[2:]): text[text.index("{") :] for name, text in pairs if name.startswith("r:")}

    async def close_page(self, ref: PageRef, lanes: int) -> tuple[bool, bool]:
        """Drop a page whose results lie on disk; returns (finish the job, plan the lane)."""
        k = self.keys
        finish, plan = await self._scripts["close_page"](
            keys=[k.job(ref.job), k.page(ref), k.pages(ref.job), k.watch, k.assignments(ref), self._assigned],
            args=[ref.lane, ref.number, str(ref), lanes, self._node, self._beacons],
        )
        return bool(finish), bool(plan)

    async def find_lost(
        self, ref: PageRef, stride: int, *, queue_empty: bool, queues: Sequence[str] = ()
    ) -> int | None:
        """Of a page that stands still: None if it is whole, else how many lost messages were made due now.

        A unit that was never claimed is lost only if its message is not waiting: `queue_empty` tells, or the store by
        what comes next in `queues`.
        """
        k = self.keys
        lost = await self._scripts["find_lost"](
            keys=[k.page(ref), self._due, self._clock, *queues],
            args=[
                "",
                f"{ref}|",
                self._beacons,
                stride,
                int(queue_empty),
                self._claim_ms,
                k.base.at("job") + ":",
                self.attempt(),
            ],
        )
        return None if lost < 0 else int(lost)

    async def open_pages(self) -> list[PageRef]:
        return [PageRef.parse(member) for member in await self._redis.zrange(self.keys.watch, 0, -1)]

    async def list_claims(self, ref: PageRef) -> dict[int, int]:
        """The units of a page that this node has claimed and that have no result: position -> fence of the claim."""
        flat = iter(await self._scripts["list_claims"](keys=[self.keys.page(ref)], args=[self._node]))
        return {int(position): int(fence) for position, fence in zip(flat, flat, strict=True)}

    async def release_claims(self, ref: PageRef, claims: Mapping[int, int]) -> int:
        """This node works on these units no more, whatever the store says, and how that ended is lost: they become due.
        Returns how many; what has a result or a newer claim meanwhile stays as it is."""
        k, pairs = self.keys, [number for claim in claims.items() for number in claim]
        keys = [k.page(ref), self._due, self._clock]
        return int(await self._scripts["release_claims"](keys=keys, args=["", f"{ref}|", self._node, *pairs]))

    async def unannounced(self) -> list[str]:
        """Jobs that are complete, or lost, and whose waiters have not been told."""
        return sorted(await self._redis.smembers(self.keys.outbox))

    async def ripe(self, job: str) -> bool:
        """Whether a cancelled job is to be finished; it is, as soon as nothing of it is open any more."""
        return bool(await self._scripts["ripe"](keys=[self.keys.job(job), self.keys.pages(job)]))

    async def lead(self, for_ms: int) -> bool:
        """Whether no beat has ticked for `for_ms`; then this node leads until as much later."""
        return await self._lead(for_ms, ticked=False)

    async def led(self, for_ms: int) -> None:
        """A tick was taken: nobody else needs to lead."""
        await self._lead(for_ms, ticked=True)

    async def _lead(self, for_ms: int, *, ticked: bool) -> bool:
        keys = [self.keys.base.beat, self.keys.base.clock]
        mine = f"{self._node} {self.attempt()}"
        return bool(await self._scripts["lead"](keys=keys, args=["", mine, for_ms, int(ticked)]))

    async def overdue(self, zset: str, again_ms: int, most: int = 100) -> AsyncIterator[str]:
        """Members of `watch` or `unfinished` whose time is over; each is looked after again `again_ms` later."""
        now = await self.now_ms()
        for member in await self._redis.zrangebyscore(zset, "-inf", now, start=0, num=most):
            await self._redis.zadd(zset, {member: now + again_ms}, xx=True)
            yield member


def _dumps(value: Any) -> bytes:
    """Named tuples become lists."""
    return orjson.dumps(value, default=list)


def _spec_fields(text: str) -> dict[str, Any]:
    """The stored spec was validated when it was submitted; it is read with its types, without the rule of one item."""
    fields = orjson.loads(text)
    inline = isinstance(fields["items"], list)
    checked = EvaluationJob.model_validate(
        {**fields, "items": [{"id": "-", "text": "-"}] if inline else fields["items"]}
    )
    values = {name: getattr(checked, name) for name in EvaluationJob.model_fields}
    return {**values, "items": []} if inline else values
