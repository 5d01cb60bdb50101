"""Statistics of a job's files: computed in a process of their own and kept in the report, or left out with a reason."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dicast
from dicast.app.analysis import NoLibraries
from dicast.app.cli.console import Terminal
from dicast.app.cli.statistics import show_statistics
from dicast.app.domain.item import Rating
from dicast.app.domain.judge_statistics import UNKNOWABLE
from dicast.app.domain.report import Report, ReportAgent
from dicast.app.reports import files, finishing
from dicast.app.reports.collecting import collect
from dicast.app.reports.finishing import keep_computed
from dicast.app.reports.folders import begin, job_folder
from dicast.app.reports.results import load_statistics
from dicast.app.reports.scores import SOME_PROBABILITIES, TWO_PROBABILITIES, NotKept, load_scores
from dicast.app.reports.statistics import compute
from dicast.app.reports.stored_items import read_ratings, write_ratings
from tests.reports.building import NOW, header, opinion

ITEMS = 40


def finished(root: Path, ratings: list[Rating] | None = None, **changes: Any) -> tuple[Path, Report]:
    """A job of 40 items by two judges, the second of whom is two points kinder."""
    begin(root, "job-1", NOW)
    rng = np.random.default_rng(1)
    scores = rng.integers(1, 9, ITEMS)
    opinions = [
        opinion(n, judge, int(score) + more, metadata={"system": "ab"[n % 2], "doc": f"d{n // 2}"})
        for n, score in enumerate(scores)
        for judge, more in (("strict", 0), ("kind", 2))
    ]
    files.write_page(root, "job-1", NOW, "0", 0, opinions, [])
    if ratings is None:
        ratings = [
            Rating(f"item-{n}", "clear", who, float(min(10, scores[n] + at + n % 2)))
            for n in range(ITEMS)
            for at, who in enumerate(("ben", "ada"))
        ]
    if ratings:
        write_ratings(root, "job-1", NOW, ratings)
    given = {"keep": ["system", "doc"], "groups": ["system"], "rated": bool(ratings), **changes}
    return job_folder(root, "job-1"), files.finish(root, "job-1", NOW, header(2 * ITEMS, **given))


def test_one_judge_needs_none_of_the_libraries_that_take_long_to_load(tmp_path: Path) -> None:
    begin(tmp_path, "job-1", NOW)
    opinions = [opinion(n, score=1 + n % 9, metadata={"system": "ab"[n % 2]}) for n in range(ITEMS)]
    files.write_page(tmp_path, "job-1", NOW, "0", 0, opinions, [])
    one = [ReportAgent(name="strict", model="m")]
    files.finish(tmp_path, "job-1", NOW, header(ITEMS, agents=one, keep=["system"], groups=["system"]))
    program = f"""if True:
        import sys
        from dicast.app.reports import finishing
        sys.argv = ["", {str(job_folder(tmp_path, "job-1"))!r}]
        assert finishing.main() == 0
        print(sorted({{"matplotlib", "pandas", "scipy.stats", "sklearn", "statsmodels"}} & set(sys.modules)))
    """
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "[]\n"
    kept = files.read_report(tmp_path, "job-1")
    assert kept is not None and kept.statistics is not None and kept.statistics.state == "computed"


def test_a_library_that_only_some_figures_need_is_missed_like_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, report = finished(tmp_path)
    monkeypatch.setitem(sys.modules, "sklearn.metrics", None)
    with pytest.raises(NoLibraries, match="scores"):
        compute(folder, report)


def test_a_process_of_its_own_keeps_them_in_the_report(tmp_path: Path) -> None:
    folder, report = finished(tmp_path)
    assert report.statistics is not None and report.statistics.state == "waiting"
    kept = keep_computed(folder, report)
    assert kept.statistics is not None and kept.statistics.state == "computed"
    assert files.read_report(tmp_path, "job-1") == kept
    assert files.finish(tmp_path, "job-1", NOW, header(2 * ITEMS, rated=True)) == kept, "finishing again keeps them"
    (of,) = kept.statistics.dimensions
    strict, kind, panel = of.voices
    assert (strict.name, kind.name, panel.kind) == ("strict", "kind", "panel")
    assert kind.bias.value == pytest.approx(strict.bias.value + 2)  # type: ignore[operator]
    assert of.raters == ["ada", "ben"] and of.groups[0].by == "system"
    assert load_statistics("job-1", tmp_path) == kept.statistics
    by_document = load_statistics("job-1", tmp_path, by=["system"], cluster="doc")
    assert by_document.dimensions[0].groups[0].cluster == "doc"


def test_a_job_without_ratings_says_so_and_costs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, report = finished(tmp_path, ratings=[], groups=[])
    assert report.statistics is not None
    assert (report.statistics.state, report.statistics.unknowable) == ("left out", list(UNKNOWABLE))
    found = load_statistics(report, tmp_path)
    assert found.state == "computed" and not found.rated and found.dimensions[0].judges is not None


def put_back(folder: Path, report: Report) -> Report:
    files.write_report_file(folder, report)
    return report


def test_what_is_too_large_or_goes_wrong_is_left_out_with_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, report = finished(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(finishing, "MOST_OPINIONS", 79)
        left = keep_computed(folder, put_back(folder, report)).statistics
        assert left is not None and left.state == "left out" and left.rated
        assert left.reason == (
            "80 opinions are more than the 79 that are looked at unasked; `dicast report job-1` computes them"
        )
    with monkeypatch.context() as patch:
        patch.setattr(finishing, "MOST_CELLS", 1)
        left = keep_computed(folder, put_back(folder, report)).statistics
        assert left is not None and "3 judges and groupings, times dimensions, are more than the 1" in (
            left.reason or ""
        )
    with monkeypatch.context() as patch:
        patch.setattr(finishing, "MOST_SECONDS", 0.01)
        left = keep_computed(folder, put_back(folder, report)).statistics
        assert left is not None and "they took longer than 0 s" in (left.reason or "")
    (folder / "opinions.parquet").unlink()
    left = keep_computed(folder, put_back(folder, report)).statistics
    assert left is not None and "opinions.parquet" in (left.reason or "")
    assert files.read_report(tmp_path, "job-1").statistics == left


def test_without_the_libraries_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, report = finished(tmp_path)
    monkeypatch.setitem(sys.modules, "dicast.app.analysis.assess", None)
    with pytest.raises(NoLibraries, match=r"pip install -e '.\[scores\]'"):
        compute(folder, report)


def test_a_worker_without_the_libraries_says_so_in_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its process ends with the reason, which the worker puts into the report."""
    folder, report = finished(tmp_path)
    monkeypatch.setitem(sys.modules, "dicast.app.analysis.assess", None)
    monkeypatch.setattr(sys, "argv", ["finishing", str(folder)])
    monkeypatch.setattr(finishing.os, "nice", lambda _: None)
    assert finishing.main() == 1
    said = capsys.readouterr().err.strip()
    assert said.endswith("pip install -e '.[scores]'")
    monkeypatch.setattr(finishing, "_in_own_process", lambda _: said)
    left = keep_computed(folder, report).statistics
    assert left is not None and left.state == "left out" and left.reason is not None and left.reason.startswith(said)


