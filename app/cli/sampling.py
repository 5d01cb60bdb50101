"""`dicast sample` writes the file in which people rate a sample of a job's items."""

from __future__ import annotations

from pathlib import Path

from dicast.app import datasets
from dicast.app.cli.console import Terminal
from dicast.app.cli.statistics import finished
from dicast.app.domain.dimension import Dimension
from dicast.app.domain.item import ItemSource
from dicast.app.domain.job import EvaluationJob
from dicast.app.domain.printable import printable
from dicast.app.refusals import validated
from dicast.app.submission.job_file import load_job
from dicast.app.submission.sampling import SampleOptions, write_sample


def sample_job(terminal: Terminal, path: str, to: str, wishes: SampleOptions, disagreement_of: str | None) -> None:
    """Draw the sample, write the file, and say how to fill it in. Raises `NoSample` and what refuses a job."""
    document = load_job(path)
    document.pop("ratings", None)  # often the very file that this makes
    job = validated(document)
    if disagreement_of is not None:
        run = finished(disagreement_of)
        wishes = SampleOptions(wishes.size, wishes.strata, (run.folder, run.report), wishes.raters, wishes.seed)
    items = write_sample(_located(job), wishes, Path(to))
    terminal.say(f"{wishes.size:,} of {items:,} items in {to}, in random order. Fill in one value a cell:")
    for dimension in job.dimensions:
        terminal.say(printable(f"  {dimension.id}  {_describe_scale(dimension)}", 500))
    terminal.say(f"Leave a cell empty where you cannot tell. Then, in the job:\n  ratings: {to}")


def _describe_scale(dimension: Dimension) -> str:
    """Describe what a person may fill in, and what it means."""
    scale = dimension.scale
    levels = "; ".join(
        f"{scale.label(score) or score}: {meaning}" for score, meaning in sorted(dimension.levels.items())
    )
    questions = " ".join(f"({number}) {question}" for number, question in enumerate(scale.checklist, 1))
    more = levels or questions
    return f"{scale.allowed_values}  {dimension.name or dimension.id}{f' ({more})' if more else ''}"


def _located(job: EvaluationJob) -> EvaluationJob:
    if not isinstance(job.items, ItemSource):
        return job
    path = datasets.located(job.items.path, Path.cwd())
    return job.model_copy(update={"items": job.items.model_copy(update={"path": path})})
