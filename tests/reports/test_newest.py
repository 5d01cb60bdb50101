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
