"""Jobs that were not judged in full on purpose: judges who were not needed, and questions that ended a job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import dicast
from dicast.app.analysis.assess import assess, audited
from dicast.app.analysis.scores import DimensionScores, JobScores, Labels, People, extremes
from dicast.app.analysis.sentences import summary
from dicast.app.domain.dimension import Scale
from dicast.app.domain.escalation import is_audited, is_settled
from dicast.app.domain.item import Rating
from dicast.app.domain.judge_statistics import DimensionStatistics, JobStatistics
from dicast.app.domain.panel import PanelRule
from dicast.app.domain.question import JobAnswer, Question
from dicast.app.domain.report import Report, ReportAgent, ReportDimension
from dicast.app.reports import files
from dicast.app.reports.folders import begin, job_folder
from dicast.app.reports.html.page import write_comparison
from dicast.app.reports.scores import load_scores
from dicast.app.reports.statistics import calibrate, compare_jobs, compute, panel_fronts
from dicast.app.reports.stored_items import write_ratings
from dicast.app.reports.terminal import print_report
from dicast.app.reports.terminal_statistics import print_comparison, print_fronts, print_statistics
from lab.statistics.panel_replay import replay_uncertain
from tests.assessment.test_every_statistic import figures, held
from tests.reports.building import NOW, header, opinion

ITEMS, RATED, SCALE = 400, 100, Scale(min=1, max=5)
JUDGES = ("first", "second", "third")
MAJORITY = PanelRule.model_validate({"combine": "majority", "escalate": True})


def scores(seed: int = 1) -> tuple[dict[str, Any], Any]:
    """Three judges of one quality, and a person."""
    rng = np.random.default_rng(seed)
    quality = rng.normal(3.4, 1, ITEMS)

    def voice(noise: float) -> Any:
        return np.clip(np.round(quality + rng.normal(0, noise, ITEMS)), 1, 5)

    return {name: voice(0.6) for name in JUDGES}, voice(0.5)


def finished(
    root: Path, rule: PanelRule, judged: int = ITEMS, among: Sequence[int] | None = None, **more: Any
) -> tuple[Path, Report]:
    """A job whose later judges were asked while the rule was not settled, of the first `judged` items, or `among`
    some alone."""
    units, among = (ITEMS, range(judged)) if among is None else (len(among), among)
    begin(root, "job-1", NOW)
    judges, person = scores()
    opinions = []
    for n in among:
        given: dict[str, float] = {}
        for at, judge in enumerate(JUDGES):
            everybody = rule.escalate is None or is_audited(rule, f"item-{n}")
            needed = everybody or not is_settled(rule, given, JUDGES[at:], SCALE)
            more_of = {} if needed else {"not_needed": True}
            score = int(judges[judge][n]) if needed else None
            opinions.append(opinion(n, judge, score, metadata={"system": "ab"[n % 2], "text.chars": 9 + n}, **more_of))
            given |= {judge: float(judges[judge][n])} if needed else {}
    files.write_page(root, "job-1", NOW, "0", 0, opinions, [])
    ratings = [Rating(f"item-{n}", "clear", "ada", float(person[n])) for n in among if n < RATED]
    write_ratings(root, "job-1", NOW, ratings)
    given_of = {
        "agents": [ReportAgent(name=name, model="m", judge=name) for name in JUDGES],
        "dimensions": [ReportDimension(id="clear", scale_min=1, scale_max=5, panel=rule)],
        "keep": ["system", "text.chars"], "groups": ["system"], "rated": True, "probes": ["verbosity"], "prompt": "p",
        **more,
    }  # fmt: skip
    return job_folder(root, "job-1"), files.finish(root, "job-1", NOW, header(3 * units, **given_of))


def statistics(folder: Path, report: Report) -> tuple[JobStatistics, DimensionStatistics]:
    found = compute(folder, report)
    held(found)
    assert JobStatistics.model_validate_json(found.model_dump_json()) == found
    (of,) = found.dimensions
    kept = report.model_copy(update={"statistics": found})
    assert len(dicast.statistics_frame(kept, folder.parent)) == len(list(figures(found)))
    return found, of


def printed(report: Report, found: JobStatistics) -> str:
    out = StringIO()
    kept = report.model_copy(update={"statistics": found})
    print_report(kept, Console(file=out, width=160))
    print_statistics(kept, Console(file=out, width=160), figures=True)
    return " ".join(out.getvalue().split())


def test_a_judge_who_was_asked_where_others_disagreed_is_not_told_of(tmp_path: Path) -> None:
    folder, report = finished(tmp_path / "some", MAJORITY)
    whole_folder, whole = finished(tmp_path / "all", PanelRule(combine="majority"))
    found, of = statistics(folder, report)
    first, second, third, panel = of.voices
    assert third.spared == report.spared > ITEMS / 4 and first.spared == second.spared == panel.spared == 0
    for name in ("mean", "pearson", "kappa", "bias", "upper_limit"):
        assert "asked only where the judges before it" in (getattr(third, name).reason or ""), name
        assert getattr(first, name).is_known and getattr(panel, name).is_known
    assert third.peoples_mean is None and third.confusion is None and 0 < third.missing < 1
    assert of.judges is not None and (of.judges.raters, of.judges.left_out) == (2, ["third"])
    assert (of.independent.reason or "").startswith("the later judges were asked only where")
    unsaid = [probe for probe in of.probes if probe.voice == "third"]
    assert unsaid and all(probe.p is None and not probe.effect.is_known for probe in unsaid)
    assert sum(probe.p is not None for probe in of.probes) == 3
    said = printed(report, found)
    assert "third was asked only where the judges before had not settled the outcome" in said
    assert "without third" in said and "units that the panel did not need" in said

    other = statistics(whole_folder, whole)[1]
    for of_some, of_all in zip(figures(panel), figures(other.voices[-1]), strict=True):
        assert of_some.value == of_all.value, "its verdicts are the full panel's"
    judges = other.judges
    assert judges is not None and judges.raters == 3 and other.voices[2].pearson.is_known
    cell, full = report.by_dimension[0], whole.by_dimension[0]
    apart = [np.abs(scores()[0]["first"] - scores()[0]["second"]).mean(), full.mean_difference]
    assert cell.mean_difference == pytest.approx(apart[0]) and cell.pairs == ITEMS
    assert full.pairs == 3 * ITEMS


def test_who_learns_from_an_escalating_panel(tmp_path: Path) -> None:
    """Its verdicts may be learned from where they are the full panel's; nothing of a judge who was seldom asked."""
    folder, report = finished(tmp_path / "majority", MAJORITY)
    maps, missing = calibrate(folder, report, "isotonic", ["clear"])
    assert [one.judge for one in maps] == ["first", "second", "panel"]
    assert [one.judge for one in missing] == ["third"] and "asked only where" in missing[0].reason
    (front,) = panel_fronts(folder, report, [1, 1, 1], dimensions=["clear"], largest=2, measure="pearson", reach=0.5)
    assert front.front == [] and "third judged only where" in (front.reason or "")
    mean = PanelRule.model_validate({"combine": "mean", "escalate": {"difference": 1}})
    folder, report = finished(tmp_path / "mean", mean)
    maps, missing = calibrate(folder, report, "isotonic", ["clear"])
    assert [one.judge for one in maps] == ["first", "second"] and "not of all" in missing[1].reason
    told = " ".join(statistics(folder, report)[1].summary)
    assert "that of the judges who were asked about it, not the full panel's" in told


