"""Pages, counts and fingerprints of an item file."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dicast.app.datasets.tables import (
    Csv,
    Cursor,
    DatasetError,
    HealthBench,
    ItemReader,
    JsonLines,
    Row,
    Table,
    kind_of,
)
from dicast.app.domain.item import Item, ItemSource
from dicast.app.domain.text import excerpt
from dicast.config.settings import nearest_file

SAMPLES = 64
SAMPLE_BYTES = 64 * 2**10


def read_page(
    source: ItemSource, cursor: Cursor | None, count: int, most_bytes: float = math.inf
) -> tuple[list[Item], Cursor | None]:
    """Return up to `count` (>= 1) items from `cursor` on, and where the next page begins; None at the end. The item
    with which the texts reach `most_bytes` is the last."""
    items: list[Item] = []
    size = 0
    after = cursor
    with opened(source, cursor) as table:
        reader = ItemReader(source, table)
        for row in limited(source, table, cursor):
            items.append(reader.item(row))
            after = row.next
            size += items[-1].text_bytes
            if len(items) == count or size >= most_bytes:
                return items, after
    return items, None


def count_items(source: ItemSource) -> int:
    """Return how many items `read_page` will yield in all, without reading their contents. It streams; O(1) for
    Parquet."""
    with opened(source) as table:
        ItemReader(source, table)
        return table.count(source.limit)


def fingerprint(source: ItemSource) -> str:
    """Return a digest of the file's size and content, the same on every machine, by which to notice that the file was
    replaced.

    A file of up to 4 MiB is read whole. Of a larger one 64 blocks of 64 KiB are read, spread evenly from the first byte
    to the last: a change that neither moves a byte nor touches one of them goes unnoticed.
    """
    digest = hashlib.blake2b(digest_size=16)
    with _check_readable(source.path), Path(source.path).open("rb", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        digest.update(size.to_bytes(8, "little"))
        last = max(size - SAMPLE_BYTES, 0)
        for sample in range(SAMPLES):
            at = sample * SAMPLE_BYTES if size <= SAMPLES * SAMPLE_BYTES else last * sample // (SAMPLES - 1)
            file.seek(at)
            digest.update(file.read(SAMPLE_BYTES))
    return digest.hexdigest()


@contextmanager
def opened(source: ItemSource, cursor: Cursor | None = None) -> Iterator[Table]:
    """Open the file of `source` as a table that will be read from `cursor` on."""
    path = source.path
    with _check_readable(path):
        kind = kind_of(source)
        if kind == "parquet":
            from dicast.app.datasets.parquet import opened_parquet  # noqa: PLC0415  pyarrow takes long to load

            with opened_parquet(path, cursor) as table:
                yield _in_form(source, table)
        else:
            with Path(path).open("rb") as file:
                lines = JsonLines(path, file) if kind == "jsonl" else Csv(path, file, "\t" if kind == "tsv" else None)
                yield _in_form(source, lines)


def _in_form(source: ItemSource, table: Table) -> Table:
    return HealthBench(source, table) if HealthBench.is_form_of(source, table) else table


def limited(source: ItemSource, table: Table, cursor: Cursor | None) -> Iterator[Row]:
    """Yield the rows from `cursor` on that are within the source's limit; the last one is marked as the last."""
    for row in table.rows(cursor):
        if row.number == source.limit:
            yield Row(row.number, row.place, row.fields, None)
            return
        yield row


@contextmanager
def _check_readable(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        near = nearest_file(Path(path)) if isinstance(error, FileNotFoundError) else None
        hint = f"; did you mean {excerpt(near, 100)}?" if near else ""
        raise DatasetError(path, f"cannot be read: {error.strerror or error}{hint}") from None
