"""Several opinions into one; labels by Dawid and Skene; panels that stop when nothing can change any more."""

import itertools

import numpy as np
import pandas as pd
import pytest

from dicast.app.analysis.combining import (
    COMBINATIONS,
    Cascade,
    LearnedTrust,
    combine_trimmed,
    dawid_skene,
    learn_trust,
    learned_weights,
    weighted_mean,
)
from dicast.app.analysis.estimates import Unknown
from dicast.app.analysis.means import Deviation
from dicast.app.analysis.scores import DimensionScores
from dicast.app.analysis.scores import cascade as cascade_of
from dicast.app.domain.dimension import Scale
from dicast.app.domain.escalation import is_settled, standard_error
from dicast.app.domain.panel import PanelRule
from dicast.app.domain.report import ReportDimension
from lab.statistics import panel_replay
from lab.statistics.panel_replay import replay

_ = np.nan


@pytest.mark.parametrize(
    "name, wanted",
    [
        ("mean", [3, 2.5, 4, _]),
        ("median", [2, 2.5, 4, _]),
        ("trimmed", [7 / 3, 2.5, 4, _]),
        ("majority", [2, 1, 4, _]),
        ("worst", [1, 1, 4, _]),
    ],
)
def test_combinations(name, wanted):
    scores = np.array([[1, 2, 2, 3, 7.0], [1, _, 4, _, _], [_, _, _, _, 4], [_, _, _, _, _]])
    np.testing.assert_allclose(COMBINATIONS[name](scores), wanted)


def test_a_majority_that_is_tied_is_the_middle_of_the_tied():
    assert COMBINATIONS["majority"](np.array([[1.0, 3, 5]])).tolist() == [3]
    assert COMBINATIONS["majority"](np.array([[1.0, 1, 5, 5, 3]])).tolist() == [1]


def test_trimming_keeps_the_middle():
    assert combine_trimmed(np.array([[0.0, 3, 4, 5, 100, 4, 4, 4, 4, 4]])).tolist() == [4]


def test_weights_are_checked_and_go_to_those_who_spoke():
    scores = np.array([[1.0, 5], [_, 5], [_, _]])
    np.testing.assert_allclose(weighted_mean(scores, np.array([3.0, 1])), [2, 5, _])
    for weights in ([-1.0, 2], [0.0, 0], [1.0], [_, 1]):
        with pytest.raises(ValueError, match="weights"):
            weighted_mean(scores, np.array(weights))


def test_learned_weights_trust_the_better_judge_and_nobody_who_is_noise():
    rng = np.random.default_rng(0)
    truth = rng.normal(size=2000)
    judges = truth[:, None] + rng.normal(size=(2000, 3)) * [0.5, 1.0, 100.0] + [0, 2, 0]
    weights = learned_weights(judges, truth + rng.normal(0, 0.5, 2000))
    # Weights that err least are as 1 to the variance.
    np.testing.assert_allclose(weights, [0.8, 0.2, 0.0], atol=0.03)
    np.testing.assert_allclose(learned_weights(np.ones((50, 2)), np.arange(50.0)), [0.5, 0.5])
    np.testing.assert_allclose(learned_weights(judges[:2], truth[:2]), [1 / 3] * 3)


def labelled(rng, items=400):
    truth = rng.choice(3, items, p=[0.5, 0.3, 0.2])
    skill = np.array([0.9, 0.8, 0.7, 0.35, 0.35])
    wrong = (truth[:, None] + rng.integers(1, 3, (items, 5))) % 3
    given = np.where(rng.random((items, 5)) < skill, truth[:, None], wrong)
    return truth, np.where(rng.random((items, 5)) < 0.1, -1, given)


@pytest.mark.filterwarnings("ignore")  # crowd-kit's, of pandas
def test_dawid_skene_is_another_librarys():
    aggregation = pytest.importorskip("crowdkit.aggregation", reason="pip install -e .[references]")

    _truth, given = labelled(np.random.default_rng(1))
    task, worker = np.nonzero(given >= 0)
    frame = pd.DataFrame({"task": task, "worker": worker, "label": given[task, worker]})
    second = aggregation.DawidSkene(n_iter=40, tol=0).fit(frame)
    mine = dawid_skene(given, 3, rounds=40)
    np.testing.assert_array_equal(mine.labels, second.labels_.sort_index().to_numpy())
    np.testing.assert_allclose(mine.probabilities, second.probas_.sort_index()[[0, 1, 2]].to_numpy(), atol=1e-8)


def test_dawid_skene_beats_the_vote_where_judges_differ_in_skill():
    truth, given = labelled(np.random.default_rng(2))
    vote = COMBINATIONS["majority"](np.where(given < 0, np.nan, given))
    found = dawid_skene(given, 3)
    assert (found.labels == truth).mean() > (vote == truth).mean() + 0.03
    np.testing.assert_allclose(found.errors.sum(axis=2), 1)
    assert found.errors[0].diagonal().mean() == pytest.approx(0.9, abs=0.05)


def test_labels_that_are_missing_or_wrong():
    given = np.array([[0, 0], [-1, -1], [1, 1]])
    assert dawid_skene(given, 2).labels.tolist() == [0, -1, 1]
    with pytest.raises(ValueError, match="labels are 0 to 1"):
        dawid_skene(np.array([[2]]), 2)
    with pytest.raises(ValueError, match="no item"):
        dawid_skene(np.array([[-1]]), 2)


LEVELS, JUDGES = (1, 2, 3), 4
FULL = np.array(list(itertools.product(LEVELS, repeat=JUDGES)), dtype=float)
RULES = {
    "majority": (panel_replay.majority_settled, COMBINATIONS["majority"]),
    "votes": (
        lambda s, left: panel_replay.votes_settled(s, left, passing=2, needed=3),
        lambda full: (full >= 2).sum(axis=1) >= 3,
    ),
    "mean": (
        lambda s, left: panel_replay.mean_settled(s, left, threshold=2.25, low=1, high=3),
        lambda full: full.mean(axis=1) >= 2.25,
    ),
    "median": (
        lambda s, left: panel_replay.median_settled(s, left, threshold=2.5, low=1, high=3),
        lambda full: np.median(full, axis=1) >= 2.5,
    ),
    "worst": (lambda s, left: panel_replay.worst_settled(s, left, low=1), COMBINATIONS["worst"]),
}


@pytest.mark.parametrize("name", RULES)
def test_a_settled_outcome_is_the_full_panels_whatever_the_others_would_have_said(name):
    """Over every panel there is: all that share the opinions asked for have the same outcome."""
    settled, outcome = RULES[name]
    seen = replay(FULL, settled)
    outcomes = outcome(FULL)
    told = {}
    for row, calls, full in zip(FULL, seen.calls, outcomes, strict=True):
        assert told.setdefault((calls, *row[:calls]), full) == full
    assert seen.share < 1
    # And nobody was asked in vain: one opinion less, and the outcome was still open.
    for calls, asked in {(c, tuple(r[: c - 1])) for c, r in zip(seen.calls, FULL, strict=True) if c > 1}:
        same = [o for r, o in zip(FULL, outcomes, strict=True) if tuple(r[: calls - 1]) == asked]
        assert len(set(same)) > 1 or name == "majority"


def test_a_panel_of_three_that_votes_saves_a_fifth_of_its_calls_and_loses_nothing():
    rng = np.random.default_rng(3)
    first = rng.integers(1, 6, 3000).astype(float)
    agree = rng.random((3000, 2)) < 0.6
    others = np.where(agree, first[:, None], rng.integers(1, 6, (3000, 2)))
    scores = np.column_stack([first, others])
    seen = replay(scores, panel_replay.majority_settled)
    decided = seen.calls < 3
    np.testing.assert_array_equal(
        COMBINATIONS["majority"](seen.shorter)[decided], COMBINATIONS["majority"](scores)[decided]
    )
    np.testing.assert_array_equal(seen.shorter[~decided], scores[~decided])
    assert (scores[:, 0] == scores[:, 1]).mean() >= 0.6
    assert seen.share <= 0.80


