"""The routes of a finished job's results: `/jobs/{job}/report`, `opinions`, `errors`, `compare`, and `items` for
people.

Files are read only from this server's own results folder, whatever folder a report names. `/jobs/{job}/items`, `item`,
`text` and `scores` give the results in pages that a person can look through.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import IO, Annotated, Any, Literal

import orjson
from fastapi import Query, Request
from pydantic import BaseModel, ConfigDict, Field, JsonValue, StringConstraints, ValidationError
from starlette.exceptions import HTTPException
from starlette.responses import FileResponse, Response, StreamingResponse

from dicast.app.access.scopes import Claims
from dicast.app.domain.item import Rating
from dicast.app.domain.judge_statistics import RunsCompared
from dicast.app.domain.opinion import EvaluationError, Opinion
from dicast.app.domain.report import Report
from dicast.app.domain.text import MAX_ID_LENGTH
from dicast.app.ledger.client import UnknownJob
from dicast.app.ledger.records import JobState
from dicast.app.operator.interim import JobSoFar
from dicast.app.operator.jobs import JobNotEnded
from dicast.app.operator.prompts import NoPrompt, prompt_of
from dicast.app.operator.rating import NoTexts, items_of, text_of
from dicast.app.reports.blind import BlindRatings
from dicast.app.reports.browse import FacetValue, ItemQuery, JudgeScores, Sort
from dicast.app.reports.collecting import ResultsAway
from dicast.app.reports.files import NoResults, newest_errors, read_report
from dicast.app.reports.folders import job_folder
from dicast.app.reports.statistics import compare_jobs
from dicast.app.reports.stored_items import RATINGS, read_ratings
from dicast.app.server.errors import InvalidRequest
from dicast.app.server.guards import guarded_router
from dicast.app.server.parts import GivenParts, Parts
from dicast.app.server.routes.jobs import JobId, JobName, Reader, read_job

router = guarded_router("results")

PAGE_BYTES = 4 * 2**20
"""A page ends with the line that reaches it."""
JSONL = "application/x-ndjson"
PARQUET = "application/vnd.apache.parquet"
Format = Literal["json", "jsonl", "parquet"]
_MEDIA: dict[str, Format] = {
    "application/json": "json", "application/*": "json", "*/*": "json", JSONL: "jsonl", "application/jsonl": "jsonl",
    PARQUET: "parquet",
}  # fmt: skip

Limit = Annotated[int, Query(ge=1, le=1000, description="how many at most, in JSON")]
Probes = Annotated[bool, Query(description="also what was said of variants of items, judged for probes")]
Cursor = Annotated[str | None, Query(max_length=100, description="`next` of the page before, in JSON")]


class OpinionPage(BaseModel):
    """Some opinions, in the order of their units. With `next` as `cursor`, the next; null where nothing is left."""

    opinions: list[Opinion]
    next: str | None


class ErrorPage(BaseModel):
    """Some errors, which say why units have no score. With `next` as `cursor`, the next; null if none are left."""

    errors: list[EvaluationError]
    next: str | None


class NewestErrors(BaseModel):
    """Errors of a running job, newest first."""

    errors: list[EvaluationError]


_WHOLE = {"schema": {"type": "string", "format": "binary"}}


@router.get("/jobs/{job}/report")
def report(parts: GivenParts, claims: Reader, job: JobName) -> Report:
    """Show the report of a job that has ended. Its `files` are paths of this interface."""
    stored, _ = place_of(parts, claims, job)
    at = f"/jobs/{job}"
    files = {
        "directory": at, "report": f"{at}/report", "errors_jsonl": f"{at}/errors?format=jsonl",
        "opinions_jsonl": f"{at}/opinions?format=jsonl", "opinions_parquet": f"{at}/opinions?format=parquet",
    }  # fmt: skip
    return stored.model_copy(update={"files": stored.files.model_copy(update=files)})


@router.get("/jobs/{job}/report.html", response_class=Response, responses={200: {"content": {"text/html": _WHOLE}}})
def html_report(parts: GivenParts, claims: Reader, job: JobName) -> Response:
    """Serve the report as the one HTML file that lies beside the results, to be saved and sent around. A browser does
    not show it here: it is foreign text with a style of its own."""
    _, folder = place_of(parts, claims, job)
    path = own_file(folder, "report.html")
    return FileResponse(path, media_type="text/html", filename=f"{job}.html")


@router.get(
    "/jobs/{job}/opinions", response_model=OpinionPage, responses={200: {"content": {JSONL: _WHOLE, PARQUET: _WHOLE}}}
)
def opinions(
    request: Request, parts: GivenParts, claims: Reader, job: JobName, limit: Limit = 100, cursor: Cursor = None,
    format: Format | None = None, probes: Probes = False,
) -> Response:  # fmt: skip
    """Serve the opinions of a job that has ended: pages of JSON, or the whole file as JSONL or Parquet, by `format` or
    by the `Accept` header. Those on variants of items, judged for probes, are left out of JSON and JSONL unless
    `probes` asks for them; in Parquet the column `probe` marks them."""
    chosen = format or _accepted(request, ("json", "jsonl", "parquet"))
    stored, folder = place_of(parts, claims, job)
    own_only = stored.probed > 0 and not probes
    if chosen == "jsonl" and own_only:
        return _own_lines(own_file(folder, stored.files.opinions_jsonl))
    if chosen != "json":
        path = stored.files.opinions_jsonl if chosen == "jsonl" else stored.files.opinions_parquet
        return _whole(folder, path, JSONL if chosen == "jsonl" else PARQUET)
    return _page("opinions", stored, own_file(folder, stored.files.opinions_jsonl), limit, cursor, own_only=own_only)


@router.get("/jobs/{job}/errors", response_model=ErrorPage, responses={200: {"content": {JSONL: _WHOLE}}})
def errors(
    request: Request, parts: GivenParts, claims: Reader, job: JobName, limit: Limit = 100, cursor: Cursor = None,
    format: Literal["json", "jsonl"] | None = None, probes: Probes = False,
) -> Response:  # fmt: skip
    """Serve the errors of a job that has ended, which say why units have no score: one error a unit, in pages of JSON,
    or all as JSONL; those of variants of items only if `probes` asks for them."""
    chosen = format or _accepted(request, ("json", "jsonl"))
    stored, folder = place_of(parts, claims, job)
    own_only = stored.probed > 0 and not probes
    if chosen == "jsonl":
        path = own_file(folder, stored.files.errors_jsonl)
        return _own_lines(path) if own_only else _whole(folder, path.name, JSONL)
    return _page("errors", stored, own_file(folder, stored.files.errors_jsonl), limit, cursor, own_only=own_only)


@router.get("/jobs/{job}/errors/newest")
def newest(
    parts: GivenParts, claims: Reader, job: JobName,
    limit: Annotated[int, Query(ge=1, le=100, description="how many at most")] = 20,
) -> NewestErrors:  # fmt: skip
    """List the newest errors of a running job, newest first, as far as its pages are gathered; none for a job that has
    ended: `errors` has them all."""
    view = read_job(parts, claims, job)
    if view.state.ended:
        return NewestErrors(errors=[])
    return NewestErrors(errors=newest_errors(job_folder(parts.dicast.settings.results_dir, job), limit))


@router.get("/jobs/{job}/so-far")
def so_far(parts: GivenParts, claims: Reader, job: JobName) -> JobSoFar:
    """Show what the judges of a running job have said so far, as far as its pages are gathered: the panel's means with
    intervals of the means of all items, failures by judge, and what the calls have cost. Nothing for a job that has
    ended: `report` has it all."""
    if read_job(parts, claims, job).state.ended:
        return JobSoFar(items=0, of=None, kind="none", note="", charts=[], judges=[], failed=[])
    return parts.running.so_far(parts.dicast, job)


def place_of(parts: Parts, claims: Claims, job: str) -> tuple[Report, Path]:
    """Return a job's report, and its folder here. Raises `UnknownJob`, `JobNotEnded` or `ResultsAway`."""
    view, root = read_job(parts, claims, job), parts.dicast.settings.results_dir
    if not view.state.ended or view.state is JobState.LOST:
        raise JobNotEnded(job, view.state, "it has results")
    try:
        stored = read_report(root, job)
    except (NoResults, ValidationError, OSError) as error:
        raise ResultsAway(f"the report of job {job} is not in {root}: {error}") from None
    with suppress(UnknownJob):  # past its retention, the files are all that is left
        recorded = Report.model_validate(parts.dicast.ledger.status(job).report)
        if (stored.started, stored.finished) != (recorded.started, recorded.finished):
            raise ResultsAway(f"the report of job {job} in {root} is of another run")
    return stored, job_folder(root, job)


