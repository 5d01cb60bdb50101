"""The panel's scores beside the opinions: which they are, that they are kept, and how they are exported."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from dicast.app.domain.panel import PanelRule
from dicast.app.domain.report import Report, ReportDimension
from dicast.app.reports import files
from dicast.app.reports.collecting import collect
from dicast.app.reports.finishing import keep_computed
from dicast.app.reports.folders import begin, job_folder
from dicast.app.reports.panel import export_panel, panel_scores
from dicast.app.reports.resuming import set_aside
from tests.reports.building import NOW, header, opinion

WORST = ReportDimension(id="clear", scale_min=1, scale_max=10, panel=PanelRule(combine="worst"))


def finished(root: Path, **changes: Any) -> tuple[Path, Report]:
    """Three items: two judges, one of whom scores the first item twice; the last item has no score at all."""
    begin(root, "job-1", NOW)
    opinions = [
        opinion(1, "strict", 3), opinion(1, "kind", 8), opinion(1, "strict", 6, replicate=1),
        opinion(0, "kind", 7), opinion(0, "strict", None),
        opinion(2, "strict", None), opinion(2, "kind", None),
    ]  # fmt: skip
    files.write_page(root, "job-1", NOW, "0", 0, opinions, [])
    given = {"dimensions": [WORST], "panelled": True, **changes}
    return job_folder(root, "job-1"), files.finish(root, "job-1", NOW, header(len(opinions), **given))


WANTED = [("item-1", "clear", 4.5, 3), ("item-0", "clear", 7.0, 1), ("item-2", "clear", None, 0)]
"""As they are kept; as they are told they have no calibrated score."""


def test_replicates_are_averaged_before_judges_are_combined(tmp_path: Path) -> None:
    folder, report = finished(tmp_path)
    assert [tuple(score) for score in panel_scores(folder, report)] == [(*row, None) for row in WANTED]


def test_they_are_kept_when_the_job_asks_for_them(tmp_path: Path) -> None:
    folder, report = finished(tmp_path)
    assert report.panel_parquet is None and report.by_dimension[0].panel is None
    kept = keep_computed(folder, report)
    assert kept.panel_parquet == str(folder / "panel.parquet")
    assert [tuple(row.values()) for row in pq.read_table(folder / "panel.parquet").to_pylist()] == WANTED
    cell = kept.by_dimension[0].panel
    assert cell is not None and (cell.n, cell.mean) == (2, 5.75) and cell.sd == pytest.approx(1.7678, abs=1e-4)
    assert files.read_report(tmp_path, "job-1") == kept == keep_computed(folder, kept)
    fetched = collect(kept, tmp_path, tmp_path / "mine")
    assert Path(fetched.panel_parquet or "").is_relative_to(tmp_path / "mine")
    set_aside(tmp_path, "job-1", NOW, waits=lambda: True)
    assert not (folder / "panel.parquet").exists(), "a resumed job makes its own"


def test_a_job_that_does_not_ask_has_none(tmp_path: Path) -> None:
    folder, report = finished(tmp_path, panelled=False)
    assert keep_computed(folder, report) is report
    assert not (folder / "panel.parquet").exists()


@pytest.mark.parametrize("format", ["csv", "jsonl", "parquet"])
def test_they_are_exported_whether_kept_or_not(tmp_path: Path, format: str) -> None:
    folder, report = finished(tmp_path, panelled=False)
    out = tmp_path / f"out.{format}"
    assert export_panel(folder, report, format, out) == 3
    if format == "csv":
        with out.open(newline="") as file:
            rows: list[Any] = list(csv.reader(file))[1:]
        assert rows == [["item-1", "clear", "4.5", "3"], ["item-0", "clear", "7.0", "1"], ["item-2", "clear", "", "0"]]
        return
    read = pq.read_table(out).to_pylist() if format == "parquet" else [json.loads(line) for line in out.open()]
    assert [tuple(row.values()) for row in read] == WANTED
