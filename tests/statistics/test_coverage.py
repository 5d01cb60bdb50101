"""Intervals hold what was planted, in the small: `python -m lab.statistics.coverage` does it in the large."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dicast.app.analysis.estimates import Estimate, Unknown
from dicast.app.analysis.resampling import FEWEST_ITEMS, Pieces, Sums, interval, resample, rows
from lab.statistics import audited, coverage

ROOT = Path(__file__).parents[2]
RUNS = 60


@pytest.mark.parametrize("study, runs, most", [(coverage.estimation, RUNS, 9), (coverage.agreement, 25, 6)])
def test_intervals_hold_the_truth(study, runs, most):
    """An interval that holds in 95 % of all runs misses more often than this once in two thousand times."""
    truth = coverage.truths(study, coverage.WORLDS["skewed"], 1, draws=1)
    for row in coverage.rows(study, "skewed", 100, truth, runs, 1):
        assert row.unknown == 0, row
        assert row.held >= 1 - most / runs, row


def test_a_question_on_its_threshold_stays_open():
    row = coverage.wrongly_answered("even", 200, 1)
    assert row.good
    assert row.held >= 0.95


def test_an_interval_that_is_too_narrow_is_noticed():
    def too_narrow(world, rated, rng):
        found = coverage.estimation(world, rated, rng)["people's mean"]
        middle = (found.low + found.high) / 2
        return {"half": Estimate(found.value, (found.low + middle) / 2, (found.high + middle) / 2, rated, "half")}

    truth = coverage.truths(too_narrow, coverage.WORLDS["skewed"], 1, draws=1)
    (row,) = coverage.rows(too_narrow, "skewed", 100, truth, RUNS, 1)
    assert not row.good
    assert any("does not hold" in line for line in coverage.table([row]))


def test_the_command_tells_its_table(monkeypatch, capsys):
    monkeypatch.setattr(coverage, "truths", lambda *_: {"people's mean": 4.054})
    told = {"estimation": Estimate(4, 3.9, 4.1, 50, "t"), "agreement": Unknown("nobody rated")}
    studies = {name: lambda *_, found=found: {"people's mean": found} for name, found in told.items()}
    monkeypatch.setattr(coverage, "STUDIES", studies)
    monkeypatch.setattr(sys, "argv", ["coverage", "--runs", "20", "--worlds", "even", "--rated", "50"])
    assert coverage.main() == 1
    told = capsys.readouterr().out.splitlines()
    assert "held" in told[0]
    assert told[-1].startswith("2 do not hold; 20 runs")


LARGE_RUN = """
import numpy as np
from lab.statistics import speed
speed.DIMENSIONS = ("fluency",)
print(speed.everything(speed.opinions(6000, np.random.default_rng(1)), np.random.default_rng(1)), speed.peak_mb())
"""


def test_a_large_run_is_told_of_in_full():
    """In a process of its own: the peak of this one may be another test's."""
    run = subprocess.run([sys.executable, "-c", LARGE_RUN], cwd=ROOT, capture_output=True, text=True, check=True)
    intervals, peak_mb = run.stdout.split()
    assert int(intervals) == 50
    assert float(peak_mb) < 1024


def mean_sums(x):
    return Sums(np.stack([np.ones(len(x)), x], axis=1), lambda sums: sums[:, 1] / sums[:, 0])


def test_resamples_draw_as_many_items_as_there_are():
    weights = resample(30, 500, np.random.default_rng(0))
    assert weights.shape == (500, 30)
    assert (weights.sum(axis=1) == 30).all()
    assert weights.mean() == 1
    assert weights.var() == pytest.approx(29 / 30, abs=0.05)


def test_the_interval_of_normal_scores_mean_is_nearly_students():
    x = np.random.default_rng(1).normal(size=40)
    rng = np.random.default_rng(0)
    found = interval(x.mean(), Pieces.of(np.arange(40)), rows(mean_sums, x), rng, shape="difference")
    assert isinstance(found, Estimate)
    assert found.width / 2 == pytest.approx(2.0227 * x.std(ddof=1) / np.sqrt(40), rel=0.05)


def test_the_interval_of_skewed_scores_reaches_further_to_where_they_may_be():
    """Most scores are the highest: a sample that saw few of the low ones has a mean that is too high."""
    x = np.r_[np.full(40, 5.0), 1, 2, 3, 4]
    rng = np.random.default_rng(0)
    found = interval(x.mean(), Pieces.of(np.arange(44)), rows(mean_sums, x), rng, shape="difference")
    assert found.value - found.low > 1.3 * (found.high - found.value)


def test_no_interval_from_too_little():
    rng = np.random.default_rng(0)
    twenty = Pieces.of(np.arange(20))
    few, undefined, rare = np.arange(FEWEST_ITEMS - 1.0), np.arange(20.0), np.r_[np.zeros(19), 1]
    too_few = interval(1.0, Pieces.of(np.arange(len(few))), rows(mean_sums, few), rng, shape="difference")
    assert "10 items or more" in str(too_few)
    assert "not defined" in str(interval(np.nan, twenty, rows(mean_sums, undefined), rng, shape="difference"))

    def needs_a_one(x):
        def of(sums):
            return np.where(sums[:, 1] > 0, sums[:, 1], np.nan)

        return Sums(mean_sums(x).columns, of)

    assert "some resamples have none" in str(interval(1.0, twenty, rows(needs_a_one, rare), rng, shape="difference"))


def test_estimates_are_finite_and_in_order():
    with pytest.raises(ValueError, match="finite"):
        Estimate(np.nan, 0, 1, 10, "t")
    with pytest.raises(ValueError, match="ends before it starts"):
        Estimate(0, 1, -1, 10, "t")
    assert Estimate(0, -1, 1, 10, "t").width == 2
    assert Estimate(0, -1, 1, 10, "t").holds(1)
    assert not Estimate(0, -1, 1, 10, "t").holds(1.1)


def test_an_audit_tells_of_later_judges_and_what_they_were_asked_besides_does_not():
    audit, others = audited.held(30, 1)
    assert min(audit.bias, audit.peoples_mean) >= 0.8 > others.bias
