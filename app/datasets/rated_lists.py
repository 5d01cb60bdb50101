"""The lists of candidates that people have rated, and their judged pairs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator

from dicast.app.datasets.pages import limited, opened
from dicast.app.datasets.rows import ItemReader
from dicast.app.domain.item import Item, ItemSource
from dicast.app.domain.order import PairsOfList
from dicast.app.domain.ranking import Pairs, PairsOfLists

PairsOf = Callable[[str], PairsOfList | None]
"""A function from a list's id to its pairs; None if there is no such list."""


def list_of(pair: str) -> str:
    """Return the id of the list that a pair belongs to, if it is one."""
    return pair.rpartition("/")[0]


def judged_pairs(item: Item, pairs: Pairs) -> PairsOfList:
    """Return the judged pairs of a list."""
    pair_items = PairsOfLists(pairs).items(item)
    return {pair.id: (str(pair.metadata["candidate_a"]), str(pair.metadata["candidate_b"])) for pair in pair_items}


def pairs_of_lists(items: ItemSource | Iterable[Item], pairs: Pairs, rated: Collection[str]) -> PairsOf:
    """Return the judged pairs of those lists that are `rated`. The items are read once."""
    list_ids = {*rated, *map(list_of, rated)}
    every = _in_file(items) if isinstance(items, ItemSource) else items
    return {item.id: judged_pairs(item, pairs) for item in every if item.id in list_ids}.get


def _in_file(source: ItemSource) -> Iterator[Item]:
    with opened(source) as table:
        reader = ItemReader(source, table)
        for row in limited(source, table, None):
            yield reader.item(row)
