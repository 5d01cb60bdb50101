"""One look at the whole file before a job is taken: is every row an item, and is every id there once?"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Collection
from dataclasses import dataclass

from dicast.app.datasets.errors import DatasetError, quoted
from dicast.app.datasets.pages import fingerprint, limited, opened
from dicast.app.datasets.rows import ItemReader
from dicast.app.domain.job import Item, ItemSource


@dataclass(frozen=True, slots=True)
class Survey:
    """What a file holds. `text_bytes` is the sum over texts, prompts and references in UTF-8."""

    items: int
    text_bytes: int
    fingerprint: str


def survey(source: ItemSource, *, max_text_bytes: int | None = None, keep: Collection[str] = ()) -> Survey:
    """Read every item once; raises `DatasetError` for the first that is wrong, too large, or has an id twice, and for
    metadata to `keep` that no item has.

    Ids are compared by digests of 64 bits, 8 bytes an item in memory (24 while they are sorted); those whose digests
    meet are read again and compared as they are, so that the answer is exact.
    """
    before = fingerprint(source)
    digests = array("Q")
    items = text_bytes = 0
    unseen = dict.fromkeys(keep)
    with opened(source) as table:
        reader = ItemReader(source, table)
        for row in limited(source, table, None):
            item = reader.item(row)
            items += 1
            for name in [name for name in unseen if name in item.metadata]:
                del unseen[name]
            size = item.text_bytes
            if max_text_bytes is not None and size > max_text_bytes:
                problem = f"the item {quoted(item.id)} holds {size} bytes of text, at most {max_text_bytes} are allowed"
                raise DatasetError(source.path, problem, place=row.place)
            text_bytes += size
            if not reader.numbered:
                digests.append(_digest(item))
    if unseen and items:
        known = ", ".join(quoted(column) for column in table.columns)
        raise DatasetError(
            source.path, f"keep: no item has {quoted(next(iter(unseen)))} besides its texts; there are {known}"
        )
    suspects = _repeated(digests)
    if suspects:
        _compare(source, suspects)
    if fingerprint(source) != before:
        raise DatasetError(source.path, "changed while it was read")
    return Survey(items, text_bytes, before)


def _digest(item: Item) -> int:
    return int.from_bytes(hashlib.blake2b(item.id.encode(), digest_size=8).digest(), "little")


def _repeated(digests: array[int]) -> set[int]:
    import pyarrow as pa  # noqa: PLC0415  takes long to load
    import pyarrow.compute as pc  # noqa: PLC0415

    if len(digests) < 2:
        return set()
    values = pa.Array.from_buffers(pa.uint64(), len(digests), [None, pa.py_buffer(digests)])
    values = values.take(pc.array_sort_indices(values))
    return set(values[1:].filter(pc.equal(values[1:], values[:-1])).to_pylist())


def _compare(source: ItemSource, suspects: set[int]) -> None:
    seen: dict[str, str] = {}
    with opened(source) as table:
        reader = ItemReader(source, table)
        for row in limited(source, table, None):
            item = reader.item(row)
            if _digest(item) not in suspects:
                continue
            if item.id in seen:
                problem = f"{source.id_field}: {quoted(item.id)} is already in {seen[item.id]}"
                raise DatasetError(source.path, problem, place=row.place)
            seen[item.id] = row.place