def own_file(folder: Path, name: str) -> Path:
    """Return the file of this name in a job's folder. Raises `ResultsAway` if there is none."""
    path = folder / Path(name).name
    if path.is_symlink() or not path.is_file():
        raise ResultsAway(f"{path} is no file")
    return path


def _whole(folder: Path, name: str, media_type: str) -> Response:
    path = own_file(folder, name)
    return FileResponse(path, media_type=media_type, filename=path.name)


def _own_lines(path: Path) -> Response:
    """Return the lines of a file that are about the job's own items."""

    def lines() -> Iterator[bytes]:
        with path.open("rb") as file:
            yield from filter(_is_own, file)

    headers = {"Content-Disposition": f'attachment; filename="{path.name}"'}
    return StreamingResponse(lines(), media_type=JSONL, headers=headers)


def _is_own(line: bytes) -> bool:
    return orjson.loads(line).get("probe") is None


def _page(name: str, report: Report, path: Path, limit: int, cursor: str | None, *, own_only: bool) -> Response:
    """Return lines from the cursor on, unchanged, or only those about the job's own items (`own`). Reading a page costs
    no more at a file's end than at its beginning."""
    run = f"{round(1000 * report.finished.timestamp()):x}"
    with path.open("rb") as file:
        _seek(file, run, cursor)
        lines, size = list[bytes](), 0
        while len(lines) < limit and size < PAGE_BYTES and (line := file.readline()):
            size += len(line)
            if not own_only or _is_own(line):
                lines.append(line.rstrip(b"\n"))
        at = file.tell()
        has_more = at < os.fstat(file.fileno()).st_size
    next = b'"%s.%d"' % (run.encode(), at) if has_more else b"null"
    body = b'{"%s":[%s],"next":%s}' % (name.encode(), b",".join(lines), next)
    return Response(body, media_type="application/json")


