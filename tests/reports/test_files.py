from __future__ import annotations

import hashlib
import subprocess
import sys
import threading
import tracemalloc
from datetime import timedelta
from pathlib import Path

import orjson
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dicast.app.domain.opinion import Opinion, Usage
from dicast.app.domain.report import Report
from dicast.app.reports import columns
from dicast.app.reports.columns import COLUMNS
from dicast.app.reports.files import (
    NoResults,
    ResultsMismatch,
    finish,
    job_folder,
    put_back_parts,
    read_opinions,
    read_report,
    write_page,
)
from dicast.app.reports.folders import LOCK, begin
from dicast.app.reports.stored_items import set_aside
from tests.reports.building import NOW, error, header, opinion

JOB = "job-1"
RESULTS = {"opinions.jsonl", "opinions.parquet", "errors.jsonl", "report.json"}


def contents(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def write_three_pages(root: Path) -> int:
    write_page(root, JOB, NOW, "0", 0, [opinion(0), opinion(1, score=None)], [error(1)])
    write_page(root, JOB, NOW, "1", 0, [opinion(0, "kind", 9)], [])
    write_page(root, JOB, NOW, "0", 1, [opinion(2)], [])
    return 4


def test_a_job_ends_as_four_files(tmp_path: Path) -> None:
    units = write_three_pages(tmp_path)
    report = finish(tmp_path, JOB, NOW, header(units))

    folder = tmp_path / JOB
    assert {path.name for path in folder.iterdir()} == RESULTS | {LOCK}
    assert (report.scored, report.failed, report.missing) == (3, 1, 0)
    assert Report.model_validate_json((folder / "report.json").read_bytes()) == report == read_report(tmp_path, JOB)
    assert {Path(p).name for p in dict(report.files).values()} == RESULTS | {JOB}

    lines = [orjson.loads(line) for line in (folder / "opinions.jsonl").read_bytes().splitlines()]
    unsaid = {"not_needed", "dissent", "cached", "system_fingerprint", "answer_score", "attained"}
    always = [name for name in Opinion.model_fields if name not in unsaid]
    assert all(list(line) == always for line in lines)
    assert [(line["item_id"], line["judge"]) for line in lines] == [
        ("item-0", "strict"), ("item-1", "strict"), ("item-0", "kind"), ("item-2", "strict"),
    ]  # fmt: skip
    assert [orjson.loads(line) for line in (folder / "errors.jsonl").open("rb")] == [error(1).model_dump(mode="json")]
    assert [o.score for o in read_opinions(tmp_path, JOB)] == [5, None, 9, 5]


def test_parquet_has_typed_columns_and_the_same_content(tmp_path: Path) -> None:
    units = write_three_pages(tmp_path)
    finish(tmp_path, JOB, NOW, header(units))
    table = pa.parquet.read_table(tmp_path / JOB / "opinions.parquet")
    assert table.schema.equals(COLUMNS)
    assert table.schema.field("score").type == pa.int64()
    assert table.schema.field("cited_evidence").type == pa.list_(pa.string())
    assert table.column_names == [
        "judge", "criterion_id", "item_id", "replicate", "swapped", "score", "label", "answers", "argument",
        "cited_evidence", "model", "system_fingerprint", "pool", "input_tokens", "output_tokens", "latency_s",
        "attempts", "not_needed", "probe", "dissent", "cached", "answer_score", "attained",
    ]  # fmt: skip
    for row, told in zip(table.to_pylist(), read_opinions(tmp_path, JOB), strict=True):
        assert row.pop("not_needed") is told.not_needed is False
        assert row.pop("dissent") is told.dissent is row.pop("cached") is told.cached is None
        assert row.pop("system_fingerprint") is told.system_fingerprint is row.pop("answer_score") is None
        assert row.pop("attained") is None
        usage = {"input_tokens": row.pop("input_tokens"), "output_tokens": row.pop("output_tokens")}
        assert {**row, "usage": usage, "metadata": {}} == told.model_dump()


def test_many_opinions_become_several_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "_ROW_GROUP_BYTES", 1_500)
    for page in range(5):
        write_page(tmp_path, JOB, NOW, "0", page, [opinion(page * 5 + i) for i in range(5)], [])
    finish(tmp_path, JOB, NOW, header(25))
    parquet = pa.parquet.ParquetFile(tmp_path / JOB / "opinions.parquet")
    rows = [parquet.metadata.row_group(i).num_rows for i in range(parquet.num_row_groups)]
    assert len(rows) > 2
    assert max(rows) < 10
    assert parquet.read().column("item_id").to_pylist() == [f"item-{i}" for i in range(25)]


