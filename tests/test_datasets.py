from __future__ import annotations

import csv
import datetime as dt
import gzip
import io
import json
import re
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dicast.app.datasets import DatasetError, count_items, fingerprint, located, parquet, read_page, survey, tables
from dicast.app.domain.item import Item, ItemSource

Records = Sequence[dict[str, Any]]


def write_jsonl(path: Path, records: Records) -> None:
    path.write_bytes(b"".join(orjson.dumps(record) + b"\n" for record in records))


def write_csv(path: Path, records: Records) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(records[0]))
        writer.writeheader()
        writer.writerows(records)


def write_parquet(path: Path, records: Records) -> None:
    pq.write_table(pa.Table.from_pylist(list(records)), path, row_group_size=150)


def write_tsv(path: Path, records: Records) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(records[0]), delimiter="\t")
        writer.writeheader()
        writer.writerows(records)


FORMATS = {"jsonl": write_jsonl, "csv": write_csv, "tsv": write_tsv, "parquet": write_parquet}


def source(path: Path, **names: Any) -> ItemSource:
    return ItemSource(path=str(path), **names)


def pages(of: ItemSource, count: int) -> list[Item]:
    """All items, each page read from a cursor that went through JSON, as the ledger stores it."""
    items, cursor = read_page(of, None, count)
    while cursor is not None:
        more, cursor = read_page(of, json.loads(json.dumps(cursor)), count)
        assert more, "a cursor promises at least one item"
        items += more
    return items


def records(count: int) -> list[dict[str, Any]]:
    text = 'Line one,\n"quoted", and\r\nline 2 ünï 😀'
    return [{"id": f"q{n}", "text": f"{n} {text}", "prompt": f"p{n}", "kind": f"k{n}"} for n in range(count)]


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("count", [1, 2, 7, 100, 1000])
def test_pages_hold_every_item_once_and_in_order(tmp_path: Path, kind: str, count: int) -> None:
    wanted = records(400)
    FORMATS[kind](tmp_path / f"a.{kind}", wanted)
    of = source(tmp_path / f"a.{kind}")
    got = pages(of, count)
    assert [(i.id, i.text, i.prompt, i.reference, i.metadata) for i in got] == [
        (r["id"], r["text"], r["prompt"], None, {"kind": r["kind"]}) for r in wanted
    ]
    assert count_items(of) == survey(of).items == 400


@pytest.mark.parametrize("kind", FORMATS)
def test_a_cursor_may_be_used_again_and_out_of_order(tmp_path: Path, kind: str) -> None:
    FORMATS[kind](tmp_path / f"a.{kind}", records(300))
    of = source(tmp_path / f"a.{kind}")
    starts: dict[int, Any] = {0: None}
    for at in range(0, 290, 10):
        starts[at + 10] = read_page(of, starts[at], 10)[1]
    for at in [290, 0, 160, 150, 140, 150, 150, 0, 70, 60, 290]:
        assert [item.id for item in read_page(of, starts[at], 3)[0]] == [f"q{at + n}" for n in range(3)]


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("limit, want", [(1, 1), (10, 10), (399, 399), (400, 400), (500, 400)])
def test_the_limit_ends_the_reading(tmp_path: Path, kind: str, limit: int, want: int) -> None:
    FORMATS[kind](tmp_path / f"a.{kind}", records(400))
    of = source(tmp_path / f"a.{kind}", limit=limit)
    assert len(pages(of, 7)) == len(pages(of, 10)) == count_items(of) == survey(of).items == want


@pytest.mark.parametrize("kind", FORMATS)
def test_without_an_id_column_items_are_named_by_their_row(tmp_path: Path, kind: str) -> None:
    FORMATS[kind](tmp_path / f"a.{kind}", [{"text": f"t{n}"} for n in range(30)])
    of = source(tmp_path / f"a.{kind}")
    assert [item.id for item in pages(of, 7)] == [str(n) for n in range(1, 31)]
    assert survey(of).items == 30


