"""The ledger's verbs for pages: open, find lost messages, gather, close."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import orjson

from dicast.app.domain.board import Scoreboard
from dicast.app.domain.item import Item
from dicast.app.ledger.keys import PageRef
from dicast.app.ledger.records import JobRecord, MessageId, OpenPage
from dicast.app.ledger.verbs import Verbs, dumps


class PageVerbs(Verbs):
    """The verbs for a page, from before its messages are sent until its results have left the store."""

    async def open_page(
        self, ref: PageRef, first: int, units: int, cursor: str, low_water: int, items: Mapping[int, Item],
        results: Mapping[int, bytes] | None = None, attempt: str = "", failed: int = 0, skipped: int = 0,
        marks: Sequence[tuple[int, int]] = (),
    ) -> int:  # fmt: skip
        """Put a page into the ledger before its messages; return the units then open in the lane, or -1 if another
        process opened it.

        The call is to be repeated with the same `attempt`, a unique name, until there is an answer. `results` are those
        that units have already, from before the job was resumed, or without a call: `failed` of them have no score, and
        `skipped` of them were not needed. `marks` are their indices and marks on the job's scoreboard, if it has one.
        """
        k, results = self.keys, results or {}
        fields = [part for n, item in items.items() for part in (f"i:{n}", item.model_dump_json(exclude_defaults=True))]
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
        found = [(int(lane), number.split(".")) for lane, number in places]
        return sorted(PageRef(job, incarnation, lane, int(page)) for lane, (of, page) in found if of == incarnation)

    async def kept_page(self, ref: PageRef) -> dict[int, str] | None:
        """Return the results of such a page, by position; None if it is kept no more."""
        text = await self._redis.hget(self.keys.kept(ref.job), f"{ref.lane}|{ref.number}")
        return None if text is None else {int(position): result for position, result in orjson.loads(text).items()}

    async def forget_kept(self, ref: PageRef) -> None:
        """Forget the results of such a page, which is on disk now."""
        await self._redis.hdel(self.keys.kept(ref.job), f"{ref.lane}|{ref.number}")
