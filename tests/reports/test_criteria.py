"""What a report tells of items' own criteria, and that people are not asked for them on the page."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from dicast.app.domain.dimension import CriteriaTally
from dicast.app.domain.report import CriteriaReport, ReportDimension
from dicast.app.operator.rating import _described_dimensions
from dicast.app.reports.blind import RatingRefused
from dicast.app.reports.html.outcomes import criteria
from dicast.app.reports.terminal import print_report
from tests.reports.building import builder, files_in, header, opinion

HEALTH = ReportDimension(id="health", scale_min=0, scale_max=100, kind="criteria")
CLEAR = ReportDimension(id="clear", scale_min=1, scale_max=10)


def a_report(tmp_path: Any, *said: tuple[int, list[bool | None], tuple[float, float]]) -> Any:
    built = builder(len(said), dimensions=[HEALTH])
    for n, (score, answers, shares) in enumerate(said):
        built.add_opinion(opinion(n, score=score, criterion_id="health", answers=answers, attained=shares))
    return built.build(files_in(str(tmp_path)))


def test_the_report_tells_healthbenchs_mean_which_no_item_is_cut_for(tmp_path) -> None:
    report = a_report(tmp_path, (100, [True, False], (1.0, 1.0)), (0, [False, True], (-0.6, -0.6)))
    [row] = report.by_dimension
    assert row.scores.mean == 50 and (row.criteria.low, row.criteria.high) == (0.2, 0.2)
    assert row.criteria.sentence == "HealthBench's mean is 20.0 %: 2 of 4 criteria of 2 opinions are met."


def test_missing_answers_are_bounds_in_the_report(tmp_path) -> None:
    report = a_report(tmp_path, (100, [True, False], (1.0, 1.0)), (85, [True, None], (0.7, 1.0)))
    [row] = report.by_dimension
    assert row.criteria == CriteriaReport(opinions=2, criteria=4, met=2, unanswered=1, incomplete=1, low=0.85, high=1.0)
    told = row.criteria.sentence
    assert told.startswith("HealthBench's mean is 85.0 % to 100.0 %: 2 of 4 criteria of 2 opinions are met; 1 without")
    assert criteria(report) == [("health", told)]
    page = io.StringIO()
    print_report(report, Console(file=page, width=200))
    assert "health: HealthBench's mean is 85.0 % to 100.0 %" in page.getvalue()


def test_the_mean_is_cut_and_none_without_opinions(tmp_path) -> None:
    assert CriteriaReport.from_tally(CriteriaTally()) is None
    tally = CriteriaTally()
    tally.add([True], (-2.0, -0.5))
    assert tally.mean == (0.0, 0.0)


def test_raters_are_not_asked_for_criteria() -> None:
    class Forgotten:
        """An installation whose ledger has forgotten the job."""

        ledger = property(lambda self: self)

        def submitted_job(self, name: str) -> Any:
            from dicast.app.ledger.client import UnknownJob

            raise UnknownJob(name)

    both = header(1, dimensions=[HEALTH, CLEAR])
    assert [d["id"] for d in _described_dimensions(Forgotten(), both)] == ["clear"]
    with pytest.raises(RatingRefused, match="'health' is judged by the criteria of each item"):
        _described_dimensions(Forgotten(), header(1, dimensions=[HEALTH]))
