"""The scoreboard: the outcome of each unit of a job, for the code that decides which units are called next.

It holds two bytes per unit, in the order item, round, agent, dimension, whatever lane a unit belongs to. The ledger
keeps it for the jobs that need it, and writes it together with the results (app/ledger/board.lua).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dicast.app.domain.plan import Unit

MARK_BYTES = 2
OPEN, ENDED, NOT_NEEDED, LOWEST = 0, 1, 2, 16
"""Marks: not ended, ended without a score, skipped as not needed, and the lowest score of a scale."""
_BASE = 128
"""A mark is two digits of this base, so the scoreboard is valid ASCII that every client of the store can read."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The number of rounds, agents and dimensions, which together with the item identify a unit."""

    rounds: int
    agents: int
    dimensions: int

    @property
    def units_per_item(self) -> int:
        return self.rounds * self.agents * self.dimensions

    def place(self, unit: Unit) -> int:
        """Return the index of the unit's mark."""
        rest = (unit.item * self.rounds + unit.replicate) * self.agents + unit.agent
        return rest * self.dimensions + unit.dimension

    def span(self, first_item: int, items: int) -> tuple[int, int]:
        """Return the offsets of the first and the last byte of the marks of `items` items."""
        first = first_item * self.units_per_item * MARK_BYTES
        return first, first + items * self.units_per_item * MARK_BYTES - 1


def mark_of(score: int, scale_min: int) -> int:
    """Return the mark of a unit with this score."""
    return score - scale_min + LOWEST


@dataclass(frozen=True, slots=True)
class Scoreboard:
    """The marks of `items` items from `first_item` on; `lowest` is the lowest score of each dimension."""

    layout: Layout
    lowest: Sequence[int]
    first_item: int
    items: int
    data: bytes
    """The bytes as the store returned them; missing bytes mean that the unit is open."""

    def mark(self, unit: Unit) -> int:
        """Return the unit's mark. Raises IndexError for a unit of an item that is not covered."""
        if not 0 <= unit.item - self.first_item < self.items:
            raise IndexError(f"item {unit.item} is not among {self.items} from {self.first_item} on")
        at = (self.layout.place(unit) - self.layout.place(Unit(self.first_item, 0, 0, 0))) * MARK_BYTES
        digits = self.data[at : at + MARK_BYTES]
        return digits[0] * _BASE + digits[1] if len(digits) == MARK_BYTES else OPEN

    def score(self, unit: Unit) -> int | None:
        """Return the unit's score, or None if it has none."""
        mark = self.mark(unit)
        return mark - LOWEST + self.lowest[unit.dimension] if mark >= LOWEST else None

    def scores(self, item: int, agent: int, dimension: int) -> list[int]:
        """Return the scores an agent gave an item in a dimension, one for each round that has one."""
        return list(self.by_round(item, agent, dimension).values())

    def by_round(self, item: int, agent: int, dimension: int) -> dict[int, int]:
        """Return the scores an agent gave an item in a dimension, by round."""
        scores = {number: self.score(Unit(item, number, agent, dimension)) for number in range(self.layout.rounds)}
        return {number: score for number, score in scores.items() if score is not None}

    def is_skipped(self, item: int, agent: int, dimension: int) -> bool:
        """Whether the agent was skipped in at least one round there; a resumed job decides anew."""
        rounds = range(self.layout.rounds)
        return any(self.mark(Unit(item, number, agent, dimension)) == NOT_NEEDED for number in rounds)

    def has_ended(self, item: int, agents: Sequence[int]) -> bool:
        """Whether all units of an item that belong to `agents` have ended."""
        layout = self.layout
        return all(
            self.mark(Unit(item, number, agent, dimension)) != OPEN
            for number in range(layout.rounds)
            for agent in agents
            for dimension in range(layout.dimensions)
        )
