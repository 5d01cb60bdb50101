"""Which file a job means, and its format. An unreadable file is reported with what to do about it."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Literal

from dicast.app.datasets.errors import DatasetError
from dicast.app.domain.item import ItemSource

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
    packed = next((said for magic, said in _PACKED.items() if head.startswith(magic)), None)
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
