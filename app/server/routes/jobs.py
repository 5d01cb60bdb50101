"""The routes of jobs: `/jobs`, `/jobs/check`, `/jobs/{job}/events`, `/rubrics`, `/job.schema.json` and `/uploads`.

Jobs are checked, submitted, listed, shown, cancelled, resumed and deleted; a job's progress is sent as events as it
happens; and files of items are stored, which jobs may name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Annotated, Any

import orjson
from fastapi import Header, Path, Query, Request, Response
from pydantic import BaseModel, Field, JsonValue, StringConstraints
from starlette.concurrency import run_in_threadpool

from dicast.app.access.scopes import Claims, Scope
from dicast.app.datasets.tables import ENDINGS
from dicast.app.domain.item import ItemSource
from dicast.app.domain.job import EvaluationJob
from dicast.app.domain.quote import Quote
from dicast.app.domain.refusals import JobRefused, validated
from dicast.app.domain.text import MAX_JOB_ID_LENGTH, Strict
from dicast.app.ledger.client import JobStatus, UnknownJob
from dicast.app.ledger.records import JobState
from dicast.app.operator import jobs as operations
from dicast.app.operator import waiting
from dicast.app.operator.prompts import first_unit
from dicast.app.operator.quotes import QUOTED_UNITS, quote_of, with_quote
from dicast.app.server.bounds import check_labels, check_pools, may_see
from dicast.app.server.errors import InvalidRequest, UnsupportedMediaType
from dicast.app.server.events import Stream, StreamEvent, event_id
from dicast.app.server.guards import guarded_router, needs
from dicast.app.server.parts import KEY_CHARS, GivenParts, Parts
from dicast.app.submission import job_file
from dicast.app.submission.libraries import names as library_names
from dicast.app.submission.libraries import with_calibration, with_rubrics
from dicast.app.submission.submit import Prepared
from dicast.config.pools import UnknownPool

router = guarded_router("jobs")

SCANNED_MAX = 2000
"""The most jobs that are read for one page, if a filter leaves most of them out."""

Submitter = Annotated[Claims, needs(Scope.JOB_SUBMIT)]
Reader = Annotated[Claims, needs(Scope.JOB_READ)]
JobId = Annotated[str, StringConstraints(max_length=MAX_JOB_ID_LENGTH, pattern="^[A-Za-z0-9][A-Za-z0-9._-]*$")]
JobName = Annotated[
    str,
    Path(alias="job", max_length=MAX_JOB_ID_LENGTH, pattern="^[A-Za-z0-9][A-Za-z0-9._-]*$", description="its id"),
]


class SubmittedJob(BaseModel):
    """A job that is stored and will be judged. `calls` is the number of calls if none is repeated."""

    id: str
    project: str
    units: int
    calls: int


class JobView(BaseModel):
    """A job at one instant. Times are unix ms by the store's clock."""

    id: str
    state: JobState
    project: str
    units: int
    done: int
    counters: dict[str, int]
    limit: int | None = Field(default=None, description="most calls that it may have open")
    created_ms: int | None = None
    started_ms: int | None = None
    finished_ms: int | None = None
    why: str | None = Field(default=None, description="why it was cancelled, if not by a user")
    waits_for: str | None = Field(default=None, description="why it stands still")
    answered: str | None = Field(default=None, description="what is known of its question, once it is")
    money: str = Field(default="", description="spent, reserved, and its cap, in words; '' of models without a price")
    spent: str = Field(default="", description="what its calls are known to have cost; '' if none had a price")
    unpriced: list[str] = Field(default=[], description="models, as pool/model, whose calls are in no amount")
    cost: str = Field(default="", description="both, with what is reserved or unknown, in words")
    health: str | None = Field(default=None, description="of a job that has ended: good, partial or bad")
    badge: str | None = Field(default=None, description="its state and health in a few words")


class JobPage(BaseModel):
    """Some jobs, newest first. With `next` as `cursor`, the next ones; null where nothing is left."""

    jobs: list[JobView]
    next: str | None


