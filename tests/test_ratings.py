"""People's ratings in a job: what is taken, what is refused and why, and that they reach the folder and no judge."""

from __future__ import annotations

import csv
import json
import tracemalloc
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dicast.app.application import create_app
from dicast.app.datasets import DatasetError, KnownItems, read_ratings, survey_ratings
from dicast.app.domain.item import Rating, RatingCounts
from dicast.app.domain.job import EvaluationJob
from dicast.app.domain.ranking import PairsOfLists
from dicast.app.domain.refusals import InvalidJob
from dicast.app.submission.job_file import load_job, override

SCALE = {"min": 1, "max": 5}


@pytest.fixture
def app(environ):
    app = create_app(environ)
    yield app
    app.close()


def a_job(ratings: Any, **more: Any) -> dict[str, Any]:
    return {
        "items": [{"id": f"i{n}", "text": f"text {n}"} for n in range(4)],
        "agents": [{"name": "a"}],
        "dimensions": [{"id": name, "instructions": "?", "scale": SCALE} for name in ("clear", "true")],
        "ratings": ratings,
        **more,
    }


def long_csv(folder: Path, *rows: str, header: str = "item_id,dimension,rater,score") -> str:
    path = folder / "ratings.csv"
    path.write_text("\n".join([header, *rows]) + "\n")
    return str(path)


def found(job: Any) -> list[tuple[str, str, str, float]]:
    return [(r.item_id, r.dimension, r.rater, r.score) for r, _ in read_ratings(EvaluationJob.model_validate(job))]


WANTED = [("i0", "clear", "ada", 3.0), ("i0", "clear", "ben", 4.0), ("i1", "true", "ada", 5.0)]


def test_long_form_in_every_format(tmp_path: Path) -> None:
    rows = [dict(zip(("item_id", "dimension", "rater", "score"), row, strict=True)) for row in WANTED]
    rows.append({"item_id": "i2", "dimension": "true", "rater": "ada", "score": None})
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "r.parquet")
    (tmp_path / "r.jsonl").write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    with (tmp_path / "r.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    for name in ("r.parquet", "r.jsonl", "r.csv"):
        assert found(a_job(str(tmp_path / name))) == WANTED, name


def test_columns_beside_the_items_and_in_a_file(tmp_path: Path) -> None:
    columns = {"clear": {"ada": "clear_ada", "ben": "clear_ben"}, "true": "truth"}
    metadata = [{"clear_ada": 3, "clear_ben": "4", "truth": None}, {"clear_ada": None, "truth": 5, "rater": "ada"}]
    items = [{"id": f"i{n}", "text": "t", "metadata": m} for n, m in enumerate(metadata)]
    assert found(a_job({"columns": columns}, items=items)) == WANTED
    flat = [{"id": item["id"], "text": "t", **item["metadata"]} for item in items]
    (tmp_path / "items.jsonl").write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in flat))
    assert found(a_job({"columns": columns}, items=str(tmp_path / "items.jsonl"))) == WANTED
    wide = long_csv(tmp_path, "i0,ada,3,", "i0,ben,4,", "i1,ada,,5", header="item_id,rater,clear,true")
    assert found(a_job(wide)) == WANTED, "columns with the dimensions' names need not be named"


BAD = [
    ("i9,clear,ada,3", "line 3: the item 'i9' is none of the job's"),
    ("i1,claer,ada,3", "line 3: dimension: is no dimension of the job (did you mean 'clear'?), got 'claer'"),
    ("i1,clear,ada,6", "line 3: score: must be a whole number from 1 to 5 (the scale of 'clear'), got '6'"),
    ("i1,clear,ada,0", "line 3: score: must be a whole number from 1 to 5 (the scale of 'clear'), got '0'"),
    ("i1,clear,ada,NaN", "leave the cell of a missing rating empty, got 'NaN'"),
    ("i1,clear,ada,good", "leave the cell of a missing rating empty, got 'good'"),
    ("i1,clear,ada,inf", "line 3: score: must be a whole number from 1 to 5 (the scale of 'clear'), got 'inf'"),
    ("i1,clear,ada,3.5", "ratings: {fractions: true} takes what lies between, got '3.5'"),
    ("i0,clear,ada,3", "line 3: 'ada' has rated 'i0' in 'clear' already in line 2"),
    ("i1,clear,,3", "line 3: rater: must be text, not blank, or a whole number, got ''"),
    (",clear,ada,3", "line 3: item_id: must be text, not blank, or a whole number, got ''"),
]


