"""Lists of candidates, ranked by comparing them in pairs.

A list becomes pairs when its job starts (app/domain/arrangement.py): all of them, or a sample. A sample connects all
candidates, so that each can be ranked against each other. Which pairs there are, their order, and which candidate of a
pair is A follow from the ids of list and candidates alone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, combinations, islice
from typing import Annotated, Any, Literal

from pydantic import Field

from dicast.app.domain.item import Item, RankedText

PAIR_METADATA = ("list", "candidate_a", "candidate_b")
"""The metadata of a pair that name its origin: the list's id, and those of its two candidates."""

SIDE_METADATA = ("candidate_a", "candidate_b"), ("system_a", "system_b")
"""The metadata of a pair that name A and B, of a list's pairs or of pairs that were submitted."""

Pairs = Literal["all"] | Annotated[int, Field(ge=1, le=1_000_000)]


@dataclass(frozen=True, slots=True)
class PairsOfLists:
    """The `Expansion` (app/domain/arrangement.py) of a list into pairs: `pairs` of them, or all if it has fewer."""

    pairs: Pairs

    def count(self, item: Item) -> int:
        """Return how many pairs the item becomes."""
        many = len(item.candidates or ())
        every = many * (many - 1) // 2
        return every if self.pairs == "all" else min(self.pairs, every)

    def items(self, item: Item) -> Iterator[Item]:
        """Yield the pairs. A pair is called `<list>/<i>-<j>`, by its candidates' places in the list from 1."""
        candidates = item.candidates or []
        chosen = _all(len(candidates)) if self.pairs == "all" else islice(_sampled(item), self.count(item))
        for low, high in chosen:
            first, second = sorted((candidates[low], candidates[high]), key=lambda candidate: candidate.id)
            a, b = (first, second) if _digest(item, "a", low, high)[0] % 2 else (second, first)
            yield _pair(item, a, b, f"{item.id}/{low + 1}-{high + 1}")


def pairing_problem(item: Item, pairs: Pairs) -> str | None:
    """Return why a list cannot be ranked by this many pairs; None if it can."""
    least = len(item.candidates or ()) - 1
    if pairs != "all" and pairs < least:
        return f"has {least + 1} candidates, which at least {least} pairs join, and pairs is {pairs}"
    taken = next((name for name in PAIR_METADATA if name in item.metadata), None)
    return None if taken is None else f"has metadata called {taken!r}, as its pairs will: rename it"


def _pair(item: Item, a: RankedText, b: RankedText, name: str) -> Item:
    origin = dict(zip(PAIR_METADATA, (item.id, a.id, b.id), strict=True))
    return Item(
        id=name, text_a=a.text, text_b=b.text, prompt=item.prompt, reference=item.reference,
        images=item.images, metadata={**item.metadata, **origin},
    )  # fmt: skip


def _all(many: int) -> Iterator[tuple[int, int]]:
    return combinations(range(many), 2)


def _sampled(item: Item) -> Iterator[tuple[int, int]]:
    """Yield all pairs, first those that join each candidate to two others.

    Any prefix with at least as many pairs as there are candidates, less one, connects all candidates.
    """
    many = len(item.candidates or ())
    ring = sorted(range(many), key=lambda at: _digest(item, "ring", at))
    joined = [_ordered(ring[at], ring[(at + 1) % many]) for at in range(many if many > 2 else 1)]
    yield from joined
    rest = set(_all(many)) - set(joined)
    yield from sorted(rest, key=lambda pair: _digest(item, "rest", *pair))


def _ordered(first: int, second: int) -> tuple[int, int]:
    return min(first, second), max(first, second)


def _digest(item: Item, what: str, *places: int) -> bytes:
    """Hash the ids, so that neither texts nor the candidates' order in the list change what is drawn."""
    candidates: Sequence[RankedText] = item.candidates or []
    candidate_ids = sorted(candidates[at].id for at in places)
    return hashlib.blake2b("\0".join([what, item.id, *candidate_ids]).encode(), digest_size=8).digest()


FORM = 'must be an order such as "a > b = c", or a list of ids, best first'

PairsOfList = Mapping[str, tuple[str, str]]
"""A list's pairs that are judged: id -> the ids of candidates A and B."""


class OrderError(ValueError):
    """An order cannot be parsed, or is not of these candidates. The message says what is wrong."""


def preferences(order: Any, pairs: PairsOfList) -> Iterator[tuple[str, int]]:
    """Yield the pairs that the order decides: 1 if A is the better one, -1 if B is, 0 if they are equals. Raises
    `OrderError`.

    The order is people's, of a list's candidates; it becomes preferences on the list's pairs. An order is the
    candidates' ids, best first: a list, in which a nested list stands for equals, or text in which `>` stands for
    "better than" and `=` for equals. It need not name all candidates.
    """
    place = places(order, set(chain.from_iterable(pairs.values())))
    for pair, (a, b) in pairs.items():
        if a in place and b in place:
            yield pair, (place[b] > place[a]) - (place[b] < place[a])


def places(order: Any, candidates: Collection[str]) -> dict[str, int]:
    """Return the place of each named candidate, from 0, the same for equals. Raises `OrderError`."""
    place: dict[str, int] = {}
    for at, equals in enumerate(_ranks(order)):
        for name in equals:
            if name not in candidates:
                raise OrderError(f"{name!r} is no candidate of the list")
            if name in place:
                raise OrderError(f"the order names {name!r} twice")
            place[name] = at
    if len(place) < 2:
        raise OrderError(f"{FORM}, of two candidates at least")
    return place


def _ranks(order: Any) -> list[list[str]]:
    if isinstance(order, str):
        if not order.lstrip().startswith("["):
            return [[name.strip() for name in rank.split("=")] for rank in order.split(">")]
        try:
            order = json.loads(order)
        except ValueError:
            raise OrderError(FORM) from None
    if not isinstance(order, list):
        raise OrderError(FORM)
    return [[_name(name) for name in rank] if isinstance(rank, list) else [_name(rank)] for rank in order]


def _name(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise OrderError(FORM)
    return str(value).strip()