_JOB: Mapping[str, Any] = {"$ref": "#/components/schemas/EvaluationJob"}
_DOCUMENT = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": _JOB}, "application/yaml": {"schema": _JOB}},
    }
}


@router.post("/jobs", status_code=202, openapi_extra=_DOCUMENT)
async def submit(
    request: Request,
    response: Response,
    parts: GivenParts,
    claims: Annotated[Claims, needs(Scope.JOB_SUBMIT, body_bytes=job_file.MAX_BYTES)],
    idempotency_key: Annotated[str | None, Header(min_length=1, max_length=KEY_CHARS)] = None,
) -> SubmittedJob:
    """Submit a job: a job file in JSON or YAML. Items are part of it, or in a file that was uploaded.

    With an `Idempotency-Key`, the same request again within a day gives the same job and the same answer.
    """
    kind = _kind(request)
    body = await request.body()
    submitted = await run_in_threadpool(_submit, parts, claims, body, kind, idempotency_key)
    response.headers["Location"] = f"/jobs/{submitted.id}"
    return submitted


class FirstCall(BaseModel):
    """What the first call of a job sends; `nonce` in it will be another one. `schema` is the one that answers must
    have, where the provider enforces it."""

    item: str
    judge: str
    dimensions: list[str]
    system: str
    user: str
    schema_: dict[str, JsonValue] | None = Field(default=None, alias="schema")


class CheckedJob(BaseModel):
    """A job that would be accepted: what it would take if no call is repeated, and what its first judge is sent.
    `items` are those that are judged, with the `variants` of probes among them; `cost` says in words what it will cost,
    and by what that was estimated, "" where no model has a price."""

    project: str
    items: int
    variants: int
    judges: int
    dimensions: int
    replicates: int
    units: int
    calls: int
    text_bytes: int
    warnings: list[str]
    cost: str
    first_call: FirstCall


@router.post("/jobs/check", openapi_extra=_DOCUMENT)
async def check(
    request: Request,
    parts: GivenParts,
    claims: Annotated[Claims, needs(Scope.JOB_SUBMIT, body_bytes=job_file.MAX_BYTES)],
) -> CheckedJob:
    """Check a job as `POST /jobs` does, and submit nothing."""
    kind, body = _kind(request), await request.body()
    return await run_in_threadpool(_checked, parts, claims, body, kind)


def _checked(parts: Parts, claims: Claims, body: bytes, kind: str) -> CheckedJob:
    ready = _prepared(parts, claims, body, kind)
    job, first = ready.job, first_unit(parts.dicast, ready)
    quote = quote_of(parts.dicast, ready, most_looked_up=QUOTED_UNITS)
    money = quote.money_sentence()
    return CheckedJob(
        project=job.project, items=ready.items, variants=ready.variants, judges=len(job.agents),
        dimensions=len(job.dimensions), replicates=job.replicates, units=ready.units, calls=ready.calls,
        text_bytes=ready.text_bytes, warnings=list(ready.warnings),
        cost=f"{money}, {quote.source_sentence()}" if money else "",
        first_call=FirstCall(
            item=first.item, judge=first.agent, dimensions=first.dimensions, system=first.prompt.system,
            user=first.prompt.user, schema=first.prompt.schema,
        ),
    )  # fmt: skip


class RubricView(BaseModel):
    """A rubric of the library, which a job names in `dimensions`. `levels` say what each score means."""

    name: str
    title: str
    instructions: str
    scale_min: int
    scale_max: int
    levels: dict[int, str]


@router.get("/rubrics")
def rubrics(_: Annotated[Claims, needs(Scope.JOB_READ, Scope.JOB_SUBMIT)]) -> list[RubricView]:
    """List the rubrics that come with Dicast."""
    return [
        RubricView(
            name=name, title=rubric.name or rubric.id, instructions=rubric.instructions, scale_min=rubric.scale.min,
            scale_max=rubric.scale.max, levels=rubric.levels,
        )
        for name, rubric in ((name, job_file.load_rubric(name)) for name in library_names())
    ]  # fmt: skip


