"""Rows of a file, whatever its format, and the items made of them; readers of JSONL, CSV and TSV.

A job means a file by its path, and a format by its own word or by the file's ending. An unreadable file is reported
with what to do about it.
"""

from __future__ import annotations

import codecs
import csv
import os
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Literal, Protocol

import orjson
from pydantic import ValidationError

from dicast.app.domain.item import FORMS, ITEM_RULE, Item, ItemSource
from dicast.app.domain.refusals import field_name, problem
from dicast.app.domain.text import excerpt
from dicast.errors import DicastError

VALUE_CHARS = 60


class DatasetError(DicastError, ValueError):
    """The file cannot be read as items. The message is one line and quotes at most `VALUE_CHARS` of a value.

    It names the place of what is wrong.
    """

    problem = "unreadable-items"

    def __init__(self, path: str, message: str, *, place: str = "") -> None:
        super().__init__(f"{excerpt(path, 300)}{f', {place}' if place else ''}: {message}")


def quoted(value: object) -> str:
    """Return a value for a message. Only as much of it is rendered as is shown."""
    return excerpt(repr(value[: VALUE_CHARS + 1] if isinstance(value, str) else value), VALUE_CHARS)


JUDGED_FIELDS = ("text_field", "text_a_field", "text_b_field", "messages_field", "candidates_field")
"""The settings that name the columns of what is judged."""
LISTS = frozenset({"messages", "candidates"})

Cursor = dict[str, int]
"""Where reading continues. JSONL and CSV: byte `at`, `line` and `row` of the next record. Parquet: its `row`."""


@dataclass(frozen=True, slots=True)
class Row:
    """One record. `number` counts records from 1; `place` names it in messages; `next` is None for the last one."""

    number: int
    place: str
    fields: dict[str, Any]
    next: Cursor | None


class Table(Protocol):
    """An open file of records."""

    @property
    def columns(self) -> Collection[str]:
        """The names of the fields; for JSONL those of the first object, and later ones may have others."""
        ...

    @property
    def closed(self) -> bool:
        """Whether every record has all columns and no others."""
        ...

    def rows(self, cursor: Cursor | None) -> Iterator[Row]:
        """Yield the records from `cursor` (None: the first) to the end."""
        ...

    def count(self, most: int | None) -> int:
        """Return the number of records, counted no further than `most`."""
        ...


