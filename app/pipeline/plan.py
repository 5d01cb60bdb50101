"""Publishes units ahead of the calls, within a rolling window.

A lane is planned page by page until its window is full. A page is written to the ledger before its messages are sent,
and of two concurrent planners the ledger lets one win, so any process may plan at any time.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

import orjson

from dicast.app import datasets
from dicast.app.domain.arrangement import arrangement_of
from dicast.app.domain.item import Item, ItemSource
from dicast.app.domain.pieces import PIECE_BYTES
from dicast.app.domain.plan import Lane, Window, close_window, window
from dicast.app.domain.stop import Stop
from dicast.app.ledger.keys import PageRef
from dicast.app.ledger.ledger import Ledger
from dicast.app.ledger.records import JobRecord, LaneState, MessageId
from dicast.app.pipeline import stages
from dicast.app.pipeline.before import PagePlaces, StageInput, read_earlier_opinions
from dicast.app.pipeline.endings import stopped_payload
from dicast.app.pipeline.inquiring import JobQuestions
from dicast.app.pipeline.places import Models, Stops, places_of
from dicast.app.pipeline.record import retry_until_available
from dicast.app.reports.arranged import read_arranged
from dicast.app.reports.folders import own_folder
from dicast.app.reports.resuming import earlier_results
from dicast.errors import DicastError


class DatasetChanged(DicastError, RuntimeError):
    """The file of a job's items is not what it was when the job was submitted."""

    problem = "dataset-changed"


@dataclass(frozen=True, slots=True)
class PageMessages:
    """A page that is in the ledger and whose messages are to be published, as one chord."""

    ref: PageRef
    lane: Lane
    tokens: list[MessageId]
    items: Mapping[int, Item]


class Publisher(Protocol):
    """Sends a page's messages (see `Messages`), or ends its units without sending any (see `MissingPools`)."""

    async def page(self, job: JobRecord, page: PageMessages) -> None: ...


Reading = Callable[[Any, int, float], tuple[list[Item], Any]]
"""Reads from a place in a file, at most so many items with at most so many bytes of text. Returns the items and the
place after them."""


class LimitedPools(Models, Protocol):
    """See `dicast.app.pipeline.pools.ServedPools`."""

    async def limit(self, pool: str) -> int: ...


@dataclass(frozen=True, slots=True)
class Lookahead:
    """How far planning goes ahead of the calls: `seconds` of work, in pages of at most `page_max` units."""

    seconds: float
    page_max: int


