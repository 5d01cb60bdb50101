from __future__ import annotations

import csv
import errno
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dicast.app.reports.collecting import export
from dicast.app.reports.columns import COLUMNS
from dicast.app.reports.files import NoResults, finish, write_page
from dicast.app.reports.folders import replacing
from tests.reports.building import NOW, header, opinion

JOB = "job-1"


def finished(root: Path, *opinions) -> Path:
    write_page(root, JOB, NOW, "0", 0, opinions, [])
    finish(root, JOB, NOW, header(len(opinions)))
    return root


@pytest.mark.parametrize("format, name", [("jsonl", "opinions.jsonl"), ("parquet", "opinions.parquet")])
def test_exact_formats_are_copies(tmp_path: Path, format: str, name: str) -> None:
    finished(tmp_path / "results", opinion(0), opinion(1, score=None))
    out = export(tmp_path / "results", JOB, format, tmp_path / "out")
    assert out.read_bytes() == (tmp_path / "results" / JOB / name).read_bytes()


@pytest.mark.parametrize("format", ["jsonl", "parquet", "csv"])
def test_a_folder_that_was_moved_is_exported_from_where_it_is(tmp_path: Path, format: str) -> None:
    finished(tmp_path / "written", opinion(0))
    before = export(tmp_path / "written", JOB, format, tmp_path / "before").read_bytes()
    (tmp_path / "written").rename(tmp_path / "here")
    assert export(tmp_path / "here", JOB, format, tmp_path / "after").read_bytes() == before


def test_csv_has_the_columns_of_the_parquet_file(tmp_path: Path) -> None:
    finished(tmp_path, opinion(0, argument='say "no", and\nmore'), opinion(1, score=None))
    out = export(tmp_path, JOB, "csv", tmp_path / "out.csv")
    with out.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == COLUMNS.names
    assert rows[0]["argument"] == 'say "no", and\nmore'
    assert rows[0]["cited_evidence"] == '["line 0","and more"]'
    assert [row["score"] for row in rows] == ["5", ""]
    assert (rows[1]["input_tokens"], rows[1]["latency_s"]) == ("101", "0.25")


@settings(max_examples=60, deadline=None)
@given(st.text() | st.sampled_from(["=cmd|' /C calc'!A0", "a;=1+1", "+1", "-5 of 10", "@x", "\t=1"]))
def test_csv_texts_come_back_and_none_is_a_formula(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    root = finished(tmp_path_factory.mktemp("r"), opinion(0, argument=text, item_id=text, score=-3))
    out = export(root, JOB, "csv", root / "out.csv")
    with out.open(newline="", encoding="utf-8") as file:
        row = next(csv.DictReader(file))
    assert row["argument"].removeprefix("'") == text.removeprefix("'")
    assert row["item_id"][:1] not in {"=", "+", "-", "@", "\t", "\r", "\n"}
    assert row["score"] == "-3"
    # Quoted, so that a spreadsheet that parts cells at semicolons cannot find a formula behind one.
    assert all(field.startswith('"') for field in out.read_text(encoding="utf-8").partition("\n")[0].split(","))


def test_an_unfinished_job_is_not_exported(tmp_path: Path) -> None:
    write_page(tmp_path, JOB, NOW, "0", 0, [opinion(0)], [])
    with pytest.raises(NoResults):
        export(tmp_path, JOB, "csv", tmp_path / "out.csv")
    assert not (tmp_path / "out.csv").exists()


def test_an_unknown_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="format must be one of csv, jsonl, parquet, got 'xlsx'"):
        export(tmp_path, JOB, "xlsx", tmp_path / "out")


def test_kept_metadata_are_columns_of_every_format(tmp_path: Path) -> None:
    kept = {"lang": "en", "n": 3, "judge": "not the judge"}
    write_page(
        tmp_path, JOB, NOW, "0", 0, [opinion(0, metadata=kept), opinion(1, metadata={"lang": "de"}), opinion(2)], []
    )
    report = finish(tmp_path, JOB, NOW, header(3, keep=["lang", "n", "judge"]))
    assert report.keep == ["lang", "n", "judge"]
    names = ["metadata.lang", "metadata.n", "metadata.judge"]
    want = [["en", "3", "not the judge"], ["de", None, None], [None, None, None]]
    table = pq.read_table(export(tmp_path, JOB, "parquet", tmp_path / "o.parquet"))
    assert table.column_names == [*COLUMNS.names, *names]
    assert [[row[name] for name in names] for row in table.to_pylist()] == want
    with export(tmp_path, JOB, "csv", tmp_path / "o.csv").open(newline="") as file:
        assert [[row[name] or None for name in names] for row in csv.DictReader(file)] == want
    lines = export(tmp_path, JOB, "jsonl", tmp_path / "o.jsonl").read_text().splitlines()
    assert [json.loads(line)["metadata"] for line in lines] == [kept, {"lang": "de"}, {}]


@pytest.mark.parametrize("out, reason", [("none/o.csv", "No such file"), ("there", "Is a directory")])
def test_a_failed_export_names_its_own_path(tmp_path: Path, out: str, reason: str) -> None:
    finished(tmp_path / "results", opinion(0))
    (tmp_path / "there").mkdir()
    with pytest.raises(OSError, match=reason) as caught:
        export(tmp_path / "results", JOB, "csv", tmp_path / out)
    assert caught.value.filename == str(tmp_path / out)


def test_a_full_disk_names_the_file(tmp_path: Path) -> None:
    finished(tmp_path / "results", opinion(0))
    with pytest.raises(OSError, match="No space left") as caught, replacing(Path(tmp_path) / "o.csv"):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert caught.value.filename == str(tmp_path / "o.csv")
