"""What follows from a report: which system is best, whom to trust, what failed, what to do; for six kinds of job."""

from __future__ import annotations

import io
import itertools
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from dicast.app.domain.concluding import conclude, counts_of, mean_agreement
from dicast.app.domain.conclusions import JudgeRow
from dicast.app.domain.figure import Figure
from dicast.app.domain.judge_statistics import GroupDifference, GroupMean, GroupStatistics, WorstCase
from dicast.app.domain.opinion import ErrorKind
from dicast.app.domain.report import Report, ReportDimension
from dicast.app.domain.standings import standing
from dicast.app.domain.text import counted
from dicast.app.reports import files
from dicast.app.reports.html.sections import shown_judges
from dicast.app.reports.statistics import compare_jobs
from dicast.app.reports.terminal import print_conclusions, print_report
from tests.reports import kinds
from tests.reports.building import builder, error, files_in, opinion
from tests.reports.whole import Filler


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Report]:
    root = tmp_path_factory.mktemp("kinds")
    return {kind: make(root)[1] for kind, make in kinds.KINDS.items()}


@pytest.mark.parametrize("kind", kinds.KINDS)
def test_every_question_has_an_answer_and_a_step(reports: dict[str, Report], kind: str) -> None:
    of = reports[kind].conclusions
    assert of is not None and of == conclude(reports[kind])
    assert of.subject == kind
    for sentences in (of.best, of.trust, of.failures, [step.text for step in of.actions]):
        assert sentences and all(line[0].strip() and line.endswith(".") for line in sentences), sentences
        assert not any("None" in line or "nan" in line for line in sentences)
    assert of.counts.planned == of.counts.scored + of.counts.failed + of.counts.spared + of.counts.missing


def test_systems_are_told_apart_only_where_they_can_be(reports: dict[str, Report]) -> None:
    of = reports["systems"].conclusions
    assert of is not None and of.winner is None and of.opinion == "people"
    assert of.best[:2] == [
        "No single system is best, in people's opinion: gpt-4o-bot and claude-bot cannot be told apart in any of the 4 "
        "dimensions.",
        "Clear of chance: gpt-4o-bot leads in-house-v2 by 0.85 points (0.48 to 1.23) in Correct; gpt-4o-bot and "
        "claude-bot lead rules-2019.",
    ]
    assert [chart.title for chart in of.charts] == ["Correct", "Clear", "Complete", "Tone"]
    assert len({chart.axis for chart in of.charts}) == 1, "one axis for all"
    advice = {row.name: row.advice for row in of.judges}
    assert advice == {
        "strict editor": "calibrate", "friendly customer": "calibrate", "night shift": "drop", "the panel": "use",
    }  # fmt: skip
    (failed,) = of.failed
    assert (failed.judge, failed.count, failed.cause) == ("night shift", 20, "rejected by the provider, status 400")
    assert of.badge == "completed, 20 failed" and of.health == "partial"


def test_a_lead_that_failed_judgements_could_undo_is_said_to_hang_on_them(reports: dict[str, Report]) -> None:
    gap = Figure(value=0.5, low=0.2, high=0.8, items=20, method="t")
    for low, hangs in ((0.4, False), (0.1, True)):
        pair = GroupDifference(
            first="a", second="b", difference=gap, p=0.01, worst_case=WorstCase(low=low, high=0.6, missing=3)
        )
        means = [GroupMean(name=name, items=20, mean=gap) for name in "ab"]
        group = GroupStatistics(by="system", means=means, differences=[pair])
        report = reports["systems"]
        statistics = report.statistics
        assert statistics is not None
        area = statistics.dimensions[0].model_copy(update={"groups": [group]})
        one = statistics.model_copy(update={"dimensions": [area]})
        found = standing(report.model_copy(update={"statistics": one}))
        assert found.winner == "a"
        assert any("hangs on the judgements without a score" in line for line in found.sentences) is hangs


def test_of_pairs_and_rankings_candidates_are_named(reports: dict[str, Report]) -> None:
    pairs, rankings = reports["pairs"].conclusions, reports["rankings"].conclusions
    assert pairs is not None and rankings is not None
    assert (pairs.winner, rankings.winner) == ("new", "apple")
    assert pairs.best[0].startswith("new is best of 2 in the judges' opinion: it is preferred in ")


