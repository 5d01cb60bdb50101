"""Labels without an order are counted and never averaged; preferences tell how often A wins, and who is the best."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from dicast.app.domain.dimension import Dimension
from dicast.app.domain.figure import Figure
from dicast.app.domain.item import Rating
from dicast.app.domain.judge_statistics import DimensionStatistics, JobStatistics
from dicast.app.domain.panel import PanelRule
from dicast.app.domain.report import Report, ReportAgent, ReportDimension
from dicast.app.reports import files
from dicast.app.reports.folders import begin, job_folder
from dicast.app.reports.statistics import calibrate, compute, panel_fronts
from dicast.app.reports.stored_items import write_ratings
from dicast.app.reports.terminal_statistics import print_statistics
from tests.assessment.test_every_statistic import figures, held
from tests.reports.building import NOW, header, opinion

ITEMS, RATED = 400, 120
TOPIC = {"labels": ["money", "law", "health"], "ordered": False}


def finished(
    root: Path, scale: Any, judges: dict[str, Any], people: dict[str, Any], **more: Any
) -> tuple[Path, Report]:
    """A job on one dimension of this scale; `metadata` are columns that it keeps."""
    metadata: dict[str, Any] = more.pop("metadata", {"system": ["a", "b"] * (ITEMS // 2)})
    begin(root, "job-1", NOW)
    opinions = [
        opinion(n, judge, int(scores[n]), metadata={name: column[n] for name, column in metadata.items()})
        for n in range(len(next(iter(judges.values()))))
        for judge, scores in judges.items()
    ]
    files.write_page(root, "job-1", NOW, "0", 0, opinions, [])
    ratings = [
        Rating(f"item-{n}", "clear", who, float(scores[n])) for who, scores in people.items() for n in range(RATED)
    ]
    write_ratings(root, "job-1", NOW, ratings)
    dimension = ReportDimension.from_dimension(
        Dimension.model_validate({"id": "clear", "instructions": "?", "scale": scale}),
        PanelRule(combine="majority"),
    )
    given = {
        "agents": [ReportAgent(name=name, model="m", judge=name) for name in judges], "dimensions": [dimension],
        "keep": list(metadata), "rated": bool(people), "prompt": "p", **more,
    }  # fmt: skip
    return job_folder(root, "job-1"), files.finish(root, "job-1", NOW, header(len(opinions), **given))


def statistics(folder: Path, report: Report) -> DimensionStatistics:
    found = compute(folder, report)
    held(found)
    assert JobStatistics.model_validate_json(found.model_dump_json()) == found
    out = StringIO()
    print_statistics(report.model_copy(update={"statistics": found}), Console(file=out, width=120), figures=True)
    assert "nan" not in out.getvalue().lower()
    (of,) = found.dimensions
    return of


def known(found: Figure, truth: float) -> bool:
    return found.low is not None and found.high is not None and found.low <= truth <= found.high


def mistaken(truth: Any, share: float, rng: np.random.Generator, labels: int = 3) -> Any:
    return np.where(rng.random(len(truth)) < share, rng.integers(0, labels, len(truth)), truth)


def test_labels_without_an_order_are_counted(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    truth = rng.choice(3, ITEMS, p=[0.6, 0.3, 0.1])
    judges = {name: mistaken(truth, share, rng) for name, share in (("sharp", 0.1), ("also", 0.2), ("dull", 0.5))}
    people = {name: mistaken(truth, 0.05, rng) for name in ("ada", "ben")}
    folder, report = finished(tmp_path, TOPIC, judges, people, groups=["system"], probes=[])
    of = statistics(folder, report)
    sharp, _, dull, panel = of.voices
    for voice in of.voices:
        assert voice.mean.reason == "labels without an order have no mean" and voice.peoples_mean is None
        assert voice.pearson.reason == voice.bias.reason == "labels have no distances"
        assert voice.kappa.is_known and voice.confusion is not None and len(voice.confusion) == 3
    assert sharp.kappa.low > dull.kappa.high and panel.kappa.value > dull.kappa.value  # type: ignore[operator]
    assert of.judges is not None and of.judges.alpha.is_known and not of.judges.icc_single.is_known
    assert [share.label for share in of.shares] == ["money", "law", "health"]
    planted = [np.mean([judge == at for judge in judges.values()]) for at in range(3)]
    assert [share.judges.value for share in of.shares] == pytest.approx(planted)
    everybody = [float(np.mean([people[name] == at for name in people])) for at in range(3)]
    assert all(known(share.people, true) for share, true in zip(of.shares, everybody, strict=True))
    assert of.shares[0].people.high - of.shares[0].people.low < (  # type: ignore[operator]
        of.shares[0].people_alone.high - of.shares[0].people_alone.low  # type: ignore[operator]
    )
    assert of.groups[0].reason == of.independent.reason == "labels without an order have no mean"
    told = " ".join(of.summary)
    assert "kappas with people are" in told and "'money' is 0.5" in told and "mean of all items" not in told
    maps, missing = calibrate(folder, report, "isotonic", ["clear"])
    assert maps == [] and {one.reason for one in missing} == {"labels without an order have no mean"}
    (front,) = panel_fronts(folder, report, [1, 1, 1], dimensions=["clear"], largest=2, measure="pearson", reach=0.5)
    assert front.front == [] and front.reason == "labels without an order have no mean"


def test_ordered_labels_have_shares_and_a_mean(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    passed = (rng.random(ITEMS) < 0.7).astype(int)
    folder, report = finished(tmp_path, "pass_fail", {"one": mistaken(passed, 0.2, rng, 2)}, {"ada": passed})
    of = statistics(folder, report)
    assert [share.label for share in of.shares] == ["fail", "pass"]
    assert known(of.shares[1].people, float(passed.mean())) and of.voices[0].mean.is_known
    whole = of.voices[0].peoples_mean
    assert whole is not None and whole.powered.value == pytest.approx(of.shares[1].people.value, abs=1e-9)


@pytest.mark.parametrize("names", [("candidate_a", "candidate_b"), ("system_a", "system_b")])
def test_preferences_rank_those_that_were_compared(tmp_path: Path, names: tuple[str, str]) -> None:
    """Four systems, each half a step better than the next."""
    rng = np.random.default_rng(3)
    strength = np.array([1.2, 0.4, -0.4, -1.2])
    sides = np.array([rng.choice(4, 2, replace=False) for _ in range(ITEMS)])
    a_wins = rng.random(ITEMS) < 1 / (1 + np.exp(strength[sides[:, 1]] - strength[sides[:, 0]]))
    truth = np.where(rng.random(ITEMS) < 0.1, 0, np.where(a_wins, 1, -1))
    judges = {name: np.where(rng.random(ITEMS) < 0.1, -truth, truth) for name in ("one", "two", "three")}
    columns = {name: ["wxyz"[at] for at in sides[:, side]] for side, name in enumerate(names)}
    folder, report = finished(tmp_path, "preference", judges, {"ada": truth}, metadata=columns)
    of = statistics(folder, report)
    found = of.preferences
    assert found is not None and found.reason is None
    assert known(found.people, float((truth / 2 + 0.5).mean())) and found.ties.is_known
    assert [one.name for one in found.contestants] == ["w", "x", "y", "z"]
    assert found.contestants[0].ranks[0] > 0.95 and sum(found.contestants[0].ranks) == pytest.approx(1)
    assert found.contestants[0].strength.low > found.contestants[3].strength.high  # type: ignore[operator]
    assert any("w is the strongest" in line for line in of.summary)


def test_nobody_is_ranked_without_names(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    folder, report = finished(tmp_path, {"preference": "strength"}, {"one": rng.integers(-2, 3, ITEMS)}, {})
    of = statistics(folder, report)
    assert of.preferences is not None and of.preferences.contestants == []
    assert (of.preferences.reason or "").startswith("the job keeps no metadata candidate_a and candidate_b")
    assert of.preferences.people.reason == "nobody has rated this dimension"
    assert not any(one.is_known for one in figures(of) if one is of.preferences.people)


def test_who_never_lost_has_no_strength(tmp_path: Path) -> None:
    columns = {"system_a": ["a"] * ITEMS, "system_b": ["b"] * ITEMS}
    folder, report = finished(tmp_path, "preference", {"one": np.ones(ITEMS)}, {}, metadata=columns)
    of = statistics(folder, report)
    found = of.preferences
    assert found is not None and "strength is unbounded" in (found.reason or "")
    assert found.wins.value == 1 and found.wins.low == pytest.approx(0.025 ** (1 / ITEMS))
    assert [(rate.name, rate.wins.value) for rate in found.rates] == [("a", 1.0), ("b", 0.0)]
    assert found.rates[0].wins.low > 0.9 and found.rates[1].wins.high < 0.1  # type: ignore[operator]
    first, second = found.contestants
    assert (first.name, second.name) == ("a", "b") and first.ranks[0] > 0.99
    assert first.strength.low > second.strength.high  # type: ignore[operator]
    assert any("The judges' comparisons alone rank nobody" in line for line in of.summary)


def test_a_single_list_is_ranked_with_its_doubt(tmp_path: Path) -> None:
    """Three candidates, each compared once with each: who is first is likely, and not certain."""
    columns = {
        "list": ["q1"] * 3, "candidate_a": ["terse", "terse", "vague"], "candidate_b": ["vague", "wrong", "wrong"],
    }  # fmt: skip
    folder, report = finished(tmp_path, "preference", {"one": np.array([1, 1, 1])}, {}, metadata=columns)
    of = statistics(folder, report)
    found = of.preferences
    assert found is not None and found.reason == "3 items are too few to tell 3 apart"
    assert [(rate.name, rate.wins.value) for rate in found.rates] == [("terse", 1.0), ("vague", 0.5), ("wrong", 0.0)]
    assert all(rate.wins.high - rate.wins.low > 0.6 for rate in found.rates)  # type: ignore[operator]
    assert [one.name for one in found.contestants] == ["terse", "vague", "wrong"]
    assert 0.5 < found.contestants[0].ranks[0] < 0.9
    assert found.contestants[0].strength.low < found.contestants[2].strength.high  # type: ignore[operator]
    (line,) = [line for line in of.summary if "cannot be told from" in line]
    assert "terse is first of 3" in line and "cannot be told from vague, wrong" in line
