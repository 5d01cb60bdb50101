"""People's ratings, kept in the job's folder.

<results>/<job>/ratings.jsonl     one `Rating` a line, as they were when the job was started
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import orjson

from dicast.app.domain.rating import Rating
from dicast.app.reports.durable import replacing
from dicast.app.reports.folders import own_folder

RATINGS = "ratings.jsonl"


def keeps_ratings(results_dir: str | Path, job_id: str, incarnation: str) -> bool:
    """Whether they are there."""
    return (own_folder(results_dir, job_id, incarnation) / RATINGS).exists()


def write_ratings(results_dir: str | Path, job_id: str, incarnation: str, ratings: Iterable[Rating]) -> None:
    """Keep them, all or none; one at a time is in memory."""
    with replacing(own_folder(results_dir, job_id, incarnation) / RATINGS) as file:
        file.writelines(orjson.dumps(rating) + b"\n" for rating in ratings)


def read_ratings(folder: Path) -> Iterator[Rating]:
    """Those that a job's folder holds, none if there is no such file."""
    try:
        with (folder / RATINGS).open("rb") as file:
            for line in file:
                yield Rating(**orjson.loads(line))
    except FileNotFoundError:
        return
