"""The ledger's verbs for jobs: start, bound, complete, announce, and their lanes and items."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import orjson

from dicast.app.domain.deadlines import UNBOUNDED, Bounds
from dicast.app.domain.item import Item
from dicast.app.domain.pieces import PIECE_BYTES
from dicast.app.domain.plan import Lane
from dicast.app.domain.text import excerpt
from dicast.app.ledger.keys import PageRef, new_incarnation
from dicast.app.ledger.records import (
    Bounded,
    FinishFailed,
    GatherFailed,
    JobRecord,
    JobStanding,
    LaneState,
    OpenQuestion,
    Started,
    stored_spec,
)
from dicast.app.ledger.states import JobState
from dicast.app.ledger.verbs import Verbs

WAITS_CHARS = 300
ITEMS_FIRST, ITEMS_MOST = 8, 64
"""Items read at once, more each time, because their size is known only when they arrive."""


class JobVerbs(Verbs):
    """The verbs for a job from its start to the announcement of its end."""

    async def job(self, job: str) -> JobRecord | None:
        """Return the job, or None if the ledger does not hold it."""
        spec, lanes, units, limit, fingerprint, incarnation, resumed, traceparent = await self._redis.hmget(
            self.keys.job(job),
            "spec",
            "lanes",
            "units",
            "limit",
            "fingerprint",
            "incarnation",
            "resumed",
            "traceparent",
        )
        if spec is None:
            return None
        if incarnation is None:  # submitted by a version that knew of none
            await self._redis.hsetnx(self.keys.job(job), "incarnation", new_incarnation())
            return await self.job(job)
        job_spec = stored_spec(spec)  # with an empty list of items of its own, which are kept apart
        return JobRecord(
            id=job,
            spec=job_spec,
            lanes=[
                Lane(**{**lane, "pools": tuple(lane["pools"]), "agents": tuple(lane["agents"])})
                for lane in orjson.loads(lanes)
            ],
            units=int(units),
            limit=int(limit or 0),
            fingerprint=fingerprint,
            incarnation=incarnation,
            resumed=int(resumed or 0),
            traceparent=traceparent or "",
            keeps_scoreboard=job_spec.keeps_scoreboard,
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

    async def answer(self, job: JobRecord, payload: bytes, attempt: str = "") -> tuple[bool, bool]:
        """Answer a running job's question, which ends its planning.

        Returns (True for the one attempt whose answer stands, however often it is repeated, whether the job is to be
        finished).
        """
        k = self.keys
        stands, finish = await self._scripts["answer"](
            keys=[k.job(job.id), k.pages(job.id), k.unfinished, self._clock],
            args=["", job.id, len(job.lanes), job.incarnation, payload, attempt or self.attempt()],
        )
        return bool(stands), bool(finish)

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