@pytest.mark.parametrize("lines", [1, 3])
def test_a_row_group_is_closed_when_it_has_its_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: int
) -> None:
    """Also the second one, whose bytes are counted from nothing."""
    line = opinion(1).model_dump_json(exclude_none=True).encode() + b"\n"
    monkeypatch.setattr(columns, "_ROW_GROUP_BYTES", len(line) * lines)
    path = tmp_path / "opinions.parquet"
    with path.open("wb") as file, columns.Columns(file) as writer:
        for _ in range(2 * lines + 1):
            writer.add(line)
    written = pa.parquet.ParquetFile(path).metadata
    assert [written.row_group(i).num_rows for i in range(written.num_row_groups)] == [lines, lines, 1]


def test_long_texts_close_a_row_group_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "_ROW_GROUP_BYTES", 10_000)
    write_page(tmp_path, JOB, NOW, "0", 0, [opinion(i, argument="x" * 6_000) for i in range(4)], [])
    finish(tmp_path, JOB, NOW, header(4))
    assert pa.parquet.ParquetFile(tmp_path / JOB / "opinions.parquet").num_row_groups == 2


def test_pages_are_joined_by_number_and_lane_not_by_name_or_age(tmp_path: Path) -> None:
    for lane, page in [("10", 1), ("2", 1), ("0", 11), ("10", 0), ("0", 2)]:
        write_page(tmp_path, JOB, NOW, lane, page, [opinion(0, argument=f"{page}/{lane}")], [])
    finish(tmp_path, JOB, NOW, header(5))
    assert [o.argument for o in read_opinions(tmp_path, JOB)] == ["0/10", "1/2", "1/10", "2/0", "11/0"]


def test_the_same_page_twice_is_the_same_file(tmp_path: Path) -> None:
    write_three_pages(tmp_path)
    once = contents(tmp_path)
    write_three_pages(tmp_path)
    assert contents(tmp_path) == once


def test_a_page_that_fails_half_way_leaves_the_former_one(tmp_path: Path) -> None:
    write_three_pages(tmp_path)
    once = contents(tmp_path)

    def broken():
        yield opinion(99)
        raise ConnectionError("the ledger is away")

    with pytest.raises(ConnectionError):
        write_page(tmp_path, JOB, NOW, "0", 0, broken(), [])
    assert contents(tmp_path) == once


def test_finishing_twice_changes_nothing(tmp_path: Path) -> None:
    units = write_three_pages(tmp_path)
    report = finish(tmp_path, JOB, NOW, header(units))
    once = contents(tmp_path)
    assert finish(tmp_path, JOB, NOW, header(units, wall_s=999.0)) == report
    assert contents(tmp_path) == once


def test_a_late_copy_of_a_page_does_no_harm(tmp_path: Path) -> None:
    units = write_three_pages(tmp_path)
    finish(tmp_path, JOB, NOW, header(units))
    once = contents(tmp_path)
    write_page(tmp_path, JOB, NOW, "0", 1, [opinion(2)], [])
    finish(tmp_path, JOB, NOW, header(units))
    assert contents(tmp_path) == once


def test_a_new_job_of_an_old_id_replaces_its_files(tmp_path: Path) -> None:
    units = write_three_pages(tmp_path)
    first = finish(tmp_path, JOB, NOW, header(units))
    write_page(tmp_path, JOB, NOW, "0", 0, [opinion(7, score=1)], [])
    second = finish(tmp_path, JOB, NOW, header(1, started=first.started + timedelta(days=40)))
    assert second.scored == 1
    assert [o.score for o in read_opinions(tmp_path, JOB)] == [1]


