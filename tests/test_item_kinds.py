"""Pairs and conversations in files: how rows become items, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dicast.app import datasets
from dicast.app.datasets import DatasetError
from dicast.app.domain.item import Item, ItemSource
from dicast.app.domain.job import EvaluationJob

TALK = [{"role": "user", "content": "Why?", "name": None}, {"role": "assistant", "content": "So.", "name": "Bot"}]


def written(folder: Path, name: str, rows: list[dict[str, Any]]) -> str:
    path = folder / name
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".csv":
        cells = [[json.dumps(v) if isinstance(v, list) else v for v in row.values()] for row in rows]
        quoted = [",".join('"{}"'.format(str(cell).replace('"', '""')) for cell in line) for line in cells]
        path.write_text("\n".join([",".join(rows[0]), *quoted]) + "\n")
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def read(path: str, **fields: Any) -> list[Item]:
    return datasets.read_page(ItemSource(path=path, **fields), None, 100)[0]


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.parquet"])
def test_pairs_are_read_from_every_format(tmp_path: Path, name: str) -> None:
    row = {"id": "1", "text_a": "One.", "text_b": "Two.", "prompt": "Say it.", "system_a": "x"}
    (item,) = read(written(tmp_path, name, [row]))
    assert item == Item(id="1", text_a="One.", text_b="Two.", prompt="Say it.", metadata={"system_a": "x"})


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.parquet"])
def test_conversations_are_read_from_every_format(tmp_path: Path, name: str) -> None:
    (item,) = read(written(tmp_path, name, [{"id": "1", "messages": TALK}]), judged="conversation")
    assert item.messages is not None and item.judged == "conversation" and item.metadata == {}
    assert [(turn.role, turn.content, turn.name) for turn in item.messages] == [
        ("user", "Why?", None), ("assistant", "So.", "Bot"),
    ]  # fmt: skip


def test_columns_may_have_other_names(tmp_path: Path) -> None:
    path = written(tmp_path, "a.csv", [{"id": "1", "left": "One.", "right": "Two.", "text": "about them"}])
    (item,) = read(path, text_a_field="left", text_b_field="right", text_field=None)
    assert (item.text_a, item.text_b, item.metadata) == ("One.", "Two.", {"text": "about them"})


@pytest.mark.parametrize(
    "row, told",
    [
        ({"text": "x", "text_a": "x", "text_b": "y"}, "say text_a_field: null where the column is something else"),
        ({"text": "x", "messages": TALK}, "has 'text' and 'messages', and an item must have text, text_a and"),
        ({"text_a": "x", "text_b": " "}, "line 1: text_b: must be text, not blank, got ' '"),
        ({"text_b": "x"}, "text_a: must be text, not blank, got None"),
        ({"text_a": 5, "text_b": "x"}, "text_a: must be text, got 5"),
        ({"messages": "hello"}, "say messages_field: null if the column is something else, got 'hello'"),
        ({"messages": {"role": "user"}}, "messages: must be a list; say"),
        ({"messages": [{"role": "user", "content": "x"}]}, "the last message is by 'user'"),
        ({"messages": [{"role": 1, "content": "x"}]}, "messages[0].role: must be a text, got 1"),
    ],
)
def test_a_row_that_is_no_item_is_told(tmp_path: Path, row: dict[str, Any], told: str) -> None:
    with pytest.raises(DatasetError) as error:
        read(written(tmp_path, "a.jsonl", [{"id": "1", **row}]))
    assert told in str(error.value) and "line 1" in str(error.value)


def test_a_file_of_the_wrong_kind_is_refused_with_its_line(tmp_path: Path) -> None:
    pairs = written(tmp_path, "a.jsonl", [{"id": "1", "text_a": "x", "text_b": "y"}])
    job = EvaluationJob.model_validate({
        "items": pairs, "agents": [{"name": "a"}], "dimensions": [{"id": "d", "instructions": "?"}],
    })  # fmt: skip
    with pytest.raises(DatasetError, match="line 1: the item '1' is a pair, and the dimension 'd' asks for no"):
        datasets.survey(ItemSource(path=pairs), misfit=job.misfit)
