"""Publishes units ahead of the calls, within a rolling window.

A lane is planned page by page until its window is full. A page is written to the ledger before its messages are sent,
and of two concurrent planners the ledger lets one win, so any process may plan at any time.

A panel may have later stages, whose units depend on the opinions of earlier ones. How far they may be planned, and
which of their units end without a call, is decided when a page is opened. The earlier judges' opinions on its items are
final by then, so nothing that happens later could change the decision, and a unit that is not needed costs no message,
claim or lease.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile
from typing import Any, NamedTuple, Protocol

import orjson

from dicast.app import datasets
from dicast.app.domain.arrangement import arrangement_of
from dicast.app.domain.escalation import has_no_opinion, is_needed, visible_opinions
from dicast.app.domain.item import Item, ItemSource, VisibleOpinion
from dicast.app.domain.plan import PIECE_BYTES, Lane, Stop, Window, batch_window, close_window, window
from dicast.app.domain.scoreboard import ENDED, NOT_NEEDED, Scoreboard, mark_of
from dicast.app.ledger.keys import PageRef
from dicast.app.ledger.ledger import Ledger
from dicast.app.ledger.records import JobRecord, LaneState, MessageId
from dicast.app.pipeline.call_facts import Models, NoCall, Stops, Unasked, places_of, unasked_payload
from dicast.app.pipeline.kept_opinions import KeptOpinions
from dicast.app.pipeline.question import JobQuestions, QuestionCheck
from dicast.app.pipeline.record import retry_until_available
from dicast.app.reports.files import read_page
from dicast.app.reports.folders import own_folder
from dicast.app.reports.stored_items import earlier_results, read_arranged
from dicast.errors import DicastError


async def ended_board(ledger: Ledger, job: JobRecord, lane: Lane, items: range) -> Scoreboard:
    """Return the board of the first items of a lane's next page, as far as all their units of earlier stages have
    ended. Raises redis errors."""
    board = await ledger.scoreboard(job, items.start, len(items))
    earlier = [agent for other in job.lanes if other.stage < lane.stage for agent in other.agents]
    count = sum(1 for _ in takewhile(lambda item: board.has_ended(item, earlier), items))
    return Scoreboard(board.layout, board.lowest, board.first_item, count, board.data)


def skipped_results(
    job: JobRecord, lane: Lane, board: Scoreboard, items: Mapping[int, Item], positions: range, results: Container[int]
) -> dict[int, bytes]:
    """Return the results of units that are not needed, by position, except those that have `results` already."""
    stages = job.stages
    needed: dict[tuple[int, int, int], bool] = {}
    skipped = {}
    for position in positions:
        unit = lane.unit(position)
        judgment = unit.item, unit.agent, unit.dimension
        if judgment not in needed:  # the same for all replicates
            needed[judgment] = is_needed(job.spec, stages, board, unit, items[unit.item].id)
        if not needed[judgment] and position not in results:
            why = Unasked.because(NoCall.NOT_NEEDED)
            skipped[position] = unasked_payload(job, lane, position, items[unit.item], why)
    return skipped


def no_opinions_results(
    job: JobRecord, lane: Lane, items: Mapping[int, Item], positions: range, results: Container[int]
) -> dict[int, bytes]:
    """Return the results of a chief's units on which no other judge has an opinion, except those that have
    `results`."""
    ended = {}
    for position in positions:
        unit = lane.unit(position)
        opinions = items[unit.item].opinions
        criterion = job.spec.dimensions[unit.dimension].id
        if opinions is not None and position not in results and has_no_opinion(opinions, unit.replicate, criterion):
            why = Unasked.because(NoCall.NO_OPINIONS)
            ended[position] = unasked_payload(job, lane, position, items[unit.item], why)
    return ended


def earlier_marks(job: JobRecord, lane: Lane, results: Mapping[int, bytes]) -> list[tuple[int, int]]:
    """Return the places and marks on the job's score board for results that exist when a page is opened."""
    if not job.keeps_scoreboard:
        return []
    return [
        (job.layout.place(unit), _mark(orjson.loads(payload)["opinion"], job.spec.dimensions[unit.dimension].scale.min))
        for position, payload in results.items()
        for unit in [lane.unit(position)]
    ]