def test_who_learns_from_an_audit(tmp_path: Path) -> None:
    folder, report = finished(tmp_path, AUDITED)
    maps, missing = calibrate(folder, report, "linear", ["clear"])
    assert [one.judge for one in maps] == ["first", "second", "third"] and [one.judge for one in missing] == ["panel"]
    assert maps[2].items == sum(is_audited(AUDITED, f"item-{n}") for n in range(RATED)) < maps[0].items
    (front,) = panel_fronts(folder, report, [1, 1, 1], dimensions=["clear"], largest=2, measure="pearson", reach=0.5)
    assert front.front and front.items == maps[2].items and front.audited > front.items
    out = StringIO()
    print_fronts([front], Console(file=out, width=160), unit="calls")
    assert f"All judges were asked on the {front.audited} items of the audit alone" in out.getvalue()


def test_two_runs_say_whose_shift_is_no_samples(tmp_path: Path) -> None:
    runs = finished(tmp_path / "one", MAJORITY), finished(tmp_path / "two", PanelRule(combine="majority"))
    found = compare_jobs(*runs)
    assert found.spared == ["third (clear)"] and compare_jobs(runs[1], runs[1]).spared == []
    out = StringIO()
    print_comparison(found, Console(file=out, width=160))
    said = " ".join(out.getvalue().split())
    assert "Not asked about all items, because earlier judges had settled the outcome: third (clear). Their" in said
    page = write_comparison(found, runs[0][1], runs[1][1], tmp_path / "compare.html").read_text(encoding="utf-8")
    assert "Not asked about all items, because earlier judges had settled the outcome: third (clear)" in page