@pytest.mark.parametrize("kind", FORMATS)
def test_columns_may_have_other_names(tmp_path: Path, kind: str) -> None:
    FORMATS[kind](tmp_path / f"a.{kind}", [{"key": "k", "answer": "a", "question": "q", "gold": "g", "id": "x"}])
    of = source(
        tmp_path / f"a.{kind}", id_field="key", text_field="answer", prompt_field="question", reference_field="gold"
    )
    assert pages(of, 1) == [Item(id="k", text="a", prompt="q", reference="g", metadata={"id": "x"})]


@pytest.mark.parametrize("kind", FORMATS)
def test_fields_that_are_not_wanted_are_metadata(tmp_path: Path, kind: str) -> None:
    FORMATS[kind](tmp_path / f"a.{kind}", [{"id": "k", "text": "a", "prompt": "q"}])
    (item,) = pages(source(tmp_path / f"a.{kind}", prompt_field=None), 5)
    assert item == Item(id="k", text="a", metadata={"prompt": "q"})


@pytest.mark.parametrize(
    "name, content, want",
    [
        ("a.jsonl", b'\xef\xbb\xbf{"id": 1, "text": "a"}\r\n\r\n  \n{"id": -2, "text": "b"}', ["1", "-2"]),
        ("a.ndjson", b'{"id": "1", "text": "a"}\n\n\n', ["1"]),
        ("a.JSONL", b'{"text": "a"}\n{"text": "b", "prompt": null}\n', ["1", "2"]),
        ("a.csv", b'\xef\xbb\xbfid,text\r\n1,"a\r\nb"\r\n\r\n2,"c ""d"", e"\r\n', ["1", "2"]),
        ("a.csv", b"\n\nid,text\n1,a", ["1"]),
        ("a.csv", b'id;text\r\n1;"a; b, c"\r\n2;d\r\n', ["1", "2"]),
        ("a.csv", b"id\ttext\n1\ta, b\n", ["1"]),
        ("empty.jsonl", b"", []),
        ("blank.jsonl", b"\n \n", []),
        ("header.csv", b"id,text\n", []),
    ],
)
def test_line_ends_byte_order_marks_and_blank_lines(tmp_path: Path, name: str, content: bytes, want: list[str]) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    of = source(path)
    assert [item.id for item in pages(of, 1)] == [item.id for item in read_page(of, None, 100)[0]] == want
    assert count_items(of) == survey(of).items == len(want)


def test_quoted_line_ends_survive(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b'id,text\n1,"a\r\nb\n\n""c"", d"\n')
    assert pages(source(tmp_path / "a.csv"), 1)[0].text == 'a\r\nb\n\n"c", d'


GOOD = b'{"id": "1", "text": "a"}\n'

