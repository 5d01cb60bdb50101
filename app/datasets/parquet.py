"""Parquet, streamed in small batches.

A row group can only be decoded from its beginning, so a reader that has returned a page stays open and continues from
there; a process keeps up to `IDLE_READERS`. Memory is that of one batch and of the file's read buffers.

Columns of types that JSON cannot express (binary data, durations, maps) are not read.
"""

from __future__ import annotations

import math
import threading
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dicast.app.datasets.tables import Cursor, DatasetError, Row, quoted

BATCH_ROWS = 64
BUFFER_BYTES = 2**20
IDLE_READERS = 8


class Parquet:
    """The rows of one file, read by a reader of its own."""

    closed = True

    def __init__(self, reader: _Reader) -> None:
        self._reader = reader
        self.columns = reader.columns

    def rows(self, cursor: Cursor | None) -> Iterator[Row]:
        row = cursor["row"] if cursor else 0
        while row < self._reader.row_count:
            fields = self._reader.fields(row)
            row += 1
            yield Row(row, f"row {row}", fields, {"row": row} if row < self._reader.row_count else None)

    def count(self, most: int | None) -> int:
        return self._reader.row_count if most is None else min(most, self._reader.row_count)


@contextmanager
def opened_parquet(path: str, cursor: Cursor | None) -> Iterator[Parquet]:
    """Open the file with the idle reader that is nearest before `cursor`, or with a new one."""
    status = Path(path).stat()
    identity = (str(Path(path).resolve()), status.st_ino, status.st_size, status.st_mtime_ns)
    reader = _take(identity, cursor["row"] if cursor else 0) or _Reader(path, identity)
    try:
        yield Parquet(reader)
    except BaseException:  # also where its user goes away: a reader in an unknown place serves nobody else
        reader.close()
        raise
    _give_back(reader)


class _Reader:
    """A file that is decoded forwards. `first` is the first row of the present batch."""

    def __init__(self, path: str, identity: tuple[Any, ...]) -> None:
        self.path, self.identity = path, identity
        try:
            self._file = pq.ParquetFile(path, buffer_size=BUFFER_BYTES, pre_buffer=False)
        except pa.ArrowException as error:
            raise DatasetError(path, f"is no Parquet file: {error}") from None
        metadata = self._file.metadata
        self.row_count: int = metadata.num_rows
        ends = accumulate(metadata.row_group(group).num_rows for group in range(metadata.num_row_groups))
        self._starts = [0, *ends]
        self._fields = [field for field in self._file.schema_arrow if _readable(field.type)]
        self.columns: list[str] = [field.name for field in self._fields]
        twice = {name for name in self.columns if self.columns.count(name) > 1}
        if twice:
            raise DatasetError(path, f"has the column {quoted(min(twice))} twice")
        self.first = 0
        self._batch: list[dict[str, Any]] = []
        self._batches: Iterator[Any] = iter(())

    def fields(self, row: int) -> dict[str, Any]:
        """Return the row's values; cheap for the present batch and for rows after it."""
        if not self.first <= row < self.first + len(self._batch):
            self._seek(row)
        return self._batch[row - self.first]

    def close(self) -> None:
        self._file.close()

    def _seek(self, row: int) -> None:
        group = bisect_right(self._starts, row) - 1
        behind = self.first + len(self._batch)
        if not (self._batch and behind <= row and self._starts[group] <= behind):
            groups = range(group, len(self._starts) - 1)
            self._batches = self._file.iter_batches(BATCH_ROWS, list(groups), self.columns, use_threads=False)
            behind = self._starts[group]
        length = 0
        while row >= behind + length:
            behind += length
            try:
                batch = next(self._batches)
                batch.validate(full=True)
            except (pa.ArrowException, OSError) as error:
                raise DatasetError(self.path, f"cannot be decoded: {error}", place=f"row {behind + 1}") from None
            length = batch.num_rows
        self.first = behind
        columns = [_written(batch.column(field.name), field.type).to_pylist() for field in self._fields]
        rows = zip(*columns, strict=True)
        self._batch = [dict(zip(self.columns, map(_finite, values), strict=True)) for values in rows]


_idle: list[_Reader] = []
_lock = threading.Lock()


def _take(identity: tuple[Any, ...], row: int) -> _Reader | None:
    """Take the idle reader that is nearest before `row`; nobody else has it until it is given back."""
    with _lock:
        fit = [reader for reader in _idle if reader.identity == identity and reader.first <= row]
        if not fit:
            return None
        reader = max(fit, key=lambda reader: reader.first)
        _idle.remove(reader)
        return reader


def _give_back(reader: _Reader) -> None:
    with _lock:
        _idle.append(reader)
        dropped = _idle.pop(0) if len(_idle) > IDLE_READERS else None
    if dropped is not None:
        dropped.close()


def _readable(kind: Any) -> bool:
    types = pa.types
    if types.is_list(kind) or types.is_large_list(kind):
        return _nested_readable(kind.value_type)
    if types.is_struct(kind):
        return all(_nested_readable(kind.field(index).type) for index in range(kind.num_fields))
    return _scalar(kind) or _written_out(kind)


def _nested_readable(kind: Any) -> bool:
    return _readable(kind) and not _written_out(kind)


def _scalar(kind: Any) -> bool:
    types = pa.types
    if types.is_dictionary(kind):
        return _scalar(kind.value_type)
    texts = types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)
    numbers = types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)
    return bool(texts or numbers or types.is_null(kind))


def _written_out(kind: Any) -> bool:
    """Return whether the type becomes text: JSON has no dates and no decimals."""
    types = pa.types
    return bool(types.is_timestamp(kind) or types.is_date(kind) or types.is_time(kind) or types.is_decimal(kind))


def _written(column: Any, kind: Any) -> Any:
    return pc.cast(column, pa.string()) if _written_out(kind) else column


def _finite(value: Any) -> Any:
    """NaN and infinity become null, as JSON has neither."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list):
        return [_finite(inner) for inner in value]
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    return value
