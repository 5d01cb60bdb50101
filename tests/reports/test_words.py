"""Results on scales of words: what report, files, panel and terminal tell of labels and checklists."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from rich.console import Console

from dicast.app.domain.dimension import Dimension
from dicast.app.domain.figure import Figure
from dicast.app.domain.opinion import Opinion
from dicast.app.domain.panel import MAJORITY
from dicast.app.domain.report import Report, ReportDimension
from dicast.app.reports import files, formats
from dicast.app.reports.collecting import export
from dicast.app.reports.folders import begin, job_folder
from dicast.app.reports.panel import keep_panel, panel_scores
from dicast.app.reports.terminal import print_report
from tests.reports.building import NOW, header, opinion

TOPIC = {"labels": ["money", "law", "health"], "ordered": False}
CHECKS = {"checklist": ["Is it short?", "Is it true?"]}


def dimension(id: str, scale: Any) -> Dimension:
    return Dimension.model_validate({"id": id, "instructions": "?", "scale": scale})


TONE, WHAT, WHOLE = dimension("tone", "pass_fail"), dimension("topic", TOPIC), dimension("whole", CHECKS)


def said(item: int, judge: str, of: Dimension, score: int | None, **more: Any) -> Opinion:
    label = None if score is None else of.scale.label(score)
    return opinion(item, judge, score, criterion_id=of.id, label=label, **more)


OPINIONS = [
    said(0, "strict", TONE, 1), said(0, "kind", TONE, 0), said(1, "strict", TONE, 1), said(1, "kind", TONE, None),
    said(0, "strict", WHAT, 2), said(0, "strict", WHAT, 2, replicate=1), said(0, "strict", WHAT, 0, replicate=2),
    said(0, "kind", WHAT, 2), said(1, "strict", WHAT, 0), said(1, "kind", WHAT, 2),
    said(0, "strict", WHOLE, 1, answers=[True, False]), said(0, "kind", WHOLE, 2, answers=[True, True]),
]  # fmt: skip


def finished(root: Path) -> tuple[Path, Report]:
    begin(root, "job-1", NOW)
    files.write_page(root, "job-1", NOW, "0", 0, OPINIONS, [])
    dimensions = [
        ReportDimension.from_dimension(TONE),
        ReportDimension.from_dimension(WHAT, MAJORITY),
        ReportDimension.from_dimension(WHOLE),
    ]
    report = files.finish(root, "job-1", NOW, header(len(OPINIONS), dimensions=dimensions, panelled=True))
    return job_folder(root, "job-1"), report


def test_labels_are_counted_and_those_without_an_order_have_no_mean(tmp_path: Path) -> None:
    tone, topic, whole = finished(tmp_path)[1].by_dimension
    assert (tone.labels, tone.scores.mean, tone.scores.failures) == ({"fail": 1, "pass": 2}, 2 / 3, 1)
    assert topic.labels == {"money": 2, "law": 0, "health": 4}
    scores = topic.scores
    assert (scores.n, scores.mean, scores.median, scores.sd, scores.min, scores.max) == (
        6,
        None,
        None,
        None,
        None,
        None,
    )
    assert [(cell.mean, cell.labels["health"]) for cell in topic.by_judge] == [(None, 2), (None, 2)]
    assert (whole.labels, whole.scores.mean) == ({}, 1.5)
    assert [(q.question, q.yes, q.n) for q in whole.questions] == [("Is it short?", 2, 2), ("Is it true?", 1, 2)]


def test_the_overall_score_leaves_labels_without_an_order_out(tmp_path: Path) -> None:
    report = finished(tmp_path)[1]
    assert report.overall == (2 / 3 + 1.5 / 2) / 2
    assert [agent.overall for agent in report.by_agent] == [(1 + 0.5) / 2, (0 + 1) / 2]
    assert all(agent.scores is None for agent in report.by_agent)


def test_how_often_two_judges_differ(tmp_path: Path) -> None:
    """One of two texts: a distance of two places is one difference, since places mean nothing."""
    topic = finished(tmp_path)[1].by_dimension[1]
    assert (topic.mean_difference, topic.pairs) == (0.5, 2)


def test_the_panel_votes_on_labels_without_an_order(tmp_path: Path) -> None:
    folder, report = finished(tmp_path)
    scores = {(row.item_id, row.criterion_id): (row.score, row.label) for row in panel_scores(folder, report)}
    assert scores["item-0", "topic"] == (2.0, "health")  # of three replicates two say so
    assert scores["item-1", "topic"] == (0.0, "money")
    assert scores["item-0", "tone"] == (0.5, None)
    assert scores["item-1", "tone"] == (1.0, "pass")
    assert scores["item-0", "whole"] == (1.5, None)
    cell = keep_panel(folder, report, report).by_dimension[1].panel
    assert cell is not None and (cell.n, cell.mean, cell.sd) == (2, None, None)
    assert cell.labels == {"money": 1, "law": 0, "health": 1}
    assert pq.read_table(folder / "panel.parquet")["label"].to_pylist().count("health") == 1


def test_files_have_labels_and_answers(tmp_path: Path) -> None:
    folder = finished(tmp_path)[0]
    rows = pq.read_table(folder / "opinions.parquet").to_pylist()
    assert [row["label"] for row in rows[:4]] == ["pass", "fail", "pass", None]
    assert [row["answers"] for row in rows[-3:]] == [None, [True, False], [True, True]]
    with export(tmp_path, "job-1", "csv", tmp_path / "out.csv").open(newline="") as file:
        read = list(csv.DictReader(file))
    assert read[0]["label"] == "pass" and read[0]["answers"] == ""
    assert json.loads(read[-1]["answers"]) == [True, True]
    assert list(files.read_opinions(tmp_path, "job-1")) == OPINIONS


def test_the_terminal_counts_words(tmp_path: Path) -> None:
    console = Console(file=io.StringIO(), width=100)
    print_report(finished(tmp_path)[1], console)
    told = console.file.getvalue()  # type: ignore[attr-defined]
    lines = [" ".join(line.split()) for line in told.splitlines()]
    assert "topic money 2 33 %" in lines and "health 4 67 %" in lines
    assert "Is it true? 1 50 %" in lines
    assert any(line.startswith("topic 3 labels - ") for line in lines)


def test_a_figure_of_the_page_or_why_there_is_none() -> None:
    assert formats.figure(Figure(value=0.31, low=0.1, high=0.52)) == "0.31 (0.10 to 0.52)"
    assert (
        formats.figure(Figure.unknown("only 2 items were rated")) == "cannot be said, because only 2 items were rated"
    )
    assert formats.figure(None) == "–"
