"""Reports of made-up jobs, one of each kind: `python -m lab.gallery FOLDER` writes them.

What judges say is drawn from a planted quality, and what people say from the same, so that a report can be held against
the truth. `python -m lab.pictures` takes pictures of them. Files are written as workers write them, and statistics,
conclusions and HTML are the product's own.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from dicast.app.domain.item import Item, Rating
from dicast.app.domain.job import EvaluationJob
from dicast.app.domain.opinion import ErrorKind, EvaluationError, Opinion, Usage
from dicast.app.domain.report import ReportAgent, ReportDimension, ReportHeader
from dicast.app.reports import files
from dicast.app.reports.folders import begin, job_folder
from dicast.app.reports.html.page import write_own_page
from dicast.app.reports.statistics import evaluated
from dicast.app.reports.stored_items import write_items, write_ratings

INCARNATION = "lab"
NOW = datetime(2026, 1, 1, tzinfo=UTC)
JUDGES, PEOPLE = ("strict", "kind", "sharp"), ("ada", "ben", "cleo", "dan")
STRENGTHS = {"new-model": 2.4, "old-model": 0.6, "small-model": -2.0}
TOPICS = ["billing", "delivery", "login", "other"]
Score = Callable[[Item, str, np.random.Generator], int | None]


def main() -> int:
    """Write all reports into a folder."""
    parser = argparse.ArgumentParser(description="Write a report of each kind of job.")
    parser.add_argument("folder", type=Path, help="where the results go")
    for page in write(parser.parse_args().folder):
        sys.stdout.write(f"{page}\n")
    return 0


def write(root: Path) -> Iterator[Path]:
    """Write a report of each kind, and yield the HTML files."""
    root.mkdir(parents=True, exist_ok=True)
    for job, score, rated in (_pairs(), _labels(), _failed()):
        yield _written(root, EvaluationJob.model_validate(job), score, rated)


def _pairs() -> tuple[dict[str, Any], Score, int]:
    """Return pairs of three models' answers, the better one of which each judge names."""
    names = list(STRENGTHS)
    items = [
        {
            "id": f"question-{n:03}", "text_a": "One answer.", "text_b": "Another answer.", "prompt": f"Question {n}?",
            "metadata": {"candidate_a": names[n % 3], "candidate_b": names[(n + 1 + n % 2) % 3]},
        }
        for n in range(240)
    ]  # fmt: skip
    better = {"id": "better", "name": "Better answer", "instructions": "Which answers better?", "scale": "preference"}

    def score(item: Item, judge: str, rng: np.random.Generator) -> int:
        first, second = (STRENGTHS[str(item.metadata[key])] for key in ("candidate_a", "candidate_b"))
        return 1 if rng.logistic(first - second) > 0 else -1

    keep = ["candidate_a", "candidate_b"]
    return _job("which-model", [better], items, keep=keep, orders="given"), score, 60


def _labels() -> tuple[dict[str, Any], Score, int]:
    """Return requests to be sorted by topic, of which the judges see most as people do."""
    items = [{"id": f"request-{n:03}", "text": f"Request {n}.", "metadata": {}} for n in range(300)]
    scale = {"labels": TOPICS, "ordered": False}
    topic = {"id": "topic", "name": "Topic", "instructions": "What is the request about?", "scale": scale}

    def score(item: Item, judge: str, rng: np.random.Generator) -> int:
        number = int(item.id[-3:])
        truth = 0 if number % 20 < 9 else 1 if number % 20 < 15 else 2 if number % 20 < 18 else 3
        return truth if rng.random() < 0.85 else int(rng.integers(len(TOPICS)))

    return _job("topics", [topic], items), score, 90


def _failed() -> tuple[dict[str, Any], Score, int]:
    """Return a job of which nothing has a score, as the account had no money left."""
    items = [{"id": f"answer-{n:03}", "text": f"Answer {n}.", "metadata": {}} for n in range(40)]
    clear = {"id": "clear", "name": "Clear", "instructions": "Is it clear?", "scale": {"min": 1, "max": 5}}
    return _job("nothing-judged", [clear], items), lambda *_: None, 0


def _job(name: str, dimensions: list[Any], items: list[Any], **more: Any) -> dict[str, Any]:
    agents = [{"name": judge, "model": f"{judge}-1"} for judge in JUDGES]
    return {"id": name, "agents": agents, "dimensions": dimensions, "items": items, **more}


def _written(root: Path, job: EvaluationJob, score: Score, rated: int) -> Path:
    """Write a job's results with its report, and return the HTML file."""
    rng, name = np.random.default_rng(4), job.id or ""
    assert isinstance(job.items, list)
    begin(root, name, INCARNATION)
    opinions = [
        Opinion(
            judge=judge, criterion_id=dimension.id, item_id=item.id, replicate=0, score=score(item, judge, rng),
            argument="A made-up argument.", model=f"{judge}-1", usage=Usage(), metadata=item.metadata,
        )
        for item in job.items for judge in JUDGES for dimension in job.dimensions
    ]  # fmt: skip
    files.write_page(root, name, INCARNATION, "0", 0, opinions, [_error(o) for o in opinions if o.score is None])
    write_items(root, name, INCARNATION, [job.items])
    ratings = [
        Rating(item.id, dimension.id, person, float(score(item, person, rng) or 0))
        for item in rng.permutation(np.array(job.items, object))[:rated]
        for person in PEOPLE for dimension in job.dimensions
    ]  # fmt: skip
    if ratings:
        write_ratings(root, name, INCARNATION, ratings)
    header = ReportHeader(
        job_id=name, project="gallery", status="completed", units=len(opinions), started=NOW,
        finished=NOW + timedelta(seconds=90), wall_s=90.0, calls=len(opinions),
        agents=[ReportAgent.from_agent(agent) for agent in job.agents], keep=job.keep, orders=job.orders,
        dimensions=[ReportDimension.from_dimension(d, job.panel_of(d)) for d in job.dimensions], rated=bool(ratings),
    )  # fmt: skip
    report, folder = files.finish(root, name, INCARNATION, header), job_folder(root, name)
    return write_own_page(folder, files.keep_report(folder, report, evaluated(folder, report)))


def _error(opinion: Opinion) -> EvaluationError:
    return EvaluationError(
        judge=opinion.judge, criterion_id=opinion.criterion_id, item_id=opinion.item_id, replicate=0,
        kind=ErrorKind.QUOTA_EXHAUSTED, message="You exceeded your current quota", status_code=429,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
