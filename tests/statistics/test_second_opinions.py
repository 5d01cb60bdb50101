"""Statistics against published examples and against second implementations, to 1e-9 where both are exact.

Coefficients of agreement are in test_coefficients.py; docs/statistics.md lists all of them.
"""

import itertools

import choix
import numpy as np
import pytest
from scipy import optimize, stats
from statsmodels.regression.linear_model import OLS, WLS
from statsmodels.stats.oneway import anova_oneway
from statsmodels.stats.weightstats import DescrStatsW, ttest_ind

from dicast.app.analysis import agreement
from dicast.app.analysis.agreement import differences, icc_sums, limit_sums
from dicast.app.analysis.calibration import learn
from dicast.app.analysis.combining import dawid_skene
from dicast.app.analysis.estimates import Estimate
from dicast.app.analysis.groups import equal_means_p, holm
from dicast.app.analysis.means import Deviation, deviation, mean
from dicast.app.analysis.powered import powered_difference, powered_mean, powered_share
from dicast.app.analysis.preferences import bradley_terry
from dicast.app.analysis.sequences import FRACTIONS, Capital

EXACT = 1e-9
SEEDS = range(3)


def exactly(value):
    return pytest.approx(value, abs=EXACT)


# J. M. Bland and D. G. Altman (1986): peak flow by the large and by the mini meter. The mean difference is -2.1, the
# standard deviation 38.8; with 1.96 of it in place of their 2 the limits are -78.1 and 73.9.
LARGE = [494, 395, 516, 434, 476, 557, 413, 442, 650, 433, 417, 656, 267, 478, 178, 423, 427]
MINI = [512, 430, 520, 428, 500, 600, 364, 380, 658, 445, 432, 626, 260, 477, 259, 350, 451]


def test_limits_of_agreement_of_the_published_example():
    found = differences(np.array(LARGE, float), np.array(MINI, float), np.random.default_rng(0))
    told = [found.bias.value, found.lower_limit.value, found.upper_limit.value]
    assert told == pytest.approx([-2.1, -2.1 - 1.96 * 38.8, -2.1 + 1.96 * 38.8], abs=0.1)


@pytest.mark.parametrize("seed", SEEDS)
def test_bias_and_limits_are_a_second_librarys(seed):
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(2, 50))
    found, second = differences(x, y, rng), DescrStatsW(x - y, ddof=1)
    assert found.bias.value == exactly(second.mean)
    assert found.lower_limit.value == exactly(second.mean - 1.96 * second.std)
    weights = np.bincount(rng.integers(0, 50, 50), minlength=50)
    drawn, sums = np.repeat(x - y, weights), limit_sums(x - y, 1.96)
    assert sums.evaluate(weights[None, :] @ sums.columns)[0] == exactly(drawn.mean() + 1.96 * drawn.std(ddof=1))


# D. G. Altman, "Practical Statistics for Medical Research" (1991), section 14.3: two radiologists on 85 xeromammograms;
# kappa is 0.47, with linear weights 0.57.
XEROMAMMOGRAMS = np.array([[21, 12, 0, 0], [4, 17, 1, 0], [3, 9, 15, 2], [0, 0, 0, 1]])


@pytest.mark.parametrize("weighting, published", [("none", 0.47), ("linear", 0.57)])
def test_weighted_kappa_of_the_published_example(weighting, published):
    a, b = (side.astype(float) for side in np.repeat(np.indices((4, 4)).reshape(2, -1), XEROMAMMOGRAMS.ravel(), axis=1))
    found = agreement.cohen(a, b, np.arange(4.0), weighting, np.random.default_rng(0))
    assert isinstance(found, Estimate) and found.value == pytest.approx(published, abs=5e-3)


@pytest.mark.parametrize("seed", SEEDS)
def test_icc_is_that_of_the_analysis_of_variance(seed):
    """Mean squares from two regressions on dummies, by statsmodels."""
    scores = np.random.default_rng(seed).normal(size=(20, 1)) + np.random.default_rng(seed + 9).normal(size=(20, 4))
    n, k = scores.shape
    items, raters = np.eye(n)[np.repeat(np.arange(n), k)], np.eye(k)[np.tile(np.arange(k), n)][:, 1:]
    left = [OLS(scores.ravel(), design).fit().ssr for design in (np.ones((n * k, 1)), items, np.c_[items, raters])]
    error = left[2] / ((n - 1) * (k - 1))
    between, of_raters = (left[0] - left[1]) / (n - 1), (left[1] - left[2]) / (k - 1)
    single = (between - error) / (between + (k - 1) * error + k * (of_raters - error) / n)
    of_mean = (between - error) / (between + (of_raters - error) / n)
    assert icc_sums(scores, of_mean=False).value == exactly(single)
    assert icc_sums(scores, of_mean=True).value == exactly(of_mean)


