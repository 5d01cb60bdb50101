"""People's ratings of a finished job: drawing the sample that they rate, and adding and removing ratings.

A finished job's items are read from its results, or from the file that it names, if they are still accessible
(`items_of`).
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from dicast.app import datasets
from dicast.app.analysis import MISSING, NoLibraries
from dicast.app.domain.dimension import Dimension, Scale
from dicast.app.domain.item import Item, ItemSource, RatingSource
from dicast.app.domain.job import EvaluationJob
from dicast.app.domain.judge_statistics import JobStatistics
from dicast.app.domain.ranking import PAIR_METADATA
from dicast.app.domain.report import Report, ReportDimension
from dicast.app.ledger.client import UnknownJob
from dicast.app.reports.blind import Queue, QueuedItem, RatingRefused
from dicast.app.reports.files import ReportChanged, check_run, reading
from dicast.app.reports.finishing import TRIES, keep_computed
from dicast.app.reports.statistics import keep_evaluated
from dicast.app.reports.stored_items import RatingsChange, kept_items, read_ratings, submitted_ratings
from dicast.app.submission.sampling import SHOWN, NoSample, SampleOptions, write_sample
from dicast.errors import DicastError

if TYPE_CHECKING:
    from dicast.app.application import Dicast

TOGETHER = 500
FORGOTTEN = "the store keeps a job's description for some weeks, and this one's is gone"
NOT_KEPT = "the items came with the job, and its results hold no copy of them"
CHANGED = "the file of the job's items has changed since the job was submitted"


class NoTexts(DicastError, LookupError):
    """A job's items are not accessible; the message says why."""

    problem = "texts-away"


def items_of(dicast: Dicast, job: str, folder: Path) -> Iterator[Item]:
    """Yield all items of a job in their order. Raises `NoTexts`, also during iteration."""
    try:
        yield from kept_items(folder)
        return
    except FileNotFoundError:
        pass
    except (OSError, ValidationError) as error:
        raise NoTexts(f"the job's items cannot be read: {type(error).__name__}") from None
    try:
        spec, mark = dicast.ledger.submitted_job(job)
    except UnknownJob:
        raise NoTexts(FORGOTTEN) from None
    yield from _of_file(spec, mark)


def text_of(dicast: Dicast, job: str, folder: Path, item: str) -> tuple[Item | None, str | None]:
    """Return an item of a job, or None and the reason why it cannot be shown."""
    try:
        match = next((candidate for candidate in items_of(dicast, job, folder) if candidate.id == item), None)
    except NoTexts as error:
        return None, str(error)
    return match, None if match is not None else "it is not among the job's items"


def _of_file(spec: EvaluationJob, mark: str | None) -> Iterator[Item]:
    if not isinstance(spec.items, ItemSource):
        raise NoTexts(NOT_KEPT)
    cursor: dict[str, int] | None = None
    try:
        if mark is not None and datasets.fingerprint(spec.items) != mark:
            raise NoTexts(CHANGED)
        while True:
            page, cursor = datasets.read_page(spec.items, cursor, TOGETHER)
            yield from (item.without(spec.rating_columns) for item in page)
            if cursor is None:
                return
    except datasets.DatasetError:
        raise NoTexts("the file of the job's items cannot be read from here") from None


MOST_ITEMS = 2000
TEXT_BYTES = 64 * 2**20


class NoAddedRatings(DicastError, LookupError):
    """There are no added ratings to take back."""

    problem = "no-added-ratings"


class WrongRatings(datasets.DatasetError):
    """A file of ratings does not fit the job."""


def draw_queue(
    dicast: Dicast, report: Report, folder: Path, size: int, seed: int, *, disputed: bool = False,
    undecided: bool = True,
) -> Queue:  # fmt: skip
    """Draw a sample of the job's items, as `dicast sample` does: the same seed draws the same items. Of `disputed`
    items, more are drawn the more the judges disagree on them.

    What a panel with a guarantee has left to people (`undecided`) is put up as well, as far as a queue has room, to be
    rated first; the sample is then one of the other items. Raises `NoTexts`, `NoSample`, `NoLibraries`,
    `RatingRefused`.
    """
    items = datasets_items(items_of(dicast, report.job_id, folder))
    ids = _undecided_items(folder, report) if undecided else set()
    first = [item for item in items if item.id in ids]
    others = [item for item in items if item.id not in ids]
    disagreed = (folder, report) if disputed else None
    if not first:
        options = SampleOptions(min(size, len(others)), disagreed=disagreed, seed=seed)
        return Queue(_described_dimensions(dicast, report), _drawn(dicast, report, others, options))
    count = min(len(first), MOST_ITEMS)
    queued = [replace(item, first=True) for item in _drawn(dicast, report, first, SampleOptions(count, seed=seed))]
    if size := min(size, len(others), MOST_ITEMS - count):
        queued += _drawn(dicast, report, others, SampleOptions(size, disagreed=disagreed, seed=seed))
    shares = {True: count / len(first), False: size / max(1, len(others))}
    queued = [replace(item, probability=item.probability or shares[item.first]) for item in queued]
    return Queue(_described_dimensions(dicast, report), queued)


