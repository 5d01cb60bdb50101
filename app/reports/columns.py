"""A job's opinions as typed columns of a Parquet file.

This is a module of its own because pyarrow takes long to load and much memory: a process that only judges never loads
it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import IO, Any, Self

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json
import pyarrow.parquet

_ROW_GROUP_BYTES = 2 * 1024 * 1024
"""Of JSON, some thousands of rows. pyarrow holds each piece several times over."""
_LINES = pa.schema(
    [
        ("judge", pa.string()),
        ("criterion_id", pa.string()),
        ("item_id", pa.string()),
        ("replicate", pa.int32()),
        ("swapped", pa.bool_()),
        ("score", pa.int64()),
        ("label", pa.string()),
        ("answers", pa.list_(pa.bool_())),
        ("argument", pa.string()),
        ("cited_evidence", pa.list_(pa.string())),
        ("model", pa.string()),
        ("system_fingerprint", pa.string()),
        ("pool", pa.string()),
        ("usage", pa.struct([("input_tokens", pa.int64()), ("output_tokens", pa.int64())])),
        ("latency_s", pa.float64()),
        ("attempts", pa.int32()),
        ("not_needed", pa.bool_()),
        ("probe", pa.string()),
        ("dissent", pa.string()),
        ("cached", pa.string()),
        ("answer_score", pa.int64()),
        ("attained", pa.list_(pa.float64())),
    ]
)


def _flat(table: pa.Table) -> pa.Table:
    table = table.flatten()
    return table.rename_columns([name.removeprefix("usage.") for name in table.column_names])


def _with_defaults(table: pa.Table) -> pa.Table:
    """Fill in the values that opinions write to JSON only where they are true."""
    at = table.column_names.index("not_needed")
    flags = table.column(at)
    # False where nothing is told. `fill_null` would do, but makes a scalar, and for that pyarrow loads pandas.
    return table.set_column(at, table.schema.field(at), pc.and_kleene(flags.is_valid(), flags))


COLUMNS: pa.Schema = _flat(pa.Table.from_batches([], _LINES)).schema  # `empty_table` would load pandas
"""The columns of `opinions.parquet`: the fields of `Opinion`, `usage` as input_tokens and output_tokens; behind
them stand those of `kept_columns`. `score` is of whole numbers, but of a job with expected scores."""


def _of_expected(schema: pa.Schema) -> pa.Schema:
    """Return the schema for scores that may lie between whole numbers."""
    return schema.set(schema.get_field_index("score"), pa.field("score", pa.float64()))


def kept_columns(keep: Sequence[str]) -> list[str]:
    """Return the names of the columns of kept metadata. The prefix keeps them apart from the columns of an opinion."""
    return [f"metadata.{name}" for name in keep]


def as_text(value: Any) -> str | None:
    """Return a metadata value as a text column stores it: a text as it is, anything else as JSON."""
    return value if value is None or isinstance(value, str) else orjson.dumps(value).decode()


class Columns:
    """Turns lines of JSON into row groups of a Parquet file, and buffers at most one row group. `keep` names the
    metadata that get columns of their own; `expected` says that scores may lie between whole numbers."""

    def __init__(self, file: IO[bytes], keep: Sequence[str] = (), *, expected: bool = False) -> None:
        self._keep = list(dict.fromkeys(keep))
        metadata = pa.struct([(name, pa.string()) for name in self._keep])
        lines, columns = (_of_expected(schema) if expected else schema for schema in (_LINES, COLUMNS))
        self._lines_schema = lines.append(pa.field("metadata", metadata))
        schema = pa.schema([*columns, *((name, pa.string()) for name in kept_columns(self._keep))])
        self._writer = pa.parquet.ParquetWriter(file, schema, compression="zstd")
        self._lines: list[bytes] = []
        self._bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self._flush()
        self._writer.close()

    def add(self, line: bytes) -> None:
        if self._keep:
            fields = orjson.loads(line)
            metadata = fields.get("metadata", {})
            fields["metadata"] = {name: as_text(metadata.get(name)) for name in self._keep}
            line = orjson.dumps(fields) + b"\n"
        self._lines.append(line)
        self._bytes += len(line)
        if self._bytes >= _ROW_GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if not self._lines:
            return
        table = pa.json.read_json(
            pa.BufferReader(b"".join(self._lines)),
            read_options=pa.json.ReadOptions(use_threads=False, block_size=self._bytes + 1),
            parse_options=pa.json.ParseOptions(explicit_schema=self._lines_schema, unexpected_field_behavior="error"),
        )
        self._writer.write_table(_with_defaults(_flat(table)))
        self._lines, self._bytes = [], 0