@pytest.mark.parametrize(("row", "message"), BAD)
def test_what_is_wrong_is_told_with_its_place(app: Any, tmp_path: Path, row: str, message: str) -> None:
    path = long_csv(tmp_path, "i0,clear,ada,3", row)
    with pytest.raises(DatasetError) as caught:
        app.prepared(a_job(path))
    assert str(caught.value).startswith(path)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("header", "row", "message"),
    [
        ("item_id,rater,true,claer", "i0,ada,3,4", "unknown dimension 'claer'; did you mean 'clear'? If it is another"),
        ("item_id,raters,clear", "i0,ada,3", "rater_field: no column 'rater'; did you mean 'raters'? Then write"),
        ("item_id,dimension,score,probabilty", "i0,clear,3,0.5", "probability_field: no column 'probability'; did you"),
    ],
)
def test_a_misspelt_column_beside_good_ones_is_refused(
    app: Any, tmp_path: Path, header: str, row: str, message: str
) -> None:
    """In CSV, and in JSONL, where the first row need not have it."""
    with pytest.raises(DatasetError) as caught:
        app.prepared(a_job(long_csv(tmp_path, row, header=header)))
    assert message in str(caught.value)
    fields = dict(zip(header.split(","), row.split(","), strict=True))
    good = {name: value for name, value in fields.items() if name not in ("claer", "raters", "probabilty")}
    rows = [good, {**fields, "item_id": "i1"}]
    (tmp_path / "r.jsonl").write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    with pytest.raises(DatasetError) as caught:
        app.prepared(a_job(str(tmp_path / "r.jsonl")))
    assert message in str(caught.value)


def test_columns_that_are_no_dimensions_may_stand_beside_them(app: Any, tmp_path: Path) -> None:
    """Also one with a near name, where every dimension has its own, or where the columns are named."""
    whole = long_csv(tmp_path, "i0,ada,3,4,x", header="item_id,rater,clear,true,clearer")
    assert found(a_job(whole)) == [("i0", "clear", "ada", 3.0), ("i0", "true", "ada", 4.0)]
    some = long_csv(tmp_path, "i0,ada,3,x", header="item_id,rater,true,clearer")
    assert found(a_job({"path": some, "columns": {"true": "true"}})) == [("i0", "true", "ada", 3.0)]


def test_a_column_that_only_later_rows_have_is_read(tmp_path: Path) -> None:
    rows = [{"item_id": "i0", "rater": "ada", "clear": 3}, {"item_id": "i1", "rater": "ada", "true": 5}]
    (tmp_path / "r.jsonl").write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    assert found(a_job(str(tmp_path / "r.jsonl"))) == [("i0", "clear", "ada", 3.0), ("i1", "true", "ada", 5.0)]


def test_a_named_column_that_no_row_has_is_refused(app: Any, tmp_path: Path) -> None:
    """In the items' metadata, in a JSONL of items, and in one of ratings; in a try on the first items it may come."""
    columns = {"clear": "clear_score", "true": "true_scroe"}
    items = [{"id": "i0", "text": "t", "clear_score": 3, "true_score": 4}, {"id": "i1", "text": "t"}]
    (tmp_path / "items.jsonl").write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in items))
    (tmp_path / "r.jsonl").write_bytes(b"".join(orjson.dumps({**row, "item_id": row["id"]}) + b"\n" for row in items))
    file = str(tmp_path / "items.jsonl")
    message = "columns: no row has a column 'true_scroe'; did you mean 'true_score'?"
    for job in (
        a_job({"columns": columns}, items=items),
        a_job({"columns": columns}, items=file),
        a_job({"columns": columns, "path": str(tmp_path / "r.jsonl")}),
    ):
        with pytest.raises(DatasetError) as caught:
            app.prepared(job)
        assert message in str(caught.value)
    ready = app.prepared(a_job({"columns": columns}, items={"path": file, "limit": 1}))
    assert ready.ratings is not None and ready.ratings.ratings == 1