class ItemReader:
    """Turns rows of one table into items, by the names in the job's source."""

    def __init__(self, source: ItemSource, table: Table) -> None:
        defaults = ItemSource.model_fields
        self._source = source
        self.numbered = source.id_field not in table.columns and source.id_field == defaults["id_field"].default
        names = {"id_field": source.id_field}
        for setting in (*JUDGED_FIELDS, "prompt_field", "reference_field", "images_field", "criteria_field"):
            name = getattr(source, setting)
            if name is not None and name != defaults[setting].default:
                names[setting] = name
        judged = {setting: getattr(source, setting) for setting in JUDGED_FIELDS}
        if not any(name in table.columns for name in judged.values()):
            names |= {setting: name for setting, name in judged.items() if name is not None and setting == "text_field"}
        for setting, name in names.items():
            if table.closed and name not in table.columns and not (setting == "id_field" and self.numbered):
                columns = ", ".join(quoted(column) for column in table.columns) or "none"
                raise DatasetError(source.path, f"{setting}: no column {quoted(name)}; the columns are {columns}")

    def item(self, row: Row) -> Item:
        """Return the item in a row. Raises `DatasetError` if it is none."""
        source = self._source
        fields = dict(row.fields)
        if not self.numbered:
            item_id = self._id(row, fields.pop(source.id_field, None))
        elif source.id_field in fields:
            raise self._wrong(row, source.id_field, "was absent in the first row", fields[source.id_field])
        else:
            item_id = str(row.number)
        judged = self._judged(row, fields)
        prompt = self._text(row, fields, source.prompt_field)
        reference = self._text(row, fields, source.reference_field)
        images = self._images(row, fields, source.images_field)
        criteria = self._list(row, fields, "criteria", source.criteria_field)
        try:
            if "messages" in judged:
                judged["judged"] = source.judged
            judged |= {name: value for name, value in (("images", images), ("criteria", criteria)) if value}
            metadata = self._metadata(row, fields)
            return Item(id=item_id, **judged, prompt=prompt or None, reference=reference or None, metadata=metadata)
        except ValidationError as error:
            detail = error.errors()[0]
            place = [source.id_field if part == "id" else part for part in detail["loc"]]
            message = f"{field_name(place)}: {problem(detail)}" if place else problem(detail)
            raise DatasetError(source.path, message, place=row.place) from None

    def _judged(self, row: Row, fields: dict[str, Any]) -> dict[str, Any]:
        """Return the fields of one kind of item. Raises `DatasetError` if no kind is complete, or several are
        present."""
        columns = {setting.removesuffix("_field"): getattr(self._source, setting) for setting in JUDGED_FIELDS}
        values = {what: value for what in columns if (value := self._value(row, fields, what, columns[what]))}
        if any(values.keys() == whole for whole in FORMS.values()):
            return values
        if len(values) > 1:
            there = " and ".join(quoted(columns[what]) for what in values)
            rest = next(what for what in values if what != "text")
            raise DatasetError(
                self._source.path, f"has {there}, and an item {ITEM_RULE}; say {rest}_field: null where the column is "
                "something else", place=row.place
            )  # fmt: skip
        lacks = {"text_a": "text_b", "text_b": "text_a"}.get("".join(values), "text")
        name = columns[lacks] or f"{lacks}_field"
        raise self._wrong(row, name, "must be text, not blank", row.fields.get(name))

    def _value(self, row: Row, fields: dict[str, Any], what: str, name: str | None) -> Any:
        """Return a column's value for an item; empty for a blank text."""
        if what in LISTS:
            return self._list(row, fields, what, name)
        text = self._text(row, fields, name)
        return "" if text.isspace() else text

    def _metadata(self, row: Row, fields: dict[str, Any]) -> dict[str, Any]:
        """Return the remaining fields of a row; an object called `metadata` is expanded."""
        inner = fields.get("metadata")
        if not isinstance(inner, dict):
            return fields
        del fields["metadata"]
        for name in inner.keys() & fields.keys():
            raise self._wrong(row, name, "stands in the row and in its metadata", fields[name])
        return {**fields, **inner}

    def _images(self, row: Row, fields: dict[str, Any], name: str | None) -> list[Any]:
        """Return the images: a list, or one image as a text."""
        value = fields.get(name) if name is not None else None
        if name is not None and isinstance(value, str) and value.strip() and not value.lstrip().startswith("["):
            return [fields.pop(name)]
        return self._list(row, fields, "images", name)

    def _list(self, row: Row, fields: dict[str, Any], what: str, name: str | None) -> list[Any]:
        """Return a list, which formats without lists hold as JSON; [] if there is none."""
        value = fields.pop(name, None) if name is not None else None
        if value is None or (isinstance(value, str) and not value.strip()):
            return []
        wrong = "must be a list"
        if isinstance(value, str):
            try:
                value = orjson.loads(value)
            except orjson.JSONDecodeError as error:
                wrong = f"must be a list as JSON ({error})"
        if not isinstance(value, list):
            raise self._wrong(row, name, f"{wrong}; say {what}_field: null if the column is something else", value)
        # Parquet gives each entry all fields, null where it has none.
        return [{k: v for k, v in e.items() if v is not None} if isinstance(e, dict) else e for e in value]

    def _id(self, row: Row, value: object) -> str:
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise self._wrong(row, self._source.id_field, "must be text or a whole number", value)
        return str(value)

    def _text(self, row: Row, fields: dict[str, Any], name: str | None) -> str:
        value = fields.pop(name, None) if name is not None else None
        if value is not None and not isinstance(value, str):
            raise self._wrong(row, name, "must be text", value)
        return value or ""

    def _wrong(self, row: Row, field: str | None, wrong: str, value: object) -> DatasetError:
        return DatasetError(self._source.path, f"{field}: {wrong}, got {quoted(value)}", place=row.place)


MAX_RECORD_BYTES = 64 * 2**20
"""A longer record is refused, so that one unclosed quotation mark cannot fill the memory."""

DEPTH_MAX = 200
"""Nesting up to here needs no check: orjson reads deeper than it writes, and what is read must be stored."""

_OTHERS = re.compile(rb"[;\t]")

csv.field_size_limit(MAX_RECORD_BYTES)


