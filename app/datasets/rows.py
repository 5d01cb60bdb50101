"""A row of a file, whatever its format, and the item made of it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import orjson
from pydantic import ValidationError

from dicast.app.datasets.errors import DatasetError, quoted
from dicast.app.domain.item import FORMS, ITEM_RULE, Item, ItemSource
from dicast.app.refusals import field_name, problem

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
        for setting in (*JUDGED_FIELDS, "prompt_field", "reference_field", "images_field"):
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
        try:
            if "messages" in judged:
                judged["judged"] = source.judged
            if images:
                judged["images"] = images
            metadata = self._metadata(row, fields)
            return Item(id=item_id, **judged, prompt=prompt or None, reference=reference or None, metadata=metadata)
        except ValidationError as error:
            detail = error.errors()[0]
            place = [source.id_field if part == "id" else part for part in detail["loc"]]
            said = f"{field_name(place)}: {problem(detail)}" if place else problem(detail)
            raise DatasetError(source.path, said, place=row.place) from None

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