def _mark(opinion: Mapping[str, object], scale_min: int) -> int:
    if opinion.get("not_needed"):
        return NOT_NEEDED
    score = opinion.get("score")
    return mark_of(score, scale_min) if isinstance(score, int) else ENDED


NOT_KEPT = Unasked.because(NoCall.NOT_KEPT)

PagePlaces = Mapping[str, tuple[int, int]]
"""Maps the number of an earlier stage's lane to one of its pages and the position of that page's first unit."""


@dataclass(frozen=True, slots=True)
class StageInput:
    """What is known of the first `items` items of a page, whose earlier units have all ended. There is either a
    `board`, or the `visible_opinions` of a chief, by item; `next_places` is where reading for the next page begins."""

    items: int = 0
    board: Scoreboard | None = None
    visible_opinions: Mapping[int, list[VisibleOpinion]] = field(default_factory=dict)
    next_places: PagePlaces | None = None

    def view(self, number: int, item: Item) -> Item:
        """Return the item as the judges of this stage see it."""
        opinions = self.visible_opinions.get(number)
        return item if opinions is None else item.model_copy(update={"opinions": opinions})


def read_earlier_opinions(
    results_dir: str, job: JobRecord, lane: Lane, item_range: range, places: PagePlaces
) -> StageInput:
    """Read the opinions that a chief sees of the first items of `item_range`: of as many as have all pages of earlier
    stages gathered, and fit into one page. Blocks; raises OSError.

    A chief's opinions are read from pages that have been gathered into files. These are final, ordered by the positions
    of their lane, and the same for every reader, after any crash or repetition. Whoever gathers a page then has the
    later lanes planned, so a page that is not there yet does not have to be polled for.
    """
    opinions_by_item: dict[int, list[dict[str, Any]]] = {item: [] for item in item_range}
    whole, next_places = item_range.stop, {}
    for number, other in enumerate(job.lanes):
        if other.stage < lane.stage:
            page, first = places[str(number)]
            next_places[str(number)], end = _add_lane_opinions(
                results_dir, job, number, (page, first), opinions_by_item
            )
            whole = min(whole, end // other.units_per_item)
    visible, size = {}, 0
    for item in range(item_range.start, whole):
        visible[item] = visible_opinions(job.spec, opinions_by_item[item])
        size += sum(opinion.bytes for opinion in visible[item])
        if size >= PIECE_BYTES:
            break
    return StageInput(items=len(visible), visible_opinions=visible, next_places=next_places)


def _add_lane_opinions(
    results_dir: str,
    job: JobRecord,
    number: int,
    place: tuple[int, int],
    opinions_by_item: Mapping[int, list[dict[str, Any]]],
) -> tuple[tuple[int, int], int]:
    """Add a lane's opinions on the items in `opinions_by_item`. Return the place of the first page that holds any of
    them, and the position after the last one that was read."""
    lane, (page, first), begin = job.lanes[number], place, place
    start, stop = min(opinions_by_item) * lane.units_per_item, (max(opinions_by_item) + 1) * lane.units_per_item
    while first < stop:
        opinions = read_page(results_dir, job.id, job.incarnation, str(number), page)
        if opinions is None:
            break
        for position, opinion in enumerate(opinions, first):
            if start <= position < stop:
                opinions_by_item[lane.unit(position).item].append(opinion)
        page, first = page + 1, first + len(opinions)
        if first <= start:
            begin = page, first
    return begin, first


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
    """Plans lanes on one event loop. The earlier results of a resumed job are read from `results_dir`, opinions that
    are used again from `kept`."""

    def __init__(
        self, ledger: Ledger, pools: LimitedPools, stops: Stops, ahead: Lookahead, results_dir: str,
        kept: KeptOpinions | None = None,
    ) -> None:  # fmt: skip
        self._ledger, self._pools, self._stops = ledger, pools, stops
        self._ahead, self._results_dir, self._kept = ahead, results_dir, kept
        self._questions = JobQuestions(ledger)

    async def plan(self, job: JobRecord, lane_number: int, publisher: Publisher) -> bool:
        """Fill a lane's window. Returns when the window is full, when the lane has ended, when the job's question
        allows no more, or when another planner is at work. Returns True if the job is to be finished because its
        question is answered."""
        lane = job.lanes[lane_number]
        while True:
            check = await self._questions.check(job) if not job.is_capped else await self._check_cap(job)
            state = await self._ledger.lane(job.id, lane_number)
            if check.is_answered or state.state != "running" or state.cursor == "":
                return check.finish
            stops = await self._stopped(job, lane)
            asks = len(stops) < len(lane.agents)  # otherwise no further unit is published
            size = await self._window(job, lane_number) if asks else _all_at_once(lane, self._ahead.page_max)
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

    async def _check_cap(self, job: JobRecord) -> QuestionCheck:
        """End the planning of a job that has met its cap; check the question of one that has not."""
        if await self._ledger.capped(job.id) is None:
            return await self._questions.check(job)
        attempt = self._ledger.attempt()
        _, finish = await retry_until_available(lambda: self._ledger.answer(job, b"", attempt))
        return QuestionCheck(True, finish)

    async def _room(self, job: JobRecord, lane: Lane, state: LaneState, size: Window) -> int:
        """Return how many more units of a lane may be published now: 0 if its window is full, or if the job's question
        waits for units that are published."""
        if state.open_units > size.low_water:
            return 0
        reach = await self._questions.reach(job, lane, size.units)
        return size.page if reach is None else max(0, reach - _next_place(state)["position"])

    async def _window(self, job: JobRecord, lane_number: int) -> Window:
        """Return the window of a lane at the present rates and limits of its pools."""
        lane = job.lanes[lane_number]
        if lane.may_batch and await self._ledger.by_batches(job, lane_number):
            return batch_window(page_max=self._ahead.page_max, stride=lane.stride)
        rate_per_s, limit, jobs = 0.0, 0, 1
        for pool in set(lane.pools):
            rate, jobs = await self._ledger.pool_rate(pool)
            rate_per_s += rate
            limit += await self._pools.limit(pool)
        if job.spec.question is not None or job.is_capped:
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
        marks = earlier_marks(job, lane, results)
        opening = partial(
            self._ledger.open_page, ref, first, units, rest, low_water, items, results, attempt, failed=failed,
            skipped=skipped, marks=marks, capped=job.is_capped, unchorded=lane.may_batch,
        )  # fmt: skip
        opened = await retry_until_available(opening)
        if opened < 0:
            return False
        tokens = [
            MessageId.of(lane, p)
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
        board = await ended_board(self._ledger, job, lane, item_range)
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
        skipped = {} if inputs.board is None else skipped_results(job, lane, inputs.board, items, positions, results)
        results |= skipped
        no_opinions = no_opinions_results(job, lane, items, positions, results)
        results |= no_opinions
        results |= await self._kept_results(job, lane, items, [p for p in positions if p not in results])
        stopped = {
            position: unasked_payload(job, lane, position, items[unit.item], Unasked.stopped(stops[unit.agent]))
            for position in (positions if stops else ())
            if (unit := lane.unit(position)).agent in stops and position not in results
        }
        not_kept = {
            position: unasked_payload(job, lane, position, items[lane.unit(position).item], NOT_KEPT)
            for position in (positions if job.spec.cache == "only" else ())
            if position not in results and position not in stopped
        }
        failed = len(stopped) + len(no_opinions) + len(not_kept)
        return _EarlyResults(results | stopped | not_kept, read_to, failed, len(skipped))

    async def _kept_results(
        self, job: JobRecord, lane: Lane, items: Mapping[int, Item], positions: Sequence[int]
    ) -> dict[int, bytes]:
        """Return the results of units whose opinions were given before."""
        if self._kept is None or job.spec.cache not in ("use", "only") or not positions:
            return {}
        now_ms = await self._ledger.wall_ms()
        return await asyncio.to_thread(self._kept.results, job, lane, items, positions, now_ms)


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