def test_where_one_judge_alone_was_asked_everywhere_nothing_is_said_of_their_agreement(tmp_path: Path) -> None:
    rule = PanelRule.model_validate({"combine": "worst", "threshold": 3, "escalate": True})
    of = statistics(*finished(tmp_path, rule))[1]
    assert of.judges is not None and (of.judges.raters, of.judges.left_out) == (1, ["second", "third"])
    assert "later judges were asked only where" in (of.judges.alpha.reason or "")


def answered(judged: int, **asked: Any) -> JobAnswer:
    question = Question.model_validate({"dimension": "clear", **asked})
    return JobAnswer(
        question=question.sentence("clear"), state="yes", value=3.4, low=3.1, high=3.7, confidence=0.99,
        items=judged - 5,
        missing=0, population=ITEMS, asked=question,
    )  # fmt: skip


def test_a_question_that_ended_the_job_says_of_what_the_rest_is_a_sample(tmp_path: Path) -> None:
    judged = 125
    folder, report = finished(
        tmp_path, PanelRule(), judged, answer=answered(judged, mean_at_least=3), unpublished=3 * (ITEMS - judged)
    )
    found, of = statistics(folder, report)
    stopped = found.stopped
    assert stopped is not None and (stopped.judged, stopped.items, stopped.dimension) == (judged, ITEMS, "clear")
    panel = of.voices[-1].mean
    assert panel == stopped.known and (panel.low, panel.high, panel.confidence) == (3.1, 3.7, 0.99)
    assert panel.method == "confidence sequence by betting"
    assert of.voices[0].mean.method == "t" and of.voices[-1].peoples_mean is not None
    said = printed(report, found)
    assert "125 of 400 items are judged, drawn at random and in random order" in said
    assert "holds however often one looks (99 %)" in said and "hold somewhat less often than they say" in said
    assert "What was judged was drawn at random" in said
    frame = dicast.statistics_frame(report.model_copy(update={"statistics": found}), tmp_path)
    assert frame[frame.part == "stopped"].statistic.tolist() == ["known"]


def test_a_difference_that_was_asked_has_the_questions_interval(tmp_path: Path) -> None:
    judged = 126
    difference = {"by": "system", "of": ["b", "a"], "at_least": 0.1}
    folder, report = finished(
        tmp_path, PanelRule(), judged, answer=answered(judged, difference=difference), unpublished=3 * (ITEMS - judged)
    )
    found, of = statistics(folder, report)
    (one,) = of.groups[0].differences
    assert (one.first, one.second, one.p) == ("a", "b", None)
    assert (one.difference.value, one.difference.low, one.difference.high) == (-3.4, -3.7, -3.1)
    assert of.voices[-1].mean.method == "t"
    assert found.stopped is not None and "as many of b as of a" in found.stopped.summary[0]


def test_a_job_that_was_judged_to_its_end_has_not_stopped(tmp_path: Path) -> None:
    folder, report = finished(tmp_path, PanelRule(), answer=answered(ITEMS, width=0.01))
    found, of = statistics(folder, report)
    assert found.stopped is None and of.voices[-1].mean.method == "t"


