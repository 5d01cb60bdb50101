"""Items from Python: frames, records and texts, as they are in files of items; and through every entrance."""

from __future__ import annotations

import datetime
import decimal
import json
from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pydantic import ValidationError

from dicast.app.application import create_app
from dicast.app.datasets.pages import read_page
from dicast.app.domain.item import Item, ItemSource, RatingSource
from dicast.app.domain.job import EvaluationJob
from dicast.app.domain.panel import PanelRule
from dicast.app.domain.records import inline_items
from dicast.app.domain.refusals import InvalidJob, validated
from dicast.app.submission.job_file import load_job
from dicast.app.submission.submit import check_job, prepare

REST: dict[str, Any] = {"agents": [{"name": "a"}], "dimensions": [{"id": "d", "instructions": "?"}]}
RECORDS = [{"id": "a", "text": "One.", "lang": "de", "n": 1}, {"id": "b", "text": "Two.", "lang": "en", "n": 2}]
ITEMS = [Item(id=r["id"], text=r["text"], metadata={"lang": r["lang"], "n": r["n"]}) for r in RECORDS]  # type: ignore[arg-type]


def items(value: Any) -> list[Item]:
    found = validated({**REST, "items": value}).items
    assert isinstance(found, list)
    assert EvaluationJob.model_validate({**REST, "items": inline_items(value)}).items == found
    return found


def frames() -> Iterator[Any]:
    yield pd.DataFrame(RECORDS)
    yield pd.DataFrame(RECORDS).set_index("id")
    yield pa.Table.from_pylist(RECORDS)
    yield RECORDS
    yield tuple(RECORDS)
    yield pd.DataFrame(RECORDS).to_dict("records")


@pytest.mark.parametrize("value", list(frames()), ids=["pandas", "index", "arrow", "list", "tuple", "records"])
def test_all_kinds_of_records_are_the_same_items(value: Any) -> None:
    assert items(value) == ITEMS


def test_polars_frames_are_items() -> None:
    pl = pytest.importorskip("polars")
    assert items(pl.DataFrame(RECORDS)) == ITEMS
    with pytest.raises(InvalidJob, match="a lazy frame has no rows yet"):
        items(pl.DataFrame(RECORDS).lazy())


def test_every_mapping_is_as_good_as_a_dictionary() -> None:
    assert items([MappingProxyType(record) for record in RECORDS]) == ITEMS
    assert items([MappingProxyType({"id": "1", "text": "One."})]) == [Item(id="1", text="One.")]
    source, ratings, panel = (MappingProxyType(given) for given in ({"path": "a"}, {"path": "b"}, {"combine": "worst"}))
    job = EvaluationJob(**REST, items=source, ratings=ratings, panel=panel)
    assert (job.items, job.ratings, job.panel) == (
        ItemSource(path="a"), RatingSource(path="b"), PanelRule(combine="worst"),
    )  # fmt: skip


def test_what_a_field_accepts_is_no_part_of_a_jobs_schema() -> None:
    fields = EvaluationJob.model_json_schema()["properties"]
    kinds = [{"items": {"$ref": "#/$defs/Item"}, "type": "array"}, {"$ref": "#/$defs/ItemSource"}]
    assert fields["items"] == {"anyOf": kinds, "title": "Items"}
    assert fields["panel"]["anyOf"] == [{"$ref": "#/$defs/PanelRule"}, {"type": "null"}]
    assert fields["panel"]["default"] is None
    assert fields["unit_deadline"]["anyOf"] == [{"type": "number"}, {"type": "null"}]


def test_a_generator_is_read_once() -> None:
    found = validated({**REST, "items": (record for record in RECORDS)}).items
    assert found == ITEMS