@router.get("/job.schema.json", response_class=Response, responses={200: {"content": {"application/json": {}}}})
def schema(_: Annotated[Claims, needs()]) -> Response:
    """Serve the JSON Schema of a job's file, as `dicast schema` prints it."""
    return Response(orjson.dumps(job_file.file_schema()), media_type="application/json")


def _submit(parts: Parts, claims: Claims, body: bytes, kind: str, key: str | None) -> SubmittedJob:
    digest = hashlib.sha256(kind.encode() + b"\n" + body).hexdigest()
    if key is not None and (earlier := parts.keys.find_answer(claims.subject, key, digest)) is not None:
        return SubmittedJob.model_validate(earlier)
    ready = _prepared(parts, claims, body, kind)
    ready = with_quote(parts.dicast, ready)
    if key is not None:  # only now, since a refused job must not occupy a key
        job_id = parts.keys.hold(claims.subject, key, digest, ready.id)
        ready = replace(ready, job=ready.job.model_copy(update={"id": job_id}))
    is_new = parts.dicast.ledger.is_free(ready.id)
    parts.dicast.submit(ready)
    operations.send(parts.dicast, ready.id)
    submitted = SubmittedJob(id=ready.id, project=ready.job.project, units=ready.units, calls=ready.calls)
    if key is not None:
        parts.keys.keep_answer(claims.subject, key, submitted.model_dump())
    outcome = "done" if is_new else "nothing to do"
    parts.record(claims, "job.submit", ready.id, outcome, {"units": ready.units})
    return submitted


@router.post("/jobs/quote", openapi_extra=_DOCUMENT)
async def quote(
    request: Request,
    parts: GivenParts,
    claims: Annotated[Claims, needs(Scope.JOB_SUBMIT, body_bytes=job_file.MAX_BYTES)],
) -> Quote:
    """Tell what a job will take, before it is submitted: calls, tokens, money and minutes. Nothing is called or
    stored."""
    kind = _kind(request)
    body = await request.body()
    return await run_in_threadpool(_quote, parts, claims, body, kind)


def _quote(parts: Parts, claims: Claims, body: bytes, kind: str) -> Quote:
    return quote_of(parts.dicast, _prepared(parts, claims, body, kind), most_looked_up=QUOTED_UNITS)


