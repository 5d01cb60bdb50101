"""Do intervals hold for the population that they name? `python -m lab.statistics.populations --runs 1000`

Raters: 1, 2, 3 or 10 people whose strictness has a standard deviation of 0.3 (or none) rate 200 of 600 texts: each all
of them, three in five of them, or each text one person of several. Counted is how often the 95 % interval of people's
mean holds what people in general would say (that of two people may hold more often), and what these would. Items: of
300 texts 30, 100, 250 or all are rated, and the interval speaks of these 300. Maps: a calibration learned from 30, 100
or 300 rated texts is applied to 1,200 others; counted is how often the calibrated mean's interval holds people's, with
and without the map's error. Learned: people's mean by panels whose weights are learned, on 600 texts.
Chances: people's mean of samples that were drawn with very unlike probabilities.

Clusters: 1,200 texts belong to 60 questions, of equal or of very unlike sizes. Questions differ in how good their texts
are, how far judges err on them, and how alike judges and people are there. People rate 50, 200 or all texts. Counted is
how often each 95 % interval holds what very many *other* questions would show, by question and, as earlier versions had
it, by text. It fails unless those by question hold in 93 to 97 % (with 50 rated 91 to 99 %, and three standard errors).
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from dicast.app.analysis.agreement import alpha, judge_with_people
from dicast.app.analysis.calibration import Method, ScoreMap, calibrated_mean, learn, map_errors
from dicast.app.analysis.combining import learned_weights, weighted_mean
from dicast.app.analysis.estimates import Estimate, Floats, Ints, Result
from dicast.app.analysis.means import mean
from dicast.app.analysis.powered import for_raters_alike, powered_mean, rater_spread
from dicast.app.analysis.sampling import draw_weighted
from lab.statistics import simulated
from lab.statistics.simulated import LEVELS

CLUSTERS, ITEMS = 60, 1200
BOUNDS = (1.0, 5.0)
RATED = (50, 200, ITEMS)
SIZES = {"equal": 0.0, "unlike": 0.8}
"""By name: the standard deviation of the logarithm of a question's size."""
OF_CLUSTER = 0.4
"""The share of the variance of quality, and of judges' errors, that belongs to the question."""
TRUTH_CLUSTERS = 40_000


@dataclass(frozen=True, slots=True)
class PopulationRow:
    """How often the intervals of one statistic held, how wide they were in the middle, and how often there was none."""

    case: str
    statistic: str
    rated: int
    held: float
    width: float
    unknown: float
    runs: int
    wanted: bool = True
    wide: bool = False
    """Whether an interval that is wider than it needs to be is none the worse."""

    @property
    def good(self) -> bool:
        low, high = (0.91, 0.99) if self.rated <= 50 else (0.93, 0.97)
        high = 1.0 if self.wide else high
        noise = 3 * (0.05 * 0.95 / self.runs) ** 0.5
        return not self.wanted or (low - noise <= self.held <= high + noise and self.unknown <= 0.02)


def drawn_clusters(clusters: int, items: int, spread: float, rng: np.random.Generator) -> tuple[Floats, Floats, Ints]:
    """The judge's score, three people's (items x 3) and the cluster of each text."""
    size = np.exp(spread * rng.normal(size=clusters))
    counts = np.maximum(np.floor(items * size / size.sum()).astype(int), 1)
    cluster = np.repeat(np.arange(clusters), counts)
    count = len(cluster)

    def partly_shared() -> Floats:
        common = rng.normal(size=clusters)[cluster]
        return np.asarray(OF_CLUSTER**0.5 * common + (1 - OF_CLUSTER) ** 0.5 * rng.normal(size=count))

    quality = partly_shared()
    judge = quality + 0.2 + 0.7 * partly_shared()
    people = quality[:, None] + 0.6 * rng.normal(size=(count, 3))
    cuts = np.array(simulated.EVEN)
    return LEVELS[np.searchsorted(cuts, judge)], LEVELS[np.searchsorted(cuts, people)], cluster