BAD = [
    ("a.jsonl", GOOD + b"{nope}\n", "line 2: is no JSON"),
    ("a.jsonl", GOOD + b"[1, 2]\n", r"line 2: must be a JSON object, got \[1, 2\]"),
    ("a.jsonl", GOOD + b'{"id": "2"}\n', "line 2: text: must be text, not blank, got None"),
    ("a.jsonl", GOOD + b'{"id": "2", "text": ""}\n', "line 2: text: must be text, not blank, got ''"),
    ("a.jsonl", GOOD + b'{"id": "2", "text": 5}\n', "line 2: text: must be text, got 5"),
    ("a.jsonl", GOOD + b'{"id": "2", "text": "a", "prompt": ["p"]}\n', r"line 2: prompt: must be text, got \['p'\]"),
    ("a.jsonl", GOOD + b'{"text": "a"}\n', "line 2: id: must be text or a whole number, got None"),
    ("a.jsonl", GOOD + b'{"id": true, "text": "a"}\n', "line 2: id: must be text or a whole number, got True"),
    ("a.jsonl", GOOD + b'{"id": 1.5, "text": "a"}\n', "line 2: id: must be text or a whole number, got 1.5"),
    ("a.jsonl", GOOD + b'{"id": "", "text": "a"}\n', "line 2: id: must not be empty, got ''"),
    ("a.jsonl", GOOD + b'{"id": "a\\nb", "text": "a"}\n', r"line 2: id: contains the unprintable character U\+000A"),
    ("a.jsonl", GOOD + b'{"id": "\\ud800", "text": "a"}\n', "line 2: is no JSON"),
    ("a.jsonl", GOOD + b'\n\n{"id": "2", "text": "\xff"}\n', "line 4: is no JSON"),
    ("a.jsonl", GOOD + b'{"id": "2", "text": "a", "x": NaN}\n', "line 2: is no JSON"),
    ("a.jsonl", b'{"text": "a", "x": ' + b"[" * 900 + b"]" * 900 + b"}", "line 1: is nested too deeply"),
    ("a.jsonl", GOOD + b"[" * 100_000, "line 2: is no JSON"),
    ("a.jsonl", b'{"text": "a"}\n{"id": "2", "text": "b"}\n', "line 2: id: was absent in the first row, got '2'"),
    ("a.csv", b"id,text\n1\n", "line 2: has 1 fields, the header has 2"),
    ("a.csv", b'id,text\n1,"a\nb"\n2,b,c\n', "line 4: has 3 fields, the header has 2"),
    ("a.csv", b'id,text\n1,a\n2,"b', "line 3: is no CSV: unexpected end of data"),
    ("a.csv", b'id,text\n1,"a" b\n', "line 2: is no CSV"),
    ("a.csv", b"id,text\n1,a\xff\n", r"line 2: is not UTF-8 from b'\\xff"),
    ("a.csv", b"id,text,text\n1,a,b\n", "line 1: has the column 'text' twice"),
    ("a.csv", b"id;answer\n1;a\n", "text_field: no column 'text'; the columns are 'id', 'answer'"),
    ("a.csv", b"id;text\n1;a;b\n", "line 2: has 3 fields, the header has 2"),
    ("a.tsv", b"id,text\n1,a\n", "text_field: no column 'text'; the columns are 'id,text'"),
    ("a.json", b' [{"id": 1, "text": "a"}]', r"holds a JSON array: write one object a line \(jq -c '.\[\]' "),
    ("a.jsonl", b'[\n{"id": 1, "text": "a"}\n]', "holds a JSON array: write one object a line"),
    ("a.json", b'{"id": 1, "text": "a"}', "ends in .json: one object a line is JSONL, so end it in .jsonl"),
    ("a.jsonl.gz", gzip.compress(GOOD, mtime=0), r"is compressed with gzip: unpack it first \(gunzip\)"),
    ("a.jsonl", gzip.compress(GOOD, mtime=0), "is compressed with gzip"),
    ("a.xlsx", b"PK\x03\x04...", "is a ZIP archive or an Excel workbook: unpack it, or save the sheet as CSV"),
    ("a.csv", b"PAR1....", "is a Parquet file: end its name in .parquet"),
    ("a.jsonl", GOOD + b'{"id": "2", "text": " \\n"}\n', r"line 2: text: must be text, not blank, got ' "),
    ("a.csv", b"", "text_field: no column 'text'; the columns are none"),
    ("a.csv", b"\xff\xfei\x00d\x00", "is UTF-16: save it as UTF-8"),
    ("a.parquet", b"PAR1 not really", "is no Parquet file"),
    ("a.parquet", b"", "is no Parquet file"),
    ("a.txt", b"", "has none of the endings .jsonl, .ndjson, .csv, .tsv, .parquet, .pq: say its format"),
]


