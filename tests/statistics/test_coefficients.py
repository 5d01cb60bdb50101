"""Each coefficient against a published worked example, and against a second library on random ratings."""

import numpy as np
import pandas as pd
import pytest
from krippendorff import alpha as second_alpha
from scipy import stats
from sklearn.metrics import cohen_kappa_score
from statsmodels.stats.inter_rater import cohens_kappa, fleiss_kappa

from dicast.app.analysis import agreement
from dicast.app.analysis.agreement import (
    alpha,
    alpha_sums,
    correlation,
    icc,
    icc_sums,
    interval_alpha_sums,
    kendall_sums,
    pearson_sums,
    spearman_sums,
)
from dicast.app.analysis.estimates import Estimate, Unknown
from tests.statistics.worlds import LEVELS, scores

EXACT = 1e-9
_ = np.nan


def chance(seed=0):
    return np.random.default_rng(seed)


def value(result):
    assert isinstance(result, Estimate), result
    assert result.low < result.value < result.high
    return result.value


# K. Krippendorff, "Computing Krippendorff's Alpha-Reliability" (2011), section E: four observers, twelve units.
KRIPPENDORFF = np.array(
    [
        [1, 2, 3, 3, 2, 1, 4, 1, 2, _, _, _],
        [1, 2, 3, 3, 2, 2, 4, 1, 2, 5, _, 3],
        [_, 3, 3, 3, 2, 3, 4, 2, 2, 5, 1, _],
        [1, 2, 3, 3, 2, 4, 4, 1, 2, 5, 1, _],
    ]
).T


@pytest.mark.parametrize("level, published", [("nominal", 0.743), ("ordinal", 0.815), ("interval", 0.849)])
def test_alpha_of_the_published_example(level, published):
    assert value(alpha(KRIPPENDORFF, LEVELS, level, chance())) == pytest.approx(published, abs=5e-4)


# J. L. Fleiss, B. Levin, M. C. Paik, "Statistical Methods for Rates and Proportions" (2003), table 18.1: kappa 0.68.
DIAGNOSES = np.array([[75, 1, 4], [5, 4, 1], [0, 0, 10]])
FIRST, SECOND = (side.astype(float) for side in np.repeat(np.indices((3, 3)).reshape(2, -1), DIAGNOSES.ravel(), axis=1))


def test_cohens_kappa_of_the_published_example():
    assert value(agreement.cohen(FIRST, SECOND, np.arange(3.0), "none", chance())) == pytest.approx(0.68, abs=5e-3)


# J. L. Fleiss, "Measuring nominal scale agreement among many raters", Psychological Bulletin 76 (1971); the ten
# subjects by fourteen raters are the worked example of Wikipedia's "Fleiss' kappa": 0.210.
FLEISS = [
    [0, 0, 0, 0, 14], [0, 2, 6, 4, 2], [0, 0, 3, 5, 6], [0, 3, 9, 2, 0], [2, 2, 8, 1, 1],
    [7, 7, 0, 0, 0], [3, 2, 6, 3, 0], [2, 5, 3, 2, 2], [6, 5, 2, 1, 0], [0, 2, 2, 3, 7],
]  # fmt: skip


def test_fleiss_kappa_of_the_published_example():
    ratings = np.array([np.repeat(LEVELS, row) for row in FLEISS])
    assert value(agreement.fleiss(ratings, LEVELS, chance())) == pytest.approx(0.210, abs=5e-4)


# P. E. Shrout and J. L. Fleiss (1979), tables 2 and 4: six targets by four judges, ICC(2,1) 0.29, ICC(2,4) 0.62.
SHROUT = np.array([[9, 2, 5, 8], [6, 1, 3, 2], [8, 4, 6, 8], [7, 1, 2, 6], [10, 5, 6, 9], [6, 2, 4, 7]], dtype=float)


@pytest.mark.parametrize("of_mean, published", [(False, 0.29), (True, 0.62)])
def test_icc_of_the_published_example(of_mean, published):
    assert icc_sums(SHROUT, of_mean=of_mean).value == pytest.approx(published, abs=5e-3)