class Planner:
    """Plans lanes on one event loop. The earlier results of a resumed job are read from `results_dir`."""

    def __init__(self, ledger: Ledger, pools: LimitedPools, stops: Stops, ahead: Lookahead, results_dir: str) -> None:
        self._ledger, self._pools, self._stops = ledger, pools, stops
        self._ahead, self._results_dir = ahead, results_dir
        self._questions = JobQuestions(ledger)

    async def plan(self, job: JobRecord, lane_number: int, publisher: Publisher) -> bool:
        """Fill a lane's window. Returns when the window is full, when the lane has ended, when the job's question
        allows no more, or when another planner is at work. Returns True if the job is to be finished because its
        question is answered."""
        lane = job.lanes[lane_number]
        while True:
            check = await self._questions.check(job)
            state = await self._ledger.lane(job.id, lane_number)
            if check.is_answered or state.state != "running" or state.cursor == "":
                return check.finish
            stops = await self._stopped(job, lane)
            asks = len(stops) < len(lane.agents)  # otherwise no further unit is published
            size = await self._window(job, lane) if asks else _all_at_once(lane, self._ahead.page_max)
            room = await self._room(job, lane, state, size)
            if not room:
                # Ask to be called again before the window is read once more, or the unit that empties it may be missed.
                await self._ledger.planned(job.id, lane_number)
                if not await self._room(job, lane, await self._ledger.lane(job.id, lane_number), size):
                    return False
                continue
            units = min(size.page, room)
            if not await self._page(job, lane_number, state, units, size.low_water, stops, publisher):
                return False

    async def _room(self, job: JobRecord, lane: Lane, state: LaneState, size: Window) -> int:
        """Return how many more units of a lane may be published now: 0 if its window is full, or if the job's question
        waits for units that are published."""
        if state.open_units > size.low_water:
            return 0
        reach = await self._questions.reach(job, lane, size.units)
        return size.page if reach is None else max(0, reach - _next_place(state)["position"])

    async def _window(self, job: JobRecord, lane: Lane) -> Window:
        """Return the window of a lane at the present rates and limits of its pools."""
        rate_per_s, limit, jobs = 0.0, 0, 1
        for pool in set(lane.pools):
            rate, jobs = await self._ledger.pool_rate(pool)
            rate_per_s += rate
            limit += await self._pools.limit(pool)
        if job.spec.question is not None:
            return close_window(limit=min(job.limit, limit), page_max=self._ahead.page_max, stride=lane.stride)
        limit *= 2  # it may grow meanwhile
        return window(
            rate_per_s=rate_per_s * lane.stride, limit=min(job.limit, limit), seconds=self._ahead.seconds,
            page_max=self._ahead.page_max, stride=lane.stride, jobs=jobs,
        )  # fmt: skip

    async def _stopped(self, job: JobRecord, lane: Lane) -> dict[int, Stop]:
        """Return the agents of the lane that are no longer asked at any of their deployments, each with one reason."""
        by_place = await self._stops.stops(job)
        stops = {}
        for agent in lane.agents if by_place else ():
            reasons = [by_place.get(at) for at in places_of(job, lane, agent, self._pools)]
            if reasons[0] is not None and None not in reasons:
                stops[agent] = reasons[0]
        return stops

    async def _reading(self, job: JobRecord) -> Reading | None:
        """Return a function that reads the job's items from a file, or None if they are in the store."""
        if arrangement_of(job.spec).needed:
            return partial(read_arranged, own_folder(self._results_dir, job.id, job.incarnation))
        source = job.spec.items
        return await asyncio.to_thread(_unchanged_reader, job, source) if isinstance(source, ItemSource) else None

    async def _page(
        self, job: JobRecord, number: int, state: LaneState, units: int, low_water: int, stops: Mapping[int, Stop],
        publisher: Publisher,
    ) -> bool:  # fmt: skip
        """Write the lane's next page to the ledger, then publish it. Returns False if there is none, or if another
        planner was first."""
        lane = job.lanes[number]
        cursor = _next_place(state)
        total = job.items * lane.units_per_item
        first: int = cursor["position"]
        units = min(units, total - first)
        item_range, inputs = lane.items_of(first, units), StageInput()
        if lane.stage:
            inputs = await self._inputs(job, lane, item_range, cursor)
            if not inputs.items:  # planned again when a page of an earlier stage is gathered
                return False
            item_range = item_range[: inputs.items]
            units = min(units, item_range.stop * lane.units_per_item - first)
        read = await self._reading(job)
        if read is not None:
            items, source = await asyncio.to_thread(_read_page, read, item_range, cursor["source"], first + units, lane)
        else:
            stored = await self._ledger.items_within(job.id, item_range)
            if not stored:  # others have ended the job meanwhile
                return False
            items, source = dict(zip(item_range, stored, strict=False)), None
        items = {number: inputs.view(number, item.without(job.spec.rating_columns)) for number, item in items.items()}
        units = min(units, (item_range.start + len(items)) * lane.units_per_item - first)  # large texts shorten a page
        early = await self._early_results(
            job, lane, items, range(first, first + units), cursor.get("earlier", 0), stops, inputs
        )
        results, read_to, failed, skipped = early
        rest = "" if first + units >= total else _cursor(first + units, source, read_to, inputs.next_places)
        ref, attempt = PageRef(job.id, job.incarnation, number, state.page), secrets.token_hex(8)
        marks = stages.earlier_marks(job, lane, results)
        opened = await retry_until_available(
            lambda: self._ledger.open_page(
                ref, first, units, rest, low_water, items, results, attempt, failed=failed, skipped=skipped, marks=marks
            )
        )
        if opened < 0:
            return False
        tokens = [
            MessageId(p, batch=lane.batched)
            for p in range(first, first + units, lane.stride)
            if any(unit not in results for unit in range(p, p + lane.stride))
        ]
        await publisher.page(job, PageMessages(ref, lane, tokens, items))
        await retry_until_available(lambda: self._ledger.published(ref))
        return True

    async def _inputs(self, job: JobRecord, lane: Lane, item_range: range, cursor: Mapping[str, Any]) -> StageInput:
        """Read what the next page of a later stage needs from the earlier stages."""
        if job.spec.chief is not None:
            places = cursor.get("told")
            if places is None:
                pages = await self._ledger.first_pages(job)
                places = {str(number): (page, 0) for number, page in enumerate(pages)}
            return await asyncio.to_thread(read_earlier_opinions, self._results_dir, job, lane, item_range, places)
        board = await stages.ended_board(self._ledger, job, lane, item_range)
        return StageInput(items=board.items, board=board)

    async def _early_results(
        self, job: JobRecord, lane: Lane, items: Mapping[int, Item], positions: range, read_to: int,
        stops: Mapping[int, Stop], inputs: StageInput,
    ) -> _EarlyResults:  # fmt: skip
        """Return the results of units of a page that have ended before the page is opened."""
        results: dict[int, bytes] = {}
        if job.resumed:
            results, read_to = await asyncio.to_thread(
                earlier_results, self._results_dir, job, lane, items, positions, read_to
            )
        skipped = (
            {} if inputs.board is None else stages.skipped_results(job, lane, inputs.board, items, positions, results)
        )
        results |= skipped
        no_opinions = stages.no_opinions_results(job, lane, items, positions, results)
        results |= no_opinions
        stopped = {
            position: stopped_payload(job, lane, position, items[unit.item], stops[unit.agent])
            for position in (positions if stops else ())
            if (unit := lane.unit(position)).agent in stops and position not in results
        }
        return _EarlyResults(results | stopped, read_to, len(stopped) + len(no_opinions), len(skipped))


