"""How many items go together: so many at most, and no more bytes of text than one step may carry."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dicast.app.domain.item import Item

PIECE_BYTES = 8_000_000
"""Most bytes of texts that travel together, but for the last item: a store that writes them serves nobody else for some
hundredths of a second meanwhile, and a worker that carries them holds them several times."""


def pieces(items: Iterable[Item], most: int, most_bytes: int = PIECE_BYTES) -> Iterator[list[Item]]:
    """Runs of at most `most` items (>= 1), each ended by the item with which its texts reach `most_bytes`."""
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
