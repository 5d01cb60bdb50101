"""The field types that jobs are made of: ids, texts and metadata, each with its validation."""

from __future__ import annotations

import re
import unicodedata
from typing import Annotated, Any

import orjson
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, JsonValue, StringConstraints

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