def _drawn(dicast: Dicast, report: Report, items: list[Item], options: SampleOptions) -> list[QueuedItem]:
    job = EvaluationJob.model_construct(items=items, dimensions=_shells(report.dimensions))
    with tempfile.TemporaryDirectory(prefix="dicast-sample-") as place:
        path = Path(place) / "sample.jsonl"
        write_sample(job, options, path)
        return queue_of_file(dicast, report, path).items


def _undecided_items(folder: Path, report: Report) -> set[str]:
    rules = [dimension.panel.escalate for dimension in report.dimensions]
    if all(rule is None or rule.agree is None for rule in rules):
        return set()
    try:
        from dicast.app.reports.scores import undecided_items  # noqa: PLC0415  (takes long to load)
    except ImportError as error:
        raise NoLibraries(MISSING) from error
    return undecided_items(folder, report)


def datasets_items(items: Iterable[Item]) -> list[Item]:
    """Read all items into memory. Raises `NoSample` if they are too large."""
    collected, size = [], 0
    for item in items:
        size += item.text_bytes
        if size > TEXT_BYTES:
            raise NoSample(
                f"the items' texts have more than {TEXT_BYTES:,} bytes: draw with `dicast sample`, and give the file"
            )
        collected.append(item)
    return collected


def queue_of_file(dicast: Dicast, report: Report, path: Path) -> Queue:
    """Read the items of a file that `dicast sample` has written, each once. Raises `DatasetError`, `RatingRefused`."""
    source = ItemSource(path=str(path), id_field="item_id", text_field="text")
    items: dict[str, QueuedItem] = {}
    cursor: dict[str, int] | None = None
    while True:
        page, cursor = datasets.read_page(source, cursor, 500)
        for item in page:
            texts = {name: value for name in SHOWN if (value := getattr(item, name, None)) is not None}
            items.setdefault(item.id, QueuedItem(item.id, texts, _probability(item)))
        if cursor is None:
            break
    if not 1 <= len(items) <= MOST_ITEMS:
        raise RatingRefused(f"a sample has 1 to {MOST_ITEMS:,} items, got {len(items):,}")
    return Queue(_described_dimensions(dicast, report), list(items.values()))


def _probability(item: Item) -> float | None:
    raw = item.metadata.get("probability")
    try:
        value = float(raw) if isinstance(raw, str | int | float) and raw != "" else None
    except ValueError:
        value = None
    if value is not None and not 0 < value <= 1:
        raise RatingRefused(f"probability: must be above 0 and at most 1, got {raw!r} ({item.id})")
    return value


def _described_dimensions(dicast: Dicast, report: Report) -> list[dict[str, Any]]:
    """Return the dimensions as they are described to raters: as to judges, or what the report knows once the ledger
    has forgotten the job. Those that judge by criteria of the items are left out."""
    try:
        spec, _ = dicast.ledger.submitted_job(report.job_id)
    except UnknownJob:
        by_id: dict[str, Dimension] = {}
    else:
        by_id = {dimension.id: dimension for dimension in spec.dimensions}
    askable = [dimension for dimension in report.dimensions if dimension.kind != "criteria"]
    if not askable:
        raise RatingRefused(
            f"dimensions: {report.dimensions[0].id!r} is judged by the criteria of each item, for which raters have no "
            "questions here; give people's percentages in a file (`dicast report JOB --ratings FILE`)"
        )
    return [_describe_dimension(dimension, by_id.get(dimension.id)) for dimension in askable]