def test_files_that_are_none(app: Any, tmp_path: Path) -> None:
    for rows, header, message in [
        ([], "item_id,dimension,rater,score", "holds no ratings"),
        (["i0,clear,ada,"], "item_id,dimension,rater,score", "holds no ratings"),
        (["i0,ada,3"], "item_id,rater,score", "dimension_field: no column 'dimension'"),
        (["i0,ada,3"], "item_id,rater,klear", "unknown dimension 'klear'; did you mean 'clear'?"),
        (["i0,clear,ada,3"], "item,dimension,rater,score", "item_field: no column 'item_id'; the columns are 'item'"),
        (["i0,clear,3,1.5"], "item_id,dimension,score,probability", "probability: must be above 0 and at most 1"),
    ]:
        with pytest.raises(DatasetError) as caught:
            app.prepared(a_job(long_csv(tmp_path, *rows, header=header)))
        assert message in str(caught.value)
    with pytest.raises(DatasetError, match="cannot be read"):
        app.prepared(a_job(str(tmp_path / "none.csv")))
    many = [f"i0,clear,r{n},3" for n in range(201)]
    with pytest.raises(DatasetError, match="has more than 200 raters"):
        app.prepared(a_job(long_csv(tmp_path, *many)))


@pytest.mark.parametrize(
    ("ratings", "more", "message"),
    [
        ({}, {}, "name a file (path), or the columns beside the items (columns)"),
        ({"columns": {"clara": "x"}}, {}, "'clara' is no dimension of this job; did you mean 'clear'?"),
        ({"columns": {"clear": {}}}, {}, "each dimension needs a column"),
        ({"columns": {"clear": "x"}}, {"keep": ["x"]}, "the column 'x' is judged, kept or an id"),
        ({"columns": {"clear": "text"}}, {"items": "items.csv"}, "the column 'text' is judged, kept or an id"),
        ({"path": "r.csv", "score_feild": "s"}, {}, "ratings.score_feild: unknown key; did you mean score_field?"),
    ],
)
def test_what_cannot_be_meant(app: Any, ratings: Any, more: Any, message: str) -> None:
    with pytest.raises(InvalidJob) as caught:
        app.prepared(a_job(ratings, **more))
    assert message in str(caught.value)


def test_fractions_and_probabilities_where_they_are_wanted(app: Any, tmp_path: Path) -> None:
    path = long_csv(tmp_path, "i0,clear,3.5,0.25", header="item_id,dimension,score,probability")
    job = a_job({"path": path, "fractions": True})
    ready = app.prepared(job)
    assert ready.ratings is not None
    assert (ready.ratings.ratings, ready.ratings.items, ready.ratings.raters) == (1, 1, ("person",))
    (placed,) = read_ratings(ready.job)
    assert placed.rating == Rating("i0", "clear", "person", 3.5, 0.25)


def test_a_try_on_the_first_items_leaves_the_other_ratings_out(app: Any, tmp_path: Path) -> None:
    (tmp_path / "items.jsonl").write_bytes(
        b"".join(orjson.dumps({"id": f"i{n}", "text": "t"}) + b"\n" for n in range(4))
    )
    path = long_csv(tmp_path, "i0,clear,ada,3", "i3,clear,ada,3")
    for limit, wanted in ((1, (1, 1)), (4, (2, 2))):
        ready = app.prepared(a_job(path, items={"path": str(tmp_path / "items.jsonl"), "limit": limit}))
        assert ready.ratings is not None and (ready.ratings.ratings, ready.ratings.items) == wanted
    none = app.prepared(
        a_job(long_csv(tmp_path, "i3,clear,ada,3"), items={"path": str(tmp_path / "items.jsonl"), "limit": 1})
    )
    assert none.ratings is not None and none.ratings.ratings == 0