def _seek(file: IO[bytes], run: str, cursor: str | None) -> None:
    """Seek to the cursor's position, which must be the beginning of a line of this run."""
    if cursor is None:
        return
    cursor_run, _, digits = cursor.partition(".")
    at = int(digits) if digits.isascii() and digits.isdecimal() and len(digits) < 16 else 0
    if cursor_run == run and 0 < at <= os.fstat(file.fileno()).st_size:
        file.seek(at - 1)
        if file.read(1) == b"\n":
            return
    raise InvalidRequest("query.cursor: is no cursor of these results; begin without one")


def _accepted(request: Request, offered: Iterable[Format]) -> Format:
    """Return the first format in the Accept header that is offered. Raises HTTPException 406."""
    accept = request.headers.get("accept") or "*/*"
    for part in accept.split(","):
        kind = _MEDIA.get(part.partition(";")[0].strip().lower())
        if kind is not None and kind in offered:
            return kind
    raise HTTPException(406, f"there are {', '.join(offered)}: give format=, or accept {JSONL} or application/json")


ERRORS_BYTES = 64 * 2**20
"""How much of the errors' file is searched for those of one item."""
ERRORS_MAX = 500
SEARCH_CHARS = 200

ItemId = Annotated[str, Query(alias="id", min_length=1, max_length=MAX_ID_LENGTH, description="the item's id")]


class ItemScoreView(BaseModel):
    """An item in one dimension: its judges' mean, the standard deviation between them, and the number of scores; the
    mean score of each judge, and the score of each person who has rated it."""

    mean: float | None
    spread: float | None
    n: int
    judges: dict[str, float] = {}
    people: dict[str, float] = {}


