"""A row of a file, whatever its format, and the item that it stands for."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from pydantic import ValidationError

from dicast.app.datasets.errors import DatasetError, quoted
from dicast.app.domain.item import Item, ItemSource
from dicast.app.refusals import problem

Cursor = dict[str, int]
"""Where reading goes on. JSONL and CSV: byte `at`, `line` and `row` of the next record. Parquet: its `row`."""


@dataclass(frozen=True, slots=True)
class Row:
    """One record. `number` counts records from 1; `place` names it in messages; `next` is None behind the last."""

    number: int
    place: str
    fields: dict[str, Any]
    next: Cursor | None


class Table(Protocol):
    """An open file of records."""

    @property
    def columns(self) -> Collection[str]:
        """Names of the fields; for JSONL those of the first object, and later ones may have others."""
        ...

    @property
    def closed(self) -> bool:
        """Whether every record has all columns and no others."""
        ...

    def rows(self, cursor: Cursor | None) -> Iterator[Row]:
        """Records from `cursor` (None: the first) to the end."""
        ...

    def count(self, most: int | None) -> int:
        """Number of records, counted no further than `most`."""
        ...


class ItemReader:
    """Turns rows of one table into items, by the names in the job's source."""

    def __init__(self, source: ItemSource, table: Table) -> None:
        defaults = ItemSource.model_fields
        self._source = source
        self.numbered = source.id_field not in table.columns and source.id_field == defaults["id_field"].default
        names = {"id_field": source.id_field, "text_field": source.text_field}
        for setting in ("prompt_field", "reference_field"):
            name = getattr(source, setting)
            if name is not None and name != defaults[setting].default:
                names[setting] = name
        for setting, name in names.items():
            if table.closed and name not in table.columns and not (setting == "id_field" and self.numbered):
                known = ", ".join(quoted(column) for column in table.columns) or "none"
                raise DatasetError(source.path, f"{setting}: no column {quoted(name)}; the columns are {known}")

    def item(self, row: Row) -> Item:
        """Raises `DatasetError` if the row is none."""
        source = self._source
        fields = dict(row.fields)
        if not self.numbered:
            item_id = self._id(row, fields.pop(source.id_field, None))
        elif source.id_field in fields:
            raise self._wrong(row, source.id_field, "was absent in the first row", fields[source.id_field])
        else:
            item_id = str(row.number)
        text = self._text(row, fields, source.text_field)
        if not text or text.isspace():
            raise self._wrong(row, source.text_field, "must be text, not blank", row.fields.get(source.text_field))
        prompt = self._text(row, fields, source.prompt_field)
        reference = self._text(row, fields, source.reference_field)
        try:
            return Item(id=item_id, text=text, prompt=prompt or None, reference=reference or None, metadata=fields)
        except ValidationError as error:
            detail = error.errors()[0]
            named = {"id": source.id_field, "text": source.text_field}
            field = str(detail["loc"][0])
            raise DatasetError(source.path, f"{named.get(field, field)}: {problem(detail)}", place=row.place) from None

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