def test_without_ratings_nobody_is_trusted(reports: dict[str, Report]) -> None:
    of = reports["scores"].conclusions
    assert of is not None and {row.advice for row in of.judges} == {"unknown"}
    assert "rate" in {step.kind for step in of.actions}


def test_when_all_failed_it_says_why_and_what_to_do(reports: dict[str, Report]) -> None:
    of = reports["nothing"].conclusions
    assert of is not None and (of.health, of.badge) == ("bad", "completed, all failed")
    assert of.failures == ["All 60 judgements failed: the API key is not accepted, status 401."]
    assert of.actions[0].command == "dicast jobs resume wrong-key"


def _figure(value: float, side: float) -> Figure:
    return Figure(value=value, low=value - side, high=value + side, items=50)


def _raced(report: Report, gaps: dict[str, float]) -> Report:
    """A report in which `a` leads `b` by so many points in each dimension; half a point and more are clear."""
    assert report.statistics is not None
    dimensions = []
    for of in report.statistics.dimensions:
        gap = gaps[of.dimension]
        group = GroupStatistics(
            by="system",
            means=[GroupMean(name="a", items=50, mean=_figure(3 + gap, 0.2)),
                   GroupMean(name="b", items=50, mean=_figure(3, 0.2))],
            differences=[
                GroupDifference(
                    first="a", second="b", difference=_figure(gap, 0.4), p=0.001 if abs(gap) > 0.4 else 0.3
                )
            ],
        )  # fmt: skip
        dimensions.append(of.model_copy(update={"groups": [group]}))
    return report.model_copy(update={"statistics": report.statistics.model_copy(update={"dimensions": dimensions})})


@pytest.mark.parametrize("gaps, winner, first", [
    ((0.9, 0.6, 0.5, 0.7), "a", "a is best in the judges' opinion: it leads b in all 4 dimensions, by 0.90 points (0.50"
     " to 1.30) in Correct."),
    ((0.9, 0.1, -0.3, 0.0), "a", "a is best in the judges' opinion: it leads b by 0.90 points (0.50 to 1.30) in "
     "Correct."),
    ((0.9, 0.1, -0.6, 0.0), None, "No system is best in everything, in the judges' opinion: a leads b by 0.90 points "
     "(0.50 to 1.30) in Correct, and b leads a by 0.60 points (0.20 to 1.00) in Complete. Which is better depends on "
     "what counts more."),
    ((0.1, 0.1, 0.0, 0.3), None, "a and b cannot be told apart in any of the 4 dimensions, in the judges' opinion."),
])  # fmt: skip
def test_a_winner_is_clearly_ahead_somewhere_and_behind_nowhere(
    reports: dict[str, Report], gaps: tuple[float, ...], winner: str | None, first: str
) -> None:
    found = standing(_raced(reports["systems"], dict(zip(kinds.DIMENSIONS, gaps, strict=True))))
    assert found.winner == winner
    assert found.sentences[0] == first


SYSTEMS = "abcde"
SOME = r"(?:\b[a-e](?:, | and )?)+"
GAPS = {(x, y): st.sampled_from([None, True, False]) for n, x in enumerate(SYSTEMS) for y in SYSTEMS[n + 1 :]}


def test_no_sentence_says_a_lead_that_is_not_clear(reports: dict[str, Report]) -> None:
    """Of each pair in each dimension the first may clearly lead, the second may, or neither (None)."""
    report = reports["systems"]
    assert report.statistics is not None
    areas = report.statistics.dimensions

    @given(races=st.lists(st.fixed_dictionaries(GAPS), min_size=1, max_size=3))
    def holds(races: list[dict[tuple[str, str], bool | None]]) -> None:
        raced = zip(areas, races, strict=False)
        dimensions = [area.model_copy(update={"groups": [_group_of(race)]}) for area, race in raced]
        one = report.statistics.model_copy(update={"dimensions": dimensions}) if report.statistics else None
        clear = {pair if first else pair[::-1] for race in races for pair, first in race.items() if first is not None}
        for sentence in standing(report.model_copy(update={"statistics": one})).sentences:
            for leaders, behind in re.findall(rf"({SOME}) leads? ({SOME})", sentence):
                for pair in itertools.product(re.findall(r"\b[a-e]\b", leaders), re.findall(r"\b[a-e]\b", behind)):
                    assert pair in clear, sentence

    holds()