class ItemView(BaseModel):
    """An item of a finished job. `overall` is its weighted score from 0 to 1; `disagreement` its judges' spread in
    parts of the scale, the mean over the dimensions; `scores` stand in the order of the report's dimensions. `metadata`
    are those that the job keeps; `excerpt` is the beginning of its text, null where it was not asked for or is not
    known here."""

    id: str
    place: int
    overall: float | None
    disagreement: float | None
    failed: int
    scores: list[ItemScoreView]
    metadata: dict[str, str]
    excerpt: str | None = None


class ItemPage(BaseModel):
    """Some items, and how many there are."""

    items: list[ItemView]
    total: int


class FacetsView(BaseModel):
    """What the items of a job can be filtered by: the commonest values of each kept metadata, and how many items have a
    failed unit or a rating by a person."""

    metadata: dict[str, list[FacetValue]]
    items: int
    failed: int
    rated: int


class PointView(BaseModel):
    """An item in the picture of scores and disagreement: `score` from 0 to 1, `spread` in parts of the scale, and the
    value of the metadata that was asked for."""

    id: str
    score: float
    spread: float
    group: str | None


class PointsView(BaseModel):
    """The items of a job that have a score of two judges or more; of many, each n-th."""

    points: list[PointView]


class JudgeScoresView(BaseModel):
    """The number of times that a judge gave each score in a dimension."""

    judge: str
    dimension: str
    counts: dict[int, int]
    failed: int


class ScoresView(BaseModel):
    """One entry for each judge and dimension."""

    scores: list[JudgeScoresView]


class PersonsRating(BaseModel):
    """A person's score of the item in one dimension."""

    rater: str
    dimension: str
    score: float


class PersonsNote(BaseModel):
    """What a person said of the item in one dimension beside a score."""

    rater: str
    dimension: str
    cannot_say: bool
    note: str


class ItemOpinions(BaseModel):
    """The opinions and errors of one item, people's ratings of it and what they noted when they rated blind; `more`
    says that there are further opinions."""

    id: str
    opinions: list[dict[str, JsonValue]] = Field(description="the columns of `opinions.parquet`")
    errors: list[EvaluationError]
    ratings: list[PersonsRating]
    notes: list[PersonsNote]
    more: bool


class PromptView(BaseModel):
    """What a judge was sent about an item, made anew from the job; the `nonce` in it is another one. `reason` says why
    it is not known here."""

    system: str | None = None
    user: str | None = None
    schema_: dict[str, JsonValue] | None = Field(default=None, alias="schema", description="that answers must have")
    dimensions: list[str] = []
    reason: str | None = None


class ItemText(BaseModel):
    """An item's texts, or why they are not available here."""

    item: dict[str, JsonValue] | None = Field(description="the item as the job had it")
    reason: str | None


Metadata = Annotated[
    list[Annotated[str, StringConstraints(max_length=MAX_ID_LENGTH + SEARCH_CHARS)]],
    Query(max_length=20, description="`name=value` of kept metadata; an item must have all"),
]


class ItemFilter(BaseModel):
    """What is asked of the list of items."""

    model_config = ConfigDict(extra="forbid")

    sort: Sort = "place"
    descending: bool = False
    search: str = Field(default="", max_length=SEARCH_CHARS, description="a part of the id")
    text: str = Field(default="", max_length=SEARCH_CHARS, description="a part of the judged text")
    argument: str = Field(default="", max_length=SEARCH_CHARS, description="a part of an argument")
    dimension: str | None = Field(default=None, max_length=MAX_ID_LENGTH, description="of `sort`, `least`, `most`")
    least: float | None = Field(default=None, allow_inf_nan=False)
    most: float | None = Field(default=None, allow_inf_nan=False)
    least_spread: float | None = Field(default=None, ge=0, le=1, description="the least disagreement")
    most_spread: float | None = Field(default=None, ge=0, le=1, description="the largest disagreement")
    metadata: Metadata = []
    failed: bool = Field(default=False, description="only those of which a unit has no score")
    rated: bool = Field(default=False, description="only those that a person has rated")
    judge: str | None = Field(default=None, max_length=MAX_ID_LENGTH, description="hear this one alone")
    excerpts: bool = Field(default=False, description="with the beginnings of the texts")
    limit: int = Field(default=50, ge=1, le=200)
    offset: int = Field(default=0, ge=0, le=100_000_000)