def test_records_are_as_in_a_file(tmp_path: Path) -> None:
    rows = [{"text": "One.", "lang": "de"}, {"text": "Two.", "metadata": {"lang": "en"}}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    in_file, _ = read_page(ItemSource(path=str(tmp_path / "rows.jsonl")), None, 10)
    assert items(rows) == in_file == [
        Item(id="1", text="One.", metadata={"lang": "de"}), Item(id="2", text="Two.", metadata={"lang": "en"})
    ]  # fmt: skip


def test_texts_are_numbered() -> None:
    wanted = [Item(id="1", text="One."), Item(id="2", text="Two.")]
    assert items(["One.", "Two."]) == items(pd.Series(["One.", "Two."])) == wanted


def test_cells_become_what_json_can_hold() -> None:
    frame = pd.DataFrame({
        "id": np.array([1, 2]), "text": pd.Categorical(["One.", "Two."]), "prompt": ["Why?", None],
        "reference": [np.nan, "R."], "score": [0.5, np.nan], "at": [pd.Timestamp("2026-11-24T01:00"), pd.NaT],
        "count": pd.array([1, None], dtype="Int64"), "nested": [{"a": np.arange(2)}, ["x", np.float64("nan")]],
        "price": [decimal.Decimal("1.50"), None], "day": [datetime.date(2026, 11, 24), None], "raw": [b"x", b"y"],
        "flag": [True, False],
    })  # fmt: skip
    one, two = items(frame)
    assert (one.id, one.text, one.prompt, one.reference) == ("1", "One.", "Why?", None)
    assert (two.id, two.text, two.prompt, two.reference) == ("2", "Two.", None, "R.")
    assert one.metadata == {
        "score": 0.5, "at": "2026-11-24T01:00:00", "count": 1, "nested": {"a": [0, 1]}, "price": "1.50",
        "day": "2026-11-24", "flag": True,
    }  # fmt: skip
    assert two.metadata == {
        "score": None, "at": None, "count": None, "nested": ["x", None], "price": None, "day": None, "flag": False
    }  # fmt: skip


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (pd.DataFrame({"id": ["a"], "answer": ["One."]}), "items: no column 'text', and none of candidates, messages"),
        (pd.DataFrame([["a", "b"]], columns=["text", "text"]), "items: the frame has the column 'text' twice"),
        (pd.DataFrame({"id": ["a", "a"], "text": ["One.", "Two."]}), "items: the id 'a' occurs twice"),
        (pd.DataFrame({"id": ["a", None], "text": ["One.", "Two."]}), "items[1].id: is missing"),
        (pd.DataFrame({"id": ["a"], "text": [None]}), "items[0]: must have text, text_a and text_b, messages or"),
        (pd.DataFrame({"id": [], "text": []}), "items: at least one is needed, got 0"),
        ([{"text": "One."}, {"id": "b", "text": "Two."}], "items[1].id: was absent in the first record, got 'b'"),
        ([{"id": "a", "text": "One.", "promt": "Why?"}], "items[0].promt: unknown key; did you mean prompt?"),
        ([{"id": "a", "text": "t", "x": 1, "metadata": {"x": 2}}], "items[0].metadata: has 'x', and so has the record"),
        ([1, 2], "items[0]: must be a mapping, got 1"),
        (7, "items: must be a list or the name of a file, got 7; write items: answers.jsonl, or a list of"),
        ({"pth": "x.csv"}, "items.pth: unknown key; did you mean path?"),
    ],
)  # fmt: skip
def test_what_is_no_items_is_told_with_the_way(value: Any, said: str) -> None:
    with pytest.raises(InvalidJob) as refused:
        validated({**REST, "items": value})
    assert said in str(refused.value) and len(str(refused.value)) < 700


def test_a_job_of_items_takes_them_by_every_entrance(environ: dict[str, str]) -> None:
    frame = pd.DataFrame(RECORDS)
    built = EvaluationJob.model_validate({**REST, "items": frame})
    assert built.items == ITEMS
    assert EvaluationJob(**{**REST, "items": frame, "agents": built.agents, "dimensions": built.dimensions}) == built
    assert check_job({**REST, "items": frame}).items == ITEMS
    assert check_job(load_job({**REST, "items": frame})).items == ITEMS
    with pytest.raises(ValidationError, match="no column 'text'"):
        EvaluationJob.model_validate({**REST, "items": frame[["id", "lang"]]})
    app = create_app(environ)
    ready = prepare({**REST, "items": frame, "groups": ["lang"]}, pools=app.pools, settings=app.settings)
    assert (ready.items, ready.job.items) == (2, ITEMS)
    app.close()
