"""What a job was after, in the HTML report: answers, labels, checklists, preferences, rankings, spared units."""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dicast.app.domain.figure import Figure, figure_text
from dicast.app.domain.judge_statistics import (
    CalibratedRater,
    ProbeStatistics,
    RankingAgreement,
    RaterStatistics,
    StoppedEarly,
)
from dicast.app.domain.opinion import Opinion
from dicast.app.domain.question import JobAnswer
from dicast.app.domain.report import Report, ReportAgent, ReportDimension
from dicast.app.domain.text import percent
from dicast.app.reports import files, formats
from dicast.app.reports.folders import begin, job_folder
from dicast.app.reports.html.outcomes import calibration
from dicast.app.reports.html.page import write_report
from dicast.app.reports.statistics import compute, keep
from tests.reports import kinds
from tests.reports.building import NOW, builder, files_in, header, opinion
from tests.reports.test_html import safe

SYSTEMS = ("apple", "birch", "cedar")
JUDGES = ("ann", "bob", "cy")
DIMENSIONS = (
    ReportDimension(id="passes", name="Passes", scale_min=0, scale_max=1, kind="labels", labels=["fail", "pass"]),
    ReportDimension(
        id="topic", name="Topic", scale_min=0, scale_max=2, kind="labels", labels=["arts", "law", "sport"],
        ordered=False,
    ),
    ReportDimension(
        id="complete", name="Completeness", scale_min=0, scale_max=2, kind="checklist",
        questions=["Is there a date?", "Is there <b>a place</b>?"],
    ),
    ReportDimension(
        id="better", name="Better text", scale_min=-1, scale_max=1, kind="preference", labels=["B", "tie", "A"]
    ),
)  # fmt: skip


def opinions(items: int) -> list[Opinion]:
    """Pairs of three systems, of which the first is the best; the third judge is not needed for passing where the first
    two agree."""
    rng = np.random.default_rng(3)
    pairs = list(combinations(range(len(SYSTEMS)), 2))
    found = []
    for n in range(items):
        a, b = pairs[n % len(pairs)]
        sides = {"metadata": {"system_a": SYSTEMS[a], "system_b": SYSTEMS[b]}}
        passing: list[int] = []
        for judge in JUDGES:
            draw = rng.random(5)
            needed = judge != "cy" or passing[0] != passing[1]
            passing.append(int(draw[0] < 0.7))
            given: dict[str, Any] = {"score": passing[-1]} if needed else {"score": None, "not_needed": True}
            found.append(opinion(n, judge, criterion_id="passes", **given, **sides))
            found.append(opinion(n, judge, int(3 * draw[1]), criterion_id="topic", **sides))
            answers = [bool(draw[2] < 0.9), bool(draw[3] < 0.4)]
            found.append(opinion(n, judge, sum(answers), criterion_id="complete", answers=answers, **sides))
            found.append(opinion(n, judge, int(np.digitize(draw[4], [0.25, 0.35])) - 1, criterion_id="better", **sides))
    return found


def made(root: Path, items: int = 60) -> tuple[Path, Report]:
    begin(root, "job-1", NOW)
    given = opinions(items)
    files.write_page(root, "job-1", NOW, "0", 0, given, [])
    told = header(
        len(given), agents=[ReportAgent(name=name) for name in JUDGES], dimensions=list(DIMENSIONS),
        keep=["system_a", "system_b"], groups=["system_a"],
    )  # fmt: skip
    folder, report = job_folder(root, "job-1"), files.finish(root, "job-1", NOW, told)
    return folder, keep(folder, report, compute(folder, report))


def known(value: float, side: float = 0.1) -> Figure:
    return Figure(value=value, low=value - side, high=value + side, items=40)


def with_everything(report: Report) -> Report:
    """Also what needs ratings or other jobs: an answer, probes, a calibration."""
    assert report.statistics is not None
    first, *rest = report.statistics.dimensions
    probes = [
        ProbeStatistics(probe="verbosity", voice="ann", effect=known(0.4), p=0.01),
        ProbeStatistics(probe="injection", voice="bob", effect=known(0.8), p=0.0001, tried=True, against="itself"),
    ]
    voice = CalibratedRater(
        name="ann", kind="judge", method="isotonic", learned_on=40, raw=known(0.7), calibrated=known(0.6),
        bias=known(-0.1),
    )  # fmt: skip
    first = first.model_copy(update={"probes": probes, "calibrated": [voice]})
    answer = JobAnswer(
        question="Is the mean of passes at least 0.5?", state="yes", value=0.71, low=0.55, high=0.86, confidence=0.95,
        items=60, missing=2, population=1000, calls_saved=2820,
    )  # fmt: skip
    order = RankingAgreement(name="ann", lists=12, pairs=60, tau=known(0.55), agreeing=known(0.78))
    dimensions = [
        of if of.preferences is None
        else of.model_copy(update={"preferences": of.preferences.model_copy(update={"rankings": [order]})})
        for of in (first, *rest)
    ]  # fmt: skip
    stopped = StoppedEarly(
        question=answer.question, dimension="passes", judged=60, items=1000, known=known(0.71),
        summary=["60 of 1,000 items have an opinion."],
    )  # fmt: skip
    statistics = report.statistics.model_copy(update={"dimensions": dimensions, "stopped": stopped})
    return report.model_copy(update={"statistics": statistics, "answer": answer, "unpublished": 60, "units": 780})


