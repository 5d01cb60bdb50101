"""Reads what a later stage of a panel needs from the earlier ones: the score board, or the opinions that a chief sees.

A chief's opinions are read from pages that have been gathered into files. These are final, ordered by the positions of
their lane, and the same for every reader, after any crash or repetition. Whoever gathers a page then has the later
lanes planned, so a page that is not there yet does not have to be polled for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dicast.app.domain.board import Scoreboard
from dicast.app.domain.chief import visible_opinions
from dicast.app.domain.item import Item
from dicast.app.domain.pieces import PIECE_BYTES
from dicast.app.domain.plan import Lane
from dicast.app.domain.told_opinion import VisibleOpinion
from dicast.app.ledger.records import JobRecord
from dicast.app.reports.files import read_page

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
    """Read the opinions that a chief sees of the first items of `item_range`: of as many as have all pages of
    earlier stages gathered, and fit into one page. Blocks; raises OSError."""
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