def _kind(request: Request) -> str:
    """Return the media type of a job in a request. Raises `UnsupportedMediaType`."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in ("application/json", "application/yaml"):
        raise UnsupportedMediaType(f"a job comes as application/json or application/yaml, got {kind[:60]!r}")
    return kind


def _prepared(parts: Parts, claims: Claims, body: bytes, kind: str) -> Prepared:
    """Return the job in a body, checked, with its files among the uploads."""
    document = job_file.read_mapping(body, yaml=kind.endswith("yaml"), expected=job_file.JOB)
    document = with_calibration(with_rubrics(document, None, job_file.read_document), None, job_file.read_document)
    job = _permitted(parts, claims, validated(document))
    try:
        return parts.dicast.prepared(job, image_files=False)
    except UnknownPool as unknown:
        raise JobRefused(str(unknown)) from None


def _permitted(parts: Parts, claims: Claims, job: EvaluationJob) -> EvaluationJob:
    """Return the job with the paths of its files among the uploads. Raises `NotAllowed` or `FileNotAllowed`."""
    pool_names = {place.pool or parts.dicast.pools.default for agent in job.agents for place in agent.choices}
    check_pools(claims, pool_names)
    specs = [spec for name in pool_names if (spec := parts.dicast.pools.pools.get(name)) is not None]
    demanded = [job.labels, *(spec.labels for spec in specs)]
    check_labels(claims, {f"{name}={value}" for labels in demanded for name, value in labels.items()})
    if isinstance(job.items, ItemSource):
        source = job.items.model_copy(update={"path": str(parts.uploads.find(job.items.path))})
        job = job.model_copy(update={"items": source})
    if job.ratings is not None and job.ratings.path is not None:
        ratings = job.ratings.model_copy(update={"path": str(parts.uploads.find(job.ratings.path))})
        job = job.model_copy(update={"ratings": ratings})
    return job


@router.get("/jobs")
def list_jobs(
    parts: GivenParts,
    claims: Reader,
    limit: Annotated[int, Query(ge=1, le=500, description="how many at most")] = 50,
    cursor: Annotated[str | None, Query(max_length=200, description="`next` of the page before")] = None,
    state: JobState | None = None,
    project: Annotated[str | None, Query(max_length=200)] = None,
) -> JobPage:
    """List jobs, newest first. A page may be shorter than its limit, or empty, although there is a next one."""
    views: list[JobView] = []
    last = None
    for scanned, (status, pools) in enumerate(parts.dicast.ledger.older(_position(cursor)), 1):
        matches = state in (None, status.state) and project in (None, status.project)
        if matches and may_see(claims, pools):
            views.append(_view(status))
        if len(views) == limit or scanned == SCANNED_MAX:
            last = status
            break
    return JobPage(jobs=views, next=None if last is None else f"{last.created_ms}.{last.id}")


def _position(cursor: str | None) -> tuple[int, str] | None:
    if cursor is None:
        return None
    at, _, job = cursor.partition(".")
    if not (at.isascii() and at.isdecimal() and len(at) < 16 and job):
        raise InvalidRequest("query.cursor: is no cursor of this list")
    return int(at), job


@router.get("/jobs/{job}")
def show_job(parts: GivenParts, claims: Reader, job: JobName) -> JobView:
    """Show a job's state and counters now, and why it stands still, if it does."""
    return read_job(parts, claims, job)


@router.delete("/jobs/{job}")
def cancel_job(parts: GivenParts, claims: Submitter, job: JobName) -> JobView:
    """Cancel a job: make no new calls for it. Open calls end and count. A job that has ended stays as it is."""
    _check_own(parts, claims, job)
    before = operations.cancel(parts.dicast, job)
    parts.record(claims, "job.cancel", job, operations.outcome_of_cancel(before), {"before": before})
    return _view(parts.dicast.ledger.status(job))


class Resumption(Strict):
    """Other caps from now on, of those that the job has."""

    max_cost: str | None = Field(default=None, max_length=40, description="a text: what its calls may cost")
    max_tokens: int | None = Field(default=None, ge=1, le=10**15)
    max_calls: int | None = Field(default=None, ge=1, le=10**12)


@router.post("/jobs/{job}/resume", status_code=202)
def resume_job(parts: GivenParts, claims: Submitter, job: JobName, caps: Resumption | None = None) -> JobView:
    """Judge the units of an ended job that have no score again, with other caps if the body has some. A job whose units
    all have scores stays as it is."""
    _check_own(parts, claims, job)
    new_caps = caps.model_dump(exclude_none=True) if caps is not None else {}
    resumed = operations.resume(parts.dicast, job, **new_caps)
    parts.record(claims, "job.resume", job, "done" if resumed else "nothing to do", new_caps)
    return _view(parts.dicast.ledger.status(job))


@router.post("/jobs/{job}/delete", status_code=204)
def delete_job(parts: GivenParts, claims: Submitter, job: JobName) -> Response:
    """Delete an ended job for good: its record, its results and people's ratings. Uploaded files stay, and results of
    earlier jobs of the id."""
    read_job(parts, claims, job)
    operations.delete(parts.dicast, job)
    parts.record(claims, "job.delete", job)
    return Response(status_code=204)


def _check_own(parts: Parts, claims: Claims, job: str) -> None:
    if not may_see(claims, parts.dicast.ledger.pools(job)):
        raise UnknownJob(job)


def read_job(parts: Parts, claims: Claims, job: str) -> JobView:
    """Return a job's view. Raises `UnknownJob`, also for a job that this token may not see."""
    dicast = parts.dicast
    try:
        status = dicast.ledger.status(job)
        pools = dicast.ledger.pools(job)
    except UnknownJob as unknown:
        return _filed(parts, claims, unknown)
    if not may_see(claims, pools):
        raise UnknownJob(job)
    view = _view(status)
    shared = parts.recent_state() if status.state is JobState.RUNNING else None
    return view.model_copy(update={"waits_for": waiting.reason(dicast, status, shared)})


def _filed(parts: Parts, claims: Claims, unknown: UnknownJob) -> JobView:
    """Return the view of a job past its retention, from its report."""
    report = operations.filed_report(parts.dicast, unknown)
    if claims.pools is not None:  # its record, which knows its pools, is gone
        raise unknown
    counters = {
        name: getattr(report, name)
        for name in ("scored", "failed", "spared", "calls", "retries", "requeues", "timeouts", "calls_without_answer")
    }
    return JobView(
        id=report.job_id, state=JobState(report.status), project=report.project, units=report.units,
        done=report.units - report.missing, counters=counters, why=report.reason,
        spent=report.cost.spent(), unpriced=report.cost.unpriced, cost=report.cost.sentence(),
        health=report.conclusions.health if report.conclusions is not None else None,
        badge=report.conclusions.badge if report.conclusions is not None else None,
        started_ms=round(1000 * report.started.timestamp()), finished_ms=round(1000 * report.finished.timestamp()),
    )  # fmt: skip


def _view(status: JobStatus) -> JobView:
    names = JobView.model_fields.keys()
    return JobView(**{name: getattr(status, name) for name in names})


EVENTS: dict[int | str, dict[str, Any]] = {
    200: {"description": "server-sent events", "content": {"text/event-stream": {"schema": {"type": "string"}}}},
    204: {"description": "nothing more will happen, and the client has the last event"},
}


@router.get("/jobs/{job}/events", response_class=Response, responses=EVENTS)
def job_events(request: Request, parts: GivenParts, claims: Reader, job: JobName) -> Response:
    """Stream the view of `GET /jobs/{job}` whenever it changes, as events named `progress`, and `ended` at the end."""

    def view() -> tuple[dict[str, Any], bool]:
        job_view = read_job(parts, claims, job)
        return job_view.model_dump(mode="json"), job_view.state.ended

    def changes(last: str | None) -> Iterator[StreamEvent]:
        try:
            current, ended = view()
        except UnknownJob as error:
            yield StreamEvent("gone", {"id": job, "detail": str(error)}, last=True)
            return
        if ended or event_id(current) != last:
            yield StreamEvent("ended" if ended else "progress", current, last=ended)

    current, ended = view()
    if ended and request.headers.get("last-event-id") == event_id(current):
        return Response(status_code=204)  # which keeps an EventSource from coming back
    return Stream(request, changes)


UPLOAD_S = 3600.0


class UploadedFile(BaseModel):
    """A stored file. A job names it as `items: {path: ...}`."""

    path: str
    bytes: int
    sha256: str


_BODY = {
    "requestBody": {
        "required": True,
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}
_ENDINGS = "^(" + "|".join(ending.replace(".", r"\.") for ending in ENDINGS) + ")$"


@router.post("/uploads", status_code=201, openapi_extra=_BODY)
async def upload(
    request: Request,
    parts: GivenParts,
    claims: Annotated[Claims, needs(Scope.JOB_SUBMIT, body_bytes=None, body_s=UPLOAD_S)],
    ending: Annotated[str, Query(pattern=_ENDINGS, description="what kind of file it is")],
) -> UploadedFile:
    """Store the body as a file of items. The same file again has the same path."""
    length = request.headers.get("content-length", "")
    stored = await parts.uploads.take(request.stream(), ending, int(length) if length.isdecimal() else 0)
    outcome = "done" if stored.is_new else "nothing to do"
    await run_in_threadpool(parts.record, claims, "upload", stored.path, outcome, {"bytes": stored.bytes})
    return UploadedFile(path=stored.path, bytes=stored.bytes, sha256=stored.sha256)