class _EarlyResults(NamedTuple):
    """Results of units that have ended when their page is opened, by position: results of an earlier run, whose file
    has been read up to `read_to`, and of units that are not called, of which `failed` are errors and `skipped` are
    not."""

    results: Mapping[int, bytes]
    read_to: int
    failed: int
    skipped: int


def _all_at_once(lane: Lane, page_max: int) -> Window:
    """Return the window of a lane that is planned to its end without calls."""
    units = max(1, page_max // lane.stride) * lane.stride
    return Window(units=units, page=units)


def _next_place(state: LaneState) -> dict[str, Any]:
    """Return the place where a lane's next page begins."""
    cursor: dict[str, Any] = orjson.loads(state.cursor) if state.cursor else {"position": 0, "source": None}
    return cursor


def _cursor(position: int, source: Any, earlier: int, places: PagePlaces | None) -> str:
    cursor = {"position": position, "source": source, "earlier": earlier}
    return orjson.dumps(cursor if places is None else {**cursor, "told": places}).decode()


def _read_page(read: Reading, item_range: range, source: Any, end: int, lane: Lane) -> tuple[dict[int, Item], Any]:
    """Read the page's items from the job's file, or the first of them if their texts are large. Return them and the
    place where reading for the next page begins."""
    head: list[Item] = []
    before_last = source
    if len(item_range) > 1:
        head, before_last = read(source, len(item_range) - 1, PIECE_BYTES)
        if len(head) < len(item_range) - 1:
            return dict(zip(item_range, head, strict=False)), before_last
    tail, after_last = read(before_last, 1, PIECE_BYTES)
    items = dict(zip(item_range, [*head, *tail], strict=True))
    whole = end % lane.units_per_item == 0
    return items, (after_last if whole else before_last)


def _unchanged_reader(job: JobRecord, items: ItemSource) -> Reading:
    if job.fingerprint is not None and datasets.fingerprint(items) != job.fingerprint:
        raise DatasetChanged(f"{items.path} has changed since job {job.id} was submitted")
    return partial(datasets.read_page, items)
