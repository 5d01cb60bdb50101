"""People's order of a list's candidates, converted to preferences on its pairs.

An order is the candidates' ids, best first: a list, in which a nested list stands for equals, or text in which `>`
stands for "better than" and `=` for equals. It need not name all candidates.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from itertools import chain
from typing import Any

FORM = 'must be an order such as "a > b = c", or a list of ids, best first'

PairsOfList = Mapping[str, tuple[str, str]]
"""A list's pairs that are judged: id -> the ids of candidates A and B."""


class OrderError(ValueError):
    """An order cannot be parsed, or is not of these candidates. The message says what is wrong."""


def preferences(order: Any, pairs: PairsOfList) -> Iterator[tuple[str, int]]:
    """Yield the pairs that the order decides: 1 if A is the better one, -1 if B is, 0 if they are equals. Raises
    `OrderError`."""
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