def test_correlations_of_published_examples():
    # F. J. Anscombe, "Graphs in Statistical Analysis" (1973), first set: r = 0.816.
    x = np.array([10, 8, 13, 9, 11, 14, 6, 4, 12, 7, 5.0])
    y = np.array([8.04, 6.95, 7.58, 8.81, 8.33, 9.96, 7.24, 4.26, 10.84, 4.82, 5.68])
    assert value(correlation(x, y, "pearson", chance())) == pytest.approx(0.816, abs=5e-4)
    # Wikipedia, "Spearman's rank correlation coefficient": IQ and hours of television, -29/165.
    iq = np.array([106, 86, 100, 101, 99, 103, 97, 113, 112, 110.0])
    hours = np.array([7, 0, 27, 50, 28, 29, 20, 12, 6, 17.0])
    assert value(correlation(iq, hours, "spearman", chance())) == pytest.approx(-29 / 165, abs=EXACT)
    # The same ten pairs by counting: 20 concordant pairs and 25 discordant ones.
    assert value(correlation(iq, hours, "kendall", chance())) == pytest.approx(-5 / 45, abs=EXACT)


def drawn_value(sums, weights):
    return sums.evaluate(weights @ sums.columns)[0]


@pytest.mark.parametrize("seed", range(5))
def test_the_sums_are_the_libraries_on_resampled_ratings(seed):
    """A weight of 2 is an item that is there twice: the resamples' formulas against libraries on the drawn items."""
    rng = chance(seed)
    ratings = scores(rng, 60, 3)
    weights = np.bincount(rng.integers(0, 60, 60), minlength=60)
    drawn, row = np.repeat(ratings, weights, axis=0), weights[None, :].astype(float)
    x, y, counts = drawn[:, 0], drawn[:, 1], (ratings[:, :, None] == LEVELS).sum(axis=1).astype(float)
    used = counts.any(axis=0)
    close = pytest.approx
    assert drawn_value(pearson_sums(*ratings[:, :2].T), row) == close(stats.pearsonr(x, y).statistic, abs=EXACT)
    assert drawn_value(spearman_sums(*ratings[:, :2].T), row) == close(stats.spearmanr(x, y).statistic, abs=EXACT)
    assert drawn_value(kendall_sums(*ratings[:, :2].T), row) == close(stats.kendalltau(x, y).statistic, abs=EXACT)
    for weighting in ("none", "linear", "quadratic"):
        mine = drawn_value(
            agreement.cohen_sums(*(ratings[:, :2].T.astype(int) - 1), agreement.penalties(5, weighting)), row
        )
        name = None if weighting == "none" else weighting
        assert mine == close(cohen_kappa_score(x, y, weights=name, labels=LEVELS), abs=EXACT)
    table = (drawn[:, :, None] == LEVELS).sum(axis=1)
    assert drawn_value(agreement.fleiss_sums(counts), row) == close(fleiss_kappa(table), abs=EXACT)
    for level in ("nominal", "ordinal"):
        expected = second_alpha(value_counts=table[:, used], value_domain=LEVELS[used], level_of_measurement=level)
        assert drawn_value(alpha_sums(counts[:, used], level), row) == close(expected, abs=EXACT)
    assert drawn_value(interval_alpha_sums(ratings), row) == close(
        second_alpha(reliability_data=drawn.T, level_of_measurement="interval"), abs=EXACT
    )


@pytest.mark.parametrize("seed", range(3))
def test_alpha_with_missing_ratings_is_the_librarys(seed):
    ratings = scores(chance(seed), 80, 4, missing=0.4)
    ratings = ratings[(~np.isnan(ratings)).sum(axis=1) >= 2]
    mine = interval_alpha_sums(ratings).value
    assert mine == pytest.approx(second_alpha(reliability_data=ratings.T, level_of_measurement="interval"), abs=EXACT)
    counts = (ratings[:, :, None] == LEVELS).sum(axis=1).astype(float)
    mine = alpha_sums(counts[:, counts.any(axis=0)], "ordinal").value
    assert mine == pytest.approx(second_alpha(reliability_data=ratings.T, level_of_measurement="ordinal"), abs=EXACT)


