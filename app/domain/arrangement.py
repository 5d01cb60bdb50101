"""Arranges the items of a job before they are judged: expands them, shuffles them, and adds variants.

A job with an `Arrangement` has its items arranged once, when it starts, into a file in its folder
(app/reports/stored_items.py), which planning then reads. Every step is deterministic for the same items and seed, so a
job that is arranged again, by another worker or after it was resumed, has each item at the same place.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from dicast.app.domain.item import Item
from dicast.app.domain.job import EvaluationJob
from dicast.app.domain.probes import variant_probes
from dicast.app.domain.ranking import PairsOfLists
from dicast.app.domain.variants import Variants


class Chance(Protocol):
    """A source of randomness that can shuffle; `random.Random` implements it."""

    def shuffle(self, x: array[int]) -> None:
        """Shuffle `x` in place; all orders are equally likely."""


class Expansion(Protocol):
    """A step that turns one item of the job into several, or leaves it as it is."""

    def count(self, item: Item) -> int:
        """Return how many items `item` expands to, without making them."""
        ...

    def items(self, item: Item) -> Iterator[Item]:
        """Yield the expanded items in order. Their ids must differ from all other ids of the job."""
        ...


class Variation(Protocol):
    """A step that appends variants of some items after the job's own items."""

    def count(self, items: int) -> int:
        """Return how many variants are added to a job of `items` items."""
        ...

    def chosen(self, items: int) -> Sequence[int]:
        """Return which of `items` items are varied, as their places after expansion and before the shuffle,
        ascending."""
        ...

    def variants(self, item: Item, place: int, items: int) -> Iterator[Item]:
        """Yield the variants of `item`, which was chosen at `place` among `items` items."""
        ...


Grouping = Callable[[Item], int | None]
"""A function that returns 0 or 1 for an item of the two groups that are compared, and None for any other item."""


@dataclass(frozen=True, slots=True)
class Shuffle:
    """A random order that is the same for the same seed.

    With `group`, items of the two groups alternate, so that each further pair holds one of each. Items of neither
    group, and the surplus of the larger group, come last.
    """

    seed: str
    group: Grouping | None = None

    def order(self, groups: Sequence[int], chance: Chance) -> array[int]:
        """Return the places of the items in their new order. `groups` holds a `group_code` for each item."""
        if self.group is None:
            return _shuffled(range(len(groups)), chance)
        by_group = [_shuffled((at for at, code in enumerate(groups) if code == which), chance) for which in range(3)]
        pairs = min(len(by_group[0]), len(by_group[1]))
        order = array("q", [0]) * (2 * pairs)
        order[0::2], order[1::2] = by_group[0][:pairs], by_group[1][:pairs]
        return order + by_group[0][pairs:] + by_group[1][pairs:] + by_group[2]

    def group_code(self, item: Item) -> int:
        """Return 0 or 1 for the item's group, and 2 if it belongs to neither."""
        group = self.group(item) if self.group is not None else None
        return 2 if group is None else group


def _shuffled(places: range | Iterator[int], chance: Chance) -> array[int]:
    order = array("q", places)
    chance.shuffle(order)
    return order


@dataclass(frozen=True, slots=True)
class Arrangement:
    """The steps applied to a job's items, in this order: `expand` each item, `shuffle` all, `vary` some.

    With `images`, the items' images are stored beside them (app/pipeline/images.py).
    """

    expand: Expansion | None = None
    shuffle: Shuffle | None = None
    vary: Variation | None = None
    images: bool = False

    @property
    def needed(self) -> bool:
        """True if any step applies."""
        return self.images or not (self.expand is None and self.shuffle is None and self.vary is None)

    def expanded(self, items: Iterator[Item]) -> Iterator[Item]:
        """Yield the items after expansion, before any are shuffled or varied."""
        if self.expand is None:
            yield from items
            return
        for item in items:
            yield from self.expand.items(item)

    def expanded_count(self, item: Item) -> int:
        """Return how many items `item` expands to."""
        return 1 if self.expand is None else self.expand.count(item)

    def total(self, base_items: int) -> int:
        """Return the number of items including variants, given the number after expansion."""
        return base_items + (self.vary.count(base_items) if self.vary is not None else 0)


class ExpectedItems:
    """Counts the items that an arrangement will produce. It is fed the job's items one by one at submission."""

    def __init__(self, arrangement: Arrangement) -> None:
        self._arrangement = arrangement
        self.base_items = 0
        self.groups = [0, 0, 0]
        """Of `base_items`, those of the two groups that the shuffle compares, and the others."""

    def add(self, item: Item) -> None:
        """Count what `item` expands to."""
        count = self._arrangement.expanded_count(item)
        self.base_items += count
        if self._arrangement.shuffle is not None:
            self.groups[self._arrangement.shuffle.group_code(item)] += count

    @property
    def total(self) -> int:
        """The number of items the job has, variants included."""
        return self._arrangement.total(self.base_items)


def arrangement_of(job: EvaluationJob) -> Arrangement:
    """Return the arrangement that a job asks for.

    Each step must produce as many items when the job starts as it announced at submission.
    """
    expand = PairsOfLists(job.pairs) if job.pairs is not None else None
    variation = Variants(job.probes, job.dimensions, str(job.id)) if variant_probes(job.probes) else None
    return Arrangement(expand=expand, shuffle=_shuffle(job), vary=variation, images=job.item_images != "none")


def _shuffle(job: EvaluationJob) -> Shuffle | None:
    """Return a random order for a job with a question or a cap, which may end before all is judged; None for any
    other. It differs from job to job."""
    if job.question is None:
        return Shuffle(f"cap of {job.id}") if job.is_capped else None
    difference = job.question.difference
    return Shuffle(f"question of {job.id}", difference.group if difference is not None else None)
