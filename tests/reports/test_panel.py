"""The panel's scores beside the opinions: which they are, that they are kept, and how they are exported."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from dicast.app.analysis.scores import panel_scores as combined
from dicast.app.analysis.scores import with_learned_panels
from dicast.app.domain.item import Rating
from dicast.app.domain.panel import NotLearned, PanelRule, half_of
from dicast.app.domain.report import Report, ReportAgent, ReportDimension
from dicast.app.reports import files
from dicast.app.reports.collecting import collect
from dicast.app.reports.finishing import keep_computed
from dicast.app.reports.folders import begin, job_folder
from dicast.app.reports.panel import export_panel, panel_scores
from dicast.app.reports.scores import load_scores
from dicast.app.reports.statistics import learn_panels
from dicast.app.reports.stored_items import set_aside, write_ratings
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


WANTED = [("item-1", "clear", 4.5, 3, None), ("item-0", "clear", 7.0, 1, None), ("item-2", "clear", None, 0, None)]
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
    assert keep_computed(folder, report) == report
    assert not (folder / "panel.parquet").exists()


@pytest.mark.parametrize("format", ["csv", "jsonl", "parquet"])
def test_they_are_exported_whether_kept_or_not(tmp_path: Path, format: str) -> None:
    folder, report = finished(tmp_path, panelled=False)
    out = tmp_path / f"out.{format}"
    assert export_panel(folder, report, format, out) == 3
    if format == "csv":
        with out.open(newline="") as file:
            rows: list[Any] = list(csv.reader(file))[1:]
        wanted = [["item-1", "clear", "4.5", "3"], ["item-0", "clear", "7.0", "1"], ["item-2", "clear", "", "0"]]
        assert rows == [[*row, ""] for row in wanted]
        return
    read = pq.read_table(out).to_pylist() if format == "parquet" else [json.loads(line) for line in out.open()]
    assert [tuple(row.values()) for row in read] == WANTED


# ---------------------------------------------------------------------- rules that learn from the whole job
def judged(root: Path, rule: PanelRule, *, low: int = 1, high: int = 10, rated: bool = True) -> tuple[Path, Report]:
    """A sharp judge and one who says anything, over 200 items of which 120 are rated."""
    begin(root, "job-1", NOW)
    rng = np.random.default_rng(1)
    truth = rng.integers(low, high + 1, 200)
    judges = {
        "sharp": np.clip(truth + (rng.random(200) < 0.1), low, high),
        "also": np.clip(truth - (rng.random(200) < 0.2), low, high),
        "wild": rng.integers(low, high + 1, 200),
    }
    opinions = [opinion(n, name, int(scores[n])) for n in range(200) for name, scores in judges.items()]
    files.write_page(root, "job-1", NOW, "0", 0, opinions, [])
    if rated:
        write_ratings(root, "job-1", NOW, [Rating(f"item-{n}", "clear", "ada", float(truth[n])) for n in range(120)])
    dimension = ReportDimension(id="clear", scale_min=low, scale_max=high, panel=rule)
    given = {"agents": [ReportAgent(name=name) for name in judges], "dimensions": [dimension], "rated": rated}
    return job_folder(root, "job-1"), files.finish(root, "job-1", NOW, header(600, panelled=True, **given))


def test_weights_are_learned_from_the_other_half_of_the_ratings(tmp_path: Path) -> None:
    folder, report = judged(tmp_path, PanelRule(combine="weighted", weights="learned"))
    with pytest.raises(NotLearned):
        list(panel_scores(folder, report))
    kept = keep_computed(folder, report)
    learned = kept.dimensions[0].learned
    assert learned is not None and learned.items == 120 and kept.by_dimension[0].dimension.learned == learned
    assert learned.weights["wild"] < 0.1 and sum(learned.weights.values()) == pytest.approx(1)
    assert learned.halves[0] != learned.halves[1]
    scores = {(o.item_id, o.judge): o.score for o in files.read_opinions(tmp_path, "job-1")}
    rows = {row["item_id"]: row["score"] for row in pq.read_table(folder / "panel.parquet").to_pylist()}
    for n in (3, 4, 150):
        item = f"item-{n}"
        weights = learned.weights if n >= 120 else learned.halves[1 - half_of(item)]
        assert rows[item] == pytest.approx(sum(weight * scores[item, name] for name, weight in weights.items()))
    assert kept.statistics is not None
    (of,) = kept.statistics.dimensions
    panel, wild = of.voices[-1], of.voices[2]
    assert panel.pearson.low > 0.9 > (wild.pearson.high or 1)  # type: ignore[operator]
    assert any(line.startswith("The panel's weights are learned from 120 rated items") for line in of.summary)


def test_the_arrays_and_the_file_agree(tmp_path: Path) -> None:
    for at, rule in enumerate((PanelRule(combine="weighted", weights="learned"), PanelRule(combine="dawid_skene"))):
        folder, report = judged(tmp_path / str(at), rule, high=4)
        scores = with_learned_panels(load_scores(folder, report))
        found = combined(scores, scores.dimensions[0])
        told = panel_scores(folder, learn_panels(folder, report))
        np.testing.assert_allclose(found, [row.score for row in told])


def test_labels_of_unlike_judges_after_dawid_and_skene(tmp_path: Path) -> None:
    folder, report = judged(tmp_path, PanelRule(combine="dawid_skene"), high=3, rated=False)
    kept = keep_computed(folder, report)
    found = kept.dimensions[0].learned
    assert found is not None and len(found.prior) == 3 and sum(found.prior) == pytest.approx(1)
    assert found.errors["sharp"][0][0] > 0.7 > 0.5 > found.errors["wild"][0][0]
    scores = [row["score"] for row in pq.read_table(folder / "panel.parquet").to_pylist()]
    truth = np.random.default_rng(1).integers(1, 4, 200)
    assert np.mean(scores == truth) > 0.85 and set(scores) == {1.0, 2.0, 3.0}
    assert kept.statistics is not None
    assert any("after Dawid and Skene" in line for line in kept.statistics.dimensions[0].summary)


def test_too_few_ratings_leave_the_weights_equal_and_say_so(tmp_path: Path) -> None:
    folder, report = judged(tmp_path, PanelRule(combine="weighted", weights="learned"))
    lines = (folder / "ratings.jsonl").read_text().splitlines(keepends=True)
    (folder / "ratings.jsonl").write_text("".join(lines[:30]))
    kept = keep_computed(folder, report)
    found = kept.dimensions[0].learned
    assert found is not None and set(found.weights.values()) == {1 / 3} and found.halves == []
    assert "weights are learned on 20 rated items with all scores or more in each half" in (found.reason or "")


@pytest.mark.parametrize("name", ["=1+1", "+1", "-1", "@SUM(A1)"])
def test_a_table_for_spreadsheets_holds_no_formula(tmp_path: Path, name: str) -> None:
    """Items, criteria and labels are foreign words."""
    begin(tmp_path, "job-1", NOW)
    dimension = ReportDimension(id=name, scale_min=0, scale_max=1, kind="labels", labels=[name, "plain"])
    judges = [ReportAgent(name="strict")]
    said = opinion(0, score=0).model_copy(update={"item_id": name, "criterion_id": name})
    files.write_page(tmp_path, "job-1", NOW, "0", 0, [said], [])
    report = files.finish(tmp_path, "job-1", NOW, header(1, agents=judges, dimensions=[dimension]))
    folder, out = job_folder(tmp_path, "job-1"), tmp_path / "out.csv"
    assert export_panel(folder, report, "csv", out) == 1
    with out.open(newline="") as file:
        heads, row = list(csv.reader(file))
    found = dict(zip(heads, row, strict=True))
    for column in ("item_id", "criterion_id", "label"):
        assert found[column] == f"'{name}", column
    export_panel(folder, report, "jsonl", out)
    assert json.loads(out.read_text())["item_id"] == name, "exact where no spreadsheet reads it"
