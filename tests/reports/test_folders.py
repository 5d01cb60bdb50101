"""Whose folder is whose, when an id is used again, and on disks that tell few names apart."""

import itertools
import multiprocessing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dicast.app.reports import folders
from dicast.app.reports.files import NoResults, finish, read_opinions, read_report, write_page
from dicast.app.reports.folders import begin, folder_name, job_folder
from dicast.app.reports.stored_items import read_items, set_aside, write_items
from tests.reports.building import header, opinion

OLD, NEW = "0000000a", "0000000b"
JOB_IDS = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", fullmatch=True)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_parts_of_an_earlier_job_are_never_read(tmp_path):
    """80 units, but 97 opinions, was what a job said that was submitted again after a flush."""
    begin(tmp_path, "job", OLD)
    for page in range(3):
        write_page(tmp_path, "job", OLD, "0", page, [opinion(page, score=1)], [])
    assert begin(tmp_path, "job", NEW) == tmp_path / f"job~{OLD}"
    write_page(tmp_path, "job", NEW, "0", 0, [opinion(7, score=9)], [])
    write_page(tmp_path, "job", OLD, "0", 3, [opinion(3, score=1)], [])  # by somebody who has not heard of it
    report = finish(tmp_path, "job", NEW, header(1, job_id="job"))
    assert (report.scored, report.missing) == (1, 0)
    assert [o.score for o in read_opinions(tmp_path, "job")] == [9]
    assert len(list((tmp_path / f"job~{OLD}" / "parts").rglob("*.jsonl"))) == 4


def test_results_of_an_earlier_job_are_set_aside_whole(tmp_path):
    begin(tmp_path, "job", OLD)
    write_page(tmp_path, "job", OLD, "0", 0, [opinion(0, score=1)], [])
    finish(tmp_path, "job", OLD, header(1, job_id="job"))
    before = {path.name: path.read_bytes() for path in (tmp_path / "job").iterdir()}
    aside = begin(tmp_path, "job", NEW)
    assert {path.name: path.read_bytes() for path in aside.iterdir()} == before
    with pytest.raises(NoResults):
        read_report(tmp_path, "job")
    assert begin(tmp_path, "job", NEW) is None
    assert names(tmp_path) == {"job", f"job~{OLD}"}


def test_files_of_nobody_known_are_set_aside_too(tmp_path):
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "report.json").write_text("{}")
    [aside] = [begin(tmp_path, "job", NEW)]
    assert aside.name.startswith("job~unnamed-")
    assert names(aside) == {"report.json", folders.LOCK}


def test_an_empty_folder_is_taken(tmp_path):
    (tmp_path / "job").mkdir()
    assert begin(tmp_path, "job", NEW) is None
    assert names(tmp_path) == {"job"}


def test_a_resumed_job_gets_its_folder_back(tmp_path):
    begin(tmp_path, "job", OLD)
    write_items(tmp_path, "job", OLD, [[]])
    begin(tmp_path, "job", NEW)
    begin(tmp_path, "job", OLD, resumed=True)
    assert list(read_items(tmp_path, "job", OLD, 10)) == []
    assert names(tmp_path) == {"job", f"job~{NEW}"}


def test_a_job_that_ran_before_folders_told_whose_they_are_can_be_resumed(tmp_path):
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "opinions.jsonl").write_text("{}\n")
    assert begin(tmp_path, "job", NEW, resumed=True) is None
    set_aside(tmp_path, "job", NEW, waits=lambda: True)
    assert (tmp_path / "job" / "earlier" / "opinions.jsonl").read_text() == "{}\n"


def test_two_jobs_of_one_id_at_once_end_each_in_a_folder(tmp_path):
    """As of two installations that share a folder."""
    for incarnation, score in ((OLD, 1), (NEW, 9)):
        begin(tmp_path, "job", incarnation)
        write_page(tmp_path, "job", incarnation, "0", 0, [opinion(0, score=score)], [])
    for incarnation in (OLD, NEW):
        write_page(tmp_path, "job", incarnation, "0", 1, [opinion(1, score=5)], [])
        report = finish(tmp_path, "job", incarnation, header(2, job_id="job"))
        assert report.missing == 0
        assert Path(report.files.directory).name == {OLD: f"job~{OLD}", NEW: "job"}[incarnation]
    assert [o.score for o in read_opinions(tmp_path, "job")] == [9, 5]


def _begin_when_told(root, start):
    start.wait()
    for _ in range(20):
        begin(root, "job", NEW)


def test_many_may_begin_a_job_at_once(tmp_path):
    begin(tmp_path, "job", OLD)
    write_page(tmp_path, "job", OLD, "0", 0, [opinion(0)], [])
    context = multiprocessing.get_context("fork")
    start = context.Barrier(4)
    workers = [context.Process(target=_begin_when_told, args=(tmp_path, start)) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(30)
    assert [worker.exitcode for worker in workers] == [0] * 4
    assert names(tmp_path) == {"job", f"job~{OLD}"}
    assert (tmp_path / "job" / "incarnation").read_text() == NEW


def test_a_folder_that_is_made_during_a_look_is_whose_its_mark_says(tmp_path, monkeypatch):
    begin(tmp_path, "job", NEW)
    read, reads = Path.read_text, itertools.count()

    def read_early(path):
        if next(reads) == 0:
            raise FileNotFoundError(path)
        return read(path)

    monkeypatch.setattr(Path, "read_text", read_early)
    assert begin(tmp_path, "job", NEW) is None
    assert names(tmp_path) == {"job"}


def test_who_comes_late_sets_nothing_aside(tmp_path, monkeypatch):
    """Between a look at the folder and its renaming, another worker has begun the job and written to it."""
    begin(tmp_path, "job", OLD)
    look, looks = folders._incarnation_of, itertools.count()

    def look_early(folder):
        found = look(folder)
        if next(looks) == 0:
            monkeypatch.setattr(folders, "_incarnation_of", look)
            begin(tmp_path, "job", NEW)
            write_page(tmp_path, "job", NEW, "0", 0, [opinion(0)], [])
        return found

    monkeypatch.setattr(folders, "_incarnation_of", look_early)
    assert begin(tmp_path, "job", NEW) is None
    assert len(list((tmp_path / "job" / "parts").rglob("*.jsonl"))) == 1


@given(JOB_IDS, JOB_IDS)
def test_different_ids_share_a_folder_on_no_disk(one, other):
    seen = [folder_name(job_id).rstrip(".").casefold() for job_id in (one, other, one.swapcase(), f"{one}."[:128])]
    ids = [one, other, one.swapcase(), f"{one}."[:128]]
    assert len(set(seen)) == len(set(ids))
    assert all(len(f"{name}~unnamed-{2**64:x}") <= 255 for name in seen)


def test_ordinary_ids_name_their_folders(tmp_path):
    assert job_folder(tmp_path, "20251122-job_1.b").name == "20251122-job_1.b"
    assert job_folder(tmp_path, "MyJob").name == "myjob+5"
    assert job_folder(tmp_path, "myjob.").name == "myjob.+0"