def test_a_cancelled_job_may_miss_units_a_completed_one_may_not(tmp_path: Path) -> None:
    write_three_pages(tmp_path)
    before = contents(tmp_path)
    with pytest.raises(ResultsMismatch, match="job-1: 7 units, but 4 opinions in 3 parts"):
        finish(tmp_path, JOB, NOW, header(7))
    assert contents(tmp_path) == before
    assert finish(tmp_path, JOB, NOW, header(7, status="cancelled")).missing == 3


def test_more_opinions_than_units_are_refused(tmp_path: Path) -> None:
    write_three_pages(tmp_path)
    with pytest.raises(ResultsMismatch):
        finish(tmp_path, JOB, NOW, header(3, status="cancelled"))


def test_a_job_cancelled_before_its_first_call_has_empty_files(tmp_path: Path) -> None:
    report = finish(tmp_path, JOB, NOW, header(5, status="cancelled"))
    assert report.missing == 5
    assert pa.parquet.read_table(tmp_path / JOB / "opinions.parquet").num_rows == 0


def test_a_summary_of_another_job_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="the summary is of job other, not job-1"):
        finish(tmp_path, JOB, NOW, header(1, job_id="other"))


def test_no_job_no_report(tmp_path: Path) -> None:
    with pytest.raises(NoResults, match="job-1"):
        read_report(tmp_path, JOB)


@pytest.mark.parametrize("job_id", ["", "..", ".", "../x", "a/b", "/etc", "a\0b", "a\n", "a:b", "x" * 129, "-x", "ä"])
def test_an_id_never_leads_out_of_the_folder(tmp_path: Path, job_id: str) -> None:
    with pytest.raises(ValueError, match="job id"):
        write_page(tmp_path / "results", job_id, NOW, "0", 0, [], [])
    assert not list(tmp_path.iterdir())


def test_a_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / JOB).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="would leave"):
        job_folder(tmp_path / "results", JOB)


lanes = st.text(max_size=12) | st.sampled_from(["", "..", "../x", "a/b", "a:b", "a~b", "%2F", "0", "00"])


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(lanes, st.integers(0, 10**10)), unique=True, max_size=8))
def test_two_pages_never_share_a_file(tmp_path_factory: pytest.TempPathFactory, pages: list[tuple[str, int]]) -> None:
    root = tmp_path_factory.mktemp("results")
    for lane, page in pages:
        write_page(root, JOB, NOW, lane, page, [opinion(0, argument=orjson.dumps([lane, page]).decode())], [])
    assert {path.parent for path in root.rglob("*") if path.is_file()} <= {root / JOB / "parts" / NOW}
    finish(root, JOB, NOW, header(len(pages)))
    assert {tuple(orjson.loads(o.argument)) for o in read_opinions(root, JOB)} == set(pages)


@pytest.mark.parametrize("lane, page", [("x" * 300, 0), ("0", -1)])
def test_a_page_that_cannot_be_named_is_refused(tmp_path: Path, lane: str, page: int) -> None:
    with pytest.raises(ValueError, match="no page can be named"):
        write_page(tmp_path, JOB, NOW, lane, page, [], [])


@settings(max_examples=60, deadline=None)
@given(
    st.text(),
    st.lists(st.text(), max_size=3),
    st.one_of(st.none(), st.integers(-(2**62), 2**62)),
    st.floats(0, 1e6, allow_nan=False),
)
def test_any_text_comes_back_from_both_formats(
    tmp_path_factory: pytest.TempPathFactory, text: str, evidence: list[str], score: int | None, latency_s: float
) -> None:
    root = tmp_path_factory.mktemp("results")
    told = opinion(0, score=score, argument=text, cited_evidence=evidence, model=text, latency_s=latency_s)
    write_page(root, JOB, NOW, "0", 0, [told], [])
    finish(root, JOB, NOW, header(1))
    assert list(read_opinions(root, JOB)) == [told]
    row = pa.parquet.read_table(root / JOB / "opinions.parquet").to_pylist()[0]
    assert (row["argument"], row["cited_evidence"]) == (text, evidence)
    assert (row["score"], row["latency_s"]) == (score, latency_s)


