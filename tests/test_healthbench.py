"""Files in HealthBench's form: every row is judged as it is, or left out and counted. The rows here are made up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dicast.app.application import create_app
from dicast.app.datasets import DatasetError, count_items, read_page, survey
from dicast.app.domain.item import Item, ItemSource
from dicast.app.domain.refusals import JobRefused
from dicast.app.operator.prompts import first_unit

POOLS = 'default = "sim"\n[pools.sim]\nprovider = "simulated"\n'
RUBRICS = [
    {"criterion": "Sends the asker to a doctor", "points": 10, "tags": ["level:example", "axis:accuracy"]},
    {"criterion": "Names a dose without a warning", "points": -6, "tags": []},
]


def a_row(number: int, ideal: str | None = "See a doctor today.", **more: Any) -> dict[str, Any]:
    """One row with the fields of the published files."""
    completions = {
        "ideal_completion": ideal,
        "ideal_completions_group": "Group 2",
        "ideal_completions_ref_completions": [],
    }
    return {
        "example_tags": ["theme:emergency_referrals"],
        "ideal_completions_data": None if ideal is None else completions,
        "prompt": [{"content": f"My baby has {number} degrees.", "role": "user"}],
        "prompt_id": f"made-up-{number}",
        "rubrics": RUBRICS,
        "canary": "made up for this test",
        **more,
    }


def write(path: Path, rows: list[dict[str, Any]]) -> ItemSource:
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        path.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    return ItemSource(path=str(path))


def pages(source: ItemSource, count: int) -> list[Item]:
    items, cursor = read_page(source, None, count)
    while cursor is not None:
        more, cursor = read_page(source, json.loads(json.dumps(cursor)), count)
        assert more, "a cursor promises at least one item"
        items += more
    return items


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_a_row_becomes_a_conversation_with_criteria(tmp_path: Path, form: str) -> None:
    of = write(tmp_path / f"a.{form}", [a_row(39, completion="Wait."), a_row(40, completion="Go to a hospital.")])
    first, second = pages(of, 1)
    assert (first.id, first.judged_as, second.id) == ("made-up-39", "last_answer", "made-up-40")
    assert [(turn.role, turn.content) for turn in second.messages or ()] == [
        ("user", "My baby has 40 degrees."), ("assistant", "Go to a hospital."),
    ]  # fmt: skip
    assert [(criterion.text, criterion.points) for criterion in second.criteria or ()] == [
        ("Sends the asker to a doctor", 10), ("Names a dose without a warning", -6),
    ]  # fmt: skip
    assert second.metadata == {"example_tags": ["theme:emergency_referrals"], "canary": "made up for this test"}
    assert survey(of).left_out == 0


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
@pytest.mark.parametrize("without", [{0}, {9}, {3, 4, 8, 9}, {1}, set()])
def test_without_completions_the_ideal_ones_are_judged(tmp_path: Path, form: str, without: set[int]) -> None:
    of = write(tmp_path / f"a.{form}", [a_row(n, None if n in without else f"Answer {n}.") for n in range(10)])
    wanted = [f"made-up-{n}" for n in range(10) if n not in without]
    for count in (1, 3, 100):
        assert [item.id for item in pages(of, count)] == wanted
    assert (survey(of).items, survey(of).left_out, count_items(of)) == (len(wanted), len(without), len(wanted))
    assert pages(of, 9)[0].metadata["ideal_completions_group"] == "Group 2"
    few = of.model_copy(update={"limit": 4})
    assert [item.id for item in pages(few, 3)] == wanted[:4] and survey(few).items == 4


def test_columns_may_be_named(tmp_path: Path) -> None:
    rows = [a_row(39, answer_of_model="Wait.", run=f"run-{n}", system="new") for n in range(2)]
    of = write(tmp_path / "a.jsonl", rows).model_copy(update={"text_field": "answer_of_model", "id_field": "run"})
    items = pages(of, 9)
    assert [item.id for item in items] == ["run-0", "run-1"]
    assert items[0].metadata["prompt_id"] == "made-up-39" and items[0].output == "Wait."


@pytest.mark.parametrize(
    "row, reason",
    [
        (a_row(1, completion=" "), "line 2: completion: must be text, not blank, got ' '"),
        (a_row(1, completion=None), "line 2: completion: must be text, not blank, got None"),
        (a_row(1, completion="x", rubrics=[]), "line 2: rubrics: must be a list of criteria with points, got []"),
        (a_row(1, completion="x", prompt="Hello?"), "line 2: prompt: must be a list of messages, got 'Hello?'"),
        (a_row(1, completion="x", prompt_id=None), "line 2: id: must be text or a whole number, got None"),
        (a_row(1, completion="x", rubrics=[{"criterion": "y", "points": 0}]), "line 2: criteria[0].points: must be at"),
        (a_row(1, completion="x", rubrics=[{"criterion": "y", "points": -3}]), "one at least needs points above 0"),
        (a_row(0, completion="x"), "is already in line 1"),
    ],
)
def test_what_cannot_be_judged_is_refused_with_its_line(tmp_path: Path, row: dict[str, Any], reason: str) -> None:
    of = write(tmp_path / "a.jsonl", [a_row(0, completion="y"), row])
    with pytest.raises(DatasetError) as refusal:
        survey(of)
    assert reason in str(refusal.value)


def test_other_files_with_such_columns_are_read_as_ever(tmp_path: Path) -> None:
    of = write(tmp_path / "a.jsonl", [{"prompt_id": 1, "prompt": "Why?", "rubrics": "none", "text": "So."}])
    assert pages(of, 1)[0].metadata == {"prompt_id": 1, "rubrics": "none"}
    of = write(tmp_path / "b.jsonl", [{"id": "a", "text": "So.", "criteria": [{"text": "It is", "points": 2}]}])
    assert [criterion.points for criterion in pages(of, 1)[0].criteria or ()] == [2]
    (tmp_path / "c.csv").write_text('id,text,criteria\na,So.,"[{""text"": ""It is"", ""points"": 2}]"\n')
    assert pages(ItemSource(path=str(tmp_path / "c.csv")), 1)[0].criteria == pages(of, 1)[0].criteria
    (tmp_path / "d.csv").write_text("id,text,criteria\na,So.,strict\n")
    with pytest.raises(DatasetError, match="criteria_field: null if the column is something else"):
        pages(ItemSource(path=str(tmp_path / "d.csv")), 1)
    named = ItemSource(path=str(tmp_path / "d.csv"), criteria_field=None)
    assert pages(named, 1)[0].metadata == {"criteria": "strict"}


# ---------------------------------------------------------------------- submission
@pytest.fixture
def app(environ):
    Path(environ["DICAST_POOLS_FILE"]).write_text(POOLS)
    app = create_app(environ)
    yield app
    app.close()


def a_job(items: Any, scale: Any = "criteria") -> dict[str, Any]:
    dimension = {"id": "health", "instructions": "Does it serve the asker?", "scale": scale}
    return {"items": items, "agents": [{"name": "grader"}], "dimensions": [dimension]}


def test_the_file_is_submitted_as_it_is(app, tmp_path: Path) -> None:
    of = write(tmp_path / "a.jsonl", [a_row(n, None if n == 1 else "See a doctor.") for n in range(3)])
    ready = app.prepared(a_job(of.path))
    assert (ready.items, ready.units) == (2, 2)
    assert list(ready.warnings) == ["items: 1 row of the file left out, without an answer to judge"]
    shown = first_unit(app, ready).prompt
    assert "> My baby has 0 degrees.\n" in shown.user and "\nThe last answer, which is judged:\n" in shown.user
    assert "  Statement 2: Names a dose without a warning\nSTATEMENTS: 2\n" in shown.user
    assert shown.schema["properties"]["answers"]["required"] == ["1", "2"]


def test_criteria_and_their_dimension_need_each_other(app, tmp_path: Path) -> None:
    of = write(tmp_path / "a.jsonl", [a_row(0)])
    with pytest.raises(DatasetError, match="line 1: the item 'made-up-0' has 2 criteria, and no dimension judges by"):
        app.prepared(a_job(of.path, {"min": 1, "max": 5}))
    with pytest.raises(JobRefused, match="items: 'a' has no criteria, and the dimension 'health' judges each item"):
        app.prepared(a_job([{"id": "a", "text": "So."}]))