def _of_clusters(
    judge: Floats, people: Floats, cluster: Ints | None, rated: Ints, seed: int, *, agreement: bool = True
) -> dict[str, Result]:
    rng = np.random.default_rng(seed)
    ratings = np.full(len(judge), np.nan)
    ratings[rated] = people[rated].mean(axis=1)
    of_rated = None if cluster is None else cluster[rated]
    powered = powered_mean(judge, ratings, bounds=BOUNDS, clusters=cluster)
    means: dict[str, Result] = {
        "judges' mean": mean(judge, clusters=cluster, bounds=BOUNDS),
        "people's mean": powered.both,
        "people's mean, ratings alone": powered.people_alone,
    }
    if not agreement:
        return means
    against = judge_with_people(judge[rated], people[rated], "ordinal", LEVELS, rng, of_rated)
    return means | {
        "bias": against.differences.bias,
        "correlation with people": against.pearson,
        "kappa with people": against.kappa,
        "people's alpha": alpha(people[rated], LEVELS, "ordinal", rng, of_rated),
    }


def of_clusters(runs: int, seed: int) -> Iterator[PopulationRow]:
    """All rows about clusters, as they are ready."""
    for case, spread in SIZES.items():
        judge, people, _ = drawn_clusters(TRUTH_CLUSTERS, 20 * TRUTH_CLUSTERS, spread, np.random.default_rng(0))
        whole = _of_clusters(judge, people, None, np.arange(len(judge)), 0)
        truth = {name: result.value for name, result in whole.items() if isinstance(result, Estimate)}
        for rated in RATED:
            results: dict[tuple[str, bool], list[Result]] = {}
            for run in range(runs):
                rng = np.random.default_rng((seed, run))
                judge, people, cluster = drawn_clusters(CLUSTERS, ITEMS, spread, rng)
                chosen = np.sort(rng.choice(len(judge), min(rated, len(judge)), replace=False))
                for by_cluster in (True, False):
                    pieces = cluster if by_cluster else None
                    measured = _of_clusters(judge, people, pieces, chosen, run, agreement=by_cluster)
                    for name, result in measured.items():
                        results.setdefault((name, by_cluster), []).append(result)
            for (name, by_cluster), of in sorted(results.items(), key=lambda entry: not entry[0][1]):
                title = f"{case}, by {'question' if by_cluster else 'text'}"
                yield counted(title, name, rated, truth[name], of, wanted=by_cluster)


def counted(
    case: str,
    statistic: str,
    rated: int,
    truth: float,
    results: list[Result],
    *,
    wanted: bool = True,
    wide: bool = False,
) -> PopulationRow:
    """Return the row of these results."""
    told = [result for result in results if isinstance(result, Estimate)]
    held = float(np.mean([result.holds(truth) for result in told])) if told else 0.0
    width = float(np.median([result.width for result in told])) if told else 0.0
    return PopulationRow(case, statistic, rated, held, width, 1 - len(told) / len(results), len(results), wanted, wide)


STRICTNESS = (0.3, 0.0)
RATERS = (1, 2, 3, 10)
DESIGNS = {"all": 1.0, "three in five": 0.6, "one each": 0.0}


