"""The newest errors of a running job, from the pages that have been gathered so far."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import orjson

from dicast.app.domain.opinion import EvaluationError
from dicast.app.reports.files import PARTS

MOST_PAGES = 50
"""The most pages that are read, newest first."""
MOST_BYTES = 32 * 2**20
"""The most bytes that are read in all."""


def newest_errors(folder: Path, most: int) -> list[EvaluationError]:
    """Return at most `most` errors of the job in a folder, from its newest pages, the last error of the newest page
    first.

    Errors of a page become visible once it is gathered. Pages that disappear in the meantime, as they do when the job
    ends, are skipped.
    """
    errors: list[EvaluationError] = []
    bytes_left = MOST_BYTES
    for path, size in _newest(folder / PARTS)[:MOST_PAGES]:
        bytes_left -= size
        if bytes_left < 0 or len(errors) >= most:
            break
        with suppress(OSError, ValueError, LookupError):
            errors += _errors(path, most - len(errors))
    return errors


def _newest(parts: Path) -> list[tuple[Path, int]]:
    pages: list[tuple[int, str, int]] = []
    for run in _entries(parts):
        for entry in _entries(Path(run.path)) if run.is_dir(follow_symlinks=False) else ():
            with suppress(OSError):
                stat = entry.stat(follow_symlinks=False)
                if entry.name.endswith(".jsonl"):
                    pages.append((stat.st_mtime_ns, entry.path, stat.st_size))
    return [(Path(path), size) for _, path, size in sorted(pages, reverse=True)]


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:
        return []


def _errors(path: Path, most: int) -> list[EvaluationError]:
    """Return the last errors of a page, last first. The page's first line says how many errors it has."""
    with path.open("rb") as file:
        count = min(most, int(orjson.loads(file.readline())["errors"]))
        if count <= 0:
            return []
        lines = file.readlines()
    return [EvaluationError.model_validate_json(line) for line in reversed(lines[-count:])]
