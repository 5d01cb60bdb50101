"""Decides how far the later judges of a panel may be planned, and which of their units end without a call.

This is decided when a page is opened. The earlier judges' opinions on its items are final by then, so nothing that
happens later could change the decision, and a unit that is not needed costs no message, claim or lease.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from itertools import takewhile

import orjson

from dicast.app.domain import chief
from dicast.app.domain.board import ENDED, NOT_NEEDED, Scoreboard, mark_of
from dicast.app.domain.escalation import is_needed
from dicast.app.domain.item import Item
from dicast.app.domain.plan import Lane
from dicast.app.ledger.ledger import Ledger
from dicast.app.ledger.records import JobRecord
from dicast.app.pipeline.endings import no_opinions_payload, not_needed_payload


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
            skipped[position] = not_needed_payload(job, lane, position, items[unit.item])
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
        if (
            opinions is not None
            and position not in results
            and chief.has_no_opinion(opinions, unit.replicate, criterion)
        ):
            ended[position] = no_opinions_payload(job, lane, position, items[unit.item])
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