def of_raters(runs: int, seed: int) -> Iterator[PopulationRow]:
    """All rows about raters, as they are ready."""
    items, rated = 600, 200
    for apart in STRICTNESS:
        for design, share in DESIGNS.items():
            for raters in RATERS[1 if design != "all" else 0 :]:
                results: dict[str, list[tuple[Result, float]]] = {"people's mean": [], "these people's mean": []}
                for run in range(runs):
                    rng = np.random.default_rng((seed, raters, run))
                    quality = rng.normal(size=items)
                    judge, strictness = quality + 0.7 * rng.normal(size=items), apart * rng.normal(size=raters)
                    people = quality[:, None] + strictness + 0.6 * rng.normal(size=(items, raters))
                    gone = rng.random(people.shape) >= share
                    gone[np.arange(items), rng.integers(0, raters, items)] = False
                    gone[rng.permutation(items)[rated:]] = True
                    people[gone] = np.nan
                    inside = np.flatnonzero(~np.isnan(people).all(axis=1))
                    ratings = np.full(items, np.nan)
                    ratings[inside] = np.nanmean(people[inside], axis=1)
                    weights = (~np.isnan(people[inside]) / (~np.isnan(people[inside])).sum(axis=1)[:, None]).sum(axis=0)
                    these = powered_mean(judge, ratings).both
                    spread = rater_spread(people[inside], judge[inside])
                    results["people's mean"].append((for_raters_alike(these, spread), 0.0))
                    results["these people's mean"].append((these, float(weights @ strictness / weights.sum())))
                for name, of in results.items():
                    shifted = [_shifted(result, truth) for result, truth in of]
                    title = f"{design}, {raters} of sd {apart:g}"
                    yield counted(
                        title, name, rated, 0.0, shifted, wanted=raters > 1 or name != "people's mean", wide=raters == 2
                    )


def _shifted(result: Result, truth: float) -> Result:
    if not isinstance(result, Estimate):
        return result
    return replace(result, value=result.value - truth, low=result.low - truth, high=result.high - truth)


def of_items(runs: int, seed: int) -> Iterator[PopulationRow]:
    """All rows about these very items, as they are ready."""
    items = 300
    for rated in (30, 100, 250, items):
        results: list[Result] = []
        for run in range(runs):
            rng = np.random.default_rng((seed, rated, run))
            quality = rng.normal(size=items)
            judge, people = (
                LEVELS[np.searchsorted(simulated.SKEWED, quality + 0.6 * rng.normal(size=items))] for _ in "jp"
            )
            ratings = np.full(items, np.nan)
            chosen = rng.permutation(items)[:rated]
            ratings[chosen] = people[chosen]
            results.append(
                _shifted(powered_mean(judge, ratings, bounds=BOUNDS, finite=True).both, float(people.mean()))
            )
        yield counted("these 300 items", "people's mean", rated, 0.0, results, wanted=rated < items)


def of_maps(runs: int, seed: int) -> Iterator[PopulationRow]:
    """All rows about calibrated means, as they are ready."""
    items = 1200
    methods: tuple[Method, ...] = ("isotonic", "ordinal", "linear")
    results: dict[tuple[int, str], list[Result]] = {}
    _, everybody = _strict_judge(400_000, np.random.default_rng(0))
    truth = float(everybody.mean())
    for learned_on in (30, 100, 300):
        for run in range(runs):
            rng = np.random.default_rng((seed, learned_on, run))
            judge, people = _strict_judge(learned_on, rng)
            later, _ = _strict_judge(items, rng)
            for method in methods:
                learned = learn(judge, people, method)
                if isinstance(learned, ScoreMap):
                    errors = map_errors(judge, people, learned, rng)
                    for name, of_map in ((method, errors), (f"{method}, map taken as it is", None)):
                        of = results.setdefault((learned_on, name), [])
                        of.append(calibrated_mean(later, learned, of_map, bounds=BOUNDS))
    for (learned_on, name), of in results.items():
        yield counted("calibrated mean", name, learned_on, truth, of, wanted="as it is" not in name)


