"""Finished jobs in pages: what DuckDB finds is what the opinions say."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from statistics import mean, pstdev

import pytest

from dicast.app.domain.opinion import Opinion
from dicast.app.domain.report import Report, ReportAgent, ReportDimension, ReportHeader
from dicast.app.reports.browse import Browser, ItemQuery, NoSuchItem
from dicast.app.reports.files import finish, write_page
from dicast.app.reports.folders import job_folder

NOW = datetime(2026, 1, 1, tzinfo=UTC)
JUDGES, DIMENSIONS = ("a'b", "c"), ("clear's", "true")
SCORES = {"x": (1, 5), "y": (3, 3), 'z"': (5, None), "X2": (2, 4)}
"""An item's scores by the two judges, in the first dimension; in the second all give 2."""


@pytest.fixture(params=[1, 2], ids=["once", "twice"])
def made(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Report]:
    root = tmp_path / "a[b]*"
    root.mkdir()
    opinions = [
        Opinion(judge=judge, criterion_id=dimension, item_id=item, replicate=again, argument=f"{item} Said by {judge}",
                model="m", score=SCORES[item][at] if dimension == "clear's" else 2, cited_evidence=["q"])
        for item in SCORES
        for again in range(request.param)
        for at, judge in enumerate(JUDGES)
        for dimension in DIMENSIONS
    ]  # fmt: skip
    write_page(root, "j", "abc", "0", 0, opinions, [])
    header = ReportHeader(
        job_id="j", project="p", status="completed", units=len(opinions), started=NOW, finished=NOW, wall_s=1.0,
        agents=[ReportAgent(name=name) for name in JUDGES],
        dimensions=[ReportDimension(id="clear's", scale_min=1, scale_max=5, weight=3.0),
                    ReportDimension(id="true", scale_min=0, scale_max=4)],
    )  # fmt: skip
    return job_folder(root, "j"), finish(root, "j", "abc", header)


def test_items_are_what_the_opinions_say(made: tuple[Path, Report]) -> None:
    folder, report = made
    found = Browser().items(folder, report, ItemQuery())
    assert (found.total, [row.id for row in found.items]) == (4, list(SCORES))
    for row in found.items:
        given = [score for score in SCORES[row.id] if score is not None]
        first, second = row.scores
        assert first.mean == mean(given) and second.mean == 2
        assert first.spread == (pstdev(given) if len(given) > 1 else None) and second.spread == 0
        parts = [spread / 4 for spread in (first.spread, second.spread) if spread is not None]
        assert row.disagreement == pytest.approx(mean(parts))
        assert row.overall == pytest.approx((3 * (mean(given) - 1) / 4 + 2 / 4) / 4)
        assert bool(row.failed) == (len(given) < 2)


def test_items_are_sorted_filtered_searched_and_paged(made: tuple[Path, Report]) -> None:
    folder, report = made
    browser = Browser()

    def ids(**wishes: object) -> list[str]:
        return [row.id for row in browser.items(folder, report, ItemQuery(**wishes)).items]  # type: ignore[arg-type]

    assert ids(sort="disagreement", descending=True) == ["x", "X2", "y", 'z"']
    assert ids(sort="score", dimension="clear's", descending=True)[0] == 'z"'
    assert ids(sort="spread", dimension="true", limit=2, offset=1) == ["y", 'z"']
    assert ids(search="X") == ["x", "X2"]
    assert ids(search="' OR true --") == []
    assert ids(search="Y SAID BY C", within="arguments") == ["y"]
    assert ids(search="y said by c", within="arguments", judge="a'b") == []
    for part in ("s", "Said BY c", "x sAID", "2 s", "said by A'", "sis", "d by s"):
        holding = {item for item in SCORES for judge in JUDGES if part.lower() in f"{item} said by {judge}".lower()}
        assert set(ids(search=part, within="arguments")) == holding
    for nowhere in (".*", "y|c", "(", "[", "\\E", "y said by c$", "\x00", "\U0001f600"):
        assert ids(search=nowhere, within="arguments") == []
    assert ids(failed=True) == ['z"']
    assert ids(dimension="clear's", least=4) == ['z"']
    assert ids(dimension="clear's", most=3, judge="a'b") == ["x", "y", "X2"]
    assert ids(judge="c", sort="score", dimension="clear's") == ["y", "X2", "x", 'z"']
    for wrong in ({"dimension": "none"}, {"judge": "none"}):
        with pytest.raises(NoSuchItem, match="'none' is none of the job's"):
            ids(**wrong)


def test_one_item_and_the_distributions(made: tuple[Path, Report]) -> None:
    folder, _ = made
    browser = Browser()
    opinions, more = browser.opinions(folder, 'z"')
    assert not more and {opinion["judge"] for opinion in opinions} == set(JUDGES)
    assert {opinion["item_id"] for opinion in opinions} == {'z"'}
    with pytest.raises(NoSuchItem, match="no opinion of an item 'nobody'"):
        browser.opinions(folder, "nobody")
    times = len(opinions) // 4
    found = {(of.judge, of.dimension): of for of in browser.scores(folder)}
    assert found["a'b", "clear's"].counts == dict.fromkeys((1, 2, 3, 5), times)
    assert (found["c", "clear's"].counts, found["c", "clear's"].failed) == ({3: times, 4: times, 5: times}, times)


def test_a_job_that_was_judged_anew_is_read_anew(made: tuple[Path, Report], tmp_path: Path) -> None:
    folder, report = made
    browser = Browser()
    assert browser.items(folder, report, ItemQuery(limit=1)).total == 4
    root = folder.parent
    (folder / "report.json").unlink()
    write_page(root, "j", "abc", "0", 0, [
        Opinion(judge=judge, criterion_id=of, item_id="new", replicate=0, score=1, argument="", model="m")
        for judge in JUDGES for of in DIMENSIONS
    ], [])  # fmt: skip
    header = ReportHeader.model_validate({**report.model_dump(), "units": 4})
    again = finish(root, "j", "abc", header)
    assert [row.id for row in browser.items(folder, again, ItemQuery()).items] == ["new"]
