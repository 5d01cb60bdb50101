"""What a program reads of a finished job."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow.dataset  # noqa: F401  (looks for pandas when it is loaded: not while the stand-in is there)
import pyarrow.parquet as pq
import pytest

from dicast.app.domain.report import Report
from dicast.app.reports.files import finish, write_page
from dicast.app.reports.results import NoResults, ResultsAway, load_opinions, load_report, to_pandas, to_polars
from tests.reports.building import NOW, header, opinion

JOB = "job-1"


@pytest.fixture
def report(tmp_path: Path) -> Report:
    write_page(tmp_path, JOB, NOW, "0", 0, [opinion(0, metadata={"lang": "en"}), opinion(1)], [])
    return finish(tmp_path, JOB, NOW, header(2, keep=["lang"]))


def test_opinions_by_report_and_by_id(tmp_path: Path, report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    want = [opinion(0, metadata={"lang": "en"}), opinion(1)]
    monkeypatch.setenv("DICAST_RESULTS_DIR", str(tmp_path))
    for job in (report, report.model_dump(mode="json"), JOB):
        assert load_opinions(job) == want
    assert load_opinions(JOB, tmp_path) == want
    assert load_report(JOB) == report
    with pytest.raises(NoResults, match="job nobody has no report in"):
        load_opinions("nobody")


def test_files_that_cannot_be_seen_from_here(tmp_path: Path, report: Report) -> None:
    (tmp_path / JOB).rename(tmp_path / "moved")
    with pytest.raises(ResultsAway, match="cannot be seen from here"):
        load_opinions(report, tmp_path / "elsewhere")


@pytest.mark.parametrize("name, load", [("pandas", to_pandas), ("polars", to_polars)])
def test_data_frames_are_read_from_the_typed_file(
    monkeypatch: pytest.MonkeyPatch, report: Report, name: str, load: Any
) -> None:
    """By a stand-in: programs bring these libraries themselves."""
    library: Any = ModuleType(name)
    library.read_parquet = pq.read_table
    monkeypatch.setitem(sys.modules, name, library)
    table = load(report)
    assert table.column("score").to_pylist() == [5, 5]
    assert table.column("metadata.lang").to_pylist() == ["en", None]


@pytest.mark.parametrize("name, load", [("pandas", to_pandas), ("polars", to_polars)])
def test_a_library_that_is_not_installed_is_named(
    monkeypatch: pytest.MonkeyPatch, report: Report, name: str, load: Any
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=f"to_{name} needs {name}: pip install {name}"):
        load(report)
