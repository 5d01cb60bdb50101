"""The ledger for workers: start, open a page, claim, record, defer, gather, complete.

Each verb is one script. Every write names the fence of its claim, and every way to a job's end leads through the same
scripts, so a message that comes twice, late or never changes no outcome.

Every verb may be repeated, because its reply may be lost after it was executed: redis-py repeats commands by itself,
and so do callers (`retry_until_available` in app/pipeline/record.py). A verb whose repetition would not give the same
result takes the name of its attempt.

`JobVerbs`, `PageVerbs` and `UnitVerbs` hold the verbs for jobs, pages and units; `Ledger` has them all.
"""

from __future__ import annotations

import itertools
import math
import secrets
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import orjson

from dicast.app.domain.cost import MoneyBudget, PurseStanding, standing_fields
from dicast.app.domain.deadlines import UNBOUNDED, Bounds, RoadChange
from dicast.app.domain.item import Item
from dicast.app.domain.plan import PIECE_BYTES, STANDARD, Intervals
from dicast.app.domain.scoreboard import Scoreboard
from dicast.app.domain.text import excerpt
from dicast.app.ledger.client import HERE
from dicast.app.ledger.keys import LedgerKeys, PageRef, new_incarnation
from dicast.app.ledger.records import (
    Bounded,
    Claim,
    ClaimVerdict,
    Deferral,
    Due,
    FinishFailed,
    GatherFailed,
    JobRecord,
    JobStanding,
    JobState,
    LaneState,
    MessageId,
    OpenPage,
    OpenQuestion,
    Recorded,
    Started,
    UnitResult,
    WriteVerdict,
    read_lanes,
    read_places,
    stored_spec,
)
from dicast.app.ledger.troubles import RETENTION_S
from dicast.workers.store.connection import AsyncStoreClient, NotReady
from dicast.workers.store.keys import Keys
from dicast.workers.store.scripts import script_text

BudgetsOf = Callable[[str, str], Sequence[MoneyBudget]]


def no_budgets(_project: str, _pool: str) -> Sequence[MoneyBudget]:
    return ()


class Verbs:
    """The store, the keys and the scripts of one event loop's ledger."""

    def __init__(
        self, client: AsyncStoreClient, keys: Keys, node: str, *, claim_ms: int, calls_max: int,
        intervals: Intervals = STANDARD, budgets: BudgetsOf = no_budgets,
    ) -> None:  # fmt: skip
        """Make the verbs of a node. `budgets` tells those that a project's calls to a pool must keep.

        `claim_ms` is how long a claim may last: longer than the longest call. `calls_max` is the most calls for one
        unit, including those whose worker died and those that were refused.
        """
        self._redis, self._node, self._claim_ms, self._calls_max = client, node, claim_ms, calls_max
        self.intervals, self._budgets_of = intervals, budgets
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


WAITS_CHARS = 300
ITEMS_FIRST, ITEMS_MOST = 8, 64
"""Items read at once, more each time, because their size is known only when they arrive."""


