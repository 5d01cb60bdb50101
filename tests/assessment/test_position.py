"""Pairs in both orders: judges who favour a place are found, and those who merely err are not accused."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from dicast.app.analysis.biases import position_probes
from dicast.app.analysis.scores import DimensionScores, JobScores
from dicast.app.domain.dimension import Dimension
from dicast.app.domain.judge_statistics import DimensionStatistics, ProbeStatistics
from dicast.app.domain.panel import PanelRule
from dicast.app.domain.report import ReportAgent, ReportDimension
from dicast.app.reports import files
from dicast.app.reports.folders import begin, job_folder
from dicast.app.reports.statistics import compute
from dicast.app.reports.terminal_statistics import print_statistics
from tests.assessment.test_every_statistic import held
from tests.reports.building import NOW, header, opinion

PAIRS = 240
CHOICE = ReportDimension.from_dimension(
    Dimension.model_validate({"id": "clear", "instructions": "?", "scale": "preference"})
)


def judge(rng: np.random.Generator, better: Any, noise: float, first: float, rounds: int) -> Any:
    """Preferences for A (pairs x rounds), A being shown first in even rounds; `first` is what that place adds."""
    place = np.where(np.arange(rounds) % 2 == 0, first, -first)
    felt = better[:, None] + place + rng.normal(0, noise, (len(better), rounds))
    return np.where(np.abs(felt) < 0.2, 0, np.sign(felt))


def finished(root: Path, judges: dict[str, Any], **more: Any) -> DimensionStatistics:
    begin(root, "job-1", NOW)
    opinions = [
        opinion(n, name, int(scores[n, round]), replicate=round, swapped=bool(round % 2),
                metadata={"system_a": "xyz"[n % 3], "system_b": "yzx"[n % 3], "language": ("en", "de")[n % 2]})
        for n in range(PAIRS)
        for name, scores in judges.items()
        for round in range(scores.shape[1])
    ]  # fmt: skip
    files.write_page(root, "job-1", NOW, "0", 0, opinions, [])
    given = {
        "agents": [ReportAgent(name=name, model="m") for name in judges], "dimensions": [CHOICE], "orders": "both",
        "keep": ["system_a", "system_b", "language"], "groups": ["language"], **more,
    }  # fmt: skip
    report = files.finish(root, "job-1", NOW, header(len(opinions), **given))
    assert report.statistics is not None and report.statistics.state == "waiting"
    found = compute(job_folder(root, "job-1"), report)
    held(found)
    out = StringIO()
    print_statistics(report.model_copy(update={"statistics": found}), Console(file=out, width=140), figures=True)
    said = out.getvalue()
    assert "being shown first" in said and "Compared" in said and "nan" not in said
    return found.dimensions[0]


def by_voice(of: DimensionStatistics) -> dict[str, ProbeStatistics]:
    return {probe.voice: probe for probe in of.probes if probe.probe == "position"}


def test_a_judge_who_favours_the_first_place_is_found(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    better = rng.normal(0.2, 1, PAIRS)
    judges = {"fair": judge(rng, better, 0.5, 0.0, 4), "bent": judge(rng, better, 0.5, 0.8, 4)}
    of = finished(tmp_path, judges)
    found = by_voice(of)
    assert set(found) == {"fair", "bent", "panel"}
    fair, bent = found["fair"], found["bent"]
    assert fair.p is not None and bent.p is not None and fair.p > 0.05 > 0.001 > bent.p
    whole = judges["bent"]
    planted = (whole[:, 0::2] - whole[:, 1::2]).mean() / 2
    assert bent.effect.value == pytest.approx(planted) and bent.effect.low > 0.2  # type: ignore[operator]
    turned = (whole[:, 0::2] * whole[:, 1::2] < 0).mean()
    assert bent.moved is not None and bent.moved.value == pytest.approx(turned)
    assert bent.first is not None and bent.first.value == pytest.approx(0.5 + planted / 2)
    assert fair.first is not None and fair.first.low < 0.5 < fair.first.high  # type: ignore[operator]
    assert bent.beyond is not None and bent.beyond.low > 0  # type: ignore[operator]
    assert fair.beyond is not None and fair.beyond.low < 0 < fair.beyond.high  # type: ignore[operator]
    told = " ".join(of.summary)
    assert "The judge 'bent' prefers the text that it is shown first" in told
    assert "The preference of 'bent' turned with the order for" in told and "'fair' prefers" not in told


def test_p_is_corrected_together_with_all_other_claims(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    better = rng.normal(0, 1, PAIRS)
    judges = {name: judge(rng, better, 1.0, first, 2) for name, first in (("one", 0.1), ("two", 0.15))}
    statistics = finished(tmp_path, judges)
    found, groups = by_voice(statistics), sum(len(group.differences) for group in statistics.groups)
    scores = np.stack(list(judges.values()), axis=1)[:, :, None, :]
    of = DimensionScores(CHOICE, scores[..., 0], orders=scores)
    job = JobScores(PAIRS, tuple(judges), (of,))
    panel = scores.mean(axis=1)[:, 0]
    alone = {
        one.voice: one.p
        for one in position_probes(job, of, *(
            {"one": scores[:, 0, 0, at], "two": scores[:, 1, 0, at], "panel": panel[:, at]}
                                     for at in (0, 1)))
    }  # fmt: skip
    least = min(alone, key=lambda name: alone[name] or 1.0)
    assert found[least].p == pytest.approx(min(1.0, (3 + groups) * (alone[least] or 0.0)))


def test_who_always_takes_the_first_is_accused_although_nothing_varies(tmp_path: Path) -> None:
    always = np.tile([1, -1], (PAIRS, 1))
    of = finished(tmp_path, {"stubborn": always})
    (found,) = by_voice(of).values()
    assert not found.effect.is_known and found.p is not None and found.p < 1e-9
    assert found.first is not None and found.first.value == 1 and found.first.low > 0.98  # type: ignore[operator]
    assert any("shown first: the first one wins in 100 %" in line for line in of.summary)
    assert of.preferences is not None and of.preferences.ties.value == 1, "all of them turned: ties"
    assert of.preferences.ties.low == pytest.approx(0.025 ** (1 / PAIRS))


def test_judges_who_only_err_are_seldom_accused() -> None:
    rng = np.random.default_rng(3)
    accused = 0
    for _ in range(400):
        scores = judge(rng, rng.normal(0, 1, 60), 1.0, 0.0, 2)[:, None, None, :]
        of = DimensionScores(CHOICE, scores[..., 0], orders=scores)
        (one,) = position_probes(
            JobScores(60, ("fair",), (of,)), of, {"fair": scores[:, 0, 0, 0]}, {"fair": scores[:, 0, 0, 1]}
        )
        accused += one.p is not None and one.p < 0.05
    assert accused <= 35, "of 20 that chance accuses; more than 35 once in a thousand times"


def test_wins_are_told_of_each_and_of_each_against_each(tmp_path: Path) -> None:
    """Texts of x are planted half a step above those of y, and these above z's."""
    rng = np.random.default_rng(4)
    worth = {"x": 0.5, "y": 0.0, "z": -0.5}
    better = np.array([worth["xyz"[n % 3]] - worth["yzx"[n % 3]] for n in range(PAIRS)])
    of = finished(tmp_path, {"one": judge(rng, better, 1.0, 0.0, 2)}, groups=["language"])
    found = of.preferences
    assert found is not None and [rate.name for rate in found.rates] == ["x", "y", "z"]
    assert found.rates[0].pairs == 2 * PAIRS / 3 and found.rates[0].wins.low > 0.5  # type: ignore[operator]
    assert sum((rate.wins.value or 0) * rate.pairs for rate in found.rates) == pytest.approx(PAIRS)
    met = {(one.first, one.second): one for one in found.meetings}
    assert set(met) == {("x", "y"), ("x", "z"), ("y", "z")} and met["x", "z"].pairs == PAIRS / 3
    assert met["x", "z"].wins.low > 0.6  # type: ignore[operator]
    assert all(mean.wins is not None and mean.wins.is_known for mean in of.groups[0].means)


def test_a_panel_that_was_asked_in_one_order_has_no_such_probe(tmp_path: Path) -> None:
    scores = np.sign(np.random.default_rng(5).normal(size=(PAIRS, 1)))[:, None, :]
    of = DimensionScores(CHOICE.model_copy(update={"panel": PanelRule(combine="majority")}), scores)
    assert list(position_probes(JobScores(PAIRS, ("one",), (of,)), of, {}, {})) == []
