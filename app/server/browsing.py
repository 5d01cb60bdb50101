"""`/jobs/{job}/items`, `item`, `text`, `scores`: a finished job's results in pages that a person can look through."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query
from pydantic import BaseModel, Field, JsonValue

from dicast.app.domain.fields import MAX_ID_LENGTH
from dicast.app.domain.opinion import EvaluationError
from dicast.app.operations.texts import text_of
from dicast.app.reports.browse import ItemQuery, JudgeScores, Sort
from dicast.app.server.doors import guarded_router
from dicast.app.server.jobs import JobName, Reader
from dicast.app.server.parts import GivenParts
from dicast.app.server.results import own_file, place_of

router = guarded_router("results")

ERRORS_BYTES = 64 * 2**20
"""How much of the errors' file is searched for those of one item."""
ERRORS_MAX = 500
SEARCH_CHARS = 200

ItemId = Annotated[str, Query(alias="id", min_length=1, max_length=MAX_ID_LENGTH, description="the item's id")]


class ItemScoreView(BaseModel):
    """An item in one dimension: its judges' mean, the standard deviation between them, and the number of scores."""

    mean: float | None
    spread: float | None
    n: int


class ItemView(BaseModel):
    """An item of a finished job. `overall` is its weighted score from 0 to 1; `disagreement` its judges' spread in
    parts of the scale, the mean over the dimensions; `scores` stand in the order of the report's dimensions."""

    id: str
    place: int
    overall: float | None
    disagreement: float | None
    failed: int
    scores: list[ItemScoreView]


class ItemPage(BaseModel):
    """Some items, and how many there are."""

    items: list[ItemView]
    total: int


class JudgeScoresView(BaseModel):
    """The number of times that a judge gave each score in a dimension."""

    judge: str
    dimension: str
    counts: dict[int, int]
    failed: int


class ScoresView(BaseModel):
    """One entry for each judge and dimension."""

    scores: list[JudgeScoresView]


class ItemOpinions(BaseModel):
    """The opinions and errors of one item; `more` says that there are further opinions."""

    id: str
    opinions: list[dict[str, JsonValue]] = Field(description="the columns of `opinions.parquet`")
    errors: list[EvaluationError]
    more: bool


class ItemText(BaseModel):
    """An item's texts, or why they are not available here."""

    item: dict[str, JsonValue] | None = Field(description="the item as the job had it")
    reason: str | None


@router.get("/jobs/{job}/items")
def items(
    parts: GivenParts, claims: Reader, job: JobName,
    sort: Sort = "place",
    descending: bool = False,
    search: Annotated[str, Query(max_length=SEARCH_CHARS, description="a part of the id")] = "",
    argument: Annotated[str, Query(max_length=SEARCH_CHARS, description="a part of an argument")] = "",
    dimension: Annotated[str | None, Query(max_length=MAX_ID_LENGTH, description="of `sort`, `least`, `most`")] = None,
    least: Annotated[float | None, Query(allow_inf_nan=False)] = None,
    most: Annotated[float | None, Query(allow_inf_nan=False)] = None,
    failed: Annotated[bool, Query(description="only those of which a unit has no score")] = False,
    judge: Annotated[str | None, Query(max_length=MAX_ID_LENGTH, description="hear this one alone")] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    offset: Annotated[int, Query(ge=0, le=100_000_000)] = 0,
) -> ItemPage:  # fmt: skip
    """List the items of a job that has ended: sorted, filtered and searched."""
    report, folder = place_of(parts, claims, job)
    own_file(folder, report.files.opinions_parquet)
    wishes = ItemQuery(
        sort=sort, descending=descending, search=argument or search, within="arguments" if argument else "ids",
        dimension=dimension, least=least, most=most, failed=failed, judge=judge, limit=limit, offset=offset,
    )  # fmt: skip
    return ItemPage.model_validate(parts.browser.items(folder, report, wishes), from_attributes=True)


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
    return ItemOpinions(id=id, opinions=list(map(_without_row_number, opinions)), errors=errors, more=more)


@router.get("/jobs/{job}/text")
def text(parts: GivenParts, claims: Reader, job: JobName, id: ItemId) -> ItemText:
    """Show the judged text of an item, as far as it is available here."""
    _, folder = place_of(parts, claims, job)
    original, reason = text_of(parts.dicast, job, folder, id)
    return ItemText(
        item=None if original is None else original.model_dump(mode="json", exclude_defaults=True), reason=reason
    )


def _without_row_number(opinion: dict[str, Any]) -> dict[str, JsonValue]:
    opinion.pop("file_row_number", None)
    return opinion