class JobVerbs(Verbs):
    """The verbs for a job from its start to the announcement of its end."""

    async def job(self, job: str) -> JobRecord | None:
        """Return the job, or None if the ledger does not hold it."""
        spec, lanes, units, limit, fingerprint, incarnation, resumed, traceparent, places = await self._redis.hmget(
            self.keys.job(job),
            "spec",
            "lanes",
            "units",
            "limit",
            "fingerprint",
            "incarnation",
            "resumed",
            "traceparent",
            "places",
        )
        if spec is None:
            return None
        if incarnation is None:  # submitted by a version that knew of none
            await self._redis.hsetnx(self.keys.job(job), "incarnation", new_incarnation())
            return await self.job(job)
        job_spec = stored_spec(spec)  # with an empty list of items of its own, which are kept apart
        job_places = read_places(places)
        budgets = [[self._budgets_of(job_spec.project, place.pool) for place in of_agent] for of_agent in job_places]
        has_budgets = any(at_place for of_agent in budgets for at_place in of_agent)
        return JobRecord(
            id=job,
            spec=job_spec,
            lanes=read_lanes(lanes),
            units=int(units),
            limit=int(limit or 0),
            fingerprint=fingerprint,
            incarnation=incarnation,
            resumed=int(resumed or 0),
            traceparent=traceparent or "",
            keeps_scoreboard=job_spec.keeps_scoreboard,
            is_capped=job_spec.is_capped or has_budgets,
            places=job_places,
            budgets=budgets if has_budgets else (),
        )

    async def start(self, job: str, limit: int, resumed: int = 0, bounds: Bounds = UNBOUNDED) -> Started:
        """Freeze the limit and the bounds of a submitted job.

        A job that was resumed more often than `resumed` is left alone, as is one that should have been started sooner.
        """
        k = self.keys
        state, started, expired = await self._scripts["start"](
            keys=[k.job(job), k.base.job_limits, self._clock, k.bounded],
            args=["", job, limit, resumed, self.attempt(), *("" if bound is None else bound for bound in bounds)],
        )
        return Started(JobState(state) if state else None, bool(started), bool(expired))

    async def bounds(self, job: str) -> Bounded | None:
        """Return the bounds of a running job, and schedule the next check for when they make it worthwhile. None if it
        does not run."""
        k = self.keys
        reply = await self._scripts["bounds"](keys=[k.job(job), k.bounded, self._clock], args=["", job])
        if not reply:
            return None
        now_ms, began_ms, *bounds = map(int, reply)
        return Bounded(now_ms, began_ms, *(None if bound < 0 else bound for bound in bounds))

    async def attended(self, job: str) -> None:
        """Record that this job is being looked after, so that the sweeper leaves it alone for a while."""
        unattended_ms = await self.now_ms() + self.intervals.unattended_ms
        await self._redis.zadd(self.keys.unfinished, {job: unattended_ms}, xx=True)

    async def progress(self, job: str) -> dict[str, str]:
        fields: dict[str, str] = await self._redis.hgetall(self.keys.job(job))
        fields.pop("spec", None)
        return fields

    async def waits(self, job: str, reason: str) -> None:
        """Record what a job waits for, for those who watch it. It is shown for a while only, so a lasting trouble must
        be recorded again."""
        await self._scripts["waits"](keys=[self.keys.job(job)], args=["", excerpt(reason, WAITS_CHARS)])

    async def claim_finish(self, job: str) -> bool:
        """Return whether this node may write the report of a finishing job; not while another living node is writing
        it."""
        return bool(await self._scripts["claim_finish"](keys=[self.keys.job(job)], args=[self._node, self._beacons]))

    async def finish_failed(
        self, job: str, why: str, tries: int, tries_if_cancelled: int, attempt: str = ""
    ) -> FinishFailed:
        """Record that a job could not be finished, which leaves it to any node.

        After `tries` tries, at least `Intervals.try_every_ms` apart, it is given up: it ends as cancelled.
        """
        finishing, given_up = await self._scripts["finish_failed"](
            keys=[self.keys.job(job), self._clock],
            args=["", self._node, excerpt(why, WAITS_CHARS), self.intervals.try_every_ms, tries, tries_if_cancelled,
                  attempt or self.attempt()],
        )  # fmt: skip
        return FinishFailed(bool(finishing), bool(given_up))

    async def gather_failed(self, job: str, why: str, tries: int, over_ms: int, attempt: str = "") -> GatherFailed:
        """Tell that a page of a job could not be written. After so many tries without any page being closed, with at
        least `Intervals.try_every_ms` between two and `over_ms` since the first, the job is to be cancelled; one that
        is cancelled already is not tried for."""
        state, given_up = await self._scripts["gather_failed"](
            keys=[self.keys.job(job), self._clock],
            args=[
                "",
                excerpt(why, WAITS_CHARS),
                self.intervals.try_every_ms,
                tries,
                over_ms,
                attempt or self.attempt(),
            ],
        )
        return GatherFailed(JobState(state) if state else None, bool(given_up))

    async def complete(
        self, job: str, incarnation: str, report: bytes, retention_s: int, attempt: str = "", *,
        keep_items: bool = False,
    ) -> bool:  # fmt: skip
        """End a finishing job with its report; True for the one attempt that did it, however often it is repeated.

        The items that came with the job leave the store, unless they are in no file.
        """
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
                    k.board(job),
                    k.kept(job),
                ],
                args=["", job, report, retention_s, k.job(""), attempt or self.attempt(), incarnation, int(keep_items)],
            )
        )

    async def announced(self, job: str, continued: Sequence[str] = ()) -> None:
        """Record that the job's waiters have been notified, and that what follows its end has been sent for the task
        ids in `continued`."""
        if continued:
            await self._redis.hdel(self.keys.continuations(job), *continued)
        await self._redis.srem(self.keys.outbox, job)

    async def unannounced(self) -> list[str]:
        """Return the jobs that are complete, or lost, and whose waiters have not been notified."""
        return sorted(await self._redis.smembers(self.keys.outbox))

    async def continuations(self, job: str) -> dict[str, str]:
        """Return what follows the job's end, by task id."""
        continuations: dict[str, str] = await self._redis.hgetall(self.keys.continuations(job))
        return continuations

    async def unfinished(self) -> list[str]:
        """Return the jobs that have not ended, including those without a message."""
        return list(await self._redis.zrange(self.keys.unfinished, 0, -1))

    async def standings(self, jobs: Sequence[str]) -> list[JobStanding | None]:
        """Return the progress of jobs; None for one that has not begun, or has ended."""
        pipe = self._redis.pipeline(transaction=False)
        for job in jobs:
            pipe.hmget(self.keys.job(job), "state", "units", "done", "scored", "failed")
        return [JobStanding.from_fields(*fields) for fields in await pipe.execute()]

    async def facts(self, jobs: Sequence[str]) -> list[dict[str, str] | None]:
        """Return what must be known of jobs in case the store loses them; None for one that it does not hold."""
        names = ("project", "units", "created_ms")
        pipe = self._redis.pipeline(transaction=False)
        for job in jobs:
            pipe.hmget(self.keys.job(job), *names)
        return [dict(zip(names, values, strict=True)) if all(values) else None for values in await pipe.execute()]

    async def mark_lost(self, job: str, facts: Mapping[str, str], retention_s: int) -> bool:
        """Record a job as lost; True for the one call that did it, False if there is a job of this id.

        Its waiters are to be notified, as for a job that completed (see `unannounced`).
        """
        k, fields = self.keys, [part for pair in facts.items() for part in pair]
        return bool(
            await self._scripts["mark_lost"](
                keys=[k.job(job), k.jobs, k.outbox], args=["", job, retention_s, self.attempt(), *fields]
            )
        )

    async def ripe(self, job: str) -> bool:
        """Return whether a cancelled job is to be finished; it is, as soon as none of its pages is open."""
        return bool(await self._scripts["ripe"](keys=[self.keys.job(job), self.keys.pages(job)]))

    async def has_open_question(self, job: str) -> bool:
        """Return whether a job has a question that is not answered."""
        question, stored_answer = await self._redis.hmget(self.keys.job(job), "asks", "answer")
        return question is not None and stored_answer is None

    async def question_state(self, job: str) -> OpenQuestion:
        """Return the progress of a job with a question."""
        stored_answer, calls, pairs = await self._redis.hmget(self.keys.job(job), "answer", "calls", "pairs")
        return OpenQuestion(stored_answer, int(calls or 0), int(pairs) if pairs is not None else None)

    async def capped(self, job: str) -> str | None:
        """Return the cap that a job has met, such as 'max_cost'; None if it has met none."""
        met: str | None = await self._redis.hget(self.keys.job(job), "capped")
        return met

    async def budget_reason(self, budgets: Sequence[MoneyBudget]) -> str | None:
        """Return what a call waits for that must keep these budgets; None if it need not wait any more."""
        now_ms = await self.wall_ms()
        pipe = self._redis.pipeline(transaction=False)
        for budget in budgets:
            pipe.hmget(self.keys.purse(budget.purse), standing_fields(now_ms))
        for budget, texts in zip(budgets, await pipe.execute(), strict=True):
            if (reason := PurseStanding.from_fields(budget.purse, now_ms, texts).waits(budget)) is not None:
                return reason
        return None

    async def wall_ms(self) -> int:
        """Return the store's wall clock in ms, which dates jobs."""
        seconds, microseconds = await self._redis.time()
        return int(seconds) * 1000 + int(microseconds) // 1000

    async def answer(self, job: JobRecord, payload: bytes, attempt: str = "") -> tuple[bool, bool]:
        """Answer a running job's question, which ends its planning. A job that has met its cap is planned no more
        either; its `payload` is empty.

        Returns (True for the one attempt whose answer stands, however often it is repeated, whether the job is to be
        finished).
        """
        k = self.keys
        stands, finish = await self._scripts["answer"](
            keys=[k.job(job.id), k.pages(job.id), k.unfinished, self._clock],
            args=["", job.id, len(job.lanes), job.incarnation, payload, attempt or self.attempt()],
        )
        return bool(stands), bool(finish)

    # ------------------------------------------------------------------ roads
    async def left_ms(self, job: str) -> int | None:
        """Return how long a running job may still take, in ms of the lease clock; None without a `finish_by`."""
        ends_ms = await self._redis.hget(self.keys.job(job), "ends_ms")
        return None if ends_ms is None else int(ends_ms) - await self.now_ms()

    async def calls_left(self, job: JobRecord, pool: str) -> int:
        """Return how many calls a job still needs at a pool, if each is made once."""
        calls = 0
        for number, lane in enumerate(job.lanes):
            if pool in lane.pools:
                state, units = await self.lane(job.id, number), job.items * lane.units_per_item
                planned = orjson.loads(state.cursor)["position"] if state.cursor else units * (state.cursor == "")
                calls += math.ceil((state.open_units + units - planned) / lane.stride)
        return calls

    async def by_batches(self, job: JobRecord, lane: int) -> bool:
        """Return whether units of a lane go by batches now. Those of the road `auto` do until they have gone online."""
        road = job.lanes[lane].road
        if road != "auto":
            return road == "batch"
        return not await self._redis.hexists(self.keys.asking(job.id, job.incarnation), f"online:{lane}")

    async def go_online(self, job: JobRecord, lane: int, change: RoadChange) -> None:
        """Have units of a lane of the road `auto` go online from now on; the first reason is kept."""
        key = self.keys.asking(job.id, job.incarnation)
        pipe = self._redis.pipeline(transaction=False)
        pipe.hsetnx(key, f"online:{lane}", change.model_dump_json())
        pipe.expire(key, RETENTION_S)
        await pipe.execute()

    async def went_online(self, job: JobRecord) -> list[RoadChange]:
        """Return which of a job's lanes have gone online, and why."""
        if not any(lane.road == "auto" for lane in job.lanes):
            return []
        fields: Mapping[str, str] = await self._redis.hgetall(self.keys.asking(job.id, job.incarnation))
        texts = [text for name, text in sorted(fields.items()) if name.startswith("online:")]
        return [RoadChange.model_validate_json(text) for text in texts]

    # ------------------------------------------------------------------ lanes and items
    async def lane(self, job: str, lane: int) -> LaneState:
        state, cursor, page, open_units = await self._redis.hmget(
            self.keys.job(job), "state", f"cursor:{lane}", f"page:{lane}", f"open:{lane}"
        )
        return LaneState(state or "", cursor, int(page or 0), int(open_units or 0))

    async def lane_stages(self, ref: PageRef) -> list[int]:
        """Return the stage of each lane of a page's job; [] if the ledger does not hold this incarnation of it."""
        lanes, incarnation = await self._redis.hmget(self.keys.job(ref.job), "lanes", "incarnation")
        return [lane.get("stage", 0) for lane in orjson.loads(lanes)] if incarnation == ref.incarnation else []

    async def planned(self, job: str, lane: int) -> None:
        """Let the next unit that empties the lane's window ask for planning again."""
        await self._redis.hdel(self.keys.job(job), f"planning:{lane}")

    async def items(self, job: str, numbers: range) -> list[Item]:
        """Return items that came with the job; [] once it has ended, because they are deleted with it."""
        texts = await self._redis.hmget(self.keys.items(job), [str(n) for n in numbers])
        return [] if None in texts else [Item.model_validate_json(text) for text in texts]

    async def items_within(self, job: str, numbers: range, most_bytes: int = PIECE_BYTES) -> list[Item]:
        """Return the first of these items, at least one, until their texts reach `most_bytes`; [] once the job has
        ended."""
        items: list[Item] = []
        size, together = 0, ITEMS_FIRST
        while len(items) < len(numbers) and size < most_bytes:
            more = await self.items(job, numbers[len(items) : len(items) + together])
            if not more:
                return []
            for item in more:
                if size < most_bytes:
                    items.append(item)
                    size += item.text_bytes
            together = min(2 * together, ITEMS_MOST)
        return items

    async def item_count(self, job: str) -> int:
        """Return how many items that came with the job the ledger holds."""
        return int(await self._redis.hlen(self.keys.items(job)))

    async def put_items(self, job: str, first: int, items: Sequence[Item]) -> None:
        """Store items of a resumed job again."""
        texts = {str(n): item.model_dump_json(exclude_defaults=True) for n, item in enumerate(items, first)}
        await self._redis.hset(self.keys.items(job), mapping=texts)