def _group_of(race: dict[tuple[str, str], bool | None]) -> GroupStatistics:
    means = [GroupMean(name=name, items=50, mean=_figure(3 - n / 10, 0.2)) for n, name in enumerate(SYSTEMS)]
    differences = []
    for (first, second), ahead in race.items():
        gap = _figure({None: 0.1, True: 0.9, False: -0.9}[ahead], 0.4)
        p = 0.3 if ahead is None else 0.001
        differences.append(GroupDifference(first=first, second=second, difference=gap, p=p))
    return GroupStatistics(by="system", means=means, differences=differences)


def test_of_the_best_only_those_lead_that_clearly_do(reports: dict[str, Report]) -> None:
    report = reports["systems"]
    assert report.statistics is not None
    race = {pair: True if pair == ("a", "e") else None for pair in GAPS}
    area = report.statistics.dimensions[0].model_copy(update={"groups": [_group_of(race)]})
    one = report.statistics.model_copy(update={"dimensions": [area]})
    assert standing(report.model_copy(update={"statistics": one})).sentences[:2] == [
        "No single system is best, in the judges' opinion: a, b, c and d cannot be told apart in Correct.",
        "Clear of chance: a leads e by 0.90 points (0.50 to 1.30) in Correct.",
    ]


def test_agreement_over_dimensions_is_never_surer_than_its_parts_together() -> None:
    parts = [Figure(value=0.7, low=0.5, high=0.85), Figure(value=0.5, low=0.1, high=0.8)]
    whole = mean_agreement(parts)
    assert whole.value is not None and whole.low is not None and whole.high is not None
    assert 0.5 < whole.value < 0.7 and whole.low < 0.4 and whole.high > 0.75
    assert mean_agreement(parts[:1]) == parts[0]


def test_what_probes_failed_at_is_counted_apart() -> None:
    made = builder(6)
    for n in range(3):
        made.add_opinion(opinion(n, score=None if n == 0 else 5))
        made.add_opinion(opinion(n, score=None if n < 2 else 5, probe="twice the length"))
    made.add_error(error(0))
    for n in range(2):
        made.add_error(error(n, probe="twice the length", kind=ErrorKind.TIMEOUT, status_code=None))
    report = made.build(files_in("/nowhere"))
    counts = counts_of(report)
    assert (counts.planned, counts.scored, counts.failed, counts.probes, counts.probes_failed) == (3, 2, 1, 3, 2)
    of = conclude(report)
    assert [(row.judge, row.kind, row.count) for row in of.failed] == [("strict", "provider", 1)]
    assert of.failures[0] == "1 of 3 judgements failed: the provider failed, status 503 (strict)."
    assert of.failures[1].startswith("Had they been the lowest or the highest scores there are, the judges' mean of ")


def test_a_report_of_an_earlier_version_gets_conclusions_when_it_is_read(tmp_path: Path) -> None:
    folder, report = kinds.failed(tmp_path)
    old = report.model_copy(update={"conclusions": None}).model_dump_json()
    assert files.parse_report(old.encode()) == report
    (folder / files.REPORT).write_text(old)
    with files.changing(folder, report):
        pass


def test_labels_without_statistics_have_their_counts() -> None:
    dimension = ReportDimension(id="clear", scale_min=0, scale_max=1, kind="labels", labels=["no", "yes"])
    made = builder(4, dimensions=[dimension])
    for n in range(4):
        made.add_opinion(opinion(n, score=int(n > 0)))
    found = standing(made.build(files_in("/nowhere")))
    assert found.sentences == [
        "In clear, 'yes' is the commonest label in the judges' opinion: 75 %; 'no' follows with 25 %."
    ]


FIRST_SCREEN = 30
"""Lines of a terminal that a reader sees without scrolling."""


