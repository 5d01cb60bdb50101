"""Export of a finished job's opinions as CSV, JSON lines or Parquet."""

from __future__ import annotations

import csv
import io
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, Literal, get_args

import orjson

from dicast.app.domain.opinion import Opinion
from dicast.app.domain.text import cell
from dicast.app.reports.columns import COLUMNS, as_text, kept_columns
from dicast.app.reports.files import read_opinions, read_report
from dicast.app.reports.folders import job_folder, replacing

Format = Literal["csv", "jsonl", "parquet"]


def export(results_dir: str | Path, job_id: str, format: Format, out: str | Path) -> Path:
    """Write the opinions of a finished job to the file `out`, whole or not at all, and return its path. Opinions on
    variants of items, which were judged for probes, are left out.

    CSV is meant for spreadsheets: all cells are quoted, `cited_evidence` and `answers` are JSON lists, a missing score
    is an empty cell, and a text that a spreadsheet would run as a formula gets a leading apostrophe. Use JSONL or
    Parquet where texts must stay exact. Raises `NoResults`, ValueError for another format, OSError.
    """
    if format not in get_args(Format):
        raise ValueError(f"format must be one of {', '.join(get_args(Format))}, got {format!r}")
    out, report = Path(out), read_report(results_dir, job_id)
    with replacing(out, private=False) as file:
        if format == "csv":
            _write_csv(file, read_opinions(results_dir, job_id), report.keep)
        else:
            # Only the name counts: the folder may have been copied from another machine.
            written = Path(report.files.opinions_jsonl if format == "jsonl" else report.files.opinions_parquet)
            source = job_folder(results_dir, job_id) / written.name
            with source.open("rb") as lines:
                if format == "jsonl" and report.probed:
                    file.writelines(line for line in lines if orjson.loads(line).get("probe") is None)
                else:
                    shutil.copyfileobj(lines, file, 1 << 20)
    return out


def _write_csv(file: IO[bytes], opinions: Iterable[Opinion], keep: Sequence[str]) -> None:
    text = io.TextIOWrapper(file, encoding="utf-8", newline="")
    metadata_columns = dict(zip(kept_columns(keep), keep, strict=True))
    rows = csv.DictWriter(text, [*COLUMNS.names, *metadata_columns], quoting=csv.QUOTE_ALL)
    rows.writeheader()
    for opinion in opinions:
        row = {**dict(opinion), **dict(opinion.usage)}
        del row["usage"], row["metadata"]
        row |= {column: as_text(opinion.metadata.get(name)) for column, name in metadata_columns.items()}
        row["cited_evidence"] = orjson.dumps(opinion.cited_evidence).decode()
        row["answers"] = None if opinion.answers is None else orjson.dumps(opinion.answers).decode()
        rows.writerow({k: cell(v) if isinstance(v, str) else v for k, v in row.items()})
    text.flush()
    text.detach()
