"""The error for data sets, which names the place of what is wrong."""

from __future__ import annotations

from dicast.app.domain.text import excerpt
from dicast.errors import DicastError

VALUE_CHARS = 60


class DatasetError(DicastError, ValueError):
    """The file cannot be read as items. The message is one line and quotes at most `VALUE_CHARS` of a value."""

    problem = "unreadable-items"

    def __init__(self, path: str, message: str, *, place: str = "") -> None:
        super().__init__(f"{excerpt(path, 300)}{f', {place}' if place else ''}: {message}")


def quoted(value: object) -> str:
    """Return a value for a message. Only as much of it is rendered as is shown."""
    return excerpt(repr(value[: VALUE_CHARS + 1] if isinstance(value, str) else value), VALUE_CHARS)