def test_means_stop_where_the_first_agree():
    scores = np.array([[3.0, 3, 5], [1, 4, 4], [_, 2, 2]])
    seen = replay(scores, lambda s, left: panel_replay.agrees(s, left, within=1))
    assert seen.calls.tolist() == [2, 3, 3]
    assert panel_replay.agrees([3], 0, within=0)
    assert not panel_replay.majority_settled([], 1)
    assert replay(np.empty((0, 3)), panel_replay.majority_settled).share == 0


def test_what_a_rule_for_means_saves_and_costs_is_told():
    """Under equal noise a disagreement says little about the mean's error: calls kept are gain kept."""
    rng = np.random.default_rng(4)
    truth = rng.normal(size=20_000)
    scores = truth[:, None] + rng.normal(size=(20_000, 3))
    told = {}
    for within in (0.0, 1.0, 2.0, np.inf):
        told[within] = panel_replay.trade(
            scores, truth, replay(scores, lambda s, left, within=within: panel_replay.agrees(s, left, within=within))
        )
    assert (told[0.0].later_calls, told[0.0].gain) == (1.0, 1.0)
    assert told[np.inf].later_calls == told[np.inf].gain == 0.0
    # The full panel's squared error is 1/3, that of the first two 1/2.
    assert told[np.inf].worse.holds(1 / 6)
    assert 0.12 < told[2.0].later_calls < 0.23
    assert told[2.0].gain == pytest.approx(told[2.0].later_calls, abs=0.05)
    assert isinstance(told[0.0].worse, Unknown)


def test_judges_who_are_no_help_have_no_gain():
    rng = np.random.default_rng(5)
    truth = rng.normal(size=200)
    scores = np.column_stack([truth, truth, truth + rng.normal(0, 5, 200)])
    seen = panel_replay.trade(scores, truth, replay(scores, lambda s, left: panel_replay.agrees(s, left, within=9)))
    assert "nothing that can be told from 0" in str(seen.gain)


def test_judges_who_are_certain_need_no_other():
    assert panel_replay.certain([0.3, 0.4], 1, within=0.25)
    assert not panel_replay.certain([0.3, 0.4], 1, within=0.24)
    assert not panel_replay.certain([], 1, within=9)
    assert panel_replay.certain([9.0], 0, within=0.1)
    assert not panel_replay.certain([np.inf, 0.1], 1, within=9)
    assert panel_replay.certain([0.1, 9.0], 1, within=0.1, weights=[1, 0])
    assert not panel_replay.certain([np.inf, 0.1], 1, within=9, weights=[0, 1])
    assert not panel_replay.certain([0.1], 1, within=9, weights=[0])


def restless(hard, shared=0.0):
    """Three judges' two answers to each text and its worth: three texts in ten are hard, where a judge's answers lie so
    far apart; `shared` is an error that a judge repeats."""
    rng = np.random.default_rng(4)
    truth = rng.normal(size=8000)
    own = np.where(rng.random(8000) < 0.3, hard, 0.25)[:, None, None]
    lasting = shared * rng.normal(size=(8000, 3, 1))
    return truth[:, None, None] + lasting + own * rng.normal(size=(8000, 3, 2)), truth