def test_an_audit_tells_what_the_difference_costs(tmp_path: Path) -> None:
    rule = PanelRule.model_validate({"combine": "mean", "escalate": {"difference": 1, "audit": 0.3}})
    folder, report = finished(tmp_path, rule)
    of = statistics(folder, report)[1]
    judges, _ = scores()
    full = np.mean([judges[name] for name in JUDGES], axis=0)
    agreed = np.abs(judges["first"] - judges["second"]) < 1
    short = np.where(agreed, (judges["first"] + judges["second"]) / 2, full)
    drawn = np.array([is_audited(rule, f"item-{n}") for n in range(ITEMS)])
    assert of.audit is not None and of.audit.items == drawn.sum() > 80
    assert of.audit.calls.value == pytest.approx(np.where(agreed, 2, 3)[drawn].mean() / 3)
    assert of.audit.off.value == pytest.approx(np.abs(short - full)[drawn].mean())
    assert of.audit.shift.value == pytest.approx((short - full)[drawn].mean())
    for found, truth in ((of.audit.off, np.abs(short - full).mean()), (of.audit.shift, (short - full).mean())):
        assert found.low is not None and found.high is not None and found.low <= truth <= found.high
    told = " ".join(of.summary)
    assert f"On {of.audit.items} items of the audit all judges were asked." in told and "items of the audit (" in told


AUDITED = PanelRule.model_validate({"combine": "mean", "escalate": {"difference": 1, "audit": 0.4}})


def test_what_is_told_of_later_judges_is_what_a_job_of_the_audits_items_would_tell(tmp_path: Path) -> None:
    folder, report = finished(tmp_path / "audited", AUDITED)
    found, of = statistics(folder, report)
    drawn = [n for n in range(ITEMS) if is_audited(AUDITED, f"item-{n}")]
    third, panel = of.voices[2], of.voices[-1]
    assert (third.audited, third.spared, third.missing) == (len(drawn), report.spared, 0) and third.spared > 50
    assert third.items == sum(n < RATED for n in drawn) and not any(voice.audited for voice in (*of.voices[:2], panel))
    alone = load_scores(*finished(tmp_path / "alone", PanelRule(), among=drawn))
    (theirs,) = assess(alone).dimensions
    for name in ("mean", "pearson", "kappa", "bias", "upper_limit"):
        told, exact = getattr(third, name), getattr(theirs.voices[2], name)
        assert told.is_known and told.value == pytest.approx(exact.value) and told.items == exact.items, name
    assert third.confusion == theirs.voices[2].confusion and of.independent.value == theirs.independent.value
    means, exact_means = third.peoples_mean, theirs.voices[2].peoples_mean
    assert means is not None and means == exact_means
    said = printed(report, found)
    assert f"What is told of third rests on the {len(drawn)} items of the audit alone, a random sample of" in said
    best = third.model_copy(update={"pearson": third.pearson.model_copy(update={"value": 0.999})})
    lines = summary([*of.voices[:2], best, panel], of.person, of.independent, (), known_probabilities=False)
    assert any("none is clearly the best" in line for line in lines)
    assert "third (audit)" in said and "on all; the panel is held against people as it judged" in said


def test_an_audit_that_nobody_has_rated_tells_of_no_agreement(tmp_path: Path) -> None:
    rule = PanelRule.model_validate({"combine": "mean", "escalate": {"uncertainty": 9, "audit": 0.4}})
    people = People(np.array([0, 2]), ("ada",), np.array([[3.0], [4.0]]), np.array([0.5, 0.2]))
    given = np.array([[[3.0, 4.0], [4.0, 4.0]], [[2.0, 2.0], [3.0, 4.0]], [[5.0, 5.0], [np.nan, np.nan]]])
    of = DimensionScores(
        ReportDimension(id="clear", scale_min=1, scale_max=5, panel=rule), given, people, skipped=(0, 2),
        audited=np.array([True, True, False]),
    )  # fmt: skip
    part = of.of_audit
    assert part is not None and part.people.rated.tolist() == [0] and part.people.probabilities == [0.5]
    unrated = replace(of, audited=np.array([False, True, False]))
    found = assess(JobScores(3, JUDGES[:2], (unrated,))).dimensions[0]
    for told in (found.voices[1].pearson, found.independent):
        assert told.reason == "nobody has rated an item on which all judges were asked"
    assert found.judges is not None and found.judges.left_out == [] and found.judges.raters == 2
    held(assess(JobScores(3, JUDGES[:2], (of,))))