class PageVerbs(Verbs):
    """The verbs for a page, from before its messages are sent until its results have left the store."""

    async def open_page(
        self, ref: PageRef, first: int, units: int, cursor: str, low_water: int, items: Mapping[int, Item],
        results: Mapping[int, bytes] | None = None, attempt: str = "", failed: int = 0, skipped: int = 0,
        marks: Sequence[tuple[int, int]] = (), *, capped: bool = False, unchorded: bool = False,
    ) -> int:  # fmt: skip
        """Put a page into the ledger before its messages; return the units then open in the lane, or -1 if another
        process opened it.

        The call is to be repeated with the same `attempt`, a unique name, until there is an answer. `results` are those
        that units have already, from before the job was resumed, or without a call: `failed` of them have no score, and
        `skipped` of them were not needed. `marks` are their indices and marks on the job's scoreboard, if it has one.
        An `unchorded` page has no messages, and so no chord: its last result has it gathered.
        """
        k, results = self.keys, results or {}
        fields = [part for n, item in items.items() for part in (f"i:{n}", item.model_dump_json(exclude_defaults=True))]
        fields += ["capped", "1"] if capped else []
        fields += ["unchorded", "1"] if unchorded else []
        fields += [part for position, payload in results.items() for part in (f"r:{position}", f";{payload.decode()}")]
        return int(
            await self._scripts["open_page"](
                keys=[
                    k.job(ref.job),
                    k.page(ref),
                    k.pages(ref.job),
                    k.watch,
                    self._clock,
                    self._epoch,
                    k.board(ref.job),
                ],
                args=[
                    "",
                    ref.lane,
                    ref.page,
                    units,
                    cursor,
                    str(ref),
                    self.intervals.page_still_ms,
                    low_water,
                    len(results),
                    attempt or self.attempt(),
                    ref.incarnation,
                    failed,
                    skipped,
                    dumps(marks) if marks else "",
                    "first",
                    first,
                    "planner",
                    self._node,
                    *fields,
                ],
            )
        )

    async def published(self, ref: PageRef) -> None:
        """Record that all messages of a page have been sent, so that it no longer depends on its planner."""
        await self._redis.hdel(self.keys.page(ref), "planner")

    async def scoreboard(self, job: JobRecord, first_item: int, items: int) -> Scoreboard:
        """Return the part of a job's scoreboard that covers some items; it is empty for a job without one."""
        first, last = job.layout.span(first_item, items)
        text = await self._redis.getrange(self.keys.board(job.id), first, last)
        lowest = [dimension.scale.min for dimension in job.spec.dimensions]
        return Scoreboard(job.layout, lowest, first_item, items, text.encode("ascii"))

    async def first_pages(self, job: JobRecord) -> list[int]:
        """Return the number of each lane's first page since the job was started or resumed."""
        numbers = await self._redis.hmget(self.keys.job(job.id), [f"from:{lane}" for lane in range(len(job.lanes))])
        return [int(number or 0) for number in numbers]

    async def open_pages(self) -> list[PageRef]:
        return [PageRef.parse(member) for member in await self._redis.zrange(self.keys.watch, 0, -1)]

    async def unended(self, job: str) -> list[OpenPage]:
        """Return the job's open pages, with the units that have no result."""
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
        """Return the pools chosen for those messages of a page that nobody has worked on."""
        pools = await self._redis.hgetall(self.keys.assignments(ref))
        return {MessageId.parse(token): pool for token, pool in pools.items()}

    async def find_lost(
        self, ref: PageRef, stride: int, *, queue_empty: bool, queues: Sequence[str] = ()
    ) -> int | None:
        """Make the lost messages of a page that stands still due now; return their number, or None if the page is
        whole.

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

    async def take_page(self, ref: PageRef) -> dict[int, str] | None:
        """Return the results of a complete page, by position; {} if it is gathered already, None while units are
        open."""
        fields = await self._scripts["take_page"](keys=[self.keys.page(ref)])
        if not fields:
            return None if await self._redis.exists(self.keys.page(ref)) else {}
        pairs = zip(fields[::2], fields[1::2], strict=True)
        # Without the claim that brought each, which those of an earlier version's workers do not have.
        return {int(name[2:]): text[text.index("{") :] for name, text in pairs if name.startswith("r:")}

    async def close_page(
        self, ref: PageRef, lanes: int, kept: Mapping[int, str] = MappingProxyType({})
    ) -> tuple[bool, bool]:
        """Delete a page whose results are on disk, or are `kept` for later; return (finish the job, plan the lane).

        A page with open units stays: the store has lost results since the page was taken.
        """
        results = orjson.dumps(kept, option=orjson.OPT_NON_STR_KEYS) if kept else b""
        k = self.keys
        finish, plan = await self._scripts["close_page"](
            keys=[
                k.job(ref.job), k.page(ref), k.pages(ref.job), k.watch, k.assignments(ref), self._assigned,
                k.kept(ref.job),
            ],
            args=[ref.lane, ref.number, str(ref), lanes, self._node, self._beacons, results],
        )  # fmt: skip
        return bool(finish), bool(plan)

    async def kept_pages(self, job: str, incarnation: str) -> list[PageRef]:
        """Return the closed pages of a job whose results no disk took."""
        places = [field.split("|") for field in await self._redis.hkeys(self.keys.kept(job))]
        pages = [(int(lane), number.split(".")) for lane, number in places]
        return sorted(
            PageRef(job, incarnation, lane, int(page)) for lane, (owner, page) in pages if owner == incarnation
        )

    async def kept_page(self, ref: PageRef) -> dict[int, str] | None:
        """Return the results of such a page, by position; None if it is kept no more."""
        text = await self._redis.hget(self.keys.kept(ref.job), f"{ref.lane}|{ref.number}")
        return None if text is None else {int(position): result for position, result in orjson.loads(text).items()}

    async def forget_kept(self, ref: PageRef) -> None:
        """Forget the results of such a page, which is on disk now."""
        await self._redis.hdel(self.keys.kept(ref.job), f"{ref.lane}|{ref.number}")


POISON_DEATHS = 3
"""A unit that this many dead workers have held is recorded as lost instead of killing another."""
DUE_TOGETHER = 500


class Unheard(NotReady):
    """The store does not hear this node, as after a network cut: others would take from it at once what it claims
    now."""

    def __str__(self) -> str:
        return f"the store does not hear {self.args[0]} yet"


class UnitVerbs(Verbs):
    """The verbs for a unit from its claim to its result, as often as it takes."""

    async def claim(
        self, ref: PageRef, token: MessageId, positions: Sequence[int], item: int, attempt: str = "",
        *, again_ms: int | None = None, early: bool = False, needs: str = "", batch: str = "",
    ) -> tuple[JobState | None, Item | None, list[Claim]]:  # fmt: skip
        """Claim units of one item for the message `token`; (None, None, []) if the page no longer exists.

        The call is to be repeated with the same `attempt` until there is an answer. If others own one of the units, the
        message comes again after `again_ms`, if given. With `early`, units that wait for their time are claimed too.
        For a job that must keep caps or budgets, `needs` tells what the call may take at most, and those budgets
        (claim.lua). With a `batch`, the units become its own, and not this node's. Raises `Unheard`.
        """
        k = self.keys
        state, text, *claims = await self._scripts["claim"](
            keys=[k.job(ref.job), k.page(ref), self._due, self._clock, k.assignments(ref), self._assigned, self._epoch],
            args=[
                "",
                batch or self._node,
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
                needs,
                *positions,
            ],
        )
        if not state:
            return None, None, []
        if state == "unheard":
            raise Unheard(batch or self._node)
        claimed_item = Item.model_validate_json(text) if text else None
        return (
            JobState(state),
            claimed_item,
            [Claim(p, ClaimVerdict(c[0]), *map(int, c[1:])) for p, c in zip(positions, claims, strict=True)],
        )

    async def may_call(self, ref: PageRef, positions: Sequence[int]) -> bool:
        """Return whether any of these units may still be called: neither they nor their job are revoked or
        cancelled."""
        state = await self._redis.hget(self.keys.job(ref.job), "state")
        revoked = await self._redis.hget(self.keys.page(ref), "revoked") or ""
        return bool(state == JobState.RUNNING and any(f",{position}," not in revoked for position in positions))

    async def assign(self, ref: PageRef, pools: Mapping[MessageId, str]) -> None:
        """Count messages for the pools chosen for them, until they are claimed."""
        k = self.keys
        await self._scripts["assign"](
            keys=[k.page(ref), k.assignments(ref), self._assigned],
            args=[part for token, pool in pools.items() for part in (str(token), pool)],
        )

    async def record(self, ref: PageRef, counters: Mapping[str, int], results: Sequence[UnitResult]) -> Recorded:
        """Write results, each at most once; `counters` are added if any of these claims had not reported its end
        before."""
        k = self.keys
        remaining, plan, gather, news, *written = await self._scripts["record"](
            keys=[k.job(ref.job), k.page(ref), self._epoch, self._due, self._clock, k.board(ref.job)],
            args=[
                "",
                ref.lane,
                ref.number,
                dumps(counters),
                dumps([[p, f, r.decode(), int(s), *scoreboard] for p, f, r, s, *scoreboard in results]),
                f"{ref}|",
                self._node,
                self._beacons,
            ],
        )
        return Recorded(int(remaining), bool(plan), bool(gather), [WriteVerdict(w) for w in written], bool(news))

    async def defer(
        self, ref: PageRef, counters: Mapping[str, int], deferrals: Sequence[Deferral], due: Sequence[Due]
    ) -> list[WriteVerdict]:
        """Give units up until their messages come (again); `counters` are as in `record`."""
        k = self.keys
        _, *written = await self._scripts["defer"](
            keys=[k.job(ref.job), k.page(ref), self._due, self._clock, self._epoch],
            args=[
                "",
                ref.lane,
                ref.number,
                f"{ref}|",
                dumps(counters),
                dumps(deferrals),
                dumps([[str(d.token), d.delay_ms, int(d.wait), d.input_tokens, d.room] for d in due]),
            ],
        )
        return [WriteVerdict(w) for w in written]

    async def take_due(self) -> list[tuple[PageRef, MessageId]]:
        """Return the messages to publish now. Each stays due, a minute later, until somebody claims it. After an error,
        the next call returns what was taken by the one whose reply was lost."""
        k = self.keys
        if self._taking is None:
            self._taking = next(self._numbers)
        members = await self._scripts["take_due"](
            keys=[self._due, self._clock, k.taken(self._node)],
            args=["", DUE_TOGETHER, self.intervals.unclaimed_ms, k.base.at("job") + ":", self._taking],
        )
        self._taking = None
        taken = []
        for member in members:
            ref, token = member.rsplit("|", 1)
            taken.append((PageRef.parse(ref), MessageId.parse(token)))
        return taken

    async def list_claims(self, ref: PageRef) -> dict[int, int]:
        """Return the units of a page that this node has claimed and that have no result: position -> fence of the
        claim."""
        flat = iter(await self._scripts["list_claims"](keys=[self.keys.page(ref)], args=[self._node]))
        return {int(position): int(fence) for position, fence in zip(flat, flat, strict=True)}

    async def release_claims(self, ref: PageRef, claims: Mapping[int, int]) -> int:
        """Make units due that this node no longer works on, whatever the store says, and whose outcome is lost. Return
        how many; units with a result or a newer claim stay as they are."""
        k, pairs = self.keys, [number for claim in claims.items() for number in claim]
        keys = [k.page(ref), self._due, self._clock]
        return int(await self._scripts["release_claims"](keys=keys, args=["", f"{ref}|", self._node, *pairs]))


class Ledger(JobVerbs, PageVerbs, UnitVerbs):
    """All verbs, for one event loop. Store errors are raised unchanged: the outcome of that write is unknown."""

    async def lead(self, for_ms: int) -> bool:
        """Return whether no beat has ticked for `for_ms`; this node then leads for as long."""
        return await self._lead(for_ms, ticked=False)

    async def led(self, for_ms: int) -> None:
        """Record a tick, so that nobody else leads."""
        await self._lead(for_ms, ticked=True)

    async def _lead(self, for_ms: int, *, ticked: bool) -> bool:
        keys = [self.keys.base.beat, self.keys.base.clock]
        mine = f"{self._node} {self.attempt()}"
        return bool(await self._scripts["lead"](keys=keys, args=["", mine, for_ms, int(ticked)]))

    async def overdue(self, zset: str, again_ms: int, most: int = 100) -> AsyncIterator[str]:
        """Yield members of `watch` or `unfinished` whose time has passed; each is due again after `again_ms`."""
        now = await self.now_ms()
        for member in await self._redis.zrangebyscore(zset, "-inf", now, start=0, num=most):
            await self._redis.zadd(zset, {member: now + again_ms}, xx=True)
            yield member

    async def look_soon(self) -> None:
        """Have every open page and every job checked soon, after a node or the store has died, or a worker's connection
        broke.

        The check comes when messages that were put back have had time to be claimed. A job's planning may have been
        requested from the node that died, or have been popped by the broken connection.
        """
        soon = await self.now_ms() + self.intervals.look_soon_ms
        for zset in (self.keys.watch, self.keys.unfinished, self.keys.batches):
            if later := await self._redis.zrangebyscore(zset, f"({soon}", "+inf"):
                await self._redis.zadd(zset, dict.fromkeys(later, soon), xx=True, lt=True)

    async def pool_rate(self, pool: str) -> tuple[float, int]:
        """Return the calls per second that end in a pool at present, and the number of running jobs."""
        pipe = self._redis.pipeline(transaction=False)
        pipe.hget(self.keys.base.rates, pool)
        pipe.hlen(self.keys.base.job_limits)
        rate, jobs = await pipe.execute()
        return (float(rate.split("|")[0]) if rate else 0.0), int(jobs)