def test_each_section_is_there_where_the_job_has_it(tmp_path: Path) -> None:
    folder, report = made(tmp_path)
    plain = write_report(folder, report, tmp_path / "plain.html").read_text(encoding="utf-8")
    safe(plain)
    text = write_report(folder, with_everything(report), tmp_path / "out.html").read_text(encoding="utf-8")
    safe(text)
    text = text.replace("\u00a0", " ")
    for told in (
        "Yes; 0.71 (0.55 to 0.86, 95 %), after 60 of 1,000; 2,820 calls were not needed", "720 of 780 (92 %)",
        "Of 180 scores in Topic: ", "Labels in Topic: shares", "Choices in Better text",
        "33 judgements were not needed", "apple is best of 3 in the judges&#39; opinion",
        "the question with the fewest yes is “Is there &lt;b&gt;",
        "apple comes first of 3 contestants", "Ranking in Better text",
        "Win rates of those compared in Better text", "Who wins against whom", "What the escalating panel saved",
        "since the judges before had settled the outcome; ", "Calibrated means of Passes", "twice the length",
        "attacks, their way",
        "60 of 1,000 items have an opinion.", "Lists in Better text: orders beside people", "78 % (68 to 88)",
        "What probes found in Passes, with 95 % intervals",
        "How likely each group of system_a has which rank", "3 labels, no order",
    ):  # fmt: skip
        assert told in text, told
    (saved,) = re.findall(r"What the escalating panel saved.*?</svg>", text, re.DOTALL)
    for part in ("Units of each judge", "scored", "not needed", "failed"):
        assert f">{part}<" in saved
    for told in ("its answer", "Calibrated means", "Probes:"):
        assert told not in plain, told
    assert "Preferences" in plain


def test_agreement_by_group_and_sources_of_variance_have_tables_with_intervals(tmp_path: Path) -> None:
    from tests.reports.whole import page_text  # which reads this module

    folder, report = kinds.systems(tmp_path)
    path = write_report(folder, report, tmp_path / "out.html")
    safe(path.read_text(encoding="utf-8"))
    text = page_text(path).replace("\u00a0", " ")
    statistics = report.statistics
    assert statistics is not None and statistics.components is not None
    first = statistics.dimensions[0]
    (group,) = first.groups
    assert [rater.voice for rater in group.agreement] == [*kinds.JUDGES, "panel"]
    for rater in group.agreement:
        name = "the panel" if rater.voice == "panel" else rater.voice
        assert f"{name} | {formats.chance(rater.pearson_p)} | {formats.chance(rater.bias_p)}\n" in text
        for one in rater.groups:
            assert f"{name} | {one.name} | {figure_text(one.pearson)} | {figure_text(one.bias)}\n" in text
    caption = "Where the variance of {} comes from: "
    for scores, items in (
        ("the judges’ scores in Correct", "395 items with all scores"),
        ("people’s ratings in Correct", "80 rated items"),
        ("the judges’ scores in all dimensions", "395 items with all scores"),
    ):
        assert f"{caption.format(scores)}{items}; intervals are for items like these" in text
    for components in (*first.components, statistics.components):
        for part in components.components:
            assert f" | {figure_text(part.variance)} | {percent(part.share)}\n" in text, part.source
        for design in components.designs:
            worth = f"{design.generalizability:.2f} | {design.dependability:.2f} | {design.error_of_mean:.3f}"
            assert f" | {worth}\n" in text, design.design
    assert "twice the judges: 6 judges × 1 replicate, 400 items | " in text
    assert "as it is: 2 raters an item, 80 items | " in text


def test_a_plain_job_has_none_of_them(tmp_path: Path) -> None:
    begin(tmp_path, "job-1", NOW)
    files.write_page(
        tmp_path, "job-1", NOW, "0", 0, [opinion(n, judge) for n in range(3) for judge in ("strict", "kind")], []
    )
    report = files.finish(tmp_path, "job-1", NOW, header(6))
    text = write_report(job_folder(tmp_path, "job-1"), report, tmp_path / "out.html").read_text(encoding="utf-8")
    for told in ("its answer", "Preferences", "Labels in", "Checklist of", "escalating panel", "Where the variance"):
        assert told not in text, told


def test_who_wins_is_computed_unasked() -> None:
    found = builder(0, dimensions=[DIMENSIONS[-1]]).build(files_in("x")).statistics
    assert found is not None and (found.state, found.rated) == ("waiting", False) and found.unknowable


def test_a_chiefs_dissent_is_shown_with_its_verdict(tmp_path: Path) -> None:
    folder, report = made(tmp_path, 6)
    table = pq.read_table(folder / "opinions.parquet")
    column = pa.array(["Two held <b>against</b> it."] * len(table))
    table = table.drop_columns([name for name in ("dissent",) if name in table.column_names])
    pq.write_table(table.append_column("dissent", column), folder / "opinions.parquet")
    text = write_report(folder, report, tmp_path / "out.html").read_text(encoding="utf-8")
    safe(text)
    assert "Dissent:</span> Two held &lt;b&gt;against&lt;/b&gt; it." in text


@pytest.mark.parametrize("items", [0, 1])
def test_next_to_nothing_is_no_trouble(tmp_path: Path, items: int) -> None:
    folder, report = made(tmp_path, items)
    safe(write_report(folder, report, tmp_path / "out.html").read_text(encoding="utf-8"))


def test_a_point_of_a_calibration_curve_rests_on_three_items() -> None:
    from tests.reports.whole import Filler  # which reads this module

    rater = Filler(unknown=0).fill(RaterStatistics, confusion=[[2, 0], [2, 1]])
    ((score, mean, low, high),) = calibration(rater, 1)
    assert (score, mean) == (2.0, 4 / 3) and 1 <= low < mean < high <= 2