@pytest.mark.parametrize("seed", SEEDS)
def test_isotonic_maps_are_a_second_librarys_and_the_exact_formula(seed):
    """T. Robertson, F. T. Wright and R. L. Dykstra, "Order Restricted Statistical Inference" (1988), max-min formula:
    the fit at x is the largest, over where a block may begin, of the smallest mean of blocks that reach x."""
    rng = np.random.default_rng(seed)
    x = rng.integers(1, 8, 60).astype(float)
    y = x + rng.normal(0, 3, 60)
    found = learn(x, y, "isotonic")
    levels, codes = np.unique(x, return_inverse=True)
    counts = np.bincount(codes)
    means = np.bincount(codes, weights=y) / counts
    second = optimize.isotonic_regression(means, weights=counts).x

    def block(a, b):
        return np.average(means[a : b + 1], weights=counts[a : b + 1])

    size = len(levels)
    formula = [max(min(block(a, b) for b in range(at, size)) for a in range(at + 1)) for at in range(size)]
    np.testing.assert_allclose(found.y, second, atol=EXACT)
    np.testing.assert_allclose(found.y, formula, atol=EXACT)
    slope = OLS(y, np.c_[np.ones(60), x]).fit().params
    np.testing.assert_allclose(learn(x, y, "linear").y, slope[0] + slope[1] * levels[[0, -1]], atol=EXACT)


def rated_some(seed, items=400, rated=80):
    rng = np.random.default_rng(seed)
    truth = rng.normal(3, 1, items)
    judges, people = truth + rng.normal(0.4, 0.5, items), truth + rng.normal(0, 0.4, items)
    return judges, np.where(np.arange(items) < rated, people, np.nan)


def predicted(judges, people, weight):
    """The estimator of Angelopoulos, Duchi and Zrnic (2023), written down once more."""
    seen = ~np.isnan(people)
    return weight * judges.mean() + (people[seen] - weight * judges[seen]).mean()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("weight", [0.0, 0.6, 1.0])
def test_what_people_would_have_said_is_the_published_formula(seed, weight):
    judges, people = rated_some(seed)
    assert powered_mean(judges, people, weight=weight).both.value == exactly(predicted(judges, people, weight))


@pytest.mark.parametrize("seed", SEEDS)
def test_the_tuned_weight_leaves_the_least_variance_and_differences_and_shares_are_means(seed):
    judges, people = rated_some(seed)
    found = powered_mean(judges, people)
    assert found.both.value == exactly(predicted(judges, people, found.judges_weight))
    others, of_others = rated_some(seed + 50)
    paired = powered_difference((judges, others), (people, of_others), paired=True)
    assert paired.both.value == exactly(predicted(judges - others, people - of_others, paired.judges_weight))
    apart = powered_difference((judges, others), (people, of_others), paired=False)
    each = [powered_mean(judges, people), powered_mean(others, of_others)]
    assert apart.both.value == exactly(each[0].both.value - each[1].both.value)
    over = np.where(np.isnan(people), np.nan, people >= 3)
    share = powered_share(judges, people, 3)
    assert share.both.value == exactly(predicted(judges, over, share.judges_weight))
    alone, second = found.people_alone, DescrStatsW(people[~np.isnan(people)])
    assert (alone.low, alone.high) == (exactly(second.tconfint_mean()[0]), exactly(second.tconfint_mean()[1]))


@pytest.mark.parametrize("seed", SEEDS)
def test_means_are_second_librarys(seed):
    rng = np.random.default_rng(seed)
    scores = rng.normal(size=60)
    found, (low, high) = mean(scores), DescrStatsW(scores).tconfint_mean()
    assert (found.value, found.low, found.high) == (exactly(scores.mean()), exactly(low), exactly(high))
    clusters = rng.permutation(np.repeat(np.arange(20), 3))
    fit = OLS(scores, np.ones(60)).fit()
    of_clusters = np.array([scores[clusters == at].mean() for at in range(20)])
    assert deviation(scores, clusters).error == exactly(stats.sem(of_clusters))
    weights = rng.uniform(0.5, 2, 60)
    assert deviation(scores, None, weights).value == exactly(WLS(scores, np.ones(60), weights).fit().params[0])
    assert deviation(scores).error == exactly(fit.bse[0])
    apart = deviation(scores[:30]).minus(deviation(scores[30:]))
    assert apart.value / apart.error == exactly(ttest_ind(scores[:30], scores[30:], usevar="unequal")[0])


def test_holm_of_a_published_example():
    """S. Holm, "A simple sequentially rejective multiple test procedure", Scandinavian Journal of Statistics 6 (1979):
    the smallest p times the number of all, the next times one less, and never below one before. The four values are
    the worked example of Wikipedia's "Holm-Bonferroni method": only the first and the last are below 0.05."""
    corrected = holm(np.array([0.01, 0.04, 0.03, 0.005]))
    np.testing.assert_allclose(corrected, [0.03, 0.06, 0.06, 0.02], atol=EXACT)


# A. Agresti, "Categorical Data Analysis" (2002), table 10.10: the American League in 1987, won (rows) against lost; and
# the strengths after Bradley and Terry, Baltimore being 0.
TEAMS = ("Milwaukee", "Detroit", "Toronto", "New York", "Boston", "Cleveland", "Baltimore")
WON = np.array([
    [0, 7, 9, 7, 7, 9, 11], [6, 0, 7, 5, 11, 9, 9], [4, 6, 0, 7, 7, 8, 12], [6, 8, 6, 0, 6, 7, 10],
    [6, 2, 6, 7, 0, 7, 12], [4, 4, 5, 6, 6, 0, 6], [2, 4, 1, 3, 1, 7, 0],
])  # fmt: skip
STRENGTHS = [1.581, 1.436, 1.294, 1.248, 1.108, 0.684, 0.0]


