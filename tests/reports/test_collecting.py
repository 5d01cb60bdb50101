from __future__ import annotations

import shutil
from datetime import timedelta
from pathlib import Path

import pytest

from dicast.app.domain.report import Report
from dicast.app.reports.collecting import ResultsAway, collect, export, results_root
from dicast.app.reports.files import finish, read_opinions, read_report, write_page
from tests.reports.building import NOW, error, header, opinion

JOB = "job-1"


def finished(root: Path) -> Report:
    write_page(root, JOB, NOW, "0", 0, [opinion(0), opinion(1, score=None)], [error(1)])
    return finish(root, JOB, NOW, header(2))


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_files_are_found_where_the_worker_wrote_them(tmp_path: Path) -> None:
    report = finished(tmp_path / "worker")
    assert results_root(report, tmp_path / "elsewhere") == (tmp_path / "worker").resolve()


def test_files_are_found_where_the_worker_s_folder_is_mounted(tmp_path: Path) -> None:
    report = finished(tmp_path / "worker")
    shutil.move(tmp_path / "worker", tmp_path / "mounted")
    assert results_root(report, tmp_path / "mounted") == (tmp_path / "mounted").resolve()


def test_another_run_s_files_are_not_taken_for_these(tmp_path: Path) -> None:
    report = finished(tmp_path / "worker")
    later = report.model_copy(update={"started": report.started + timedelta(days=1)})
    with pytest.raises(ResultsAway, match="another job's"):
        results_root(later, tmp_path / "worker")


def test_damaged_files_are_no_files(tmp_path: Path) -> None:
    report = finished(tmp_path / "worker")
    Path(report.files.report).write_text("{}")
    with pytest.raises(ResultsAway, match="ValidationError"):
        results_root(report, tmp_path / "worker")


def test_copies_are_whole_and_their_report_names_them(tmp_path: Path) -> None:
    report = finished(tmp_path / "worker")
    copied = collect(report, tmp_path / "worker", tmp_path / "mine")

    folder, origin = tmp_path / "mine" / JOB, tmp_path / "worker" / JOB
    assert {**contents(folder), "report.json": b""} == {**contents(origin), "report.json": b""}
    assert copied == read_report(tmp_path / "mine", JOB)
    assert copied.model_copy(update={"files": report.files}) == report
    assert {Path(path).parent for path in dict(copied.files).values()} == {folder, folder.parent}
    shutil.rmtree(tmp_path / "worker")
    assert len(list(read_opinions(tmp_path / "mine", JOB))) == 2
    assert export(tmp_path / "mine", JOB, "parquet", tmp_path / "x.parquet").stat().st_size > 0


def test_collecting_twice_or_in_place_changes_nothing(tmp_path: Path) -> None:
    report = finished(tmp_path / "worker")
    once = collect(report, tmp_path / "worker", tmp_path / "mine")
    before = contents(tmp_path / "mine" / JOB)
    assert collect(report, tmp_path / "worker", tmp_path / "mine") == once
    assert contents(tmp_path / "mine" / JOB) == before
    assert collect(report, tmp_path / "worker", tmp_path / "worker") == report


def test_an_older_job_s_copies_make_room(tmp_path: Path) -> None:
    folder = tmp_path / "mine" / JOB
    folder.mkdir(parents=True)
    (folder / "report.json").write_text("{}")
    report = finished(tmp_path / "worker")
    collect(report, tmp_path / "worker", tmp_path / "mine")
    assert read_report(tmp_path / "mine", JOB).started == report.started


def test_a_copy_that_fails_has_no_report(tmp_path: Path) -> None:
    report = finished(tmp_path / "worker")
    collect(report, tmp_path / "worker", tmp_path / "mine")
    before = contents(tmp_path / "mine" / JOB)
    Path(report.files.errors_jsonl).unlink()
    for place in ("mine", "other"):
        with pytest.raises(FileNotFoundError):
            collect(report, tmp_path / "worker", tmp_path / place)
    assert contents(tmp_path / "mine" / JOB) == before, "what was there is whole"
    assert contents(tmp_path / "other" / JOB) == {}


def test_files_out_of_reach_are_said_to_be(tmp_path: Path) -> None:
    report = finished(tmp_path / "worker")
    shutil.rmtree(tmp_path / "worker")
    with pytest.raises(ResultsAway) as caught:
        collect(report, tmp_path / "elsewhere", tmp_path / "mine")
    assert report.files.directory in str(caught.value)
    assert not (tmp_path / "mine").exists()