class _Lines:
    """The lines of a file, with one line of lookahead. `at` and `number` are the byte offset and the number of that
    line."""

    def __init__(self, path: str, file: BinaryIO, at: int, number: int) -> None:
        self._path, self._file = path, file
        file.seek(at)
        self.at, self.number = at, number
        self.ahead = self._read()
        if at == 0 and self.ahead.startswith(codecs.BOM_UTF8):
            self.at = len(codecs.BOM_UTF8)
            self.ahead = self.ahead[self.at :]

    def take(self) -> bytes:
        line = self.ahead
        self.at += len(line)
        self.number += 1
        self.ahead = self._read()
        return line

    def skip(self, blank: Callable[[bytes], bool]) -> bool:
        """Skip blank lines; False at the end of the file."""
        while self.ahead and blank(self.ahead):
            self.take()
        return bool(self.ahead)

    def text(self, line: bytes, place: str) -> str:
        try:
            return line.decode()
        except UnicodeDecodeError as error:
            wrong = quoted(line[error.start : error.start + 10])
            raise DatasetError(self._path, f"is not UTF-8 from {wrong} on", place=place) from None

    def _read(self) -> bytes:
        line = self._file.readline(MAX_RECORD_BYTES + 1)
        if len(line) > MAX_RECORD_BYTES:
            raise DatasetError(self._path, f"is longer than {MAX_RECORD_BYTES} bytes", place=f"line {self.number}")
        return line


class JsonLines:
    """One JSON object per line.

    It can be entered at any record by its byte offset.
    """

    closed = False

    def __init__(self, path: str, file: BinaryIO) -> None:
        self._path, self._file = path, file
        first = next(self.rows(None), None)
        self.columns = list(first.fields) if first else []

    def rows(self, cursor: Cursor | None) -> Iterator[Row]:
        at = cursor or {"at": 0, "line": 1, "row": 1}
        lines = _Lines(self._path, self._file, at["at"], at["line"])
        number = at["row"]
        more = lines.skip(bytes.isspace)
        while more:
            place = f"line {lines.number}"
            fields = self._object(lines.take(), place)
            more = lines.skip(bytes.isspace)
            yield Row(number, place, fields, _at(lines, number + 1) if more else None)
            number += 1

    def count(self, most: int | None) -> int:
        lines = _Lines(self._path, self._file, 0, 1)
        rows = 0
        while rows != most and lines.skip(bytes.isspace):
            lines.take()
            rows += 1
        return rows

    def _object(self, line: bytes, place: str) -> dict[str, object]:
        try:
            fields = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise DatasetError(self._path, f"is no JSON: {error}", place=place) from None
        if not isinstance(fields, dict):
            raise DatasetError(self._path, f"must be a JSON object, got {quoted(fields)}", place=place)
        if line.count(b"[") + line.count(b"{") > DEPTH_MAX and not _writable(fields):
            raise DatasetError(self._path, "is nested too deeply", place=place)
        return fields


class Csv:
    """Separated values with a header line; fields may be quoted and hold line ends (RFC 4180).

    Without a `separator` it is the comma; for a header without commas, semicolon or tab, whichever it has.

    It can be entered at any record by its byte offset.
    """

    closed = True

    def __init__(self, path: str, file: BinaryIO, separator: str | None = None) -> None:
        self._path, self._file = path, file
        lines = _Lines(path, file, 0, 1)
        self.columns: list[str] = []
        self._first: Cursor | None = None
        self._separator = separator or ","
        if lines.skip(_is_line_end):
            self._separator = separator or _separator_of(lines.ahead)
            self.columns = next(self._records(lines))[1]
            self._first = _at(lines, 1) if lines.skip(_is_line_end) else None
        twice = {name for name in self.columns if self.columns.count(name) > 1}
        if twice:
            raise DatasetError(path, f"has the column {quoted(min(twice))} twice", place="line 1")

    def rows(self, cursor: Cursor | None) -> Iterator[Row]:
        at = cursor or self._first
        if at is None:
            return
        lines = _Lines(self._path, self._file, at["at"], at["line"])
        for number, (place, values) in enumerate(self._records(lines), at["row"]):
            if len(values) != len(self.columns):
                problem = f"has {len(values)} fields, the header has {len(self.columns)}"
                raise DatasetError(self._path, problem, place=place)
            fields = dict(zip(self.columns, values, strict=True))
            more = lines.skip(_is_line_end)
            yield Row(number, place, fields, _at(lines, number + 1) if more else None)

    def count(self, most: int | None) -> int:
        rows = 0
        if self._first is not None:
            lines = _Lines(self._path, self._file, self._first["at"], self._first["line"])
            for _ in self._records(lines):
                rows += 1
                if rows == most:
                    break
        return rows

    def _records(self, lines: _Lines) -> Iterator[tuple[str, list[str]]]:
        """Yield (place, fields) of each record. The parser takes no line before it needs it, so `lines` stays exact."""
        start = lines.at

        def fed() -> Iterator[str]:
            while lines.ahead:
                if lines.at - start > MAX_RECORD_BYTES:
                    raise DatasetError(self._path, f"is longer than {MAX_RECORD_BYTES} bytes", place=place)
                yield lines.text(lines.take(), place)

        parser = csv.reader(fed(), delimiter=self._separator, strict=True)
        while lines.skip(_is_line_end):
            start, place = lines.at, f"line {lines.number}"
            try:
                yield place, next(parser)
            except csv.Error as error:
                raise DatasetError(self._path, f"is no CSV: {error}", place=place) from None


class HealthBench:
    """The rows of HealthBench, as its authors publish them, in the columns that `source` names: each is a conversation
    of `prompt` and an answer to it, which is judged by the criteria in `rubrics`.

    The answer is the text in the column `source.text_field`, else in `completion`. If the first row has neither, it is
    the physicians' ideal completion, and rows that have none are left out. Criteria lose their tags.
    """

    def __init__(self, source: ItemSource, table: Table) -> None:
        self._source, self._table = source, table
        names = (source.text_field, "completion")
        self._answers = next((name for name in names if name is not None and name in table.columns), None)
        fields = (source.id_field, source.messages_field, source.criteria_field)
        self.columns = [*table.columns, *(name for name in fields if name is not None)]
        self.closed = table.closed
        self.left_out = 0
        """The rows without an answer that were met so far."""

    @staticmethod
    def is_form_of(source: ItemSource, table: Table) -> bool:
        """Return whether a table has this form in its first row, and none of the columns that items have otherwise."""
        columns = {source.messages_field, source.criteria_field}
        if None in columns or not columns.isdisjoint(table.columns) or not set(table.columns) >= _RUBRIC_COLUMNS:
            return False
        first = next(table.rows(None), None)
        return first is not None and isinstance(first.fields["rubrics"], list)

    def rows(self, cursor: Cursor | None) -> Iterator[Row]:
        """Yield the rows that are judged. They are numbered by themselves, and the last one is marked as the last."""
        number = cursor["judged"] if cursor else 1
        ahead: Row | None = None
        for row in self._table.rows(cursor):
            fields = self._item_fields(row)
            if fields is None:
                self.left_out += 1
                continue
            if ahead is not None:
                yield ahead
            after = row.next and {**row.next, "judged": number + 1}
            ahead = Row(number, row.place, fields, after)
            number += 1
        if ahead is not None:
            yield Row(ahead.number, ahead.place, ahead.fields, None)

    def count(self, most: int | None) -> int:
        return sum(1 for _ in islice(self.rows(None), most))

    def _item_fields(self, row: Row) -> dict[str, Any] | None:
        """Return the fields of a row's item and its metadata; None if it has no answer."""
        source, fields = self._source, dict(row.fields)
        ideal = fields.pop("ideal_completions_data", None)
        ideal = ideal if isinstance(ideal, dict) else {}
        completion = fields.pop(self._answers, None) if self._answers is not None else ideal.get("ideal_completion")
        if self._answers is None:
            if completion is None:
                return None
            fields["ideal_completions_group"] = ideal.get("ideal_completions_group")
        prompt, rubrics = fields.pop("prompt", None), fields.pop("rubrics", None)
        for name, value, holds in (("prompt", prompt, "messages"), ("rubrics", rubrics, "criteria with points")):
            if not isinstance(value, list) or not value or not all(isinstance(entry, dict) for entry in value):
                raise DatasetError(
                    source.path, f"{name}: must be a list of {holds}, got {quoted(value)}", place=row.place
                )
        if not isinstance(completion, str) or not completion.strip():
            name = self._answers or "ideal_completions_data.ideal_completion"
            raise DatasetError(
                source.path, f"{name}: must be text, not blank, got {quoted(completion)}", place=row.place
            )
        if source.id_field not in fields:
            fields[source.id_field] = fields.pop("prompt_id", None)
        fields[str(source.messages_field)] = [*prompt, {"role": "assistant", "content": completion}]
        fields[str(source.criteria_field)] = [
            {("text" if name == "criterion" else name): value for name, value in entry.items() if name != "tags"}
            for entry in rubrics
        ]
        return fields


_RUBRIC_COLUMNS = {"prompt_id", "prompt", "rubrics"}


def _writable(fields: dict[str, object]) -> bool:
    try:
        orjson.dumps(fields)
    except orjson.JSONEncodeError:
        return False
    return True


def _separator_of(header: bytes) -> str:
    if b"," in header:
        return ","
    return max(";\t", key=lambda separator: header.count(separator.encode())) if _OTHERS.search(header) else ","


def _is_line_end(line: bytes) -> bool:
    return line in {b"\n", b"\r\n"}


def _at(lines: _Lines, row: int) -> Cursor:
    return {"at": lines.at, "line": lines.number, "row": row}


Kind = Literal["jsonl", "csv", "tsv", "parquet"]

ENDINGS: dict[str, Kind] = {
    ".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".tsv": "tsv", ".parquet": "parquet", ".pq": "parquet"
}  # fmt: skip
HEAD_BYTES = 512

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)\})")
_PACKED = {
    b"\x1f\x8b": "is compressed with gzip: unpack it first (gunzip)",
    b"\x28\xb5\x2f\xfd": "is compressed with zstd: unpack it first (unzstd)",
    b"BZh": "is compressed with bzip2: unpack it first (bunzip2)",
    b"\xfd7zXZ\x00": "is compressed with xz: unpack it first (unxz)",
    b"PK\x03\x04": "is a ZIP archive or an Excel workbook: unpack it, or save the sheet as CSV",
    b"\xd0\xcf\x11\xe0": "is an Excel workbook: save the sheet as CSV",
    b"%PDF": "is a PDF, and holds no records",
    b"SQLite format 3\x00": "is a SQLite database: export the table as CSV",
}


def located(path: str, folder: Path) -> str:
    """Return the absolute path that is meant: `~` and `$NAME` are expanded, a relative path starts at `folder`.

    A file that literally has this name is used as it is. Raises `DatasetError` for a URL or a variable that is not set.
    """
    plain = folder / path
    if "\0" in path:
        raise DatasetError(path, "is no path")
    if _URL.match(path):
        raise DatasetError(path, "is a URL, and items are read from files: download it, and name the file")
    if os.path.lexists(plain):
        return str(plain)
    unset = next((name for pair in _VARIABLE.findall(path) for name in pair if name and name not in os.environ), None)
    if unset is not None:
        raise DatasetError(path, f"the variable {unset} is not set")
    return str(folder / os.path.expanduser(os.path.expandvars(path)))  # noqa: PTH111  (Path's raises where no home is)


def kind_of(source: ItemSource) -> Kind:
    """Return the format that the job names, or that the file's ending means.

    Raises `DatasetError` for a file that is known to be something else, OSError for one that cannot be read.
    """
    path = Path(source.path)
    kind = source.format or ENDINGS.get(path.suffix.lower())
    with path.open("rb") as file:
        head = file.read(HEAD_BYTES)
    packed = next((message for magic, message in _PACKED.items() if head.startswith(magic)), None)
    if packed is not None:
        raise DatasetError(source.path, packed)
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise DatasetError(source.path, "is UTF-16: save it as UTF-8")
    if head.startswith(b"PAR1") and kind != "parquet":
        raise DatasetError(source.path, "is a Parquet file: end its name in .parquet, or say format: parquet")
    if kind in (None, "jsonl") and head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"["):
        raise DatasetError(
            source.path, "holds a JSON array: write one object a line (jq -c '.[]' FILE.json > FILE.jsonl)"
        )
    if kind is None and path.suffix.lower() == ".json":
        raise DatasetError(source.path, "ends in .json: one object a line is JSONL, so end it in .jsonl")
    if kind is None:
        raise DatasetError(
            source.path,
            f"has none of the endings {', '.join(ENDINGS)}: say its format, items: {{path: ..., format: csv}}",
        )
    return kind
