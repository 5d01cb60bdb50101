"""Access with a clock that the tests move."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dicast.app.access.keys import TokenSecret
from dicast.workers.store.connection import StoreClient, connect

SECRET, OTHER = "s" * 32, "t" * 32


def secrets_of(*values: str, namespace: str = "dicast") -> tuple[TokenSecret, ...]:
    return TokenSecret.all_of(values, namespace)


class Clock:
    def __init__(self) -> None:
        self.s = 1_800_000_000.0

    def __call__(self) -> float:
        return self.s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def client(redis_url: str) -> Iterator[StoreClient]:
    with connect(redis_url) as store:
        yield store
