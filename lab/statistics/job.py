"""What a job's statistics take, on a job made by hand. `python -m lab.statistics.job --items 83334 --rated 1000`

A job's folder is written as its worker would write it: planted judges (`lab.statistics.simulated`) on all items, three
people on some, four systems. Its statistics are then computed as `dicast report` does; making the job does not count.
With `--folder` the job stays there, to be looked at: `dicast report FOLDER/planted`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

import numpy as np

from dicast.app.domain.item import Rating
from dicast.app.domain.opinion import Opinion, Usage
from dicast.app.domain.report import Report, ReportAgent, ReportDimension, ReportHeader
from dicast.app.reports import files
from dicast.app.reports.folders import begin, job_folder
from dicast.app.reports.statistics import compute
from dicast.app.reports.stored_items import write_ratings
from lab.statistics import simulated
from lab.statistics.simulated import Drawn, RatingWorld
from lab.statistics.speed import peak_mb

JOB, INCARNATION = "planted", "lab"
JUDGES, PEOPLE = {"strict": -0.5, "kind": 0.5, "sharp": 0.0}, ("ada", "ben", "cleo")
SYSTEMS = "abcd"
PAGE = 50_000
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def make(root: Path, items: int, dimensions: int, rated: int, seed: int) -> tuple[Path, Report]:
    """The folder and report of a finished job of so many items, of which people have rated some."""
    rng = np.random.default_rng(seed)
    drawn = [simulated.draw(RatingWorld(bias=tuple(JUDGES.values())), items, rng) for _ in range(dimensions)]
    names = [f"dimension-{at}" for at in range(dimensions)]
    begin(root, JOB, INCARNATION)
    found, page = _opinions(drawn, names, items), 0
    while together := list(islice(found, PAGE)):
        files.write_page(root, JOB, INCARNATION, "0", page, together, [])
        page += 1
    chosen = np.sort(rng.choice(items, rated, replace=False)).tolist()
    write_ratings(root, JOB, INCARNATION, _ratings(drawn, names, chosen))
    header = ReportHeader(
        job_id=JOB, project="lab", status="completed", units=items * dimensions * len(JUDGES), started=NOW,
        finished=NOW, wall_s=0.0, agents=[ReportAgent(name=name) for name in JUDGES],
        dimensions=[ReportDimension(id=name, scale_min=1, scale_max=5) for name in names],
        keep=["system"], groups=["system"], rated=True,
    )  # fmt: skip
    return job_folder(root, JOB), files.finish(root, JOB, INCARNATION, header)


def _opinions(drawn: list[Drawn], names: list[str], items: int) -> Iterator[Opinion]:
    for item in range(items):
        for name, of in zip(names, drawn, strict=True):
            for judge, score in zip(JUDGES, of.judges[item].tolist(), strict=True):
                yield Opinion.model_construct(
                    judge=judge, criterion_id=name, item_id=f"item-{item}", replicate=0, score=int(score),
                    argument="planted", cited_evidence=[], model="planted", usage=Usage(), latency_s=0.0, attempts=1,
                    metadata={"system": SYSTEMS[item % len(SYSTEMS)]},
                )  # fmt: skip


def _ratings(drawn: list[Drawn], names: list[str], chosen: list[int]) -> Iterator[Rating]:
    for item in chosen:
        for name, of in zip(names, drawn, strict=True):
            for person, score in zip(PEOPLE, of.people[item].tolist(), strict=True):
                if not np.isnan(score):
                    yield Rating(f"item-{item}", name, person, score)


def main() -> int:
    parser = argparse.ArgumentParser(description="How long the statistics of a job take.")
    parser.add_argument("--items", type=int, default=1200, help="items (1200)")
    parser.add_argument("--dimensions", type=int, default=4, help="dimensions (4)")
    parser.add_argument("--rated", type=int, default=200, help="items that people rated (200)")
    parser.add_argument("--seed", type=int, default=1, help="where chance starts (1)")
    parser.add_argument("--folder", help="results folder in which the job stays")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(given.folder or folder)
        root.mkdir(parents=True, exist_ok=True)
        place, report = make(root, given.items, given.dimensions, given.rated, given.seed)
        started, worked = time.monotonic(), time.process_time()
        compute(place, report)
        seconds, cpu = time.monotonic() - started, time.process_time() - worked
    sys.stdout.write(
        f"{report.scored:,} opinions: {seconds:.1f} s ({cpu:.1f} s of CPU time), at most {peak_mb():.0f} MB\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