def test_a_job_file_names_ratings_from_its_own_folder(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("ratings: people.csv\n")
    document = load_job(str(tmp_path / "job.yaml"))
    assert document["ratings"] == str(tmp_path / "people.csv")
    override(document, "ratings.score_field=stars")
    assert document["ratings"] == {"path": str(tmp_path / "people.csv"), "score_field": "stars"}


def test_many_ratings_are_checked_in_little_memory(tmp_path: Path) -> None:
    """Beside 8 bytes a rating, whatever the file's size."""
    count = 20_000
    rows = (f"item-{n},clear,ada,{1 + n % 5}" for n in range(count))
    job = EvaluationJob.model_validate(a_job(long_csv(tmp_path, *rows)))
    known = KnownItems(numbered=1)
    known.has = lambda _: True  # type: ignore[method-assign]
    survey_ratings(job, known)  # what is loaded once
    tracemalloc.start()
    counts, _ = survey_ratings(job, known)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert counts.ratings == count
    assert peak < 3_000_000


def test_known_items() -> None:
    numbered = KnownItems(numbered=12)
    assert [i for i in ("0", "1", "12", "13", "01", "x", "") if i and numbered.has(i)] == ["1", "12"]
    assert KnownItems(["a"]).has("a")
    assert not KnownItems(["a"]).has("b")


def test_the_plan_tells_of_ratings(app: Any, tmp_path: Path) -> None:
    ready = app.prepared(a_job(long_csv(tmp_path, "i0,clear,ada,3", "i1,clear,ben,4")))
    assert ready.extra["ratings_fingerprint"]
    assert json.loads(orjson.dumps(ready.ratings)) == {"ratings": 2, "items": 2, "raters": ["ada", "ben"]}


WORDS = {
    "tone": {"labels": ["rude", "neutral", "friendly"]},
    "topic": {"labels": ["money", "law"], "ordered": False},
    "whole": {"checklist": ["a?", "b?", "c?"]},
}


def words_job(ratings: Any) -> dict[str, Any]:
    dimensions = [{"id": name, "instructions": "?", "scale": scale} for name, scale in WORDS.items()]
    return {**a_job(ratings), "dimensions": dimensions}


def pairs_job(ratings: Any) -> dict[str, Any]:
    job = a_job(ratings)
    items = [{"id": item["id"], "text_a": "one", "text_b": "other"} for item in job["items"]]
    dimension = {"id": "better", "instructions": "?", "scale": {"preference": "strength"}}
    return {**job, "items": items, "dimensions": [dimension]}


def test_people_rate_in_words(tmp_path: Path) -> None:
    rows = [
        "i0,tone,ada,friendly", "i1,tone,ada,0", "i2,tone,ada, neutral ", "i0,topic,ada,law",
        "i0,whole,ada,0.33", "i1,whole,ada,1", "i2,whole,ada,0.667", "i3,tone,ada,",
    ]  # fmt: skip
    scores = [score for *_, score in found(words_job(long_csv(tmp_path, *rows)))]
    assert scores == [2, 0, 1, 1, 1, 3, 2]


def test_people_rate_pairs_in_words(tmp_path: Path) -> None:
    rows = ["i0,better,ada,A better", "i1,better,ada,-2", "i2,better,ada,tie"]
    assert [score for *_, score in found(pairs_job(long_csv(tmp_path, *rows)))] == [1, -2, 0]


@pytest.mark.parametrize(
    "row, message",
    [
        ("i0,tone,ada,Friendly", "score: must be one of rude, neutral, friendly, or a whole number from 0 to 2"),
        ("i0,tone,ada,3", "score: must be one of rude, neutral, friendly, or a whole number from 0 to 2"),
        ("i0,tone,ada,1.5", "takes what lies between"),
        ("i0,topic,ada,0.5", "must be one of money, law, or a whole number from 0 to 1"),
        ("i0,better,ada,C", "must be one of B much better, B better, tie, A better, A much better, or a whole"),
        ("i0,whole,ada,2", "must be the share of yes, 0 to 1, of the 3 questions of"),
        ("i0,whole,ada,0.5", "ratings: {fractions: true} takes what lies between two numbers of them"),
        ("i0,whole,ada,yes", "must be the share of yes, 0 to 1"),
    ],
)
def test_words_that_are_none(tmp_path: Path, row: str, message: str) -> None:
    with pytest.raises(DatasetError) as refused:
        found((pairs_job if "better" in row else words_job)(long_csv(tmp_path, row)))
    assert message in str(refused.value) and "line 2" in str(refused.value)


# ---------------------------------------------------------------------- lists
def ranked(ratings: Any, **more: Any) -> dict[str, Any]:
    lists = [{"id": name, "candidates": [{"id": c, "text": c} for c in "abc"]} for name in ("q1", "q2")]
    dimensions = [{"id": name, "instructions": "?", "scale": "preference"} for name in ("clear", "true")]
    return {**a_job(ratings, items=lists, dimensions=dimensions, pairs="all"), **more}


def of_lists(job: Any) -> dict[tuple[str, str], float]:
    """What people prefer, with A as the candidate of the lower letter."""
    spec = EvaluationJob.model_validate(job)
    turned = {
        pair.id: pair.metadata["candidate_a"] > pair.metadata["candidate_b"]
        for item in spec.items for pair in PairsOfLists("all").items(item)  # type: ignore[union-attr]
    }  # fmt: skip
    return {(r.item_id, r.dimension): -r.score if turned[r.item_id] else r.score for r, _ in read_ratings(spec)}


def test_an_order_of_a_list_rates_its_pairs(tmp_path: Path) -> None:
    path = long_csv(tmp_path, "q1,clear,ada,b > a = c", "q2/1-3,true,ada,tie", "q2,true,ben,", "q2,true,cy,a > c")
    assert of_lists(ranked(path)) == {
        ("q1/1-2", "clear"): -1, ("q1/1-3", "clear"): 0, ("q1/2-3", "clear"): 1, ("q2/1-3", "true"): 1,
    }  # fmt: skip
    beside = ranked({"columns": {"clear": "best"}})
    beside["items"] = [{**item, "metadata": {"best": order}} for item, order in zip(
        beside["items"], (["a", "b"], None), strict=True
    )]  # fmt: skip
    assert of_lists(beside) == {("q1/1-2", "clear"): 1}
    (tmp_path / "lists.jsonl").write_bytes(
        b"".join(orjson.dumps({**item, "best": "c > b"}) + b"\n" for item in ranked(path)["items"])
    )
    in_file = ranked({"columns": {"clear": "best"}}, items=str(tmp_path / "lists.jsonl"))
    assert {(r.item_id, r.dimension) for r, _ in read_ratings(EvaluationJob.model_validate(in_file))} == {
        ("q1/2-3", "clear"), ("q2/2-3", "clear"),
    }  # fmt: skip


def test_what_rates_no_pair_of_a_list_is_refused(app: Any, tmp_path: Path) -> None:
    def refused(*rows: str, **more: Any) -> str:
        with pytest.raises(DatasetError) as error:
            app.prepared(ranked(long_csv(tmp_path, *rows), **more))
        return str(error.value)

    assert "line 2: the item 'q3' is none of the job's" in refused("q3,clear,ada,a > b")
    assert "line 2: the item 'q1/1-4' is none of the job's" in refused("q1/1-4,clear,ada,1")
    assert "line 3: score: 'd' is no candidate of the list" in refused("q1,clear,ada,a > b", "q2,clear,ada,a > d")
    assert "already in line 2" in refused("q1,clear,ada,a > b", "q1/1-2,clear,ada,1")
    strong = [{"id": "clear", "instructions": "?", "scale": {"preference": "strength"}}]
    assert "an order of a list tells no strength" in refused("q1,clear,ada,a > b", dimensions=strong)
    ready = app.prepared(ranked(long_csv(tmp_path, "q1,clear,ada,a > b > c", "q1,clear,ben,a > b")))
    assert ready.ratings == RatingCounts(ratings=4, items=3, raters=("ada", "ben"))


def test_orders_of_lists_beyond_the_limit_are_left_out(app: Any, tmp_path: Path) -> None:
    path = long_csv(tmp_path, "q2,clear,ada,a > b", "q1,clear,ada,a > b")
    (tmp_path / "lists.jsonl").write_bytes(b"".join(orjson.dumps(item) + b"\n" for item in ranked(path)["items"]))
    ready = app.prepared(ranked(path, items={"path": str(tmp_path / "lists.jsonl"), "limit": 1}))
    assert ready.ratings == RatingCounts(ratings=1, items=1, raters=("ada",))
