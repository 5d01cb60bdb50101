"""One rating by a person, as it is kept with the job."""

from __future__ import annotations

from dataclasses import dataclass

NOBODY_NAMED = "person"
"""The rater of ratings that name none."""
MAX_RATERS = 200
"""Statistics hold a column for each; of a crowd, name the ratings of an item 1, 2, 3 instead."""


@dataclass(frozen=True, slots=True)
class Rating:
    """What one person gave one item in one dimension. `probability`: how likely the item was to be rated, if known."""

    item_id: str
    dimension: str
    rater: str
    score: float
    probability: float | None = None


@dataclass(frozen=True, slots=True)
class RatingCounts:
    """How many ratings there are, of how many items, and by whom (in alphabetical order)."""

    ratings: int
    items: int
    raters: tuple[str, ...]