def test_an_audit_of_uncertain_judges_decides_as_the_study_of_it_does() -> None:
    rule = PanelRule.model_validate({"escalate": {"uncertainty": 0.5, "audit": 0.5}})
    rng = np.random.default_rng(2)
    answers = np.clip(np.round(rng.normal(3, 1, (200, 1, 1)) + rng.normal(0, 0.6, (200, 3, 2))), 1, 5)
    answers[rng.random(answers.shape) < 0.05] = np.nan
    drawn = rng.random(200) < 0.5
    of = DimensionScores(ReportDimension(id="clear", scale_min=1, scale_max=5, panel=rule), answers, audited=drawn)
    found = audited(JobScores(200, JUDGES, (of,)), of)
    whole = drawn & ~np.isnan(answers).all(axis=2).any(axis=1)
    seen = replay_uncertain(answers[whole], within=0.5)
    apart = np.nanmean(seen.shorter, axis=1) - of.judges[whole].mean(axis=1)
    assert found is not None and found.items == whole.sum() and set(seen.calls) == {1, 2, 3}
    assert found.calls.value == pytest.approx(seen.share)
    assert found.off.value == pytest.approx(np.abs(apart).mean()) and found.shift.value == pytest.approx(apart.mean())


@pytest.mark.parametrize("usual, odd", [((3, 3, 3), (1, 1, 5)), ((1, 5, 3), (3, 3, 3))])
def test_intervals_of_an_audit_end_where_its_figures_do(usual: tuple[int, ...], odd: tuple[int, ...]) -> None:
    """One item in forty is unlike the others: value +- t * error would go beyond 0, or beyond all calls."""
    rule = PanelRule.model_validate({"combine": "mean", "escalate": {"difference": 0.5, "audit": 0.5}})
    answers = np.array([odd, *[usual] * 39], dtype=np.float64)[:, :, None]
    spec = ReportDimension(id="clear", scale_min=1, scale_max=5, panel=rule)
    of = DimensionScores(spec, answers, audited=np.ones(40, dtype=np.bool_))
    found = audited(JobScores(40, JUDGES, (of,)), of)
    assert found is not None and found.items == 40
    for at, most in ((found.calls, 1.0), (found.off, 4.0)):
        assert at.value is not None and at.low is not None and at.high is not None
        assert 0 <= at.low <= at.value <= at.high <= most


def test_an_audit_without_a_whole_item_says_so(tmp_path: Path) -> None:
    rule = PanelRule.model_validate({"combine": "mean", "escalate": {"difference": 1, "audit": 1e-9}})
    of = statistics(*finished(tmp_path, rule))[1]
    assert of.audit is not None and of.audit.items == 0 and of.audit.off.reason
    assert "What asking fewer judges costs cannot be said" in " ".join(of.summary)


