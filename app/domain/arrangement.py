"""Items that are not judged as they lie: some become several, their order is drawn, and variants of some follow them.

A job with an `Arrangement` has its items arranged once, when it starts, into a file in its folder
(app/reports/arranged.py), which planning then reads. All steps give the same for the same items and seed, so a job that
is arranged again, by another worker or after it was resumed, has each item at the same place.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from dicast.app.domain.item import Item
from dicast.app.domain.job import EvaluationJob
from dicast.app.domain.probes import tried
from dicast.app.domain.ranking import PairsOfLists
from dicast.app.domain.variants import Variants


class Chance(Protocol):
    """What draws an order; `random.Random` does."""

    def shuffle(self, x: array[int]) -> None:
        """Put it into a random order, all orders being equally likely."""


class Expansion(Protocol):
    """One item of the job becomes several, or stays as it is."""

    def count(self, item: Item) -> int:
        """How many come out of it, without making them."""
        ...

    def items(self, item: Item) -> Iterator[Item]:
        """They, in their order. Their ids must differ from all others of the job."""
        ...


class Variation(Protocol):
    """Variants of some items, which stand behind all of the job's own."""

    def count(self, items: int) -> int:
        """How many variants are added to so many items."""
        ...

    def chosen(self, items: int) -> Sequence[int]:
        """Which of so many items are varied, by their places after the expansion and before the shuffle, ascending."""
        ...

    def variants(self, item: Item, place: int, items: int) -> Iterator[Item]:
        """Those of the one at a place that was chosen, of so many."""
        ...


Grouping = Callable[[Item], int | None]
"""0 or 1 for an item of two groups that are compared, None for one of neither."""


@dataclass(frozen=True, slots=True)
class Shuffle:
    """A random order, the same for the same seed.

    With `group` the items of two groups take turns, so that each further pair is one of each; those of neither group,
    and what the larger group has too many, come last.
    """

    seed: str
    group: Grouping | None = None

    def order(self, groups: Sequence[int], chance: Chance) -> array[int]:
        """The places of the items in their new order. `groups` holds one of `group_code` for each."""
        if self.group is None:
            return _shuffled(range(len(groups)), chance)
        own = [_shuffled((at for at, code in enumerate(groups) if code == which), chance) for which in range(3)]
        pairs = min(len(own[0]), len(own[1]))
        order = array("q", [0]) * (2 * pairs)
        order[0::2], order[1::2] = own[0][:pairs], own[1][:pairs]
        return order + own[0][pairs:] + own[1][pairs:] + own[2]

    def group_code(self, item: Item) -> int:
        """0 or 1 for its group, 2 for none."""
        found = self.group(item) if self.group is not None else None
        return 2 if found is None else found


def _shuffled(places: range | Iterator[int], chance: Chance) -> array[int]:
    order = array("q", places)
    chance.shuffle(order)
    return order


@dataclass(frozen=True, slots=True)
class Arrangement:
    """What is done to a job's items, in this order: `expand` each, `shuffle` them all, `vary` some. Where they have
    `images`, these are kept beside them (app/pipeline/images.py)."""

    expand: Expansion | None = None
    shuffle: Shuffle | None = None
    vary: Variation | None = None
    images: bool = False

    @property
    def needed(self) -> bool:
        """Whether anything is done to them at all."""
        return self.images or not (self.expand is None and self.shuffle is None and self.vary is None)

    def expanded(self, items: Iterator[Item]) -> Iterator[Item]:
        """The job's own items, as the first step makes them."""
        if self.expand is None:
            yield from items
            return
        for item in items:
            yield from self.expand.items(item)

    def own(self, item: Item) -> int:
        """How many of the job's own come out of one item."""
        return 1 if self.expand is None else self.expand.count(item)

    def total(self, own: int) -> int:
        """How many there are in all, where so many are the job's own."""
        return own + (self.vary.count(own) if self.vary is not None else 0)


class Expected:
    """Counts what comes out of the items of a job, which it is shown one by one when the job is submitted."""

    def __init__(self, arrangement: Arrangement) -> None:
        self._arrangement = arrangement
        self.own = 0
        self.groups = [0, 0, 0]
        """Of `own`, those of the two groups that the shuffle compares, and the others."""

    def add(self, item: Item) -> None:
        """Take one more into account."""
        count = self._arrangement.own(item)
        self.own += count
        if self._arrangement.shuffle is not None:
            self.groups[self._arrangement.shuffle.group_code(item)] += count

    @property
    def total(self) -> int:
        """How many items the job has, variants included."""
        return self._arrangement.total(self.own)


def arrangement_of(job: EvaluationJob) -> Arrangement:
    """What a job asks for. Steps join here: the count that a step names at submission is the count that it must give
    when the job starts."""
    expand = PairsOfLists(job.pairs) if job.pairs is not None else None
    varied = Variants(job.probes, job.dimensions, str(job.id)) if tried(job.probes) else None
    return Arrangement(expand=expand, shuffle=_drawn(job), vary=varied, images=job.item_images != "none")


def _drawn(job: EvaluationJob) -> Shuffle | None:
    """A job with a question has its items in random order, another one for each job."""
    if job.question is None:
        return None
    difference = job.question.difference
    return Shuffle(f"question of {job.id}", difference.group if difference is not None else None)