def test_half_a_surrogate_pair_does_not_stop_a_page(tmp_path: Path) -> None:
    write_page(tmp_path, JOB, NOW, "0", 0, [opinion(0, argument="a\ud800b", cited_evidence=["\udc00"])], [])
    finish(tmp_path, JOB, NOW, header(1))
    told = next(read_opinions(tmp_path, JOB))
    assert (told.argument, told.cited_evidence, told.usage) == ("a?b", ["?"], opinion(0).usage)


def test_records_built_without_validation_are_written_alike(tmp_path: Path) -> None:
    raw = {**opinion(0).model_dump(mode="json")}
    write_page(tmp_path, JOB, NOW, "0", 0, [Opinion.model_construct(**raw)], [])
    finish(tmp_path, JOB, NOW, header(1))
    assert list(read_opinions(tmp_path, JOB)) == [opinion(0)]
    assert isinstance(next(read_opinions(tmp_path, JOB)).usage, Usage)


KILLED_AT_EVERY_STEP = """
import os, sys, hashlib, shutil
from pathlib import Path
from dicast.app.reports.files import finish, write_page
from tests.reports.test_files import contents, write_three_pages, JOB
from tests.reports.building import NOW, header

root = Path(sys.argv[1])
STEPS = {"open", "os.rename", "os.remove", "os.rmdir", "os.mkdir"}
countdown = None

def step(event, arguments):
    global countdown
    if countdown is None or event not in STEPS or not str(arguments[0]).startswith(str(root)):
        return
    countdown -= 1
    if countdown < 0:
        os._exit(9)

sys.addaudithook(step)

def run(folder, kill_at):
    global countdown
    child = os.fork()
    if child == 0:
        countdown = kill_at
        units = write_three_pages(folder)
        finish(folder, JOB, NOW, header(units))
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

# The report names its folder, so all runs take place in one.
folder = root / "r"
assert run(folder, 10**9) == 0
want, kills = contents(folder), 0
while True:
    shutil.rmtree(folder)
    code = run(folder, kills)
    if code == 0:
        break
    assert code == 9, code
    if not (folder / JOB / "report.json").exists():
        write_three_pages(folder)
    finish(folder, JOB, NOW, header(4))
    assert contents(folder) == want, (kills, contents(folder), want)
    kills += 1
print(kills)
"""