def test_scores_and_ratings_stand_in_their_places(tmp_path: Path) -> None:
    ratings = [
        Rating("item-3", "clear", "ben", 4, 0.5),
        Rating("item-1", "clear", "ada", 2, 0.25),
        Rating("item-3", "clear", "ada", 3, 0.5),
        Rating("item-99", "clear", "ada", 3, 0.5),
    ]
    folder, report = finished(tmp_path, ratings)
    found = load_scores(folder, report, by=["system"], cluster="doc")
    (of,) = found.dimensions
    assert (found.items, of.scores.shape) == (ITEMS, (ITEMS, 2, 1))
    assert (of.scores[:, 1] - of.scores[:, 0] == 2).all()
    assert of.people.rated.tolist() == [1, 3] and of.people.raters == ("ada", "ben")
    np.testing.assert_array_equal(of.people.scores, [[2, np.nan], [3, 4]])
    assert of.people.probabilities is not None and of.people.probabilities.tolist() == [0.25, 0.5]
    assert [found.groups["system"].names[code] for code in found.groups["system"].codes[:3]] == ["a", "b", "a"]
    assert found.cluster is not None and found.cluster[1].tolist()[:4] == [0, 0, 1, 1]
    with pytest.raises(NotKept, match="the job kept no metadata 'lang'"):
        load_scores(folder, report, by=["lang"])
    with pytest.raises(NotKept, match=r"no metadata 'sytem' \(.*system.*\); did you mean 'system'"):
        load_scores(folder, report, by=["sytem"])


@pytest.mark.parametrize(
    ("chances", "flaw"), [((0.5, None), SOME_PROBABILITIES), ((0.5, 0.25), TWO_PROBABILITIES), ((0.5, 0.5), None)]
)
def test_probabilities_that_contradict_each_other(tmp_path: Path, chances: Any, flaw: str | None) -> None:
    same = flaw != SOME_PROBABILITIES
    ratings = [
        Rating("item-1", "clear", "ada", 2, chances[0]),
        Rating("item-1" if same else "item-2", "clear", "ben", 3, chances[1]),
    ]
    folder, report = finished(tmp_path, ratings)
    assert load_scores(folder, report).dimensions[0].people.flaw == flaw


def test_ratings_come_along_when_files_are_fetched(tmp_path: Path) -> None:
    _, report = finished(tmp_path / "results")
    fetched = collect(report, tmp_path / "results", tmp_path / "mine")
    assert len(list(read_ratings(Path(fetched.files.directory)))) == 2 * ITEMS
    assert dicast.load_statistics(fetched).state == "computed"


def test_the_command_shows_the_report_without_the_libraries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, _ = finished(tmp_path)
    monkeypatch.setitem(sys.modules, "dicast.app.analysis.assess", None)
    show_statistics(Terminal(), str(folder), [], None, recompute=False, json=False)
    shown = capsys.readouterr()
    assert "pip install -e '.[scores]'" in shown.err and "80 of 80 judgements scored" in shown.out