@pytest.mark.parametrize("name, content, message", BAD)
def test_what_is_wrong_is_named(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    for look in (lambda: pages(source(path), 1), lambda: survey(source(path))):
        with pytest.raises(DatasetError, match=message) as caught:
            look()
        assert str(caught.value).startswith(str(path))
        assert str(caught.value).isprintable() and len(str(caught.value)) < 500


def test_a_slip_in_a_name_is_told(tmp_path: Path) -> None:
    (tmp_path / "answers.jsonl").write_bytes(GOOD)
    with pytest.raises(DatasetError, match=r"anwsers\.jsonl: cannot be read: .*; did you mean answers\.jsonl\?$"):
        survey(source(tmp_path / "anwsers.jsonl"))
    with pytest.raises(DatasetError, match=r"No such file or directory$"):
        survey(source(tmp_path / "questions.jsonl"))


def test_places_may_be_written_as_a_shell_knows_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ann")
    monkeypatch.setenv("DATA", "/data")
    monkeypatch.delenv("NOWHERE", raising=False)
    (tmp_path / "$NOWHERE.csv").touch()
    for path, want in {
        "a.csv": f"{tmp_path}/a.csv", "~/a.csv": "/home/ann/a.csv", "$DATA/a.csv": "/data/a.csv",
        "${DATA}/a.csv": "/data/a.csv", "/x/a.csv": "/x/a.csv", "$NOWHERE.csv": f"{tmp_path}/$NOWHERE.csv",
    }.items():  # fmt: skip
        assert located(path, tmp_path) == want
    with pytest.raises(DatasetError, match="the variable NOWHERE is not set"):
        located("$NOWHERE/a.csv", tmp_path)
    for url in ("https://host/a.csv", "s3://bucket/a.parquet", "file:///a.csv"):
        with pytest.raises(DatasetError, match="is a URL, and items are read from files: download it"):
            located(url, tmp_path)


def test_metadata_to_keep_must_be_somewhere(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,text,lang\n1,a,en\n")
    assert survey(source(tmp_path / "a.csv"), keep=["lang"]).items == 1
    with pytest.raises(DatasetError, match="keep: no item has 'language' besides its texts; did you mean 'lang'"):
        survey(source(tmp_path / "a.csv"), keep=["lang", "language"])


def test_messages_quote_little_of_a_text(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl", [{"id": "1", "text": ["a secret " * 1000]}])
    with pytest.raises(DatasetError) as caught:
        pages(source(tmp_path / "a.jsonl"), 1)
    assert str(caught.value).count("secret") < 10


@pytest.mark.parametrize("path", ["none.jsonl", "none.parquet", ".csv"])
def test_a_file_that_cannot_be_read(tmp_path: Path, path: str) -> None:
    (tmp_path / ".csv").mkdir()
    of = source(tmp_path / path, format="csv") if path == ".csv" else source(tmp_path / path)
    for look in (count_items, fingerprint, survey):
        with pytest.raises(DatasetError, match=r"cannot be read: (No such file|Is a directory)"):
            look(of)


@pytest.mark.parametrize("setting", ["id_field", "text_field", "prompt_field", "reference_field"])
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_column_that_was_asked_for_must_exist(tmp_path: Path, kind: str, setting: str) -> None:
    FORMATS[kind](tmp_path / f"a.{kind}", records(1))
    wanted = f"{setting}: no column 'key'; the columns are 'id', 'text', 'prompt', 'kind'"
    with pytest.raises(DatasetError, match=wanted):
        count_items(source(tmp_path / f"a.{kind}", **{setting: "key"}))


def test_a_record_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "MAX_RECORD_BYTES", 100)
    (tmp_path / "a.csv").write_text('id,text\n1,"a\n' + "b\n" * 100)
    with pytest.raises(DatasetError, match="line 2: is longer than 100 bytes"):
        pages(source(tmp_path / "a.csv"), 10)
    (tmp_path / "a.jsonl").write_text('{"id": "1", "text": "' + "b" * 100 + '"}\n')
    with pytest.raises(DatasetError, match="line 1: is longer than 100 bytes"):
        count_items(source(tmp_path / "a.jsonl"))


@pytest.mark.parametrize("kind", FORMATS)
def test_an_id_that_occurs_twice_is_refused(tmp_path: Path, kind: str) -> None:
    FORMATS[kind](tmp_path / f"a.{kind}", [*records(300), {**records(8)[7], "text": "other"}])
    with pytest.raises(DatasetError, match=re.escape("id: 'q7' is already in ") + r"(line|row) \d+"):
        survey(source(tmp_path / f"a.{kind}"))


def test_ids_whose_digests_meet_are_compared_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dicast.app.datasets.surveying._digest", len)
    write_jsonl(tmp_path / "a.jsonl", records(50))
    assert survey(source(tmp_path / "a.jsonl")).items == 50


def test_a_text_that_is_too_large_is_refused(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl", [{"id": "1", "text": "a"}, {"id": "2", "text": "é" * 40, "prompt": "b" * 21}])
    of = source(tmp_path / "a.jsonl")
    assert survey(of, max_text_bytes=101).text_bytes == 102
    with pytest.raises(DatasetError, match="line 2: the item '2' holds 101 bytes of text, at most 100 are allowed"):
        survey(of, max_text_bytes=100)


def test_parquet_columns_become_json(tmp_path: Path) -> None:
    moment = dt.datetime(2024, 5, 6, 7, 8, 9, 123456, tzinfo=dt.UTC)
    table = pa.table(
        {
            "id": pa.array([7], pa.int64()),
            "text": pa.array(["t"]).dictionary_encode(),
            "score": pa.array([float("nan")]),
            "when": pa.array([1_714_979_289_123_456_789], pa.timestamp("ns")),
            "then": pa.array([moment], pa.timestamp("us", tz="UTC")),
            "day": pa.array([dt.date(2024, 5, 6)]),
            "price": pa.array(["1.10"]).cast(pa.decimal128(5, 2)),
            "tags": pa.array([["a", "b"]]),
            "nested": pa.array([{"x": 1, "y": [1.5, float("inf")]}]),
            "ok": pa.array([True]),
            "nothing": pa.nulls(1),
            "image": pa.array([b"\x00\xff"]),
            "images": pa.array([{"bytes": b"\x00", "path": "p"}]),
            "took": pa.array([dt.timedelta(seconds=5)]),
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    (item,) = pages(source(tmp_path / "a.parquet"), 1)
    assert (item.id, item.text) == ("7", "t")
    assert item.metadata == {
        "score": None,
        "when": "2024-05-06 07:08:09.123456789",
        "then": "2024-05-06 07:08:09.123456Z",
        "day": "2024-05-06",
        "price": "1.10",
        "tags": ["a", "b"],
        "nested": {"x": 1, "y": [1.5, None]},
        "ok": True,
        "nothing": None,
    }
    orjson.dumps(item.metadata)


def test_an_object_called_metadata_is_the_metadata(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "t", "lang": "de", "metadata": {"author": "ada"}}\n')
    (item,) = pages(source(path), 1)
    assert item.metadata == {"lang": "de", "author": "ada"}
    path.write_text('{"text": "t", "lang": "de", "metadata": {"lang": "en"}}\n')
    with pytest.raises(DatasetError, match="lang: stands in the row and in its metadata"):
        pages(source(path), 1)


def test_parquet_texts_that_are_no_text(tmp_path: Path) -> None:
    offsets = b"".join(end.to_bytes(4, "little") for end in (0, 1, 2))
    bad = pa.Array.from_buffers(pa.string(), 2, [None, pa.py_buffer(offsets), pa.py_buffer(b"a\xff")])
    pq.write_table(pa.table({"text": bad}), tmp_path / "a.parquet", write_statistics=False)
    with pytest.raises(DatasetError, match=r"row 1: cannot be decoded: .*UTF"):
        pages(source(tmp_path / "a.parquet"), 1)
    pq.write_table(pa.table({"text": [5, 6]}), tmp_path / "b.parquet")
    with pytest.raises(DatasetError, match="row 1: text: must be text, got 5"):
        pages(source(tmp_path / "b.parquet"), 1)


def test_parquet_readers_are_kept_few_and_forgotten_when_the_file_changes(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    write_parquet(path, records(100))
    _, cursor = read_page(source(path), None, 50)
    write_parquet(path, [{**record, "text": "new"} for record in records(100)])
    assert read_page(source(path), cursor, 1)[0][0].text == "new"
    for n in range(parquet.IDLE_READERS + 5):
        write_parquet(tmp_path / f"{n}.parquet", records(2))
        pages(source(tmp_path / f"{n}.parquet"), 1)
    assert len(parquet._idle) <= parquet.IDLE_READERS


def test_a_parquet_reader_can_go_anywhere(tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", records(400))
    reader = parquet._Reader(str(tmp_path / "a.parquet"), ())
    for row in [0, 399, 1, 100, 99, 149, 150, 151, 300, 299, 0]:
        assert reader.fields(row)["id"] == f"q{row}"
    reader.close()


def test_reading_on_decodes_parquet_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One row group of 5,000 rows, read by pages of 10: as many batches as the file has, and not a thousand times."""
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": [f"t{n}" for n in range(5000)]}), path)
    opened: list[int] = []
    original = parquet._Reader._seek

    def counted(self: Any, row: int) -> None:
        before = self._batches
        original(self, row)
        if self._batches is not before:
            opened.append(row)

    monkeypatch.setattr(parquet._Reader, "_seek", counted)
    of = source(path)
    cursor = None
    for _ in range(500):
        _, before_last = read_page(of, cursor, 9)
        _, cursor = read_page(of, before_last, 1)
        read_page(of, before_last, 1)
    assert cursor is None
    assert opened == [0]


def test_fingerprints_tell_files_apart(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    contents = [b"", b"\n", GOOD, GOOD + b"\n", GOOD.replace(b"a", b"b")]
    large = bytes(range(256)) * 40_000  # 10 MB
    contents += [large, large + b"x", b"x" + large[1:], large[:-1] + b"x"]
    prints = []
    for content in contents:
        path.write_bytes(content)
        prints.append(fingerprint(source(path)))
        other = tmp_path / "copy.jsonl"
        other.write_bytes(content)
        assert fingerprint(source(other)) == prints[-1]
    assert len(set(prints)) == len(contents)


@pytest.mark.parametrize("kind", FORMATS)
def test_memory_stays_flat(tmp_path: Path, kind: str) -> None:
    """A page of a file of 20 MB costs what a page of it is, wherever it lies."""
    FORMATS[kind](tmp_path / f"a.{kind}", [{"id": str(n), "text": f"{n} " * 500} for n in range(8000)])
    of = source(tmp_path / f"a.{kind}")
    count_items(of)
    tracemalloc.start()
    try:
        for count in (1, 50):
            read_page(of, None, count)
        assert count_items(of) == 8000
        items, cursor = read_page(of, None, 100)
        while cursor is not None:
            items, cursor = read_page(of, cursor, 100)
        assert items[-1].id == "7999"
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4e6


FIELDS = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=20)
TEXTS = FIELDS.filter(str.strip)
TABLES = st.lists(
    st.fixed_dictionaries({"text": TEXTS, "prompt": FIELDS, "other": FIELDS, "name with, comma": FIELDS}),
    min_size=1,
    max_size=12,
)


@pytest.mark.parametrize("kind", FORMATS)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(wanted=TABLES, count=st.integers(1, 5))
def test_any_text_comes_back_as_it_was(tmp_path: Path, kind: str, wanted: Records, count: int) -> None:
    path = tmp_path / f"a.{kind}"
    FORMATS[kind](path, wanted)
    got = pages(source(path), count)
    assert [item.text for item in got] == [record["text"] for record in wanted]
    assert [item.prompt for item in got] == [record["prompt"] or None for record in wanted]
    assert [item.metadata for item in got] == [
        {key: record[key] for key in ("other", "name with, comma")} for record in wanted
    ]


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=300) | st.text('{}[]",:\n\r id text1é', max_size=200).map(str.encode))
@pytest.mark.parametrize("kind", FORMATS)
def test_no_content_crashes_a_reader(tmp_path: Path, kind: str, content: bytes) -> None:
    path = tmp_path / f"a.{kind}"
    path.write_bytes(content)
    try:
        items = pages(source(path), 1)
    except DatasetError:
        return
    assert len(items) == count_items(source(path))


@given(st.lists(st.lists(FIELDS, min_size=2, max_size=2), min_size=1, max_size=8))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_csv_records_end_where_the_library_says(tmp_path: Path, rows: list[list[str]]) -> None:
    buffer = io.StringIO(newline="")
    csv.writer(buffer).writerows([["text", "b"], *[["x" + a, b] for a, b in rows]])
    path = tmp_path / "a.csv"
    path.write_text(buffer.getvalue(), encoding="utf-8", newline="")
    expected = list(csv.reader(io.StringIO(buffer.getvalue(), newline="")))[1:]
    assert [[item.text, item.metadata["b"]] for item in pages(source(path), 1)] == expected