def test_killed_at_any_step_and_called_again_the_files_are_the_same(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", KILLED_AT_EVERY_STEP, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 25


def test_two_processes_that_finish_at_once_agree(tmp_path: Path) -> None:
    for page in range(60):
        write_page(tmp_path, JOB, NOW, "0", page, [opinion(page)], [])
    barrier, reports, failures = threading.Barrier(4), [], []

    def race() -> None:
        barrier.wait(timeout=10)
        try:
            reports.append(finish(tmp_path, JOB, NOW, header(60)))
        except Exception as failure:  # noqa: BLE001  shown by the assertion below
            failures.append(failure)

    threads = [threading.Thread(target=race) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert failures == []
    assert reports == [reports[0]] * 4
    assert {path.name for path in (tmp_path / JOB).iterdir()} == RESULTS | {LOCK}
    assert len(list(read_opinions(tmp_path, JOB))) == 60


def test_memory_does_not_grow_with_the_number_of_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "_ROW_GROUP_BYTES", 100_000)

    def peak_of(pages: int) -> int:
        job = f"job-{pages}"
        for page in range(pages):
            write_page(tmp_path, job, NOW, "0", page, [opinion(0, replicate=0) for _ in range(500)], [])
        tracemalloc.start()
        try:
            finish(tmp_path, job, NOW, header(500 * pages, job_id=job, agents=[{"name": "strict"}]))
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak_of(1)
    assert peak_of(20) < 1.3 * peak_of(2)


# --------------------------------------------------------------------------------------------- the results of before
def resumed(root: Path, **later: object) -> Report:
    """A job of four units, cancelled with all of them judged, which judges units 0 and 1 anew before its second end.
    What it had before also has an opinion of a judge that it no longer has."""
    begin(root, JOB, NOW)
    before = [
        opinion(0, score=1), opinion(1, score=None), opinion(4, "gone", 8), opinion(2, score=3), opinion(3, score=None),
    ]  # fmt: skip
    write_page(root, JOB, NOW, "0", 0, before, [error(1), error(3)])
    set_aside(root, JOB, NOW, waits=lambda: True)
    write_page(root, JOB, NOW, "0", 1, [opinion(0, score=9), opinion(1, score=7)], [])
    return finish(root, JOB, NOW, header(4, **later), 1)


def given_scores(root: Path) -> list[tuple[str, int | None]]:
    return [(each.item_id, each.score) for each in read_opinions(root, JOB)]


@pytest.mark.parametrize("later", [{"status": "cancelled"}, {"status": "completed", "unpublished": 2}])
def test_units_that_were_not_judged_again_keep_their_earlier_results(tmp_path: Path, later: dict[str, object]) -> None:
    report = resumed(tmp_path, **later)
    assert given_scores(tmp_path) == [("item-0", 9), ("item-1", 7), ("item-2", 3), ("item-3", None)]
    assert (report.scored, report.failed, report.missing) == (3, 1, 0)
    assert [each.count for each in report.errors] == [1]
    failed = [orjson.loads(line)["item_id"] for line in (tmp_path / JOB / "errors.jsonl").open("rb")]
    assert failed == ["item-3"], "the error of a unit that was judged again is gone"
    table = pa.parquet.read_table(tmp_path / JOB / "opinions.parquet", columns=["item_id", "score"])
    assert [(row["item_id"], row["score"]) for row in table.to_pylist()] == given_scores(tmp_path)
    assert not (tmp_path / JOB / "earlier").exists()


def test_a_job_that_completes_again_has_only_its_new_results(tmp_path: Path) -> None:
    with pytest.raises(ResultsMismatch, match="4 units, but 2 opinions in 1 parts"):
        resumed(tmp_path)
    assert (tmp_path / JOB / "earlier").is_dir(), "and what it had before is still there"


def test_pages_of_two_endings_are_put_back_with_the_newer_result_of_a_unit(tmp_path: Path) -> None:
    begin(tmp_path, JOB, NOW)
    write_page(tmp_path, JOB, NOW, "0", 0, [opinion(0, score=1), opinion(1, score=None)], [error(1)])
    set_aside(tmp_path, JOB, NOW, waits=lambda: True)
    write_page(tmp_path, JOB, NOW, "0", 1, [opinion(1, score=4), opinion(2, score=5)], [])
    for _ in range(2):  # the second call finds no page, and changes nothing
        put_back_parts(tmp_path / JOB, NOW, waits=lambda: True)
    earlier = tmp_path / JOB / "earlier"
    lines = [orjson.loads(line) for line in (earlier / "opinions.jsonl").open("rb")]
    assert [(line["item_id"], line["score"]) for line in lines] == [("item-1", 4), ("item-2", 5), ("item-0", 1)]
    assert (earlier / "errors.jsonl").read_bytes() == b""
    assert list((tmp_path / JOB / "parts").iterdir()) == [], "no page is left, under any name"


def test_pages_stay_if_the_job_has_started_meanwhile(tmp_path: Path) -> None:
    begin(tmp_path, JOB, NOW)
    write_page(tmp_path, JOB, NOW, "0", 0, [opinion(0)], [])
    (page,) = (tmp_path / JOB / "parts" / NOW).iterdir()
    put_back_parts(tmp_path / JOB, NOW, waits=lambda: False)
    assert page.exists()