def _describe_dimension(dimension: ReportDimension, spec: Dimension | None) -> dict[str, Any]:
    return {
        "id": dimension.id, "name": dimension.name, "min": dimension.scale_min, "max": dimension.scale_max,
        "kind": dimension.kind,
        "options": list(_scale(dimension).options), "questions": dimension.questions,
        "instructions": spec.instructions if spec is not None else "",
        "levels": {str(score): text for score, text in sorted(spec.levels.items())} if spec is not None else {},
    }  # fmt: skip


def added_ratings(folder: Path, report: Report, path: str) -> tuple[RatingsChange, int]:
    """Return the ratings that a job has once those of a file are added, and how many these are.

    If a person has rated the same thing before, the rating in the file counts. Nothing is written. Raises
    `DatasetError`, `WrongRatings`, `RunChanged`, OSError.
    """
    with reading(folder, report):
        judged_items, pairs_of = _judged_items(folder)
    ratings = {rating.key: rating for rating in read_ratings(folder)}
    added = set[tuple[str, str, str]]()
    for rating, place in datasets.ratings_of_file(RatingSource(path=path), _shells(report.dimensions), pairs_of):
        key = rating.key
        if rating.item_id not in judged_items:
            raise WrongRatings(path, f"the item {rating.item_id!r} has no opinion in job {report.job_id}", place=place)
        if key in added:
            raise WrongRatings(path, f"{rating.rater!r} has rated {rating.item_id!r} already", place=place)
        added.add(key)
        ratings[key] = rating
    if not added:
        raise WrongRatings(path, "holds no ratings: all cells are empty, or there is no row")
    return RatingsChange(list(ratings.values()), added=True), len(added)


def forget_ratings(folder: Path, report: Report) -> tuple[Report, int]:
    """Remove the ratings that were added since a job ended. Return its report without them, and how many there were.

    The ratings that the job was started with stay. Raises `NoAddedRatings`, `RunChanged`, OSError.
    """
    for _ in range(TRIES):
        before, submitted = sum(1 for _ in read_ratings(folder)), submitted_ratings(folder)
        if submitted is None:
            raise NoAddedRatings(f"no ratings have been added to job {report.job_id} since it has ended")
        waiting = JobStatistics(state="waiting", rated=True) if submitted else JobStatistics.of_no_ratings()
        changed = report.model_copy(update={"rated": bool(submitted), "statistics": waiting})
        try:
            report = keep_evaluated(folder, report, changed, RatingsChange(submitted, added=False))
        except ReportChanged:
            report = check_run(folder, report)
        else:
            return keep_computed(folder, report), before - len(submitted)
    raise ReportChanged(report.job_id)


def _shells(dimensions: Iterable[ReportDimension]) -> list[Dimension]:
    """Return the dimensions with as much as the reader of ratings needs."""
    return [
        Dimension.model_construct(id=dimension.id, name=dimension.name, scale=_scale(dimension), levels={}, examples={})
        for dimension in dimensions
    ]


def _scale(dimension: ReportDimension) -> Scale:
    """Return the scale that a report describes."""
    if dimension.kind == "labels":
        return Scale(labels=dimension.labels, ordered=dimension.ordered)
    if dimension.kind == "checklist":
        return Scale(checklist=dimension.questions)
    if dimension.kind == "preference":
        return Scale(preference="strength" if dimension.scale_max > 1 else "choice")
    return Scale(min=dimension.scale_min, max=dimension.scale_max)


def _judged_items(folder: Path) -> tuple[set[str], datasets.PairsOf | None]:
    """Return the ids of the items that have opinions, and a look-up of the pairs of ranked lists, None if the items
    are no such pairs."""
    import pyarrow.compute as pc  # noqa: PLC0415  takes long to load
    import pyarrow.parquet as pq  # noqa: PLC0415

    file = pq.ParquetFile(folder / "opinions.parquet")
    origin = [f"metadata.{name}" for name in PAIR_METADATA]
    ranks = set(origin) <= set(file.schema_arrow.names)
    table = file.read(columns=["item_id", *(origin if ranks else ())])
    item_ids = set(pc.unique(table["item_id"]).to_pylist())
    if not ranks:
        return item_ids, None
    lists: dict[str, dict[str, tuple[str, str]]] = {}
    for row in table.group_by(table.column_names).aggregate([]).to_pylist():
        pair, list_id, a, b = (str(row[name]) for name in ("item_id", *origin))
        if datasets.list_of(pair) == list_id:  # otherwise the items merely have metadata with these names
            lists.setdefault(list_id, {})[pair] = (a, b)
    return item_ids, lists.get if lists else None
