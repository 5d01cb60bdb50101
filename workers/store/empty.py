"""A store in which nothing was ever written, for those who only ask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class EmptyStore:
    """Answers as an empty store would, without one; it has only commands that read. A script answers an empty string,
    as do those that find nothing to work on."""

    def get(self, key: str) -> None:
        return None

    def hget(self, key: str, field: str) -> None:
        return None

    def hgetall(self, key: str) -> dict[str, str]:
        return {}

    def hmget(self, key: str, *fields: str) -> list[None]:
        return [None] * len(fields)

    def exists(self, key: str) -> int:
        return 0

    def zrevrange(self, key: str, start: int, end: int) -> list[str]:
        return []

    def register_script(self, text: str) -> Callable[..., Any]:
        return lambda **_: ""
