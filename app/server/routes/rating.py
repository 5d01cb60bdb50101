"""`/jobs/{job}/rating`: people rate a sample of an ended job's items, and see the judges' scores afterwards."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated

from fastapi import Query
from pydantic import BaseModel, ConfigDict, Field, JsonValue, StringConstraints
from starlette.responses import FileResponse, Response

from dicast.app.access.scopes import Claims, Scope
from dicast.app.domain.judge_statistics import DimensionStatistics
from dicast.app.domain.report import Report
from dicast.app.domain.text import MAX_ID_LENGTH, Id
from dicast.app.operator.rating import added_ratings, draw_queue, forget_ratings, queue_of_file
from dicast.app.reports.blind import RATINGS_FILE, BlindRatings, Note, NothingToRate, Queue, QueuedItem, RatingRefused
from dicast.app.reports.finishing import keep_ratings
from dicast.app.reports.stored_items import RatingsChange
from dicast.app.server.errors import RatingNotDone
from dicast.app.server.guards import guarded_router, needs
from dicast.app.server.parts import GivenParts, Parts
from dicast.app.server.routes.jobs import JobName, Reader, Submitter
from dicast.app.server.routes.results import JSONL, place_of

router = guarded_router("rating")

RATER_CHARS = 60
NOTE_CHARS = 2000
NOT_KEPT = "the ratings are not in the report"
COMPARED_MAX = 300
"""The most items that are shown beside the judges' scores, those with the largest differences first."""

Rater = Annotated[Claims, needs(Scope.RATING_WRITE)]
RaterName = Annotated[Id, StringConstraints(max_length=RATER_CHARS)]
RaterQuery = Annotated[RaterName, Query(description="the name that a person has chosen")]
ItemQuery = Annotated[str, Query(alias="id", min_length=1, max_length=MAX_ID_LENGTH)]


class Sampling(BaseModel):
    """The items to be rated: so many drawn here, or those of an uploaded file that `dicast sample` has written."""

    model_config = ConfigDict(extra="forbid", strict=True)

    size: int = Field(default=50, ge=1, le=2000)
    seed: int = Field(default=1, ge=0, le=2**32)
    disputed: bool = Field(default=False, description="draw more of what the judges disagree on")
    undecided: bool = Field(
        default=True, description="put up what a panel with a guarantee has left to people, too, to be rated first"
    )
    path: str | None = Field(default=None, max_length=400, description="`path` of an upload; then nothing is drawn")


class GivenRating(BaseModel):
    """One rating; a null `score` takes it back."""

    model_config = ConfigDict(extra="forbid", strict=True)

    rater: RaterName
    item_id: Id
    dimension: Id
    score: int | None


class GivenNote(BaseModel):
    """What a rater says beside a score: that none can be given, or a text; neither takes both back."""

    model_config = ConfigDict(extra="forbid", strict=True)

    rater: RaterName
    item_id: Id
    dimension: Id
    cannot_say: bool = False
    note: str = Field(default="", max_length=NOTE_CHARS)


class NoteView(BaseModel):
    """What a rater has said of an item in a dimension beside a score."""

    cannot_say: bool
    note: str


class Finishing(BaseModel):
    """The rater who is done."""

    model_config = ConfigDict(extra="forbid", strict=True)

    rater: RaterName


class RaterView(BaseModel):
    """One rater, how many ratings there are, and how many questions the rater could not answer."""

    name: str
    ratings: int
    cannot_say: int
    finished: bool


class RatingView(BaseModel):
    """What a rater has to rate: `items` in this rater's own order, under codes that tell nothing of them, and what was
    `given` and `noted`, by item and dimension. The `first` so many items are wanted before the others, whatever the
    reason; `first_left` of them have questions that this rater has not answered."""

    job: str
    dimensions: list[dict[str, JsonValue]]
    items: list[str]
    given: dict[str, dict[str, int]]
    noted: dict[str, dict[str, NoteView]]
    finished: bool
    raters: list[RaterView]
    first: int = 0
    first_left: int = 0


class ItemToRate(BaseModel):
    """An item as it is shown to a rater: its texts, and nothing that a judge has said. Which text of a pair is A is
    random for each rater."""

    id: str
    texts: dict[str, JsonValue]


class Compared(BaseModel):
    """One item and dimension: the rater's score beside the judges'."""

    item_id: str
    dimension: str
    score: int
    label: str | None = Field(description="what the score means, where scores have labels; of the item's own A and B")
    judges: dict[str, float]
    apart: float = Field(description="from the judges' mean, in parts of the scale")


class Agreement(BaseModel):
    """The agreement of a rater who is done with the judges. `reason` says why there are no statistics."""

    rater: str
    ratings: int
    reason: str | None
    dimensions: list[DimensionStatistics]
    compared: list[Compared]


