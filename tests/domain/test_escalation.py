"""Who is asked: never a judge too few where that is promised, and no judge too many."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from pydantic import ValidationError

from dicast.app.domain.dimension import Scale
from dicast.app.domain.escalation import (
    earliest_settlement,
    is_audited,
    is_needed,
    is_settled,
    stages_of,
    standard_error,
)
from dicast.app.domain.job import EvaluationJob
from dicast.app.domain.panel import PanelRule
from dicast.app.domain.plan import Unit, lanes
from dicast.app.domain.scoreboard import ENDED, NOT_NEEDED, Layout, Scoreboard, mark_of
from lab.statistics.panel_replay import (
    agrees,
    certain,
    majority_settled,
    mean_settled,
    median_settled,
    standard_errors,
    votes_settled,
    worst_settled,
)

SCALE = Scale(min=1, max=4)
JUDGES = ["a", "b", "c", "d"]
RULES = [
    PanelRule(combine="majority", escalate={}),
    PanelRule(combine="worst", escalate={}),
    PanelRule(combine="median", escalate={}),
    *(
        PanelRule(combine=combine, threshold=threshold, escalate={})
        for combine in ("majority", "mean", "median", "trimmed", "worst")
        for threshold in (1.5, 2.0, 3.3, 4.0)
    ),
    PanelRule(combine="weighted", weights={"a": 3.0, "b": 1.0, "c": 0.0, "d": 2.0}, threshold=3.0, escalate={}),
]
NAMES = [f"{rule.combine}-{rule.threshold}" for rule in RULES]


def verdicts(rule, given, left):
    """All that the panel may say, whatever the judges left answer or do not."""
    answers = product([None, *range(SCALE.min, SCALE.max + 1)], repeat=len(left))
    for later in answers:
        more = {judge: score for judge, score in zip(left, later, strict=True) if score is not None}
        yield rule.combined({**given, **more})


@pytest.mark.parametrize("rule", RULES, ids=NAMES)
@pytest.mark.parametrize("judges", [2, 3, 4])
def test_what_is_settled_stays_whatever_the_others_say_or_do_not(rule, judges):
    names = JUDGES[:judges]
    if rule.weights:
        rule = rule.model_copy(update={"weights": {name: rule.weights[name] for name in names}})
    for asked in range(1, judges):
        for scores in product(range(SCALE.min, SCALE.max + 1), repeat=asked):
            given, left = dict(zip(names, scores, strict=False)), names[asked:]
            found = set(verdicts(rule, given, left))
            if is_settled(rule, given, left, SCALE):
                assert found == {rule.combined(given)}, given
                assert asked >= earliest_settlement(rule, names, SCALE)
            elif rule.threshold is not None or rule.combine in {"worst", "median"}:
                assert len(found) > 1 or None in found, given  # and none is asked who could have been spared


@pytest.mark.parametrize("asked, left", [(1, 1), (1, 2), (2, 1), (2, 2), (3, 1), (3, 2)])
def test_the_study_of_escalation_decides_the_same(asked, left):
    low, high = SCALE.min, SCALE.max
    others = [f"later{n}" for n in range(left)]

    def ours(scores, **rule):
        given = {f"judge{n}": float(score) for n, score in enumerate(scores)}
        return is_settled(PanelRule(escalate=rule.pop("escalate", {}), **rule), given, others, SCALE)

    for scores in product(range(low, high + 1), repeat=asked):
        assert ours(scores, combine="majority") == majority_settled(scores, left)
        assert ours(scores, combine="worst") == worst_settled(scores, left, low=low)
        assert ours(scores, combine="mean", escalate={"difference": 1.0}) == (
            asked >= 2 and agrees(scores, left, within=0)
        )
        for threshold in (1.5, 2.0, 3.0, 4.0):
            ends = {"threshold": threshold, "low": low, "high": high}
            assert ours(scores, combine="mean", threshold=threshold) == mean_settled(scores, left, **ends)
            # Beside it, ours holds also where some of those left fail: then their number decides what a median is.
            if ours(scores, combine="median", threshold=threshold):
                assert median_settled(scores, left, **ends)
            if ours(scores, combine="majority", threshold=threshold):
                assert votes_settled(scores, left, passing=threshold, needed=(asked + left) // 2 + 1)


@pytest.mark.parametrize("weights", [None, {"a": 3.0, "b": 1.0, "c": 0.0, "d": 2.0}])
def test_the_study_of_uncertainty_decides_the_same(weights):
    """All that up to three judges may answer in two rounds, or leave out, against bounds that answers hit exactly."""
    said = [*product((1, 2, 4), repeat=2), (3,), ()]
    rules = [
        PanelRule(combine="weighted" if weights else "mean", weights=weights or {}, escalate={"uncertainty": within})
        for within in (0.0, 0.25, 0.5, 1.0)
    ]
    decided = set()
    for asked in (1, 2, 3):
        for answers in product(said, repeat=asked):
            names = JUDGES[:asked]
            errors = {name: standard_error(own) for name, own in zip(names, answers, strict=True)}
            padded = np.array([[*own, np.nan, np.nan][:2] for own in answers], dtype=float)
            assert standard_errors(padded) == pytest.approx(list(errors.values()), abs=1e-12)
            given = {name: sum(own) / len(own) for name, own in zip(names, answers, strict=True) if own}
            for rule in rules:
                of_asked = [weights[name] for name in names] if weights else None
                theirs = certain(
                    standard_errors(padded).tolist(), 1, within=rule.escalate.uncertainty, weights=of_asked
                )
                assert is_settled(rule, given, ["later"], SCALE, errors) == theirs, (answers, rule)
                decided.add((asked, theirs))
    assert decided == set(product((1, 2, 3), (False, True)))


def test_nobody_is_spared_without_a_score():
    for rule in RULES:
        assert not is_settled(rule, {}, ["d"], SCALE)
        assert is_settled(rule, {}, [], SCALE)
    by_difference = PanelRule(escalate={"difference": 1})
    assert not is_settled(by_difference, {"a": 3}, ["b", "c"], SCALE)
    assert is_settled(by_difference, {"a": 3, "b": 3.5}, ["c"], SCALE)
    assert not is_settled(by_difference, {"a": 3, "b": 4}, ["c"], SCALE)


UNCERTAIN = {"combine": "mean", "escalate": {"uncertainty": 0.5}}


def a_job(judges=3, dimensions=None, **more):
    return EvaluationJob.model_validate({
        "items": [{"id": "i", "text": "t"}],
        "agents": [{"name": name} for name in JUDGES[:judges]],
        "dimensions": dimensions or [{"id": "d", "instructions": "x", "scale": {"min": 1, "max": 4}}],
        **more,
    })  # fmt: skip


def test_the_first_who_cannot_settle_anything_are_asked_at_once():
    majority = {"combine": "majority", "escalate": True}
    assert stages_of(a_job(3, panel=majority)) == [0, 0, 1]
    assert stages_of(a_job(4, panel=majority)) == [0, 0, 0, 1]
    assert stages_of(a_job(2, panel=majority)) == [0, 0]
    assert stages_of(a_job(3, panel={"combine": "worst", "escalate": True})) == [0, 1, 2]
    assert stages_of(a_job(4, panel={"combine": "mean", "escalate": {"difference": 1}})) == [0, 0, 1, 2]
    assert stages_of(a_job(3, panel=UNCERTAIN, replicates=2)) == [0, 1, 2]
    unheard = {"combine": "weighted", "weights": {"a": 0.0, "b": 1.0, "c": 1.0}, "escalate": {"uncertainty": 1}}
    assert stages_of(a_job(3, panel=unheard, replicates=2)) == [0, 0, 1]
    assert stages_of(a_job(3, panel={"combine": "mean", "threshold": 4, "escalate": True})) == [0, 1, 2]
    assert stages_of(a_job(3, panel="majority")) == [0, 0, 0]
    scale = {"min": 1, "max": 4}
    mixed = [
        {"id": "d", "instructions": "x", "scale": scale, "panel": majority},
        {"id": "e", "instructions": "x", "scale": scale},
    ]
    job = a_job(3, mixed)
    assert stages_of(job) == [0, 0, 1] and job.keeps_scoreboard and not a_job(3).keeps_scoreboard
    plan = lanes([("p",)] * 3, 2, 1, [False] * 3, stages_of(job))
    assert [(lane.agents, lane.stage) for lane in plan] == [((0, 1), 0), ((2,), 1)]


SPARED = "spared", "spared"


def board_of(job, scores):
    """`scores` by (round, agent, dimension); all of one item. None is a failure, "spared" what was not needed."""
    lowest = [dimension.scale.min for dimension in job.dimensions]
    layout = Layout(job.rounds, len(job.agents), len(job.dimensions))
    data = bytearray(2 * layout.units_per_item)
    for (number, agent, dimension), score in scores.items():
        mark = {None: ENDED, "spared": NOT_NEEDED}.get(score) or mark_of(score, lowest[dimension])
        at = 2 * layout.place(Unit(0, number, agent, dimension))
        data[at : at + 2] = bytes([mark // 128, mark % 128])
    return Scoreboard(layout, lowest, 0, 1, bytes(data))


def test_a_judge_who_failed_is_absent_and_one_with_replicates_counts_by_their_mean():
    job = a_job(3, panel={"combine": "majority", "escalate": True}, replicates=2)
    stages, third = stages_of(job), Unit(0, 1, 2, 0)

    def needed(*scores):
        places = [(number, agent, 0) for agent in range(2) for number in range(2)]
        return is_needed(job, stages, board_of(job, dict(zip(places, scores, strict=True))), third, "i")

    assert not needed(3, 3, 3, 3)
    assert not needed(2, 4, 3, 3)  # both say 3 on average
    assert needed(3, 3, 3, 4)
    assert needed(3, 3, None, None)
    assert not needed(3, 3, 3, None)
    assert needed(None, None, None, None)
    assert is_needed(job, stages, board_of(job, {}), Unit(0, 0, 1, 0), "i")  # of the first stage


def test_the_next_judge_is_asked_unless_those_before_were_certain():
    job = a_job(4, panel=UNCERTAIN, replicates=2)
    stages = stages_of(job)

    def needed(stage, *answers):
        """Each judge's answers in both rounds."""
        places = {(number, agent, 0): score for agent, own in enumerate(answers) for number, score in enumerate(own)}
        return is_needed(job, stages, board_of(job, places), Unit(0, 1, stage, 0), "i")

    assert not needed(1, (3, 3)) and not needed(1, (3, 4))  # 0.5 exactly
    assert needed(1, (2, 4)) and needed(1, (1, 4))
    assert needed(1, (3, None)) and needed(1, (None, None))  # too few answers to tell
    assert needed(2, (1, 4), (3, 3))  # 1.5 and 0: 0.75 together
    assert not needed(2, (2, 4), (3, 3)) and not needed(2, (2, 4), (1, 1))  # apart, and certain each
    assert needed(2, (2, 4), (3, None)) and needed(2, (2, 4), (None, None))
    assert needed(3, (1, 4), (2, 3), (None, 3)) and not needed(3, (1, 4), (3, 3), (3, 3))
    assert not needed(2, (3, 3), SPARED) and not needed(3, (3, 3), SPARED, SPARED)  # nobody was asked again
    assert not needed(3, (3, 3), (4, "spared"), SPARED)  # a round from before the job was resumed


def test_a_preference_that_turns_with_the_order_is_uncertain():
    dimension = {"id": "d", "instructions": "x", "scale": "preference"}
    items = [{"id": "i", "text_a": "t", "text_b": "u"}]
    job = a_job(2, [dimension], items=items, panel=UNCERTAIN)  # both orders are two answers

    def needed(*own):
        board = board_of(job, {(number, 0, 0): score for number, score in enumerate(own)})
        return is_needed(job, stages_of(job), board, Unit(0, 0, 1, 0), "i")

    assert needed(1, -1) and not needed(1, 1) and not needed(0, 1)  # a tie in one order: 0.5
    with pytest.raises(ValidationError, match=r"panel.escalate.uncertainty \(d\).* at least 2, got 1"):
        a_job(2, [dimension], items=items, panel=UNCERTAIN, orders="given")


@pytest.mark.parametrize("chosen", ["difference", "uncertainty"])
def test_of_the_audits_items_everybody_is_asked(chosen):
    agreed = {(number, agent, 0): 3 for number in range(2) for agent in range(2)}
    job = a_job(3, panel={"combine": "mean", "escalate": {chosen: 1, "audit": 0.2}}, replicates=2)
    rule = job.panel_of(job.dimensions[0])
    ids = [f"item-{n}" for n in range(2000)]
    drawn = [name for name in ids if is_audited(rule, name)]
    assert len(drawn) / len(ids) == pytest.approx(0.2, abs=0.03)
    third = Unit(0, 0, 2, 0)
    asked = [name for name in ids if is_needed(job, stages_of(job), board_of(job, agreed), third, name)]
    assert asked == drawn
    plain = a_job(3, panel={"combine": "mean", "escalate": {"difference": 1}})
    assert not any(is_audited(plain.panel_of(plain.dimensions[0]), name) for name in ids)


@pytest.mark.parametrize("panel, says", [
    ({"combine": "majority", "escalate": {"audit": 0.1}}, "audit belongs to a difference or an uncertainty"),
    ({"combine": "mean", "escalate": {"uncertainty": 0.3}}, r"uncertainty \(d\): .*must be at least 2, got 1"),
    ({"combine": "mean", "escalate": {"difference": 1, "uncertainty": 0.3}}, "got both: 1 and 0.3"),
    ({"combine": "worst", "escalate": {"uncertainty": 0.3}}, "escalate.uncertainty belongs to a mean or median"),
    ({"combine": "mean", "threshold": 3, "escalate": {"uncertainty": 1}}, "escalate.uncertainty belongs to a mean"),
    ({"combine": "mean", "escalate": {"uncertainty": -0.1}}, "greater than or equal to 0"),
    ({"combine": "mean", "escalate": {"uncertainty": float("inf")}}, "finite"),
    ({"combine": "mean", "escalate": {"difference": 1, "audit": 1.0}}, "less than 1"),
    ({"combine": "mean", "escalate": True}, "every judge moves a panel's mean"),
    ({"combine": "majority", "escalate": {"difference": 1}}, "belongs to a mean or median"),
    ({"combine": "mean", "threshold": 3, "escalate": {"difference": 1}}, "belongs to a mean or median"),
    ({"combine": "mean", "threshold": 1}, "must be above 1 and at most 4"),
    ({"combine": "mean", "threshold": 4.5}, "must be above 1 and at most 4"),
    ({"combine": "majority", "escalate": {"differenc": 1}}, "differenc"),
    ({"combine": "mean", "escalate": {"difference": 0}}, "greater than 0"),
])  # fmt: skip
def test_a_panel_that_cannot_be_is_refused(panel, says):
    with pytest.raises(ValidationError, match=says):
        a_job(3, panel=panel)


def test_a_threshold_of_0_is_a_threshold():
    scale = {"min": -2, "max": 2}
    with pytest.raises(ValidationError, match="without a threshold"):
        a_job(3, [{"id": "d", "instructions": "x", "scale": scale}], panel={
            "combine": "mean", "threshold": 0, "escalate": {"difference": 1}
        })  # fmt: skip


def test_one_judge_alone_escalates_nowhere():
    with pytest.raises(ValidationError, match="at least 2 judges"):
        a_job(1, panel={"combine": "worst", "escalate": True})
    assert PanelRule.model_validate({"combine": "worst", "escalate": False}).escalate is None