@pytest.mark.parametrize("kind", kinds.KINDS)
def test_the_first_lines_of_a_terminal_answer_what_readers_ask(reports: dict[str, Report], kind: str) -> None:
    out = io.StringIO()
    print_conclusions(reports[kind], Console(file=out, width=80))
    lines = out.getvalue().splitlines()
    assert all(len(line) <= 80 for line in lines)
    seen = " ".join(" ".join(lines[:FIRST_SCREEN]).split())
    of = reports[kind].conclusions
    assert of is not None
    for answer in (of.badge, of.best[0], of.trust[0], of.failures[0], of.actions[0].text):
        assert answer in seen
    if kind != "nothing":
        assert "in people's opinion" in seen or "in the judges' opinion" in seen
    if kind in ("systems", "pairs", "rankings", "labels"):
        assert re.search(r"\(\S+ to \S+\)", seen), "how sure"
    assert f"dicast report {reports[kind].job_id} --all" in lines[-1]


@pytest.mark.parametrize("most", range(1, 7))
def test_judges_that_do_not_fit_are_those_to_be_used(most: int) -> None:
    advice = ("use", "drop", "unknown", "calibrate", "use")
    rows = [Filler(unknown=0).fill(JudgeRow, name=f"j{n}", kind="judge", advice=one) for n, one in enumerate(advice)]
    rows.insert(2, Filler(unknown=0).fill(JudgeRow, name="panel", kind="panel", advice="use"))
    kept = [row.name for row in shown_judges(rows, most)]
    whole = ["j1", "j3", "j2", "j0", "j4"]
    assert kept == ([row.name for row in rows] if most == 6 else [*whole[: most - 1], "panel"])


def test_where_one_system_changed_a_comparison_names_it_and_no_judge(tmp_path: Path) -> None:
    first, second = kinds.systems(tmp_path, "october"), kinds.systems(tmp_path, "november", changed="in-house-v2")
    compared = compare_jobs(first, second)
    assert compared.by == "system"
    assert compared.summary[0].startswith("Only in-house-v2 changed: -")
    assert compared.summary[2] == (
        "On their items no judge moved either, so the change lies in the texts, not in the judges."
    )
    clear = {shift.system for shift in compared.systems if shift.p is not None and shift.p < 0.05}
    assert clear == {"in-house-v2"}
    assert all(item.first_text and item.second_text for item in compared.moved)
    same = compare_jobs(first, first)
    assert same.summary[0] == "None of the 4 systems changed beyond chance."


_UNITS = st.lists(
    st.tuples(
        st.sampled_from(["strict", "kind"]), st.integers(0, 1), st.sampled_from([None, "the other order"]),
        st.sampled_from(["scored", "failed", "spared"]), st.sampled_from([None, 401, 503]),
    ),
    max_size=25,
)  # fmt: skip


@given(units=_UNITS, missing=st.integers(0, 5))
def test_counts_agree_wherever_they_are_told(units: list[tuple[Any, ...]], missing: int) -> None:
    """Judges, replicates, probes, failures, and judgements that a panel spared or a cancelled job never made."""
    made = builder(len(units) + missing, status="cancelled" if missing else "completed")
    for n, (judge, replicate, probe, end, status) in enumerate(units):
        spared = end == "spared" and probe is None
        score = 5 if end == "scored" else None
        made.add_opinion(opinion(n, judge, score, replicate=replicate, probe=probe, not_needed=spared))
        if score is None and not spared:
            made.add_error(error(n, judge, replicate=replicate, probe=probe, status_code=status))
    report = made.build(files_in("/nowhere"))
    of, counts = conclude(report), counts_of(report)
    own = [unit for unit in units if unit[2] is None]
    assert counts.planned == len(own) + missing == counts.scored + counts.failed + counts.spared + counts.missing
    assert counts.failed == sum(end == "failed" for *_, end, _ in own) == sum(row.count for row in of.failed)
    assert counts.failed == sum(row.failed for row in of.judges) == sum(row.failures for row in report.by_agent)
    assert counts.failed == sum(row.scores.failures for row in report.by_dimension)
    assert counts.probes == len(units) - len(own)
    assert counts.probes_failed == sum(end != "scored" for _, _, probe, end, _ in units if probe is not None)
    assert sum(group.count for group in report.errors) == counts.failed + counts.probes_failed
    out = io.StringIO()
    console = Console(file=out, width=200)
    print_conclusions(report, console)
    print_report(report, console)
    said = f"{counts.scored:,} of {counted(counts.planned, 'judgement')} scored"
    assert out.getvalue().count(said) == 2
    if counts.failed:
        assert f"{counts.failed:,} failed" in of.badge or of.badge.endswith("all failed")