class Forgotten(BaseModel):
    """The number of ratings that were taken back, and whether others remain."""

    job: str
    ratings: int
    rated: bool


@router.post("/jobs/{job}/rating", status_code=201)
def open_rating(parts: GivenParts, claims: Submitter, job: JobName, sampling: Sampling) -> RatingView:
    """Open a sample for rating. It stays as it is once somebody has begun."""
    report, folder = place_of(parts, claims, job)
    if sampling.path is not None:
        queue = queue_of_file(parts.dicast, report, parts.uploads.find(sampling.path))
    else:
        queue = draw_queue(
            parts.dicast, report, folder, sampling.size, sampling.seed, disputed=sampling.disputed,
            undecided=sampling.undecided,
        )  # fmt: skip
    blind = BlindRatings(folder)
    blind.open_queue(queue)
    parts.record(claims, "rating.open", job, details={"items": len(queue.items)})
    return _view(blind, job, "")


@router.get("/jobs/{job}/rating")
def show_rating(parts: GivenParts, claims: Rater, job: JobName, rater: RaterQuery) -> RatingView:
    """Show what is to be rated, and what this rater has rated."""
    return _view(BlindRatings(place_of(parts, claims, job)[1]), job, rater)


@router.get("/jobs/{job}/rating/item")
def show_item(parts: GivenParts, claims: Rater, job: JobName, rater: RaterQuery, id: ItemQuery) -> ItemToRate:
    """Show the texts of a sampled item, as this rater should see them."""
    blind = BlindRatings(place_of(parts, claims, job)[1])
    queue = blind.queue()
    item = blind.codes(queue, rater).get(id)
    if item is None:
        raise NothingToRate("the item is not in the sample")
    is_swapped = queue.is_swapped(item, rater)
    sides = {"text_a": item.texts["text_b"], "text_b": item.texts["text_a"]} if is_swapped else {}
    return ItemToRate(id=id, texts={**item.texts, **sides})


@router.post("/jobs/{job}/rating/scores")
def rate(parts: GivenParts, claims: Rater, job: JobName, rating: GivenRating) -> GivenRating:
    """Rate an item in one dimension; the rating is on disk when this is answered. The score of a pair refers to the
    sides as this rater sees them; it is stored for the item's own A and B."""
    blind = BlindRatings(place_of(parts, claims, job)[1])
    score, queue = rating.score, blind.queue()
    item = _require_item(blind, queue, rating.rater, rating.item_id)
    if score is not None and queue.is_swapped(item, rating.rater):
        score = -score
    blind.rate(item.id, rating.dimension, rating.rater, score)
    parts.audit.count(claims.subject, "rating.scores", job)
    return rating


@router.post("/jobs/{job}/rating/notes")
def note(parts: GivenParts, claims: Rater, job: JobName, given: GivenNote) -> GivenNote:
    """Say of an item in a dimension that it cannot be rated, or something else; it is on disk when this is answered."""
    blind = BlindRatings(place_of(parts, claims, job)[1])
    item = _require_item(blind, blind.queue(), given.rater, given.item_id)
    blind.note(item.id, given.dimension, given.rater, Note(given.cannot_say, given.note.strip()))
    parts.audit.count(claims.subject, "rating.notes", job)
    return given


def _require_item(blind: BlindRatings, queue: Queue, rater: str, code: str) -> QueuedItem:
    """Return the item that this rater knows under a code. Raises `RatingRefused`."""
    item = blind.codes(queue, rater).get(code)
    if item is None:
        raise RatingRefused(f"item_id: {code[:200]!r} is not in the sample")
    return item


@router.post("/jobs/{job}/rating/finish")
def finish(parts: GivenParts, claims: Rater, job: JobName, finishing: Finishing) -> Agreement:
    """End a rater's ratings. All ratings go into the job's report, if its statistics can be computed with them; else
    the report stays as it was, and `reason` says why."""
    _, folder = place_of(parts, claims, job)
    blind = BlindRatings(folder)
    blind.queue()
    outcome = "nothing to do" if finishing.rater in blind.finished() else "done"
    blind.finish(finishing.rater)
    counts: list[int] = []

    def change_of(report: Report) -> RatingsChange:
        change, count = added_ratings(folder, report, str(blind.file))
        counts.append(count)
        return change

    with blind.evaluating():
        report, _ = place_of(parts, claims, job)
        _, trouble = keep_ratings(folder, report, change_of)
    details = {"rater": finishing.rater, "ratings": counts[-1]}
    parts.record(claims, "rating.finish", job, outcome if trouble is None else "not kept", details=details)
    result = agreement(parts, claims, job, finishing.rater)
    return result if trouble is None else result.model_copy(update={"reason": f"{NOT_KEPT}: {trouble}"})


