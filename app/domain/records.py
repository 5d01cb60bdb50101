"""Items as programs have them: data frames, lists of records or texts, and other iterables.

They are read as item files are (app/datasets/tables.py): the columns that an item has become its fields, all others its
metadata, and without a column `id` the rows are numbered 1, 2, 3, ... In a list of records a name that is close to an
item's field is taken for a typo, and rejected by the job's validation. Missing values (NaN, NaT, NA) are left out, or
null in metadata; dates, times and decimals become text (ISO 8601); binary values are dropped; and an index called `id`
is that column.
"""

from __future__ import annotations

import datetime
import decimal
import difflib
import math
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import islice
from typing import Any, Literal, Protocol, TypeAlias

from pydantic import BaseModel

from dicast.app.domain.item import FORMS, Item, ItemSource
from dicast.app.domain.text import printable

MAX_RECORDS = 1_000_000
"""The most items that a job brings itself; more belong into a file."""
_FIELDS = frozenset(Item.model_fields)
_PLAIN = (str, int, list, tuple, dict, BaseModel, type(None))
_JUDGED = frozenset().union(*FORMS.values())


class PandasFrame(Protocol):
    """The members by which `inline_items` recognises a pandas frame."""

    @property
    def columns(self) -> Any: ...

    @property
    def iloc(self) -> Any: ...


class PolarsFrame(Protocol):
    """The members by which `inline_items` recognises a polars frame."""

    @property
    def columns(self) -> Any: ...

    def iter_rows(self, *, named: Literal[True]) -> Iterable[Mapping[str, Any]]: ...


class ArrowTable(Protocol):
    """The members by which `inline_items` recognises an Arrow table."""

    @property
    def column_names(self) -> Any: ...

    def to_batches(self, max_chunksize: int | None = None) -> Iterable[Any]: ...


Records: TypeAlias = Iterable[Item | Mapping[str, Any] | str] | PandasFrame | PolarsFrame | ArrowTable
"""The forms in which a program may give a job its items."""
Items: TypeAlias = Records | ItemSource | Mapping[str, Any] | str
"""What a job's items may be given as: records, or a file by its name or as an `ItemSource` describes it."""


class RecordError(ValueError):
    """What was given as items is none. The message says what they may be, or which record is wrong."""


def inline_items(value: Any) -> Any:
    """Return the items in a frame, or in an iterable of records or texts, as a list of documents.

    Anything else is returned unchanged: file names, sources, and what is no items at all. Raises `RecordError`.
    """
    if type(value).__name__ == "LazyFrame":
        raise RecordError("items: a lazy frame has no rows yet; call its collect()")
    framed = _rows(value)
    if framed is None and (isinstance(value, str | bytes | Mapping | BaseModel) or not isinstance(value, Iterable)):
        return value
    records = list(islice(value if framed is None else framed, MAX_RECORDS + 1))
    if len(records) > MAX_RECORDS:
        raise RecordError(f"items: a job brings at most {MAX_RECORDS:,} itself, got more; put them into a file")
    names = [] if framed is None else [str(name) for name in getattr(value, "column_names", None) or value.columns]
    if names and records and _JUDGED.isdisjoint(names):
        columns = ", ".join(printable(repr(name), 60) for name in names[:20])
        raise RecordError(
            f"items: no column 'text', and none of {', '.join(sorted(_JUDGED - {'text'}))}; the columns are {columns}; "
            'rename one, such as frame.rename(columns={"answer": "text"})'
        )
    if not any(
        isinstance(record, str) or (isinstance(record, Mapping) and not _is_plain(record)) for record in records
    ):
        return records
    return [_document(record, number, records[0], slips=framed is None) for number, record in enumerate(records, 1)]


def _is_plain(record: Mapping[Any, Any]) -> bool:
    """Whether the record is an item's document already."""
    return (
        isinstance(record, dict)
        and "id" in record
        and all(name in _FIELDS and isinstance(value, _PLAIN) for name, value in record.items())
    )


def _document(record: Any, number: int, first: Any, *, slips: bool) -> Any:
    if isinstance(record, str):
        return {"id": str(number), "text": record}
    if not isinstance(record, Mapping):
        return record
    cells = record if _is_plain(record) else _cells(record)
    if slips and _JUDGED.isdisjoint(cells):
        return record  # refused for its keys, one of which may be another tool's name for the text
    fields = {name: value for name, value in cells.items() if name in _FIELDS}
    if isinstance(first, Mapping) and "id" not in first:
        if "id" in fields:
            raise RecordError(f"items[{number - 1}].id: was absent in the first record, got {fields['id']!r:.60}")
        fields = {"id": str(number), **fields}
    metadata = fields.get("metadata", {})
    if not isinstance(metadata, Mapping):
        return fields
    more: dict[str, Any] = {}
    for name, value in cells.items():
        if name in _FIELDS:
            continue
        if slips and _is_slip(str(name)):
            fields[name] = value  # refused as an unknown key, with the name that was meant
        elif name in metadata:
            raise RecordError(f"items[{number - 1}].metadata: has {printable(repr(name), 60)}, and so has the record")
        else:
            more[str(name)] = value
    return {**fields, "metadata": {**more, **metadata}} if more else fields


@lru_cache(maxsize=1024)
def _is_slip(name: str) -> bool:
    """Whether the name is close to a field's name: promt, but not prompt_id."""
    return bool(difflib.get_close_matches(name.lower()[:40], _FIELDS, n=1, cutoff=0.88))


# ---------------------------------------------------------------------- frames
def _rows(frame: Any) -> Iterator[dict[str, Any]] | None:
    """Yield the records of a pandas or polars frame, or of an Arrow table; None for anything else.

    Frames are recognised by their methods, so that none of these libraries is loaded.
    """
    if hasattr(frame, "iter_rows") and hasattr(frame, "columns"):  # polars
        return (_cells(row) for row in frame.iter_rows(named=True))
    if hasattr(frame, "iloc") and hasattr(frame, "columns"):  # pandas
        if "id" not in frame.columns and getattr(frame.index, "name", None) == "id":
            frame = frame.reset_index()
        columns = [str(name) for name in frame.columns]
        if twice := {name for name in columns if columns.count(name) > 1}:
            raise RecordError(f"items: the frame has the column {min(twice)!r} twice")
        values = [frame.iloc[:, number].tolist() for number in range(len(columns))]
        return (_cells(dict(zip(columns, row, strict=True))) for row in zip(*values, strict=True))
    if hasattr(frame, "to_batches") and hasattr(frame, "column_names"):  # Arrow
        return (_cells(row) for batch in frame.to_batches(max_chunksize=1000) for row in batch.to_pylist())
    return None


def _cells(row: Mapping[str, Any]) -> dict[str, Any]:
    cells = {
        name: _plain(value) for name, value in row.items() if not isinstance(value, bytes | bytearray | memoryview)
    }
    return {name: value for name, value in cells.items() if value is not None or name not in _FIELDS}


def _plain(value: Any) -> Any:
    """Convert a cell to what JSON can hold; None for a missing value."""
    if value is None or isinstance(value, str | bool | int | BaseModel):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if type(value).__name__ in ("NAType", "NaTType"):
        return None
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, datetime.timedelta | decimal.Decimal):
        return str(value)
    if isinstance(value, Mapping):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(inner) for inner in value]
    if hasattr(value, "tolist"):  # NumPy's scalars and arrays
        return _plain(value.tolist())
    return str(value)