@router.get("/jobs/{job}/items")
def items(parts: GivenParts, claims: Reader, job: JobName, filter: Annotated[ItemFilter, Query()]) -> ItemPage:
    """List the items of a job that has ended: sorted, filtered and searched, with each judge's scores and people's."""
    report, folder = place_of(parts, claims, job)
    own_file(folder, report.files.opinions_parquet)
    browser, ratings = parts.browser, ratings_by_item(folder)

    def texts() -> Iterator[tuple[str, str]]:
        return ((item.id, item.output) for item in items_of(parts.dicast, job, folder))

    matches = [frozenset(ratings)] if filter.rated else []
    if filter.text:
        matches.append(browser.found_in_texts(folder, texts, filter.text))
    page = browser.items(folder, report, _item_query(filter, matches))
    view = ItemPage.model_validate(page, from_attributes=True)
    ids = [item.id for item in view.items]
    dimensions = {dimension.id: at for at, dimension in enumerate(report.dimensions)}
    by_id = {item.id: item for item in view.items}
    for id, dimension, judge, score in browser.mean_scores(folder, ids):
        by_id[id].scores[dimensions[dimension]].judges[judge] = score
    for item in view.items:
        for rating in ratings.get(item.id, ()):
            item.scores[dimensions[rating.dimension]].people[rating.rater] = rating.score
    if filter.excerpts:
        with suppress(NoTexts):
            for id, excerpt in browser.excerpts(folder, texts, ids).items():
                by_id[id].excerpt = excerpt
    return view


def _item_query(filter: ItemFilter, matches: Sequence[frozenset[str]]) -> ItemQuery:
    pairs = [entry.partition("=") for entry in filter.metadata]
    if any(not sign for _, sign, _ in pairs):
        raise InvalidRequest("query.metadata: must be name=value")
    return ItemQuery(
        sort=filter.sort, descending=filter.descending, search=filter.argument or filter.search,
        within="arguments" if filter.argument else "ids", dimension=filter.dimension, least=filter.least,
        most=filter.most,
        least_spread=filter.least_spread, most_spread=filter.most_spread,
        metadata={name: value for name, _, value in pairs}, matches=matches, failed=filter.failed, judge=filter.judge,
        limit=filter.limit, offset=filter.offset,
    )  # fmt: skip


def ratings_by_item(folder: Path) -> Mapping[str, Sequence[Rating]]:
    """Return the ratings by people that are part of a job's results."""
    path = folder / RATINGS
    try:
        stat = path.stat()
    except FileNotFoundError:
        return {}
    return _ratings_of(folder, stat.st_ino, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=8)
def _ratings_of(folder: Path, *_: int) -> Mapping[str, Sequence[Rating]]:
    """Return the ratings of a version of the file, which the further arguments identify."""
    ratings: dict[str, list[Rating]] = {}
    for rating in read_ratings(folder):
        ratings.setdefault(rating.item_id, []).append(rating)
    return ratings


@router.get("/jobs/{job}/facets")
def facets(parts: GivenParts, claims: Reader, job: JobName) -> FacetsView:
    """Show what the items of a job that has ended can be filtered by."""
    report, folder = place_of(parts, claims, job)
    own_file(folder, report.files.opinions_parquet)
    return FacetsView.model_validate(
        {**asdict(parts.browser.facets(folder, report)), "rated": len(ratings_by_item(folder))}
    )


@router.get("/jobs/{job}/points")
def points(
    parts: GivenParts, claims: Reader, job: JobName,
    group: Annotated[str | None, Query(max_length=MAX_ID_LENGTH, description="a kept metadata")] = None,
) -> PointsView:  # fmt: skip
    """Show score and disagreement of the items of a job that has ended, for a picture."""
    report, folder = place_of(parts, claims, job)
    own_file(folder, report.files.opinions_parquet)
    return PointsView(
        points=[
            PointView(id=id, score=score, spread=spread, group=text)
            for id, score, spread, text in parts.browser.points(folder, report, group)
        ]
    )