@router.post("/jobs/{job}/rating/forget")
def forget(parts: GivenParts, claims: Submitter, job: JobName) -> Forgotten:
    """Take all ratings that were added after the job's end out of its report; those that it was started with stay.
    Ratings made here are kept, and go into the report again when the next rater is done."""
    report, folder = place_of(parts, claims, job)
    report, count = forget_ratings(folder, report)
    parts.record(claims, "rating.forget", job, details={"ratings": count})
    return Forgotten(job=job, ratings=count, rated=report.rated)


@router.get("/jobs/{job}/rating/agreement")
def agreement(parts: GivenParts, claims: Rater, job: JobName, rater: RaterQuery) -> Agreement:
    """Show how a rater who is done agrees with the judges."""
    report, folder = place_of(parts, claims, job)
    blind = BlindRatings(folder)
    blind.queue()
    if rater not in blind.finished():
        raise RatingNotDone(f"{rater!r} is not done with rating, and sees the judges' scores then")
    mine = {key[:2]: score for key, score in blind.ratings().items() if key[2] == rater}
    statistics = report.statistics
    computed = statistics is not None and statistics.state == "computed"
    return Agreement(
        rater=rater, ratings=len(mine), reason=None if statistics is None or computed else statistics.reason,
        dimensions=statistics.dimensions if statistics is not None and computed else [],
        compared=_compared(parts, report, folder, mine),
    )  # fmt: skip


@router.get("/jobs/{job}/rating/file", response_class=Response)
def ratings_file(parts: GivenParts, claims: Reader, job: JobName) -> Response:
    """Serve all ratings so far, in the format that `ratings:` of a job reads."""
    blind = BlindRatings(place_of(parts, claims, job)[1])
    if not blind.file.is_file():
        raise NothingToRate("nobody has rated anything of this job here")
    return FileResponse(blind.file, media_type=JSONL, filename=f"{job}-{RATINGS_FILE}")


def _view(blind: BlindRatings, job: str, rater: str) -> RatingView:
    queue, ratings, notes, done = blind.queue(), blind.ratings(), blind.notes(), blind.finished()
    codes = blind.codes(queue, rater)
    code_of = {item.id: code for code, item in codes.items()}
    scores: dict[str, dict[str, int]] = {}
    counts, open_questions = Counter[str](), Counter[str]()
    for (id, dimension, name), score in ratings.items():
        counts[name] += 1
        if name == rater:
            code = code_of[id]
            is_swapped = queue.is_swapped(codes[code], rater)
            scores.setdefault(code, {})[dimension] = -score if is_swapped else score
    noted: dict[str, dict[str, NoteView]] = {}
    for (id, dimension, name), note in notes.items():
        open_questions[name] += note.cannot_say and (id, dimension, name) not in ratings
        if name == rater and id in code_of:
            noted.setdefault(code_of[id], {})[dimension] = NoteView(cannot_say=note.cannot_say, note=note.text)
    names = sorted(counts.keys() | {name for name, count in open_questions.items() if count})
    wanted_first = [code for code, item in codes.items() if item.first]
    return RatingView(
        job=job, dimensions=queue.dimensions, given=scores, noted=noted, finished=rater in done, items=list(codes),
        first=len(wanted_first),
        first_left=sum(
            any(
                dimension["id"] not in scores.get(code, {}) and not _cannot_say(noted, code, dimension["id"])
                for dimension in queue.dimensions
            )
            for code in wanted_first
        ),
        raters=[
            RaterView(name=name, ratings=counts[name], cannot_say=open_questions[name], finished=name in done)
            for name in names
        ],
    )  # fmt: skip


def _cannot_say(noted: dict[str, dict[str, NoteView]], code: str, dimension: str) -> bool:
    note = noted.get(code, {}).get(dimension)
    return note is not None and note.cannot_say


def _compared(parts: Parts, report: Report, folder: Path, mine: dict[tuple[str, str], int]) -> list[Compared]:
    scales = {dimension.id: max(1, dimension.scale_max - dimension.scale_min) for dimension in report.dimensions}
    labels = {
        (dimension.id, score): label
        for dimension in report.dimensions
        for score, label in enumerate(dimension.labels, dimension.scale_min)
    }
    judges: dict[tuple[str, str], dict[str, float]] = {}
    for item, dimension, judge, score in parts.browser.mean_scores(folder, sorted({item for item, _ in mine})):
        judges.setdefault((item, dimension), {})[judge] = score
    rows: list[Compared] = []
    for (item, dimension), score in mine.items():
        judge_scores: dict[str, float] = judges.get((item, dimension), {})
        apart: float = (
            abs(score - sum(judge_scores.values()) / len(judge_scores)) / scales[dimension] if judge_scores else 0.0
        )
        label = labels.get((dimension, score))
        rows.append(
            Compared(item_id=item, dimension=dimension, score=score, label=label, judges=judge_scores, apart=apart)
        )
    return sorted(rows, key=lambda row: -row.apart)[:COMPARED_MAX]