def with_gaps(gaps: Sequence[tuple[int, int]], rule: PanelRule | None = None) -> Any:
    """Eight items of two systems and three judges, who give b a point more, without some judgements."""
    scores = np.array([[2.0, 2, 2], [3, 3, 3]] * 40) + np.arange(3) * 0.0
    scores += (np.arange(80) // 2 % 2)[:, None]
    for item, judge in gaps:
        scores[item, judge] = np.nan
    spec = ReportDimension(id="clear", scale_min=1, scale_max=5, panel=rule or PanelRule())
    labels = Labels(("a", "b"), np.arange(80) % 2)
    job = JobScores(80, JUDGES, (DimensionScores(spec, scores[:, :, None]),), {"system": labels})
    return assess(job).dimensions[0]


def test_judgements_without_a_score_bound_the_means() -> None:
    found = with_gaps([(0, 0), (1, 0), (1, 1), (1, 2)])
    judge, *_, panel = found.voices
    assert panel.worst_case is not None and judge.worst_case is not None
    whole = with_gaps([]).voices[-1].mean.value
    assert whole is not None
    # item 0 had 2 of 2, 2, 2, and item 1 had 3 by all of them
    assert panel.worst_case.low == pytest.approx(whole + ((1 + 2 + 2) / 3 - 2 + 1 - 3) / 80)
    assert panel.worst_case.high == pytest.approx(whole + ((5 + 2 + 2) / 3 - 2 + 5 - 3) / 80)
    assert (panel.worst_case.missing, judge.worst_case.missing) == (4, 2)
    assert judge.worst_case.low == pytest.approx(whole + (1 - 2 + 1 - 3) / 80)
    (line,) = [line for line in found.summary if "no score" in line]
    assert line.startswith("4 judgements have no score") and f"{panel.worst_case.low:.2f} to " in line
    assert with_gaps([]).voices[-1].worst_case is None


def test_a_vote_is_bounded_by_all_that_the_missing_one_could_have_been() -> None:
    """With 2 and 4 known, a third vote can make it 2 or 4."""
    scores = np.array([[2.0, 4, np.nan], [3, 3, np.nan]])[:, :, None]
    spec = ReportDimension(
        id="clear", scale_min=1, scale_max=5, panel=PanelRule.model_validate({"combine": "majority"})
    )
    bounds = extremes(JobScores(2, JUDGES, (DimensionScores(spec, scores),)), DimensionScores(spec, scores))
    assert bounds is not None
    assert (bounds.low.tolist(), bounds.high.tolist()) == ([2, 3], [4, 3])


def test_a_clear_difference_that_failures_could_undo_is_said_to_hang_on_them() -> None:
    few, many = with_gaps([(1, 0)]), with_gaps([(at, judge) for at in range(0, 60, 2) for judge in range(3)])
    for found, hangs in ((few, False), (many, True)):
        (pair,) = found.groups[0].differences
        assert pair.p is not None and pair.p < 0.05 and pair.worst_case is not None
        assert pair.hangs_on_missing is hangs
        assert any("gone the other way: a and b" in line for line in found.summary) is hangs
    first, second = few.groups[0].means
    assert first.name == "b" and first.worst_case is not None and second.worst_case is None


def test_what_an_escalating_panel_did_not_need_is_not_missing() -> None:
    scores = np.array([[3.0, np.nan], [np.nan, np.nan], [3, 4]])[:, :, None]
    spec = ReportDimension(id="clear", scale_min=1, scale_max=5)
    of = DimensionScores(spec, scores, skipped=(0, 1))
    bounds = extremes(JobScores(3, JUDGES[:2], (of,)), of)
    assert bounds is not None and bounds.missing.tolist() == [0, 1, 0]
    assert (bounds.low.tolist(), bounds.high.tolist()) == ([3, 1, 3.5], [3, 5, 3.5])


def test_people_are_bounded_by_the_items_without_any_score() -> None:
    rng = np.random.default_rng(3)
    scores = np.clip(np.round(rng.normal(3, 1, (200, 3))), 1, 5)
    people = np.clip(np.round(scores.mean(axis=1) + rng.normal(0, 0.4, 200)), 1, 5)[:100, None]
    scores[150:160] = np.nan
    spec = ReportDimension(id="clear", scale_min=1, scale_max=5)
    of = DimensionScores(spec, scores[:, :, None], People(np.arange(100), ("ada",), people))
    means = assess(JobScores(200, JUDGES, (of,))).dimensions[0].voices[-1].peoples_mean
    assert means is not None and means.worst_case is not None and means.powered.value is not None
    assert means.worst_case.low == pytest.approx(0.95 * means.powered.value + 0.05 * 1)
    assert means.worst_case.high == pytest.approx(0.95 * means.powered.value + 0.05 * 5)