def games(won):
    first, second = np.nonzero(won)
    return np.repeat(first, won[first, second]), np.repeat(second, won[first, second])


def test_bradley_terry_of_the_published_example():
    winner, loser = games(WON)
    names = np.array(TEAMS)
    found = bradley_terry(
        names[winner], names[loser], np.ones(len(winner)), np.arange(len(winner)), np.random.default_rng(0)
    )
    strengths = dict(zip(found.names, [one.value for one in found.strengths], strict=True))
    told = [strengths[name] - strengths["Baltimore"] for name in TEAMS]
    assert told == pytest.approx(STRENGTHS, abs=1.5e-3)


@pytest.mark.parametrize("seed", SEEDS)
def test_strengths_solve_the_likelihoods_equations(seed):
    """Everybody has won as often as expected: with choix's own iteration this holds to its tolerance, and the strengths
    are those of its general optimizer to that of theirs."""
    won = np.random.default_rng(seed).integers(1, 9, (5, 5)) * (1 - np.eye(5, dtype=int))
    a, b = games(won)
    found = bradley_terry(a, b, np.ones(len(a)), np.arange(len(a)), np.random.default_rng(0))
    values = np.array([one.value for one in found.strengths])
    expected = (won + won.T) / (1 + np.exp(values[None, :] - values[:, None])) * (1 - np.eye(5))
    np.testing.assert_allclose(expected.sum(axis=1), won.sum(axis=1), atol=1e-5)
    second = choix.opt_pairwise(5, list(zip(a, b, strict=True)), tol=1e-10)
    np.testing.assert_allclose(values, second - second.mean(), atol=1e-5)


@pytest.mark.parametrize("seed", SEEDS)
def test_dawid_skene_is_the_published_algorithm(seed):
    """The steps of Dawid and Skene (1979) in plain loops."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, 3, 60)
    given = np.where(rng.random((60, 4)) < 0.7, truth[:, None], rng.integers(0, 3, (60, 4)))
    given[rng.random((60, 4)) < 0.1] = -1
    given[:, 0] = np.where(given[:, 0] < 0, 0, given[:, 0])
    said = np.array([[[given[i, k] == b for b in range(3)] for k in range(4)] for i in range(60)], dtype=float)
    t = said.sum(axis=1) / said.sum(axis=(1, 2))[:, None]
    for _ in range(25):
        p = [sum(t[i, j] for i in range(60)) / 60 for j in range(3)]
        pi = np.array([[[sum(t[i, j] * said[i, k, b] for i in range(60)) for b in range(3)] for j in range(3)]
                       for k in range(4)])  # fmt: skip
        pi /= pi.sum(axis=2, keepdims=True)
        likelihood = [[p[j] * np.prod([pi[k, j, given[i, k]] for k in range(4) if given[i, k] >= 0]) for j in range(3)]
                      for i in range(60)]  # fmt: skip
        t = np.array(likelihood) / np.sum(likelihood, axis=1)[:, None]
    found = dawid_skene(given, 3, rounds=25)
    np.testing.assert_allclose(found.probabilities, t, atol=EXACT)
    np.testing.assert_allclose(found.errors, pi, atol=EXACT)


@pytest.mark.parametrize("population", [None, 40])
def test_capital_is_the_published_product(population):
    """Waudby-Smith and Ramdas (2024), with replacement and without: bet after bet in a loop."""
    scores, supposed = np.random.default_rng(1).random(30), 0.45
    most = {}
    for side in (1, -1):
        wealth, best = np.ones(len(FRACTIONS)), 0.0
        for at, score in enumerate(scores):
            left = 1 if population is None else population - at
            fair = supposed if population is None else (population * supposed - scores[:at].sum()) / left
            stake = FRACTIONS / (fair if side == 1 else 1 - fair)
            wealth = wealth * (1 + stake * side * (score - fair))
            best = max(best, float(np.log(wealth.mean())))
        most[side] = best
    found = Capital(supposed, population)
    for page in itertools.batched(scores, 7) if hasattr(itertools, "batched") else np.array_split(scores, 5):
        found.feed(np.array(page))
    assert (found.above, found.below) == (exactly(most[1]), exactly(most[-1]))


def test_equal_means_by_welch_are_those_of_statsmodels():
    rng = np.random.default_rng(8)
    for count in (2, 3, 6):
        samples = [rng.normal(at / 10, 1 + at, 12 + 5 * at) for at in range(count)]
        ours = equal_means_p([Deviation(s.mean(), s.std(ddof=1) / np.sqrt(len(s)), len(s)) for s in samples])
        assert ours == pytest.approx(anova_oneway(samples, use_var="unequal", welch_correction=True).pvalue, abs=1e-9)