@pytest.mark.filterwarnings("ignore:The inplace keyword")  # pingouin's, of pandas
@pytest.mark.parametrize("seed", range(3))
def test_kappa_and_icc_are_a_second_librarys(seed):
    ratings = scores(chance(seed), 50, 3)
    x, y = ratings[:, 0], ratings[:, 1]
    table = np.histogram2d(x, y, bins=np.arange(0.5, 6))[0]
    for weighting in ("none", "linear", "quadratic"):
        second = cohens_kappa(table, wt=None if weighting == "none" else weighting).kappa
        assert value(agreement.cohen(x, y, LEVELS, weighting, chance())) == pytest.approx(second, abs=EXACT)
    long = pd.DataFrame(ratings).reset_index().melt("index", var_name="rater", value_name="score")
    pingouin = pytest.importorskip("pingouin", reason="pip install -e .[references]")
    second = pingouin.intraclass_corr(long, targets="index", raters="rater", ratings="score").set_index("Type")["ICC"]
    assert value(icc(ratings, chance())) == pytest.approx(second.iloc[1], abs=EXACT)
    assert value(icc(ratings, chance(), of_mean=True)) == pytest.approx(second.iloc[4], abs=EXACT)


def test_the_base_rate_is_the_share_of_the_commonest_score():
    assert agreement.base_rate(np.array([1, 1, 1, np.nan, 5])) == 0.75
    assert np.isnan(agreement.base_rate(np.array([np.nan])))


SAME, TWO = np.full((40, 3), 4.0), scores(chance(), 2, 3)
ALONE = scores(chance(), 40, 1)
LATE = np.where(np.arange(40)[:, None] < 38, np.nan, scores(chance(), 40, 3))


@pytest.mark.parametrize("ratings", [SAME, TWO, ALONE, LATE], ids=["all equal", "two items", "one rater", "two rated"])
def test_what_cannot_be_said_is_not_a_number(ratings):
    other = ratings[:, 1] if ratings.shape[1] > 1 else np.full(len(ratings), np.nan)
    results = [
        *(alpha(ratings, LEVELS, level, chance()) for level in ("nominal", "ordinal", "interval")),
        *(agreement.cohen(ratings[:, 0], other, LEVELS, w, chance()) for w in ("none", "linear", "quadratic")),
        *(correlation(ratings[:, 0], other, kind, chance()) for kind in ("pearson", "spearman", "kendall")),
        agreement.fleiss(ratings, LEVELS, chance()),
        icc(ratings, chance()),
        icc(ratings, chance(), of_mean=True),
    ]
    assert all(isinstance(result, Unknown) and result.reason for result in results)
    assert str(results[0]).startswith("cannot be said, because ")


def test_perfect_agreement_has_no_interval():
    ratings = np.repeat(scores(chance(), 40, 1), 2, axis=1)
    for result in (alpha(ratings, LEVELS, "ordinal", chance()), icc(ratings, chance())):
        assert isinstance(result, Unknown)
        assert "all 40 items say the same (1)" in result.reason


def test_means_are_no_levels():
    result = agreement.cohen(np.full(30, 2.5), np.full(30, 2.0), LEVELS, "linear", chance())
    assert isinstance(result, Unknown)
    assert "none of the scale's levels" in result.reason


def test_many_items_keep_their_interval_and_their_time():
    """The standard error of part of the items, scaled, is that of all."""
    quality, errors = chance().normal(size=20_000), chance(1).normal(size=(2, 20_000))
    result = correlation(*(quality + errors), "pearson", chance())
    assert isinstance(result, Estimate)
    assert result.items == 20_000
    z = 1.96 / np.sqrt(20_000)  # Fisher's, for normal scores
    assert (np.arctanh(result.high) - np.arctanh(result.low)) / 2 == pytest.approx(z, rel=0.1)
