"""One rating by a person, as it is stored with the job."""

from __future__ import annotations

from dataclasses import dataclass

NOBODY_NAMED = "person"
"""The rater of ratings that name none."""
MAX_RATERS = 200
"""The most raters, since statistics hold a column for each; of a crowd, name the ratings of an item 1, 2, 3 instead."""


@dataclass(frozen=True, slots=True)
class Rating:
    """One person's score of one item in one dimension. `probability` is how likely the item was to be rated, if
    known."""

    item_id: str
    dimension: str
    rater: str
    score: float
    probability: float | None = None


@dataclass(frozen=True, slots=True)
class RatingCounts:
    """The number of ratings and of rated items, and the raters in alphabetical order."""

    ratings: int
    items: int
    raters: tuple[str, ...]
