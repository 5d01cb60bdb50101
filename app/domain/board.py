"""The score board: what became of each unit of a job, for those who decide what is asked next.

Two bytes a unit, at its place: in the order item, round, agent, dimension, whatever lane a unit is of. The ledger keeps
it for the jobs that need it, and writes it with the results themselves (app/ledger/board.lua).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dicast.app.domain.plan import Unit

MARK_BYTES = 2
OPEN, ENDED, NOT_NEEDED, LOWEST = 0, 1, 2, 16
"""Marks: not ended, ended without a score, not asked since it was not needed, and the lowest score of a scale."""
_BASE = 128
"""A mark is two digits of this base, so that the board is a text too, which every client of the store can read."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How many there are of what a unit is told by, its item apart."""

    rounds: int
    agents: int
    dimensions: int

    @property
    def units_per_item(self) -> int:
        return self.rounds * self.agents * self.dimensions

    def place(self, unit: Unit) -> int:
        """Where the unit's mark stands."""
        rest = (unit.item * self.rounds + unit.replicate) * self.agents + unit.agent
        return rest * self.dimensions + unit.dimension

    def span(self, first_item: int, items: int) -> tuple[int, int]:
        """The first and the last byte of some items' marks."""
        first = first_item * self.units_per_item * MARK_BYTES
        return first, first + items * self.units_per_item * MARK_BYTES - 1


def mark_of(score: int, scale_min: int) -> int:
    """The mark of a unit that has this score."""
    return score - scale_min + LOWEST


@dataclass(frozen=True, slots=True)
class Board:
    """The marks of `items` items from `first_item` on; `lowest` is each dimension's least score."""

    layout: Layout
    lowest: Sequence[int]
    first_item: int
    items: int
    data: bytes
    """As the store has it: what it has not got yet is open."""

    def mark(self, unit: Unit) -> int:
        """What became of a unit; raises IndexError for one of another item."""
        if not 0 <= unit.item - self.first_item < self.items:
            raise IndexError(f"item {unit.item} is not among {self.items} from {self.first_item} on")
        at = (self.layout.place(unit) - self.layout.place(Unit(self.first_item, 0, 0, 0))) * MARK_BYTES
        digits = self.data[at : at + MARK_BYTES]
        return digits[0] * _BASE + digits[1] if len(digits) == MARK_BYTES else OPEN

    def score(self, unit: Unit) -> int | None:
        """The unit's score, if it has one."""
        mark = self.mark(unit)
        return mark - LOWEST + self.lowest[unit.dimension] if mark >= LOWEST else None

    def scores(self, item: int, agent: int, dimension: int) -> list[int]:
        """What an agent gave an item in a dimension, one score for each round that has one."""
        return list(self.by_round(item, agent, dimension).values())

    def by_round(self, item: int, agent: int, dimension: int) -> dict[int, int]:
        """The same, by round."""
        given = {number: self.score(Unit(item, number, agent, dimension)) for number in range(self.layout.rounds)}
        return {number: score for number, score in given.items() if score is not None}

    def spared(self, item: int, agent: int, dimension: int) -> bool:
        """Whether the agent was not needed there: in a round at least, for a resumed job decides anew."""
        rounds = range(self.layout.rounds)
        return any(self.mark(Unit(item, number, agent, dimension)) == NOT_NEEDED for number in rounds)

    def has_ended(self, item: int, agents: Sequence[int]) -> bool:
        """Whether all units of an item have ended that are these agents'."""
        layout = self.layout
        return all(
            self.mark(Unit(item, number, agent, dimension)) != OPEN
            for number in range(layout.rounds)
            for agent in agents
            for dimension in range(layout.dimensions)
        )
