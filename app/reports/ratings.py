"""People's ratings, kept in the job's folder.

<results>/<job>/ratings.jsonl             one `Rating` a line: those that the job was started with, and those that
                                          were added since it has ended
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
    """What the ratings of a job are to be, all of them. `added`: some have come since the job has ended, and those it
    was started with are to be kept apart; else they are all there is."""

    ratings: Sequence[Rating]
    added: bool

    def apply(self, folder: Path) -> None:
        """For who is `changing` the folder (files.py). Raises OSError."""
        if self.added and not (folder / SUBMITTED).exists():
            _write(folder / SUBMITTED, read_ratings(folder))
        if self.ratings:
            _write(folder / RATINGS, self.ratings)
        else:
            (folder / RATINGS).unlink(missing_ok=True)
        if not self.added:
            (folder / SUBMITTED).unlink(missing_ok=True)


def keeps_ratings(results_dir: str | Path, job_id: str, incarnation: str) -> bool:
    """Whether they are there."""
    return (own_folder(results_dir, job_id, incarnation) / RATINGS).exists()


def write_ratings(results_dir: str | Path, job_id: str, incarnation: str, ratings: Iterable[Rating]) -> None:
    """Keep them, all or none; one at a time is in memory."""
    _write(own_folder(results_dir, job_id, incarnation) / RATINGS, ratings)


def _write(path: Path, ratings: Iterable[Rating]) -> None:
    with replacing(path) as file:
        file.writelines(orjson.dumps(rating) + b"\n" for rating in ratings)


def submitted_ratings(folder: Path) -> list[Rating] | None:
    """Those that the job was started with, if others were added since; else None."""
    return list(read_ratings(folder, SUBMITTED)) if (folder / SUBMITTED).exists() else None


def read_ratings(folder: Path, name: str = RATINGS) -> Iterator[Rating]:
    """Those that a job's folder holds, none if there is no such file."""
    try:
        with (folder / name).open("rb") as file:
            for line in file:
                yield Rating(**orjson.loads(line))
    except FileNotFoundError:
        return
