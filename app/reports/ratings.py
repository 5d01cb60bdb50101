"""People's ratings, stored in the job's folder.

<results>/<job>/ratings.jsonl             one `Rating` a line: those that the job was started with, and those that
                                          were added after it ended
<results>/<job>/ratings.submitted.jsonl   the former alone, once any were added; empty if there were none
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson

from dicast.app.domain.rating import Rating
from dicast.app.reports.durable import replacing
from dicast.app.reports.folders import own_folder

RATINGS = "ratings.jsonl"
SUBMITTED = "ratings.submitted.jsonl"


@dataclass(frozen=True, slots=True)
class RatingsChange:
    """The complete ratings that a job is to have. With `added`, some were added after the job ended, and those that
    it was started with are stored separately; otherwise these are all."""

    ratings: Sequence[Rating]
    added: bool

    def apply(self, folder: Path) -> None:
        """Write the ratings into a folder that the caller is `changing` (files.py). Raises OSError."""
        if self.added and not (folder / SUBMITTED).exists():
            _write(folder / SUBMITTED, read_ratings(folder))
        if self.ratings:
            _write(folder / RATINGS, self.ratings)
        else:
            (folder / RATINGS).unlink(missing_ok=True)
        if not self.added:
            (folder / SUBMITTED).unlink(missing_ok=True)


def keeps_ratings(results_dir: str | Path, job_id: str, incarnation: str) -> bool:
    """Return whether the job has ratings."""
    return (own_folder(results_dir, job_id, incarnation) / RATINGS).exists()


def write_ratings(results_dir: str | Path, job_id: str, incarnation: str, ratings: Iterable[Rating]) -> None:
    """Write the ratings, all or none; only one at a time is in memory."""
    _write(own_folder(results_dir, job_id, incarnation) / RATINGS, ratings)


def _write(path: Path, ratings: Iterable[Rating]) -> None:
    with replacing(path) as file:
        file.writelines(orjson.dumps(rating) + b"\n" for rating in ratings)


def submitted_ratings(folder: Path) -> list[Rating] | None:
    """Return the ratings that the job was started with if others were added since, else None."""
    return list(read_ratings(folder, SUBMITTED)) if (folder / SUBMITTED).exists() else None


def read_ratings(folder: Path, name: str = RATINGS) -> Iterator[Rating]:
    """Yield the ratings in a job's folder; none if there is no such file."""
    try:
        with (folder / name).open("rb") as file:
            for line in file:
                yield Rating(**orjson.loads(line))
    except FileNotFoundError:
        return
