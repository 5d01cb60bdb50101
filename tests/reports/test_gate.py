"""The gate: what passes, what fails, what cannot be told, and the forms in which it is told."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from pydantic import ValidationError

from dicast.app.cli.console import Refused, Terminal
from dicast.app.cli.quality_gate import QualityGateOptions, decide_job
from dicast.app.domain.calibration import Calibration
from dicast.app.domain.cost import BookLine, CostLine, JobCost, Sum
from dicast.app.domain.figure import Figure
from dicast.app.domain.job import EvaluationJob
from dicast.app.domain.price import Place, Price, TokenRates
from dicast.app.domain.quality_gate import Check, QualityGate, QualityVerdict
from dicast.app.reports import files, quality_gate, statistics
from dicast.app.reports.folders import begin, job_folder
from dicast.app.reports.quality_gate import FinishedRun, markdown, quality_verdict, write_csv, write_junit
from dicast.errors import Exit
from tests.command import JOB, ROOT
from tests.reports.building import NOW, error, header, opinion
from tests.reports.test_assessing import finished
from tests.reports.test_html import HOSTILE

ITEMS = 40


def run_of(root: Path, *, lower: float = 0.0, failed: int = 0, **changes: Any) -> FinishedRun:
    """Forty items by two judges, on average at 5.25 less `lower`."""
    begin(root, "job-1", NOW)
    opinions = [
        opinion(n, judge, None if n < failed and judge == "kind" else round(4 + n % 3 + at / 2 - lower * (n % 2)))
        for n in range(ITEMS)
        for at, judge in enumerate(("strict", "kind"))
    ]
    files.write_page(root, "job-1", NOW, "0", 0, opinions, [error(n, "kind") for n in range(failed)])
    return FinishedRun(job_folder(root, "job-1"), files.finish(root, "job-1", NOW, header(2 * ITEMS, **changes)))


def told(gate: dict[str, Any], run: FinishedRun, before: FinishedRun | None = None) -> list[tuple[str, bool | None]]:
    return [
        (check.name, check.passed) for check in quality_verdict(QualityGate.model_validate(gate), run, before).checks
    ]


def test_a_mean_is_held_against_its_threshold_or_its_intervals_lower_end(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    (check,) = quality_verdict(QualityGate(fail_under={"clear": 5.0}), run).checks
    assert check.passed and check.value is not None and check.low is not None and check.low < 5 < check.value
    assert told({"fail_under": {"clear": 5.0}, "confident": True}, run) == [("mean of clear", False)]
    assert told({"fail_under": {"clear": check.low - 0.01}, "confident": True}, run) == [("mean of clear", True)]
    assert told({"fail_under": {"clear": 5.9}}, run) == [("mean of clear", False)]


def test_errors_are_counted_against_their_share(tmp_path: Path) -> None:
    run = run_of(tmp_path, failed=2)
    assert [told({"max_errors": most}, run) for most in ("2.5%", 0.025, "0.02", 0)] == [
        [("errors", True)], [("errors", True)], [("errors", False)], [("errors", False)],
    ]  # fmt: skip


@pytest.mark.parametrize(
    "spent, unknown, unpriced, passed",
    [("1.00", "0.50", [], True), ("1.00", "0.51", [], False), ("1.60", "0", [], False), ("0", "0", ["p/m"], None),
     ("2", "0", ["p/m"], False)],
)  # fmt: skip
def test_a_cost_has_what_is_unknown_and_cannot_be_told_without_a_price(tmp_path, spent, unknown, unpriced, passed):
    run, line = run_of(tmp_path), BookLine("strict", Place("p", "m", Price(TokenRates(1, 1, 1, 1))), "2026-11-24")
    cost = JobCost(
        sums=[Sum(currency="USD", spent=spent, unknown=unknown)], lines=[CostLine.from_book(line)], unpriced=unpriced
    )
    run = FinishedRun(run.folder, run.report.model_copy(update={"cost": cost}))
    assert told({"max_cost": "1.5"}, run) == [("cost", passed)]


def test_a_loss_must_be_proved_or_with_confidence_be_ruled_out(tmp_path: Path) -> None:
    before, same, worse = run_of(tmp_path / "a"), run_of(tmp_path / "b"), run_of(tmp_path / "c", lower=1)
    name = "clear not worse than job-1"
    assert told({"not_worse_than": "x"}, same, before) == [(name, True)]
    (check,) = quality_verdict(QualityGate(not_worse_than="x"), worse, before).checks
    assert check.passed is False and check.p is not None and check.p < 0.001 and check.value == pytest.approx(-0.425)
    assert "would be found in four of five cases" in check.told
    assert told({"not_worse_than": "x", "shift": 0.5}, worse, before) == [(name, True)], "no more than what counts"
    assert told({"not_worse_than": "x", "shift": 0.5, "confident": True}, worse, before) == [(name, False)]
    assert told({"not_worse_than": "x", "shift": 0.8, "confident": True}, worse, before) == [(name, True)]


def test_runs_that_cannot_be_compared_are_not(tmp_path: Path) -> None:
    before, run = run_of(tmp_path / "a"), run_of(tmp_path / "b")
    (dimension,) = run.report.dimensions
    other = dimension.model_copy(update={"rubric": "another"})
    foreign = FinishedRun(before.folder, before.report.model_copy(update={"dimensions": [other]}))
    (check,) = quality_verdict(QualityGate(not_worse_than="x"), run, foreign).checks
    assert check.passed is None and "another rubric" in check.told
    nothing = FinishedRun(before.folder, before.report.model_copy(update={"dimensions": []}))
    assert told({"not_worse_than": "x"}, run, nothing) == [("not worse than job-1", None)]


def test_agreement_is_with_the_people_who_rated_this_very_job(tmp_path: Path) -> None:
    folder, report = finished(tmp_path)
    run = FinishedRun(folder, report)
    assert told({"min_agreement": 0.5}, run) == [("agreement on clear", True)]
    assert told({"min_agreement": 1.0}, run) == [("agreement on clear", False)]
    unrated = FinishedRun(folder, report.model_copy(update={"rated": False, "statistics": None}))
    assert told({"min_agreement": 0.5}, unrated) == [("agreement with people", None)]


def test_a_calibration_must_be_there_and_be_for_this_job(tmp_path: Path) -> None:
    folder, report = finished(tmp_path)
    agents = [agent.model_copy(update={"judge": f"digest of {agent.name}"}) for agent in report.agents]
    dimensions = [dimension.model_copy(update={"rubric": "asked"}) for dimension in report.dimensions]
    report = report.model_copy(update={"agents": agents, "dimensions": dimensions, "prompt": "worded"})
    gate = {"calibrated": True, "fail_under": {"clear": 4.0}}
    assert told(gate, FinishedRun(folder, report)) == [("calibration", None)]
    maps, _ = statistics.calibrate(folder, report, "isotonic", ["clear"])
    calibrated = report.model_copy(update={"calibration": Calibration(maps=maps)})
    assert told(gate, FinishedRun(folder, calibrated)) == [("calibration of clear", True), ("mean of clear", True)]
    stale = calibrated.model_copy(update={"prompt": "worded in another way"})
    (check,) = quality_verdict(QualityGate.model_validate(gate), FinishedRun(folder, stale)).checks
    assert check.passed is None and "stale: it was made with another prompt" in check.told


def test_what_cannot_be_told_does_not_pass(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    cancelled = FinishedRun(run.folder, run.report.model_copy(update={"status": "cancelled", "missing": 3}))
    assert told({"max_errors": 1}, cancelled) == [("complete", None), ("errors", True)]
    verdict = quality_verdict(QualityGate(max_errors=1.0), cancelled)
    assert verdict.passed is None
    begin(tmp_path / "none", "job-1", NOW)
    files.write_page(tmp_path / "none", "job-1", NOW, "0", 0, [opinion(0, score=None)], [error(0)])
    empty = FinishedRun(
        job_folder(tmp_path / "none", "job-1"), files.finish(tmp_path / "none", "job-1", NOW, header(1))
    )
    assert told({"fail_under": {"clear": 2}}, empty) == [("mean of clear", None)]
    few = quality_verdict(QualityGate(not_worse_than="x"), empty, run).checks[0]
    assert few.passed is None and "the runs share 0 items" in few.told


def test_items_may_be_clustered(tmp_path: Path) -> None:
    folder, report = finished(tmp_path, [], cluster="doc")
    alone = quality_verdict(
        QualityGate(fail_under={"clear": 2}), FinishedRun(folder, report.model_copy(update={"cluster": None}))
    ).checks[0]
    (check,) = quality_verdict(QualityGate(fail_under={"clear": 2}), FinishedRun(folder, report)).checks
    assert check.value == alone.value and (check.low, check.high) != (alone.low, alone.high)


def test_without_libraries_a_plain_threshold_still_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of(tmp_path)
    monkeypatch.setitem(sys.modules, "dicast.app.analysis.group_figures", None)
    assert told({"fail_under": {"clear": 4.0}}, run) == [("mean of clear", True)]
    for gate in (QualityGate(fail_under={"clear": 4.0}, confident=True), QualityGate(not_worse_than="x")):
        with pytest.raises(quality_gate.NoLibraries, match=r"\.\[scores\]"):
            quality_verdict(gate, run, run)


@pytest.mark.parametrize(
    ("gate", "message"),
    [
        ({"max_errors": "200%"}, "less than or equal to 1"),
        ({"shift": 1.0}, "belongs to not_worse_than"),
        ({"not_worse_than": "a", "confident": True}, "cannot be proved"),
        ({"fail_under": {"d": 11}}, "d has a scale of 1 to 10, got 11"),
        ({"fail_under": {"e": 1}}, "'e' is none of the dimensions, which are d"),
        ({"fail_over": {}}, "Extra inputs"),
        ({"fail_under": {"sort": 1}}, "the labels of sort have no order, so there is no mean"),
    ],
)
def test_gates_that_cannot_be(gate: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        sort = {"id": "sort", "instructions": "?", "scale": {"labels": ["a", "b"], "ordered": False}}
        dimensions = [*JOB["dimensions"], sort] if "sort" in str(gate) else JOB["dimensions"]
        EvaluationJob.model_validate({**JOB, "dimensions": dimensions, "gate": gate})


# ---------------------------------------------------------------------- forms
CHECKS = [
    Check(name=f"mean of {HOSTILE}", kind="fail_under", passed=False, told=HOSTILE, value=1.5),
    Check(name="=1+1", kind="max_errors", passed=True, told="| fine | <b>"),
    Check(name="agreement", kind="min_agreement", passed=None, told="nobody knows"),
]


def test_junit_has_a_case_for_each_check_and_item(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    write_junit(
        QualityVerdict(job_id="job-1", checks=CHECKS),
        run.report,
        tmp_path / "j.xml",
        [("a", []), ("<b>\x00", [HOSTILE])],
    )
    (tmp_path / "plain").touch()
    modes = {name: (tmp_path / name).stat().st_mode for name in ("j.xml", "plain")}
    assert modes["j.xml"] == modes["plain"], "as any file, for who runs the tests"
    checks, items = ElementTree.parse(tmp_path / "j.xml").getroot()
    assert [checks.get(name) for name in ("tests", "failures", "errors")] == ["3", "1", "1"]
    assert [[child.tag for child in case if child.tag != "system-out"] for case in checks] == [
        ["failure"],
        [],
        ["error"],
    ]
    assert [case.get("name") for case in items] == ["a", "<b>\\x00"]
    assert [len(case) for case in items] == [0, 1]


def test_markdown_and_csv_hold_no_markup_and_no_formula(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    text = markdown(QualityVerdict(job_id="job-1", checks=CHECKS), run.report)
    assert "failed its gate" in text and not re.search(r"(?<!\\)[<`]", re.sub("</?(details|summary)>", "", text))
    assert text.index("failed |") < text.index("* **Result:**") < text.index("<details>") < text.index("passed |")
    assert all(line.replace("\\|", "").count("|") in (0, 4, 5) for line in text.splitlines())
    write_csv(QualityVerdict(job_id="job-1", checks=CHECKS), tmp_path / "c.csv")
    with (tmp_path / "c.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["passed"] for row in rows] == ["failed", "passed", "cannot be told"] and rows[1]["name"] == "'=1+1"


def test_a_summary_tells_the_change_and_leads_to_the_report(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    change = Check(
        name="clear not worse", kind="not_worse_than", dimension="clear", passed=True, value=-0.25, low=-0.5, high=0.0,
        told="no loss is proved",
    )  # fmt: skip
    text = markdown(QualityVerdict(job_id="job-1", checks=[change]), run.report, link="https://ci.example/1?a=(b)")
    assert "| change against the baseline |" in text and "| -0.25 (-0.50 to +0.00) |" in text
    assert "[The whole report](https://ci.example/1?a=%28b%29)" in text
    assert "Checks: all 1 passed" in text


def test_a_comment_has_a_mark_by_which_a_bot_finds_it(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run = run_of(tmp_path, gate=QualityGate(fail_under={"clear": 5.0}))
    options = QualityGateOptions({}, comment=str(tmp_path / "comment.md"))
    assert decide_job(Terminal(), str(run.folder), options, json=False) is Exit.OK
    text = (tmp_path / "comment.md").read_text(encoding="utf-8")
    assert text.startswith("<!-- dicast gate -->\n### Job job\\-1 ") and "**Do now:**" in text
    assert "Gate passed" in capfd.readouterr().out


# ---------------------------------------------------------------------- the command
def test_the_command_adds_to_the_jobs_gate_and_has_its_own_exit_codes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    run = run_of(tmp_path, gate=QualityGate(fail_under={"clear": 5.0}))
    folder = str(run.folder)
    assert decide_job(Terminal(), folder, QualityGateOptions({}), json=False) is Exit.OK
    assert "Gate passed" in capfd.readouterr().out
    assert decide_job(Terminal(), folder, QualityGateOptions({}, ["clear=5.9"]), json=True) is Exit.GATE_FAILED
    assert json.loads(capfd.readouterr().out)["checks"][0]["bound"] == 5.9
    assert decide_job(Terminal(), folder, QualityGateOptions({"min_agreement": 0.1}), json=False) is Exit.GATE_UNTOLD
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    (tmp_path / "summary.md").write_text("before\n")
    options = QualityGateOptions(
        {}, junit=str(tmp_path / "j.xml"), junit_items=True, csv=str(tmp_path / "c.csv"), summary=True
    )
    assert decide_job(Terminal(), folder, options, json=False) is Exit.OK
    assert (tmp_path / "summary.md").read_text().startswith("before\n### Job job")
    items = ElementTree.parse(tmp_path / "j.xml").getroot()[1]
    assert len(items) == ITEMS and sum(len(case) > 0 for case in items) == 14, "those below 5"
    monkeypatch.delenv("GITHUB_STEP_SUMMARY")
    capfd.readouterr()
    assert decide_job(Terminal(), folder, QualityGateOptions({}, summary=True), json=False) is Exit.OK
    assert capfd.readouterr().out.startswith("### Job job")
    for options, message in [
        (QualityGateOptions({}, ["clear"]), "DIMENSION=SCORE is wanted"),
        (QualityGateOptions({}, ["clear=11"]), "clear has a scale of 1 to 10"),
        (QualityGateOptions({"max_errors": "x"}), "gate: max_errors"),
        (QualityGateOptions({"not_worse_than": "nothing"}), "no finished job 'nothing'"),
    ]:
        with pytest.raises(Refused, match=message):
            decide_job(Terminal(), folder, options, json=False)
    nothing = run_of(tmp_path / "plain")
    with pytest.raises(Refused, match="has no gate"):
        decide_job(Terminal(), str(nothing.folder), QualityGateOptions({}), json=False)


def test_the_process_ends_with_the_gates_code(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    command = [sys.executable, "-m", "dicast", "gate", str(run.folder), "--fail-under", "clear=9", "--max-errors", "1%"]
    done = subprocess.run(
        command, cwd=tmp_path, env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
        check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 4, done.stderr
    assert "mean of clear: 5" in done.stdout and "Gate failed" in done.stdout


def test_an_item_that_fails_does_not_raise_the_mean(tmp_path: Path) -> None:
    """What failed may have been as low as a score can be: then the mean of the rest proves nothing."""
    begin(tmp_path, "job-1", NOW)
    judges, lost = ("strict", "kind"), range(8)
    opinions = [opinion(n, judge, None if n in lost else 4 + n % 3) for n in range(ITEMS) for judge in judges]
    files.write_page(tmp_path, "job-1", NOW, "0", 0, opinions, [error(n, judge) for n in lost for judge in judges])
    report = files.finish(tmp_path, "job-1", NOW, header(2 * ITEMS))
    run = FinishedRun(job_folder(tmp_path, "job-1"), report)
    (check,) = quality_verdict(QualityGate(fail_under={"clear": 4.9}), run).checks
    assert check.passed is None and check.value is not None and check.value >= 4.9
    assert "in the judges' opinion" in check.told and "8 items have no score, with which it would be 4.2" in check.told
    assert told({"fail_under": {"clear": 4.9}, "max_errors": 0.9}, run)[1] == ("mean of clear", True)
    assert told({"fail_under": {"clear": 4.0}}, run) == [("mean of clear", True)]
    assert told({"fail_under": {"clear": 5.5}}, run) == [("mean of clear", False)]


def test_a_mean_is_peoples_where_they_rated(tmp_path: Path) -> None:
    folder, report = finished(tmp_path)
    computed = statistics.compute(folder, report)
    clear, *others = computed.dimensions
    whole = clear.voices[-1]
    assert whole.peoples_mean is not None
    strict = Figure(value=3.0, low=2.5, high=3.5, items=9, method="PPI++")
    means = whole.peoples_mean.model_copy(update={"powered": strict})
    voices = [*clear.voices[:-1], whole.model_copy(update={"peoples_mean": means})]
    kept = computed.model_copy(update={"dimensions": [clear.model_copy(update={"voices": voices}), *others]})
    run = FinishedRun(folder, report.model_copy(update={"statistics": kept}))
    (people,) = quality_verdict(QualityGate(fail_under={"clear": 2.9}), run).checks
    assert people.told == "people's mean of all items would be 3.00 (2.50 to 3.50); at least 2.9" and people.passed
    assert told({"fail_under": {"clear": 2.9}, "confident": True}, run) == [("mean of clear", False)]
    assert told({"fail_under": {"clear": 3.1}}, run) == [("mean of clear", False)]
    (panel,) = quality_verdict(QualityGate(fail_under={"clear": 3.1}, opinion="judges"), run).checks
    assert panel.passed and "in the judges' opinion" in panel.told