def _strict_judge(items: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """A strict judge's scores, and the mean of three people."""
    quality = rng.normal(size=items)
    judge = np.searchsorted(simulated.SKEWED, 0.6 * quality - 0.7 + 0.5 * rng.normal(size=items))
    people = np.searchsorted(simulated.SKEWED, quality[:, None] + 0.6 * rng.normal(size=(items, 3)))
    return LEVELS[judge], LEVELS[people].mean(axis=1)


def of_learned(runs: int, seed: int) -> Iterator[PopulationRow]:
    """All rows about people's mean with learned weights, as they are ready."""
    items = 600
    for rated, judges in ((50, 3), (50, 8), (100, 8), (200, 8)):
        results: dict[str, list[Result]] = {"mean of both halves'": [], "unrated: weights of all": []}
        for run in range(runs):
            rng = np.random.default_rng((seed, rated, judges, run))
            quality, spread = rng.normal(size=items), rng.uniform(0.5, 1.5, judges)
            scores = quality[:, None] + rng.normal(0, 1, judges) + spread * rng.normal(size=(items, judges))
            ratings = np.full(items, np.nan)
            chosen = rng.permutation(items)[:rated]
            ratings[chosen] = quality[chosen] + 0.5 * rng.normal(size=rated)
            half = rng.integers(0, 2, items)
            halves = [learned_weights(scores, np.where(half == at, ratings, np.nan)) for at in (0, 1)]
            of_all = (np.mean(halves, axis=0), learned_weights(scores, ratings))
            for name, weights in zip(results, of_all, strict=True):
                panel = weighted_mean(scores, weights)
                for at in (0, 1):
                    others = ~np.isnan(ratings) & (half != at)
                    panel[others] = weighted_mean(scores[others], halves[at])
                results[name].append(powered_mean(panel, ratings).both)
        for name, of in results.items():
            yield counted(f"learned, {judges} judges", name, rated, 0.0, of, wanted=name != "unrated: weights of all")


def of_chances(runs: int, seed: int) -> Iterator[PopulationRow]:
    """All rows about samples with very unlike known probabilities, as they are ready."""
    items = 600
    for rated in (20, 50, 100):
        results: dict[str, list[Result]] = {"people's mean": [], "people's mean, ratings alone": []}
        for run in range(runs):
            rng = np.random.default_rng((seed, rated, run))
            quality = rng.normal(size=items)
            sample = draw_weighted(np.exp(rng.normal(size=items)), rated, rng)
            ratings = np.full(items, np.nan)
            ratings[sample.chosen] = (quality + 0.5 * rng.normal(size=items))[sample.chosen]
            judge = quality + 0.7 * rng.normal(size=items)
            powered = powered_mean(judge, ratings, probabilities=sample.probabilities)
            results["people's mean"].append(powered.both)
            results["people's mean, ratings alone"].append(powered.people_alone)
        for name, of in results.items():
            yield counted("unlike probabilities", name, rated, 0.0, of)


STUDIES = {
    "chances": of_chances,
    "learned": of_learned,
    "maps": of_maps,
    "raters": of_raters,
    "items": of_items,
    "clusters": of_clusters,
}


def main() -> int:
    parser = argparse.ArgumentParser(description="Whether intervals hold for the population that they name.")
    parser.add_argument("--runs", type=int, default=1000, help="simulated data sets a row (1000)")
    parser.add_argument("--seed", type=int, default=1, help="where chance starts (1)")
    parser.add_argument("--studies", nargs="+", choices=STUDIES, default=list(STUDIES), help="what is studied (all)")
    given = parser.parse_args()
    started, bad = time.monotonic(), 0
    sys.stdout.write(f"{'case':28}{'statistic':30}{'rated':>6}{'held':>8}{'width':>8}{'none':>8}\n")
    for study in given.studies:
        for row in STUDIES[study](given.runs, given.seed):
            bad += not row.good
            figures = f"{row.rated:6}{row.held:8.1%}{row.width:8.2f}{row.unknown:8.1%}"
            mark = "" if row.good else "  <-- does not hold"
            sys.stdout.write(f"{row.case:28}{row.statistic:30}{figures}{mark}\n")
            sys.stdout.flush()
    sys.stdout.write(f"{bad} do not hold; {given.runs} runs a row in {time.monotonic() - started:.0f} s\n")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
