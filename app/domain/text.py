"""Untrusted text made safe, and the field types that jobs are made of, each with its validation.

`clean` makes a text safe to store, `excerpt` to log, `printable` to show on a terminal, and `cell` to write into a
spreadsheet.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar

import orjson
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, JsonValue, StringConstraints

_LINE_END = re.compile(r"\r\n?")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_REPLACEMENT = "\ufffd"


def clean(text: str) -> str:
    """Return `text` without what a store, JSON, Parquet or a terminal could choke on.

    Lone surrogates become U+FFFD, line ends become LF, control characters other than tab and LF are dropped. The result
    encodes to UTF-8, and cleaning it again changes nothing.
    """
    return _CONTROL.sub("", _LINE_END.sub("\n", _SURROGATE.sub(_REPLACEMENT, text)))


def excerpt(text: str, limit: int) -> str:
    """Return `text` as one line for a log: unprintable characters escaped, cut to about `limit` characters with a
    note."""
    head = "".join(char if char.isprintable() else _escaped_match(char) for char in text[:limit])
    if len(head) <= limit and len(text) <= limit:
        return head
    return f"{head[:limit]}... ({len(text)} characters)"


def _escaped_match(char: str) -> str:
    code = ord(char)
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


_INVISIBLE = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
# A spreadsheet may skip what stands before the sign, and reads the full-width signs as the plain ones.
_FORMULA = re.compile(r"[\s\x00-\x1f\u200b-\u200f\ufeff]*[=+\-@\uff1d\uff0b\uff0d\uff20]|[\t\r\n]")


def printable(text: str, limit: int | None = None, ellipsis: str = "…") -> str:
    """Return one line that neither moves the cursor nor reorders what is read.

    Control, format and surrogate characters and line separators are shown as `\\xNN` or `\\uNNNN`. `limit` is the most
    characters shown; what is cut ends in `ellipsis`.
    """
    if limit is not None and len(text) > 4 * limit:
        text = text[: 4 * limit]  # what follows cannot be shown, so it need not be looked at
    if not (text.isascii() and text.isprintable()):
        text = "".join(_escaped(c) if unicodedata.category(c) in _INVISIBLE else c for c in text)
    return text if limit is None or len(text) <= limit else text[: max(0, limit - len(ellipsis))] + ellipsis


def _escaped(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")


def cell(text: str) -> str:
    """Return a text that no spreadsheet takes for a formula: a risky one gets a leading apostrophe."""
    return f"'{text}" if _FORMULA.match(text) else text


def counted(value: int, singular: str, plural: str | None = None) -> str:
    """Format a count as `1 judge` or `1,200 judges`."""
    return f"{value:,} {singular if value == 1 else plural or singular + 's'}"


def percent(share: float, places: int = 0) -> str:
    """Format a share as `42 %`."""
    return f"{100 * share:.{places}f} %"


def joined(parts: Sequence[str]) -> str:
    """Join parts as `a`, `a and b` or `a, b and c`."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}" if parts else ""


def first_few(names: Iterable[str], most: int) -> str:
    """Join the first names as `a, b and 3 more`."""
    listed = list(names)
    more = len(listed) - most
    return ", ".join(listed[:most]) + (f" and {more} more" if more > 0 else "")


MAX_ID_LENGTH = 200
MAX_JOB_ID_LENGTH = 128

_JOB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?", re.ASCII)
_POOL_NAME = re.compile(r"[A-Za-z0-9._:-]*")


def printable_text(value: str) -> str:
    """Validate an id, which is shown in logs, tables and pages: no control, format or surrogate characters."""
    for char in value:
        if unicodedata.category(char) in {"Cc", "Cf", "Cs", "Co", "Cn"}:
            raise ValueError(f"contains the unprintable character U+{ord(char):04X}")
    if value != value.strip():
        raise ValueError("starts or ends with white space")
    return value


def _id_as_text(value: Any) -> Any:
    """Convert a whole number to text: item files number their rows, and YAML reads `id: 1` as a number."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _version_as_text(value: Any) -> Any:
    """Convert a number to text: YAML reads `version: 1` and `version: 2.1` as numbers."""
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def _not_blank(value: str) -> str:
    if value.isspace():
        raise ValueError("must not be blank")
    return value


def _job_id(value: str) -> str:
    """Validate a job id, which names a folder and a Celery task and so has a closed alphabet."""
    if not _JOB_ID.fullmatch(value):
        raise ValueError("may hold only letters, digits, '.', '_' and '-', and starts with a letter or digit")
    return value


def _pool_name(value: str) -> str:
    if not _POOL_NAME.fullmatch(value):
        raise ValueError("names a pool, so it may hold only letters, digits, '.', '_', ':' and '-'")
    return value


def _label(value: str) -> str:
    if not _LABEL.fullmatch(value):
        raise ValueError(
            "may hold only letters, digits, '.', '_', '/' and '-', at most 63, and none of these at its ends"
        )
    return value


def _writable(value: dict[str, Any]) -> dict[str, Any]:
    """Reject what JSON cannot express, which would otherwise fail only when the job is stored."""
    try:
        orjson.dumps(value)
    except TypeError as error:  # half a character, a whole number of more than 64 bits, or deeper than 254
        raise ValueError(f"cannot be written as JSON: {str(error).lower()}") from None
    return value


Id = Annotated[
    str,
    StringConstraints(min_length=1, max_length=MAX_ID_LENGTH),
    BeforeValidator(_id_as_text),
    AfterValidator(printable_text),
]
JobId = Annotated[
    str,
    StringConstraints(min_length=1, max_length=MAX_JOB_ID_LENGTH),
    BeforeValidator(_id_as_text),
    AfterValidator(_job_id),
]
Text = Annotated[str, StringConstraints(min_length=1), AfterValidator(_not_blank)]
Metadata = Annotated[dict[str, JsonValue], AfterValidator(_writable)]
MetadataName = Annotated[str, StringConstraints(min_length=1, max_length=MAX_ID_LENGTH), AfterValidator(printable_text)]
Version = Annotated[
    str, StringConstraints(max_length=50), BeforeValidator(_version_as_text), AfterValidator(printable_text)
]
LabelText = Annotated[str, AfterValidator(_label)]
PoolName = Annotated[str, StringConstraints(max_length=100), AfterValidator(_pool_name)]


class Strict(BaseModel):
    model_config = ConfigDict(defer_build=True, extra="forbid", frozen=True, strict=True)


ABSENT: Any = None
"""None as the default of a field that is annotated with `Accepts`, which a type checker does not take None for."""

if TYPE_CHECKING:
    Held_co = TypeVar("Held_co", covariant=True)
    Given_contra = TypeVar("Given_contra", contravariant=True)

    class Accepts(Generic[Held_co, Given_contra]):
        """The annotation of a field that holds the first type and accepts the second, which validators convert.

        Type checkers take the value of `__set__` for the parameter of the model's `__init__`, with and without
        pydantic's plugin for mypy, which needs this class in another module than the model. Pydantic sees what is held
        alone.
        """

        def __get__(self, instance: object, owner: type[object] | None = None) -> Held_co: ...

        def __set__(self, instance: object, value: Given_contra) -> None: ...

else:

    class Accepts:
        def __class_getitem__(cls, types: tuple[Any, Any]) -> Any:
            return types[0]
