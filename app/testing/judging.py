"""Collects texts that tests want judged, has them judged as one job, and hands each its results.

There is one job for each set of dimensions and flush: usually one for a whole test run. The jobs of all processes go
through the same governor as any others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from dicast.app.application import Dicast, create_app
from dicast.app.domain.dimension import Dimension
from dicast.app.domain.item import Item
from dicast.app.domain.job import EvaluationJob
from dicast.app.domain.opinion import EvaluationError, Opinion
from dicast.app.domain.report import Report
from dicast.app.domain.text import MAX_ID_LENGTH, printable
from dicast.app.ledger.client import JobLost
from dicast.app.ledger.records import JobState
from dicast.app.operator.jobs import cancel, send
from dicast.app.reports.collecting import results_root
from dicast.app.reports.files import read_opinions
from dicast.app.reports.folders import job_folder
from dicast.app.submission.job_file import load_job, load_rubric
from dicast.config.settings import environment
from dicast.errors import DicastError, alternatives

LOOK_FIRST_S, LOOK_MAX_S = 0.05, 0.5
ARGUMENT_CHARS, MOST_LINES = 300, 6
_STANDS_FOR_ITEMS = [{"id": "item", "text": "text"}]


class NotJudged(DicastError, RuntimeError):
    """A text cannot be judged as a test asks; the message says why."""


@dataclass(eq=False)
class Judged:
    """A text that is to be judged, and its results. Reading a result that is not there yet has all waiting texts
    judged first."""

    item: Item
    dimensions: tuple[str, ...]
    at_least: Mapping[str, float]
    flush: Callable[[], None] = field(repr=False)
    outcome: Outcome | None = None

    @property
    def scores(self) -> dict[str, float]:
        """The panel's score by dimension, for dimensions that have one. Raises `NotJudged`."""
        return self._result().scores

    @property
    def opinions(self) -> list[Opinion]:
        """The opinions of all judges. Raises `NotJudged`."""
        return self._result().opinions

    @property
    def wrong(self) -> str | None:
        """The reason why this does not pass, None if it does. pytest's summary shows only the first line, which says
        what counts. Raises `NotJudged`."""
        outcome, lines = self._result(), []
        for dimension, least in self.at_least.items():
            score = outcome.scores.get(dimension)
            if score is None:
                lines += [f"{dimension} has no score; at least {least:g} is wanted", *outcome.failures(dimension)]
            elif score < least:
                lines += [f"{dimension} is {score:.2f}; at least {least:g} is wanted", *outcome.arguments(dimension)]
        return "\n".join([*lines, f"judged by job {outcome.job_id}, item {self.item.id}"]) if lines else None

    def _result(self) -> Outcome:
        if self.outcome is None:
            self.flush()
        if self.outcome is None:
            raise NotJudged(f"{self.item.id} has no result")
        return self.outcome


@dataclass
class Outcome:
    """The results of one item."""

    job_id: str
    scores: dict[str, float]
    opinions: list[Opinion]
    errors: list[EvaluationError]

    def arguments(self, dimension: str) -> list[str]:
        """Return the judges' arguments in a dimension, the lowest score first."""
        scored = [
            opinion for opinion in self.opinions if opinion.criterion_id == dimension and opinion.score is not None
        ]
        return [
            f"  {printable(opinion.judge, 60)} gave {opinion.score}: {printable(opinion.argument, ARGUMENT_CHARS)}"
            for opinion in sorted(scored, key=lambda opinion: opinion.score or 0)[:MOST_LINES]
        ]

    def failures(self, dimension: str) -> list[str]:
        """Return why there is no score in a dimension."""
        errors = [error for error in self.errors if error.criterion_id == dimension]
        return [
            f"  {error.judge}: {error.kind}: {printable(error.message, ARGUMENT_CHARS)}"
            for error in errors[:MOST_LINES]
        ]