@pytest.mark.parametrize(
    "hard, shared, calls, gain", [(2.0, 0.0, 0.28, 0.80), (2.0, 0.7, 0.28, 0.57), (0.25, 0.0, 0.04, 0.07)]
)
def test_uncertain_judges_tell_where_another_helps_as_far_as_texts_are_unlike(hard, shared, calls, gain):
    answers, truth = restless(hard, shared)
    seen = panel_replay.replay_uncertain(answers, within=0.3)
    told = panel_replay.trade(answers.mean(axis=2), truth, seen, first=1)
    assert told.later_calls == pytest.approx(calls, abs=0.02)
    assert told.gain == pytest.approx(gain, abs=0.05)


def test_an_answer_that_is_missing_leaves_its_judge_uncertain():
    answers = np.array(
        [[[3, 3], [4, 4], [5, 5]], [[3, _], [4, 4], [5, 5]], [[3, _], [_, _], [5, 5]], [[1, 3], [2, 2], [1, 1]]]
    )
    assert panel_replay.standard_errors(answers)[:, 0].tolist() == [0, np.inf, np.inf, 1]
    seen = panel_replay.replay_uncertain(answers, within=0.5)
    assert seen.calls.tolist() == [1, 3, 3, 2]
    np.testing.assert_array_equal(seen.shorter[:2], [[3, _, _], [3, 4, 5]])


def test_errors_of_independent_values_add_as_the_root_of_their_squares() -> None:
    assert Deviation(1.0, 3.0, 5).minus(Deviation(0.5, 4.0, 7)) == Deviation(0.5, 5.0, 0)


def test_trust_is_learned_up_to_the_bound_where_people_no_longer_agree():
    """Of 60 certain items people agree on all, of 60 uncertain ones on none: the bound 0 holds for 80 %, as 0.8 **
    60 is next to nothing, and the bound 1 decides 60 of 120."""
    certain = np.repeat([0.0, 1.0], 60)
    cascade = Cascade(np.column_stack([np.full(120, np.inf), certain]), np.full((120, 2), 3.0))
    people = np.where(certain == 0, 3.0, 5.0)
    learned = learn_trust(cascade, people, [0.0, 0.5, 1.0, 2.0], within=0.5, agree=0.8, confidence=0.9)
    assert isinstance(learned, LearnedTrust)
    assert (learned.bound, learned.decided, learned.agreeing, learned.coverage) == (0.5, 60, 60, 0.5)
    few = learn_trust(
        cascade, np.where(np.arange(120) < 19, people, np.nan), [0.0], within=0.5, agree=0.8, confidence=0.9
    )
    assert isinstance(few, Unknown)
    strict = learn_trust(cascade, people, [0.0], within=0.5, agree=0.97, confidence=0.9)
    assert isinstance(strict, Unknown), "0.97 ** 60 is 0.16"


def test_the_stages_of_a_panel_are_those_that_workers_see():
    """For each item the first stage within the bound is where `is_settled` stops asking."""
    rng = np.random.default_rng(3)
    answers = np.round(rng.normal(3, 1, (200, 3, 2)).clip(1, 5))
    names, scale = ["a", "b", "c"], Scale(min=1, max=5)
    spec = ReportDimension(id="good", scale_min=1, scale_max=5)
    for kind, bound in (("difference", 1.0), ("uncertainty", 0.4)):
        rule = PanelRule.model_validate({"escalate": {kind: bound, "agree": 0.8, "confidence": 0.9}})
        stages, _ = cascade_of(DimensionScores(spec, answers), kind).decide(
            bound - (1e-6 if kind == "difference" else 0)
        )
        for item, stage in enumerate(stages):
            scores = dict(zip(names, answers[item].mean(axis=1), strict=True))
            errors = dict(zip(names, (standard_error(list(of)) for of in answers[item]), strict=True))
            settled = [
                is_settled(rule, {n: scores[n] for n in names[:count]}, names[count:], scale,
                           {n: errors[n] for n in names[:count]})
                for count in (1, 2)
            ]  # fmt: skip
            first = settled.index(True) if any(settled) else 2
            assert stage == first or (stage == -1 and first == 2)