@router.get("/jobs/{job}/scores")
def scores(parts: GivenParts, claims: Reader, job: JobName) -> ScoresView:
    """Show how the scores of each judge are distributed in each dimension."""
    report, folder = place_of(parts, claims, job)
    own_file(folder, report.files.opinions_parquet)
    judge_scores: list[JudgeScores] = parts.browser.scores(folder)
    return ScoresView.model_validate({"scores": judge_scores}, from_attributes=True)


@router.get("/jobs/{job}/item")
def item(parts: GivenParts, claims: Reader, job: JobName, id: ItemId) -> ItemOpinions:
    """Show all opinions and errors of one item."""
    report, folder = place_of(parts, claims, job)
    own_file(folder, report.files.opinions_parquet)
    opinions, more = parts.browser.opinions(folder, id)
    errors = list[EvaluationError]()
    if any(opinion["score"] is None for opinion in opinions):
        read = 0
        with own_file(folder, report.files.errors_jsonl).open("rb") as file:
            for line in file:
                read += len(line)
                if read > ERRORS_BYTES or len(errors) >= ERRORS_MAX:
                    break
                if (error := EvaluationError.model_validate_json(line)).item_id == id:
                    errors.append(error)
    ratings = [
        PersonsRating(rater=rating.rater, dimension=rating.dimension, score=rating.score)
        for rating in ratings_by_item(folder).get(id, ())
    ]
    notes = [
        PersonsNote(rater=rater, dimension=dimension, cannot_say=note.cannot_say, note=note.text)
        for (noted, dimension, rater), note in BlindRatings(folder).notes().items()
        if noted == id
    ]
    return ItemOpinions(
        id=id, opinions=list(map(_without_row_number, opinions)), errors=errors, ratings=ratings, notes=notes, more=more
    )


@router.get("/jobs/{job}/text")
def text(parts: GivenParts, claims: Reader, job: JobName, id: ItemId) -> ItemText:
    """Show the judged text of an item, as far as it is available here."""
    _, folder = place_of(parts, claims, job)
    original, reason = text_of(parts.dicast, job, folder, id)
    return ItemText(
        item=None if original is None else original.model_dump(mode="json", exclude_defaults=True), reason=reason
    )


@router.get("/jobs/{job}/prompt")
def prompt(
    parts: GivenParts, claims: Reader, job: JobName, id: ItemId,
    judge: Annotated[str, Query(max_length=MAX_ID_LENGTH)], dimension: Annotated[str, Query(max_length=MAX_ID_LENGTH)],
) -> PromptView:  # fmt: skip
    """Show what a judge was sent about an item and a dimension, as far as that is known here."""
    _, folder = place_of(parts, claims, job)
    original, reason = text_of(parts.dicast, job, folder, id)
    if original is None:
        return PromptView(reason=reason)
    try:
        sent = prompt_of(parts.dicast, job, original, judge, dimension)
    except NoPrompt as error:
        return PromptView(reason=str(error))
    return PromptView(
        system=sent.prompt.system, user=sent.prompt.user, schema=sent.prompt.schema, dimensions=sent.dimensions
    )


COMPARED_MAX = 600_000
"""The most units of two runs that a server compares: `dicast compare` compares any number, in a process of its own."""


@router.get("/jobs/{job}/compare")
def compare(
    parts: GivenParts, claims: Reader, job: JobName,
    other: Annotated[JobId, Query(alias="from", description="the earlier job")],
    most: Annotated[int, Query(ge=0, le=100, description="how many of the items that moved most")] = 20,
    force: Annotated[bool, Query(description="also where a rubric or scale differs")] = False,
) -> RunsCompared:  # fmt: skip
    """Compare a job that has ended with an earlier one over the same items: how far systems, all items and judges
    moved, and the items that moved most with what was judged and said in each."""
    (first, before), (second, after) = place_of(parts, claims, other), place_of(parts, claims, job)
    if first.units + second.units > COMPARED_MAX:
        raise InvalidRequest(f"these jobs have more than {COMPARED_MAX:,} units; `dicast compare` compares them")
    for report, folder in ((first, before), (second, after)):
        own_file(folder, report.files.opinions_parquet)
    return compare_jobs((before, first), (after, second), most=most, force=force)


def _without_row_number(opinion: dict[str, Any]) -> dict[str, JsonValue]:
    opinion.pop("file_row_number", None)
    return opinion
