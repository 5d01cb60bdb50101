"""Splits items into pieces bounded in number and in bytes of text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dicast.app.domain.item import Item

PIECE_BYTES = 8_000_000
"""The most bytes of text that travel together, not counting the last item. Writing a piece blocks the store for some
hundredths of a second, and a worker holds it in memory several times."""


def pieces(items: Iterable[Item], most: int, most_bytes: int = PIECE_BYTES) -> Iterator[list[Item]]:
    """Yield runs of at most `most` items (>= 1), each ended by the item with which its texts reach `most_bytes`."""
    piece: list[Item] = []
    size = 0
    for item in items:
        piece.append(item)
        size += item.stored_bytes
        if len(piece) >= most or size >= most_bytes:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece
