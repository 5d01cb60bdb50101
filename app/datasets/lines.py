"""JSONL, CSV and TSV, entered at any record by its byte offset."""

from __future__ import annotations

import codecs
import csv
import re
from collections.abc import Callable, Iterator
from typing import BinaryIO

import orjson

from dicast.app.datasets.errors import DatasetError, quoted
from dicast.app.datasets.rows import Cursor, Row

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
    """One JSON object per line."""

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
