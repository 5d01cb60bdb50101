"""What operators want of nodes: orders, which stand in the store until they are taken back, and requests, which are for
now and are lost with whoever does not hear them.

A node reads its order in the answer to its beacon, and is woken by a word on a channel, so that it reads it at once. It
acknowledges in its next beacon: by then no call begins there any more. The store itself grants nothing to a node that
has an order (`admit.lua`), from the moment it is written.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import orjson
from pydantic import TypeAdapter, ValidationError

from dicast.workers.store.connection import StoreClient
from dicast.workers.store.keys import Keys
from dicast.workers.store.scripts import script_text

_SET = Path(__file__).parent / "order.lua"


class OrderKind(StrEnum):
    CORDON = "cordon"
    """Begin no calls."""
    DRAIN = "drain"
    """The same, and hand back what is not done when the deadline is over."""
    REMOVE = "remove"
    """The same, and end the process."""


@dataclass(frozen=True, slots=True)
class Order:
    """`id` tells it from others of its kind; `at` is Unix seconds by the store's clock; `deadline_s`, of a drain and a
    removal, counts from when the node reads it."""

    id: str
    kind: OrderKind
    by: str = ""
    at: float = 0.0
    deadline_s: float = 0.0

    @classmethod
    def read(cls, text: str | None) -> Order | None:
        """None if there is none, or if it is of a version that knows other orders."""
        if not text:
            return None
        try:
            return _ORDER.validate_json(text)
        except ValidationError:
            return None


_ORDER = TypeAdapter(Order)


class Orders:
    """The store's list of orders."""

    def __init__(self, client: StoreClient, keys: Keys) -> None:
        self._redis, self._keys = client, keys
        self._set = client.register_script(script_text(_SET))

    def give(
        self, node: str, kind: OrderKind, *, by: str, deadline_s: float = 0.0, busy: bool = True
    ) -> tuple[Order, int]:
        """Have an order stand for a node; returns it, and how many leases the node holds. One of the same kind and
        deadline that stands already is kept, so that giving it twice is giving it once; a removal is never replaced.
        Unless `busy`, it is not given to a node that holds leases: the order returned then has no id."""
        at = self._redis.time()[0]
        order = Order(secrets.token_hex(8), kind, by, at, deadline_s)
        standing, leases = self._set(
            keys=[self._keys.orders, self._keys.holders],
            args=[node, orjson.dumps(order), "1" if busy else "", self._keys.told],
        )
        return Order.read(standing) or Order("", kind, by, at, deadline_s), leases

    def take_back(self, node: str) -> None:
        """No order stands for the node any more, unless it is to be removed."""
        self._set(keys=[self._keys.orders, self._keys.holders], args=[node, "", "1", self._keys.told])

    def of(self, node: str) -> Order | None:
        """The order that stands for a node."""
        return Order.read(self._redis.hget(self._keys.orders, node))