class Judging:
    """Has texts judged for one process. `job` is a job's file, or its content, without items; its judges and
    dimensions are used."""

    def __init__(self, job: str | Mapping[str, Any], *, local: bool = False, timeout_s: float = 600.0) -> None:
        self._job, self._local, self._timeout_s = job, local, timeout_s
        self._app: Dicast | None = None
        self._template: EvaluationJob | None = None
        self._waiting: list[Judged] = []
        self._count = 0
        self._exit = ExitStack()
        self.jobs: list[str] = []

    def ask(
        self, name: str, text: str, *, prompt: str | None = None, reference: str | None = None,
        dimensions: Sequence[str] = (), at_least: float | Mapping[str, float] | None = None,
    ) -> Judged:  # fmt: skip
        """Schedule a text to be judged in these dimensions (ids of the job's, or rubrics; by default all of the
        job's).

        `at_least` is the score that it must reach, in all of them or by dimension. Raises `NotJudged` and what refuses
        a job.
        """
        names = tuple(dict.fromkeys(dimensions)) or tuple(d.id for d in self.template.dimensions)
        least = dict(at_least) if isinstance(at_least, Mapping) else {}
        if isinstance(at_least, int | float):
            least = dict.fromkeys(names, float(at_least))
        for dimension in least:
            if dimension not in names:
                raise NotJudged(f"at_least: {dimension!r} is none of the dimensions{alternatives(dimension, names)}")
        for dimension in names:
            _check_threshold(self._dimension(dimension), least.get(dimension))
        self._count += 1
        name = f"{printable(name, MAX_ID_LENGTH - 10).strip()} {self._count}"
        judged = Judged(Item(id=name, text=text, prompt=prompt, reference=reference), names, least, self.flush)
        self._waiting.append(judged)
        return judged

    def flush(self) -> None:
        """Have all waiting texts judged, and wait for the results. Raises `NotJudged` and what refuses a job."""
        waiting, self._waiting = self._waiting, []
        groups: dict[tuple[str, ...], list[Judged]] = {}
        for judged in waiting:
            groups.setdefault(judged.dimensions, []).append(judged)
        submitted = [(self._submitted(names, group), group) for names, group in groups.items()]
        for job_id, group in submitted:
            self._hand_out(job_id, group)

    def start(self) -> None:
        """Start the local store and worker if `local` is set, unless they run."""
        if self._local:
            from dicast.app.operator.stack import LocalStack  # noqa: PLC0415  (takes long to load)

            self._local = False
            places = [place for agent in self.template.agents for place in agent.choices]
            model = any(self.app.pools.get(place.pool).provider == "local" for place in places)
            self._exit.enter_context(LocalStack(self.app.settings, model=model))

    def close(self) -> None:
        """Stop everything that was started."""
        self._exit.close()
        if self._app is not None:
            self._app.close()

    @property
    def app(self) -> Dicast:
        """The application for this environment."""
        if self._app is None:
            self._app = create_app(environment())
        return self._app

    @property
    def template(self) -> EvaluationJob:
        """The job, with a placeholder for its items."""
        if self._template is None:
            document = load_job(self._job) if isinstance(self._job, str) else dict(self._job)
            document = {name: value for name, value in document.items() if name not in ("id", "ratings", "gate")}
            self._template = self.app.prepared({**document, "items": _STANDS_FOR_ITEMS}).job
        return self._template

    def _dimension(self, name: str) -> Dimension:
        dimension = next((d for d in self.template.dimensions if d.id == name), None)
        return dimension if dimension is not None else load_rubric(name)

    def _submitted(self, names: tuple[str, ...], group: list[Judged]) -> str:
        self.start()
        if not self.app.registry.alive():
            raise NotJudged(
                "no worker is alive: start one (celery -A dicast worker), or run pytest with --dicast-local"
            )
        items, dimensions = [judged.item for judged in group], [self._dimension(name) for name in names]
        changes = {"items": items, "dimensions": dimensions, "id": None}
        job_id = self.app.submit(self.template.model_copy(update=changes))
        self.jobs.append(job_id)
        send(self.app, job_id)
        return job_id

    def _hand_out(self, job_id: str, group: list[Judged]) -> None:
        report = self._ended(job_id)
        root = results_root(report, self.app.settings.results_dir)
        opinions: dict[str, list[Opinion]] = {}
        for opinion in read_opinions(root, job_id):
            opinions.setdefault(opinion.item_id, []).append(opinion)
        errors: dict[str, list[EvaluationError]] = {}
        with (job_folder(root, job_id) / "errors.jsonl").open("rb") as file:
            for error in map(EvaluationError.model_validate_json, file):
                errors.setdefault(error.item_id, []).append(error)
        for judged in group:
            item_opinions = opinions.get(judged.item.id, [])
            judged.outcome = Outcome(
                job_id, _panel(report, judged.item.id, item_opinions), item_opinions, errors.get(judged.item.id, [])
            )

    def _ended(self, job_id: str) -> Report:
        end, pause_s = time.monotonic() + self._timeout_s, LOOK_FIRST_S
        while True:
            status = self.app.ledger.status(job_id)
            if status.state is JobState.LOST:
                raise JobLost(job_id)
            if status.report is not None:
                return Report.model_validate(status.report)
            if time.monotonic() > end:
                cancel(self.app, job_id)
                raise NotJudged(f"job {job_id} has not ended after {self._timeout_s:g} s and was cancelled")
            time.sleep(pause_s)
            pause_s = min(LOOK_MAX_S, 1.2 * pause_s)


def _check_threshold(dimension: Dimension, least: float | None) -> None:
    """Raise `NotJudged` for a threshold that no score can be compared with, before a call is paid for."""
    if least is None:
        return
    if not dimension.scale.ordered:
        raise NotJudged(f"at_least: the labels of {dimension.id} have no order, so there is no mean")
    if not dimension.scale.min <= least <= dimension.scale.max:
        scale = f"a scale of {dimension.scale.min:g} to {dimension.scale.max:g}"
        raise NotJudged(f"at_least: {dimension.id} has {scale}, got {least:g}")


def _panel(report: Report, item_id: str, opinions: list[Opinion]) -> dict[str, float]:
    """Return the panel's score of one item by dimension. The replicates of a judge are averaged first."""
    scores: dict[str, float] = {}
    for dimension in report.dimensions:
        by_judge: dict[str, list[float]] = {}
        for opinion in opinions:
            if opinion.criterion_id == dimension.id and opinion.score is not None:
                by_judge.setdefault(opinion.judge, []).append(opinion.score)
        score = dimension.combined(
            item_id, {judge: fmean(rounds) for judge, rounds in by_judge.items()}, rated=report.rated
        )
        if score is not None:
            scores[dimension.id] = score
    return scores
