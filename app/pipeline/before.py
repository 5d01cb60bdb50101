"""What the earlier stages of a panel have left to a later one's next page: the score board, or a chief's opinions.

A chief's are read from the pages that have been gathered into files: they are final, lie in the order of their lane's
positions, and are the same for whoever looks, after every crash and repeat. Who gathers a page asks for the planning of
the later lanes when its file is there, so what is not there yet is not waited for in vain.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dicast.app.domain.board import Board
from dicast.app.domain.chief import told_opinions
from dicast.app.domain.item import Item
from dicast.app.domain.pieces import PIECE_BYTES
from dicast.app.domain.plan import Lane
from dicast.app.domain.told_opinion import ToldOpinion
from dicast.app.ledger.records import JobRecord
from dicast.app.reports.files import read_page

Places = Mapping[str, tuple[int, int]]
"""By the number of an earlier stage's lane: a page of it, and the position of its first unit."""


@dataclass(frozen=True, slots=True)
class Before:
    """Of so many `items`, the first of a page, all earlier units have ended. Either there is a `board`, or what a chief
    is `told` of them, by item; `told_to` is where reading for the next page begins."""

    items: int = 0
    board: Board | None = None
    told: Mapping[int, list[ToldOpinion]] = field(default_factory=dict)
    told_to: Places | None = None

    def shown(self, number: int, item: Item) -> Item:
        """The item as this stage's judges are shown it."""
        told = self.told.get(number)
        return item if told is None else item.model_copy(update={"opinions": told})


def gathered(results_dir: str, job: JobRecord, lane: Lane, wanted: range, places: Places) -> Before:
    """What a chief is told of the first of the `wanted` items: as many as have all pages of earlier stages gathered,
    and as fit into a page together. Blocks; raises OSError."""
    given: dict[int, list[dict[str, Any]]] = {item: [] for item in wanted}
    whole, begins = wanted.stop, {}
    for number, other in enumerate(job.lanes):
        if other.stage < lane.stage:
            page, first = places[str(number)]
            begins[str(number)], end = _read(results_dir, job, number, (page, first), given)
            whole = min(whole, end // other.units_per_item)
    told, size = {}, 0
    for item in range(wanted.start, whole):
        told[item] = told_opinions(job.spec, given[item])
        size += sum(one.bytes for one in told[item])
        if size >= PIECE_BYTES:
            break
    return Before(items=len(told), told=told, told_to=begins)


def _read(
    results_dir: str, job: JobRecord, number: int, place: tuple[int, int], given: Mapping[int, list[dict[str, Any]]]
) -> tuple[tuple[int, int], int]:
    """Add a lane's opinions to those of the items that are `given`; the place of the first page that holds any of them,
    and the position behind the last one read."""
    lane, (page, first), begin = job.lanes[number], place, place
    start, stop = min(given) * lane.units_per_item, (max(given) + 1) * lane.units_per_item
    while first < stop:
        opinions = read_page(results_dir, job.id, job.incarnation, str(number), page)
        if opinions is None:
            break
        for position, opinion in enumerate(opinions, first):
            if start <= position < stop:
                given[lane.unit(position).item].append(opinion)
        page, first = page + 1, first + len(opinions)
        if first <= start:
            begin = page, first
    return begin, first
