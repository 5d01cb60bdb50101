"""Variance components: planted ones are found, and statsmodels' mixed model finds the same."""

import numpy as np
import pytest
from statsmodels.regression.mixed_linear_model import MixedLM

from dicast.app.analysis.components import (
    crossed_components,
    dimension_components,
    judge_components,
    people_components,
    rater_components,
)
from dicast.app.analysis.scores import DimensionScores, JobScores, People
from dicast.app.domain.report import ReportDimension

SPEC = ReportDimension(id="clear", scale_min=1, scale_max=5)


def planted(rng, items=400, judges=5, rounds=2, *, item=1.0, judge=0.3, both=0.2, residual=0.4):
    draw = rng.normal
    cells = (
        np.sqrt(item) * draw(size=(items, 1))
        + np.sqrt(judge) * draw(size=judges)
        + np.sqrt(both) * draw(size=(items, judges))
    )
    return cells[..., None] + np.sqrt(residual) * draw(size=(items, judges, rounds))


def test_planted_variances_are_found_and_one_replicate_joins_the_last_two():
    rng = np.random.default_rng(1)
    found = [crossed_components(planted(rng), ["item", "judge"]) for _ in range(40)]
    means = {name: np.mean([one[name] for one in found]) for name in found[0]}
    assert list(means) == ["item", "judge", "item x judge", "residual"]
    assert means.pop("judge") == pytest.approx(0.3, rel=0.35)  # of 5 judges, 40 times
    assert list(means.values()) == pytest.approx([1.0, 0.2, 0.4], rel=0.03)
    single = crossed_components(planted(rng, 4000, rounds=1), ["item", "judge"])
    assert list(single) == ["item", "judge", "residual"] and single["residual"] == pytest.approx(0.6, rel=0.05)


def test_statsmodels_finds_the_same_in_balanced_data():
    """Where no estimate is below 0, REML of balanced data is the analysis of variance."""
    items, judges, rounds = 30, 4, 2
    scores = planted(np.random.default_rng(2), items, judges, rounds, judge=0.5)
    at = np.indices(scores.shape).reshape(3, -1)
    rows = {"y": scores.ravel(), "item": at[0], "judge": at[1], "both": at[0] * judges + at[1]}
    parts = {name: np.eye(rows[name].max() + 1)[rows[name]] for name in ("item", "judge", "both")}
    import pandas as pd

    frame = pd.DataFrame(rows)
    formulas = {name: f"0 + C({name})" for name in parts}
    fit = MixedLM.from_formula("y ~ 1", frame, groups=np.ones(len(frame)), vc_formula=formulas, re_formula="0").fit()
    theirs = dict(zip(fit.model.exog_vc.names, fit.vcomp, strict=True)) | {"residual": fit.scale}
    ours = crossed_components(scores, ["item", "judge"])
    assert ours["item x judge"] == pytest.approx(theirs["both"], rel=0.01)
    for name in ("item", "judge", "residual"):
        assert ours[name] == pytest.approx(theirs[name], rel=0.01)


def test_three_facets_have_all_their_interactions():
    rng = np.random.default_rng(3)
    shape = (300, 6, 5)
    scores = rng.normal(size=(300, 1, 1)) + 0.7 * rng.normal(size=(1, 6, 1)) + 0.5 * rng.normal(size=(300, 1, 5))
    scores = scores + 0.3 * rng.normal(size=shape)
    found = crossed_components(scores[..., None], ["item", "judge", "dimension"])
    assert list(found) == [
        "item", "judge", "dimension", "item x judge", "item x dimension", "judge x dimension", "residual",
    ]  # fmt: skip
    assert found["item"] == pytest.approx(1, rel=0.2) and found["item x dimension"] == pytest.approx(0.25, rel=0.15)
    assert found["residual"] == pytest.approx(0.09, rel=0.05)
    assert max(abs(found[name]) for name in ("dimension", "item x judge", "judge x dimension")) < 0.02


def test_raters_with_gaps_are_compared_within_items():
    rng = np.random.default_rng(4)
    people = planted(rng, 2000, 6, 1, both=0.0)[..., 0]
    whole = crossed_components(people[..., None], ["item", "judge"])
    balanced = rater_components(people)
    assert balanced["rater"] == pytest.approx(whole["judge"]) and balanced["residual"] == pytest.approx(
        whole["residual"]
    )
    assert balanced["item"] == pytest.approx(whole["item"], rel=1e-3)
    people[rng.random(people.shape) < 0.5] = np.nan
    gappy = rater_components(people)
    assert list(gappy.values()) == pytest.approx(list(balanced.values()), rel=0.15)
    apart = np.full((40, 2), np.nan)
    apart[:20, 0] = apart[20:, 1] = rng.normal(size=20)
    assert rater_components(apart) is None


def test_a_report_tells_what_more_judges_and_replicates_would_buy():
    scores = planted(np.random.default_rng(5), 200, 4, 3)
    people = People(np.arange(60), ("ada", "ben"), scores[:60, :2, 0])
    of = DimensionScores(SPEC, scores, people)
    job = JobScores(200, tuple("abcd"), (of,))
    judged = judge_components(job, of)
    found = {part.source: part.variance.value for part in judged.components}
    present, more_judges, more_replicates, more_items = judged.designs
    assert [one.design for one in judged.designs] == [
        "as it is", "twice the judges", "twice the replicates", "twice the items",
    ]  # fmt: skip
    error = found["item x judge"] / 4 + found["residual"] / 12
    assert present.generalizability == pytest.approx(found["item"] / (found["item"] + error))
    assert present.dependability == pytest.approx(found["item"] / (found["item"] + error + found["judge"] / 4))
    assert present.error_of_mean == pytest.approx(np.sqrt(found["judge"] / 4 + (found["item"] + error) / 200))
    assert more_judges.generalizability > more_replicates.generalizability > present.generalizability
    assert more_items.generalizability == present.generalizability
    assert more_items.error_of_mean < present.error_of_mean
    assert sum(part.share for part in judged.components) == pytest.approx(1)
    rated = people_components(of)
    assert [one.design for one in rated.designs] == ["as it is", "twice the raters", "twice the items"]


def test_what_cannot_be_split_is_not_and_says_why():
    rng = np.random.default_rng(6)
    scores = planted(rng, 15, 3, 1)
    of = DimensionScores(SPEC, scores)
    assert "it takes 20 items" in judge_components(JobScores(15, tuple("abc"), (of,)), of).reason
    single = DimensionScores(SPEC, scores[:, :1])
    assert judge_components(JobScores(15, ("a",), (single,)), single) is None
    assert people_components(of) is None and dimension_components(JobScores(15, tuple("abc"), (of,))) is None
    other = DimensionScores(SPEC.model_copy(update={"id": "b", "scale_max": 10}), scores)
    assert dimension_components(JobScores(15, tuple("abc"), (of, other))) is None
    again = DimensionScores(SPEC.model_copy(update={"id": "b"}), planted(rng, 40, 1, 2))
    pair = JobScores(40, ("a",), (DimensionScores(SPEC, planted(rng, 40, 1, 2)), again))
    assert [part.source for part in dimension_components(pair).components] == [
        "item", "dimension", "item x dimension", "residual",
    ]  # fmt: skip
