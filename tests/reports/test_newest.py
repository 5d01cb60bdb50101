"""The newest errors of a job that runs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dicast.app.reports import files
from dicast.app.reports.files import newest_errors
from dicast.app.reports.folders import begin, job_folder
from tests.reports.building import NOW, error, opinion


def test_they_are_those_of_the_newest_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = job_folder(tmp_path, "job-1")
    assert newest_errors(folder, 5) == []
    begin(tmp_path, "job-1", NOW)
    for page, count in enumerate((3, 0, 2)):
        given = [error(10 * page + n) for n in range(count)]
        files.write_page(tmp_path, "job-1", NOW, "0", page, [opinion(n) for n in range(4)], given)
    parts = sorted((folder / "parts" / NOW).iterdir())
    for at, path in enumerate(parts):
        os.utime(path, (at, at))
    (parts[0].parent / "torn.jsonl").write_bytes(b"{")
    assert [each.item_id for each in newest_errors(folder, 4)] == ["item-21", "item-20", "item-2", "item-1"]
    assert len(newest_errors(folder, 9)) == 5
    monkeypatch.setattr(files, "MOST_PAGES", 1)
    assert newest_errors(folder, 9) == [], "the torn one alone is looked into"
    monkeypatch.setattr(files, "MOST_BYTES", 0)
    assert newest_errors(folder, 9) == []


def pages(tmp_path: Path, *counts: int) -> list[Path]:
    """Pages of so many errors, each newer than the one before."""
    begin(tmp_path, "job-1", NOW)
    for page, count in enumerate(counts):
        files.write_page(tmp_path, "job-1", NOW, "0", page, [], [error(10 * page + n) for n in range(count)])
    found = sorted((job_folder(tmp_path, "job-1") / "parts" / NOW).iterdir())
    for at, path in enumerate(found):
        os.utime(path, (at, at))
    return found


def ids(tmp_path: Path, most: int = 99) -> list[str]:
    return [each.item_id for each in newest_errors(job_folder(tmp_path, "job-1"), most)]


def test_no_more_is_read_than_the_bound_of_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which the newest two pages reach exactly."""
    written = pages(tmp_path, 1, 1, 1)
    size = sum(path.stat().st_size for path in written[1:])
    for bound, wanted in ((size, ["item-20", "item-10"]), (size - 1, ["item-20"]), (10 * size, 3), (0, [])):
        monkeypatch.setattr(files, "MOST_BYTES", bound)
        assert (ids(tmp_path) if isinstance(wanted, list) else len(ids(tmp_path))) == wanted


def test_a_page_without_errors_and_one_that_claims_less_than_none_have_none(tmp_path: Path) -> None:
    written = pages(tmp_path, 2, 0, 1)
    written[1].write_bytes(b'{"opinions": 0, "errors": -1}\n' + written[2].read_bytes().split(b"\n", 1)[1])
    os.utime(written[1], (1, 1))
    assert ids(tmp_path) == ["item-20", "item-1", "item-0"]
    assert ids(tmp_path, 2) == ["item-20", "item-1"]
    assert ids(tmp_path, 0) == []


def test_other_files_and_links_to_folders_are_no_pages(tmp_path: Path) -> None:
    """A link to a page is as old as the link."""
    written = pages(tmp_path, 1, 1)
    (written[0].parent / "0000000009~0.json").write_bytes(written[0].read_bytes())
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "0000000008~0.jsonl").write_bytes(written[1].read_bytes())
    (written[0].parents[1] / "linked").symlink_to(elsewhere)
    (written[0].parents[1] / "file").write_text("")
    assert ids(tmp_path) == ["item-10", "item-0"]
    target = tmp_path / "target"
    written[0].rename(target)
    os.utime(target, (0, 0))
    written[0].symlink_to(target)
    assert ids(tmp_path) == ["item-0", "item-10"]
