"""Do guarantees hold that are no intervals? `python -m lab.statistics.guarantees STUDY --runs 1000`

Each study plants worlds whose truth is known, and counts how often what is promised is kept. It fails where that is
less often than promised (with three standard errors).

    replacing    the alternative annotator test: how often a judge passes who is worse than people by just epsilon, and
                 one who is a person
    allocation   ratings saved by Neyman's allocation at equal width, and whether its intervals hold
    trust        whether people agree with what a panel decides as often as it was learned
    stopping     intervals that are looked at after every tenth rating
    reaching     whether a panel that `dicast panel --reach` names truly reaches it
    variance     variance components and coefficients, beside those that were planted
    drift        how soon a judge is seen to have changed by 0.3 points, and how often one that has not
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

import numpy as np
from scipy.stats import false_discovery_control

from dicast.app.analysis.agreement import contests, replacement_p
from dicast.app.analysis.combining import COMBINATIONS, Cascade, learn_trust, learned_weights, weighted_mean
from dicast.app.analysis.components import judge_components, people_components
from dicast.app.analysis.estimates import Estimate, Floats, Ints, Unknown
from dicast.app.analysis.panels import LEARNED, Panel, cheapest_reaching, panels_of
from dicast.app.analysis.powered import powered_mean, powered_sequence
from dicast.app.analysis.sampling import draw_allocated, draw_sample, draw_weighted, expected_errors
from dicast.app.analysis.scores import DimensionScores, JobScores, People, cascade
from dicast.app.analysis.sequences import DRIFT_ERROR, drift_evidence, drift_rank
from dicast.app.domain.judge_statistics import EPSILONS, WINNING
from dicast.app.domain.report import ReportDimension
from lab.statistics.simulated import EVEN, SKEWED

ERROR = 0.05


class Kept(NamedTuple):
    """One line of a study: what was counted, its share of the runs, and the bounds within which it must lie."""

    name: str
    share: float
    least: float = 0.0
    most: float = 1.0
    counts: bool = False
    """Whether it is no share but a number."""


def _slack(promised: float, runs: int) -> float:
    return float(3 * np.sqrt(promised * (1 - promised) / runs))


LABELS = (0.84,)
"""The cut of a label that a fifth of the texts have."""
ENDS = EPSILONS[0], EPSILONS[-1]
PERSON_NOISE = 0.6
CALIBRATING = 200_000


def _rated(noise: Floats, cuts: tuple[float, ...], items: int, rng: np.random.Generator) -> Floats:
    """The scores of raters (columns) who see each item's quality with this noise."""
    quality = rng.normal(size=(items, 1))
    seen = quality + noise * rng.normal(size=(items, len(noise)))
    return np.searchsorted(np.array(cuts), seen).astype(np.float64)


def _noise_of(epsilon: float, cuts: tuple[float, ...], people: int) -> float:
    """How noisy a judge is who loses by just `epsilon` more often than it wins."""
    low, high = PERSON_NOISE, 20.0
    for _ in range(14):
        middle = (low + high) / 2
        noise = np.array([middle] + [PERSON_NOISE] * people)
        scores = _rated(noise, cuts, CALIBRATING, np.random.default_rng(5))
        first = contests(scores[:, 0], scores[:, 1:], nominal=False)[0]
        low, high = (middle, high) if (first.losses - first.wins).mean() < epsilon else (low, middle)
    return (low + high) / 2


def _p_values(own: float, cuts: tuple[float, ...], people: int, items: int, rng: np.random.Generator) -> Floats:
    """The p-values of a judge with this noise: people x epsilons."""
    scores = _rated(np.array([own] + [PERSON_NOISE] * people), cuts, items, rng)
    people_tested = contests(scores[:, 0], scores[:, 1:], nominal=False)
    return np.array([[replacement_p(contest, epsilon) for epsilon in ENDS] for contest in people_tested])


def _passes(p: Floats) -> float:
    return float((false_discovery_control(p, method="by") < ERROR).mean() >= WINNING)


def replacing(runs: int, seed: int) -> Iterator[Kept]:
    """The alternative annotator test, at its edge and with a judge who is a person."""
    for name, cuts in (("even", EVEN), ("skewed", SKEWED), ("label, 20 %", LABELS)):
        for people in (3, 6):
            edge = _noise_of(EPSILONS[0], cuts, people)
            for items in (30, 100, 300):
                drawn = [
                    [_p_values(own, cuts, people, items, np.random.default_rng((seed, people, items, run)))
                     for run in range(runs)]
                    for own in (edge, PERSON_NOISE)
                ]  # fmt: skip
                world, most = f"{name}, {people} people, {items} items", ERROR + _slack(ERROR, runs)
                single = float(np.mean([p[0, 0] < ERROR for p in drawn[0]]))
                yield Kept(f"{world}: at the edge one test rejects", single, most=most)
                yield Kept(
                    f"{world}: at the edge it passes", float(np.mean([_passes(p[:, 0]) for p in drawn[0]])), most=most
                )
                for at, epsilon in enumerate(ENDS):
                    passed = float(np.mean([_passes(p[:, at]) for p in drawn[1]]))
                    yield Kept(f"{world}: a person passes with epsilon {epsilon}", passed)


ITEMS, PILOT, RATED, MOST_RATED, JUDGES = 4000, 60, 200, 600, 5
UNTIL = 0.08


class RatedTexts(NamedTuple):
    """All judges' scores (items x judges), their mean, what people would say, and the ends of the scale."""

    judges: Floats
    panel: Floats
    people: Floats
    bounds: tuple[float, float]


def _disputed(rng: np.random.Generator) -> RatedTexts:
    """Scores of 1 to 10; one text in five is disputed: raters lie 3 points apart there, and 0.5 elsewhere (standard
    deviations)."""
    return _world(rng.normal(6, 2, ITEMS), np.where(rng.random(ITEMS) < 0.2, 3.0, 0.5), (1, 10), rng)


def _pass_or_fail(rng: np.random.Generator) -> RatedTexts:
    """A text passes or fails, clearly so in most cases."""
    return _world(rng.normal(1.2, 1.5, ITEMS), np.full(ITEMS, 0.6), (0, 1), rng)


def _mostly_good(rng: np.random.Generator) -> RatedTexts:
    """Scores of 1 to 5; most texts are excellent, and nobody errs about them."""
    return _world(rng.normal(5.2, 1.2, ITEMS), np.full(ITEMS, 0.6), (1, 5), rng)


def _alike(rng: np.random.Generator) -> RatedTexts:
    """Scores of 1 to 5; all texts are as hard as each other."""
    return _world(rng.normal(3, 1, ITEMS), np.full(ITEMS, 0.6), (1, 5), rng)


def _world(quality: Floats, noise: Floats, bounds: tuple[int, int], rng: np.random.Generator) -> RatedTexts:
    shared = 0.5 * noise * rng.normal(size=ITEMS)
    judges = quality[:, None] + shared[:, None] + noise[:, None] * rng.normal(size=(ITEMS, JUDGES))
    people = quality + noise * rng.normal(size=ITEMS)
    judges, people = (np.clip(np.round(scores), *bounds) for scores in (judges, people))
    return RatedTexts(judges, judges.mean(axis=1), people, (float(bounds[0]), float(bounds[1])))


WORLDS = {
    "disputed": (_disputed, 0.2), "pass or fail": (_pass_or_fail, 0.05), "mostly good": (_mostly_good, 0.1),
    "alike": (_alike, -0.1),
}  # fmt: skip
"""What is drawn, and the least share of the ratings that must be saved there."""


def _seen(people: Floats, chosen: Ints) -> Floats:
    seen = np.full(len(people), np.nan)
    seen[chosen] = people[chosen]
    return seen


def allocation(runs: int, seed: int) -> Iterator[Kept]:
    """Neyman's allocation: the ratings it saves at equal width, and whether the intervals hold."""
    for name, (world, least) in WORLDS.items():
        widths: dict[str, list[float]] = {}
        holds: dict[str, list[bool]] = {}
        for run in range(runs):
            rng = np.random.default_rng((seed, run))
            drawn = world(rng)
            pilot = _seen(drawn.people, draw_sample(ITEMS, PILOT, rng).chosen)
            learned, blind = (
                expected_errors(drawn.judges, drawn.panel, seen, drawn.bounds).each
                for seen in (pilot, np.full(ITEMS, np.nan))
            )
            samples = {
                "even": draw_sample(ITEMS, RATED, rng),
                "by disagreement": draw_weighted(drawn.judges.std(axis=1), RATED, rng),
                "Neyman, with a pilot": draw_allocated(learned, RATED, rng),
                "Neyman, from the judges' spread": draw_allocated(blind, RATED, rng),
            }
            for way, sample in samples.items():
                chances = None if way == "even" else sample.probabilities
                seen = _seen(drawn.people, sample.chosen)
                both = powered_mean(drawn.panel, seen, probabilities=chances, bounds=drawn.bounds).both
                assert isinstance(both, Estimate)
                widths.setdefault(way, []).append(both.width)
                holds.setdefault(way, []).append(both.holds(float(drawn.people.mean())))
        for way, coverage in holds.items():
            saved = 1 - (float(np.mean(widths[way])) / float(np.mean(widths["even"]))) ** 2
            wanted = least if way == "Neyman, with a pilot" else -1.0
            yield Kept(f"{name}, {way}: ratings saved", saved, least=wanted)
            yield Kept(f"{name}, {way}: interval holds", float(np.mean(coverage)), least=0.95 - _slack(0.95, runs))


def stopping(runs: int, seed: int) -> Iterator[Kept]:
    """Rating until the interval is narrow enough: how often it is wrong at any look, and how many ratings it takes."""
    for name, (world, _) in WORLDS.items():
        for way in ("even", "Neyman"):
            wrong, stops, right = [], [], []
            for run in range(runs):
                rng = np.random.default_rng((seed, run))
                drawn = world(rng)
                errors = expected_errors(drawn.judges, drawn.panel, np.full(ITEMS, np.nan), drawn.bounds).each
                sample = (
                    draw_sample(ITEMS, MOST_RATED, rng) if way == "even" else draw_allocated(errors, MOST_RATED, rng)
                )
                order, truth = rng.permutation(sample.chosen), float(drawn.people.mean())
                missed, stop = False, None
                for count in range(30, MOST_RATED, 10):
                    looked = powered_sequence(
                        drawn.panel, _seen(drawn.people, order[:count]), planned=150, probabilities=sample.probabilities
                    )
                    if isinstance(looked, Estimate):
                        missed |= not looked.holds(truth)
                        stop = (
                            (count, looked.holds(truth))
                            if stop is None and looked.width <= UNTIL * (drawn.bounds[1] - drawn.bounds[0])
                            else stop
                        )
                wrong.append(missed)
                if stop is not None:
                    stops.append(stop[0])
                    right.append(stop[1])
            yield Kept(f"{name}, {way}: wrong at any look", float(np.mean(wrong)), most=0.05 + _slack(0.05, runs))
            yield Kept(f"{name}, {way}: right where it ends ({np.median(stops):.0f} ratings)", float(np.mean(right)))


RATED_OF_TRUST, AGREE, SURE, WITHIN = 300, 0.8, 0.9, 0.5
FRESH = 20_000
TRUST_BOUNDS = np.linspace(0, 2, 41).tolist()


def _cascade_of(items: int, shared: float, rounds: int, rng: np.random.Generator) -> tuple[Cascade, Floats]:
    """Three judges, each better than the one before, and people's score: texts are clear or hard, and a share of the
    judges' error variance is common to all of them and to all of their answers."""
    hard = np.where(rng.random(items) < 0.4, 1.0, 0.3)
    quality = rng.normal(3, 1, items)
    common = np.sqrt(shared) * rng.normal(size=(items, 1, 1))
    own = np.sqrt(1 - shared) * rng.normal(size=(items, 3, rounds))
    noise = np.array([0.8, 0.7, 0.5])[:, None] * hard[:, None, None]
    answers = np.clip(np.round(quality[:, None, None] + noise * (common + own)), 1, 5)
    spec = ReportDimension(id="good", scale_min=1, scale_max=5)
    kind: Literal["difference", "uncertainty"] = "uncertainty" if rounds > 1 else "difference"
    people = np.clip(np.round(quality + 0.3 * hard * rng.normal(size=items)), 1, 5)
    return cascade(DimensionScores(spec, answers), kind), people


def trust(runs: int, seed: int) -> Iterator[Kept]:
    """Trust or escalate: in how many worlds people agree with what is decided as often as promised."""
    for shared in (0.0, 0.5, 0.9):
        for rounds, way in ((1, "difference"), (3, "uncertainty")):
            fresh, truth = _cascade_of(FRESH, shared, rounds, np.random.default_rng((seed, 0)))
            kept, coverage = [], []
            for run in range(1, runs + 1):
                judged, people = _cascade_of(RATED_OF_TRUST, shared, rounds, np.random.default_rng((seed, run)))
                learned = learn_trust(judged, people, TRUST_BOUNDS, within=WITHIN, agree=AGREE, confidence=SURE)
                if isinstance(learned, Unknown):
                    kept.append(True)
                    coverage.append(0.0)
                    continue
                stage, scores = fresh.decide(learned.bound)
                decided = stage >= 0
                kept.append(bool((np.abs(scores - truth)[decided] <= WITHIN).mean() >= AGREE))
                coverage.append(float(decided.mean()))
            name = f"{way}, {shared:.0%} of the errors shared"
            yield Kept(f"{name}: guarantee kept", float(np.mean(kept)), least=SURE - _slack(SURE, runs))
            yield Kept(f"{name}: items decided", float(np.mean(coverage)))


ANCHORS, REPLICATES, A_DAY, DAYS = 60, 5, 3, 365
MOVED, SOON, LATE = 0.3, 60.0, 150
"""A change in points, within how many judgements it is to be found (median), and when a late one comes."""


class Repeated(NamedTuple):
    """A judge who scores the same texts again and again: what they are worth, how far its answers to one text lie apart
    (standard deviation; of Student's t with 3 degrees of freedom if `heavy`), and the ends of its scale."""

    worth: Callable[[int, np.random.Generator], Floats]
    noise: float
    bounds: tuple[int, int] = (1, 5)
    heavy: bool = False
    soon: bool = True

    def scores(self, worth: Floats, shift: float, rng: np.random.Generator) -> Floats:
        """Return one score of each of these texts."""
        drawn = rng.standard_t(3, worth.shape) / np.sqrt(3) if self.heavy else rng.normal(size=worth.shape)
        return np.clip(np.round(worth + shift + self.noise * drawn), *self.bounds)

    def shift(self) -> float:
        """Return the shift of what it sees that moves its mean score by `MOVED`."""
        worth, low, high = self.worth(50_000, np.random.default_rng(0)), 0.0, 3.0
        before = self.scores(worth, 0.0, np.random.default_rng(1)).mean()
        for _ in range(14):
            middle = (low + high) / 2
            moved = self.scores(worth, middle, np.random.default_rng(1)).mean() - before
            low, high = (middle, high) if moved < MOVED else (low, middle)
        return (low + high) / 2


REPEATED = {
    "even": Repeated(lambda n, rng: rng.normal(3, 1, n), 0.25),
    "skewed": Repeated(lambda n, rng: rng.normal(4.3, 0.8, n), 0.25),
    "heavy-tailed": Repeated(lambda n, rng: 3 + 0.7 * rng.standard_t(3, n), 0.25, heavy=True),
    "1 to 10": Repeated(lambda n, rng: rng.normal(6, 2, n), 0.25, (1, 10)),
    "nearly always the same": Repeated(lambda n, rng: rng.normal(3, 1, n), 0.05),
    "binary 30 %": Repeated(lambda n, rng: rng.normal(0.3, 0.5, n), 0.15, (0, 1)),
    "noisy": Repeated(lambda n, rng: rng.normal(3, 1, n), 0.5, soon=False),
}


def _evidence(judge: Repeated, shift: float, change: int, looks: int, rng: np.random.Generator) -> Floats:
    """Return the evidence after each of so many anchor judgements, from a judge who moves after `change` of them."""
    worth = judge.worth(ANCHORS, rng)
    before = [judge.scores(np.full(REPLICATES, one), 0.0, rng).tolist() for one in worth]
    ranks = []
    for look in range(looks):
        if look % ANCHORS == 0:
            order = rng.permutation(ANCHORS)
        at = int(order[look % ANCHORS])
        score = float(judge.scores(worth[[at]], shift if look >= change else 0.0, rng)[0])
        ranks.append(drift_rank(before[at], score, float(rng.random())))
        before[at].append(score)
    return drift_evidence(np.array(ranks))


def drift(runs: int, seed: int) -> Iterator[Kept]:
    """A judge's change: how soon one is found that comes at once, or late, and how often one is told that is none, in a
    year of three anchor judgements a day."""
    for name, judge in REPEATED.items():
        rng = np.random.default_rng(0)
        worth = judge.worth(20_000, rng)
        same = float((judge.scores(worth, 0.0, rng) == judge.scores(worth, 0.0, rng)).mean())
        world, shift = f"{name} ({same:.0%} alike when asked again)", judge.shift()
        for change, when in ((0, "at once"), (LATE, f"after {LATE}")):
            delays: list[float] = []
            for run in range(runs):
                evidence = _evidence(
                    judge, shift, change, change + 3 * LATE, np.random.default_rng((seed, change, run))
                )
                crossed = np.flatnonzero(evidence >= 1 / DRIFT_ERROR)
                if not len(crossed) or crossed[0] >= change:
                    delays.append(float(crossed[0] + 1 - change) if len(crossed) else np.inf)
            within = SOON if change == 0 and judge.soon else np.inf
            yield Kept(f"{world}: judgements until a change {when} is found", float(np.median(delays)), most=within,
                       counts=True)  # fmt: skip
        still = [
            _evidence(judge, 0.0, DAYS * A_DAY, DAYS * A_DAY, np.random.default_rng((seed, 7, run))).max()
            >= 1 / DRIFT_ERROR
            for run in range(runs)
        ]
        yield Kept(f"{world}: a false alarm in a year", float(np.mean(still)), most=DRIFT_ERROR)


class Judges(NamedTuple):
    """Judges of one or of several qualities: how noisy each is beside a quality of 1, which part of that is shared by
    all, and what each costs."""

    noise: tuple[float, ...]
    shared: float
    costs: tuple[float, ...]
    largest: int

    def draw(self, items: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
        """Return the judges' scores (items x judges) and the mean of three people's, on a 5-point scale."""
        quality, common = rng.normal(size=(2, items))
        own = rng.normal(size=(items, len(self.noise)))
        errors = np.sqrt(self.shared) * common[:, None] + np.sqrt(1 - self.shared) * own
        cuts = np.array(EVEN)
        judges = np.searchsorted(cuts, quality[:, None] + np.array(self.noise) * errors)
        people = np.searchsorted(cuts, quality[:, None] + PERSON_NOISE * rng.normal(size=(items, 3))).mean(axis=1)
        return judges.astype(np.float64), people


PANELS = {
    "20 judges alike": Judges((0.9,) * 20, 0.5, (1.0,) * 20, 1),
    "6 unlike judges": Judges((0.5, 0.7, 0.8, 0.9, 1.1, 2.0), 0.3, (10.0, 4, 3, 2, 1, 1), 2),
    "6 unlike judges, errors shared": Judges((0.5, 0.7, 0.8, 0.9, 1.1, 2.0), 0.8, (10.0, 4, 3, 2, 1, 1), 2),
}
ASKED_BELOW = (0.1, 0.05, 0.02, -0.01)
"""How far below the best panel's true agreement the agreement lies that is asked for; the last is reached by none."""


def reaching(runs: int, seed: int) -> Iterator[Kept]:
    """Panels that are named because they reach an agreement: how many of them do, on 20,000 other texts."""
    for name, judges in PANELS.items():
        costs = np.array(judges.costs)
        fresh, truth = judges.draw(FRESH, np.random.default_rng((seed, 0)))
        best = max(search_panels(fresh, truth, costs, judges.largest))
        for rated in (100, 300):
            for below in ASKED_BELOW:
                reaches = []
                for run in range(1, runs + 1):
                    rng = np.random.default_rng((seed, rated, run))
                    scores, people = judges.draw(rated, rng)
                    named = cheapest_reaching(scores, people, costs, best - below, rng, largest=judges.largest)
                    if isinstance(named, Unknown):
                        continue
                    weights = named_weights(named.panel, scores, people)
                    reaches.append(true_agreement(named.panel, weights, fresh, truth) >= best - below)
                case = f"{name}, {rated} rated, {below:+.2f} below the best"
                share = len(reaches) / runs
                wrong = float(len(reaches) - sum(reaches)) / runs
                yield Kept(f"{case}: named", share)
                yield Kept(f"{case}: named and does not reach it", wrong, most=0.025 + _slack(0.025, runs))
                if below > 0 and share > FEW_NAMED:
                    yield Kept(f"{case}: reaches it, of those named", float(np.mean(reaches)), least=0.95)


FEW_NAMED = 0.2


def search_panels(scores: Floats, people: Floats, costs: Floats, largest: int) -> list[float]:
    """Return the agreement of every panel with people on these texts."""
    panels = panels_of(scores.shape[1], costs, largest)
    return [true_agreement(panel, named_weights(panel, scores, people), scores, people) for panel in panels]


def named_weights(panel: Panel, scores: Floats, people: Floats) -> Floats | None:
    """Return the weights of a panel that learns them."""
    return learned_weights(scores[:, panel.judges], people) if panel.combination == LEARNED else None


def true_agreement(panel: Panel, weights: Floats | None, scores: Floats, people: Floats) -> float:
    """Return the correlation of a panel's scores with people's."""
    chosen = scores[:, panel.judges]
    combined = COMBINATIONS[panel.combination](chosen) if weights is None else weighted_mean(chosen, weights)
    return float(np.corrcoef(combined, people)[0, 1])


PLANTED = {"item": 1.0, "judge": 0.2, "item x judge": 0.3, "residual": 0.4}
"""Variances, in points squared."""
TRUE_GENERALIZABILITY = 1.0 / (1.0 + 0.3 / 4 + 0.4 / 8)
"""That of four judges with two replicates."""


def variance(runs: int, seed: int) -> Iterator[Kept]:
    """Variance components: means of the estimates as shares of what was planted, and how often intervals hold. Judges
    and raters are the same in all runs, since intervals are about these."""
    fixed = np.random.default_rng((seed, 0))
    strict = fixed.normal(size=4)
    strict *= np.sqrt(PLANTED["judge"]) / strict.std(ddof=1)
    sums: dict[str, list[float]] = {}
    holds: dict[str, list[bool]] = {}
    coefficients = []
    for run in range(1, runs + 1):
        rng = np.random.default_rng((seed, run))
        item, both = rng.normal(size=(100, 1)), np.sqrt(PLANTED["item x judge"]) * rng.normal(size=(100, 4))
        cells = item + strict + both
        scores = cells[..., None] + np.sqrt(PLANTED["residual"]) * rng.normal(size=(100, 4, 2))
        ratings = cells + np.sqrt(PLANTED["residual"]) * rng.normal(size=(100, 4))
        ratings[rng.random(ratings.shape) < 0.3] = np.nan
        people = People(np.arange(100), ("a", "b", "c", "d"), ratings)
        of = DimensionScores(ReportDimension(id="good", scale_min=1, scale_max=5), scores, people)
        judged, rated = judge_components(JobScores(100, people.raters, (of,)), of), people_components(of)
        assert judged is not None and rated is not None
        coefficients.append(judged.designs[0].generalizability)
        rater = {"item": 1.0, "rater": PLANTED["judge"], "residual": PLANTED["item x judge"] + PLANTED["residual"]}
        for name, parts, truth in (("judges", judged.components, PLANTED), ("people", rated.components, rater)):
            for part in parts:
                figure, planted = part.variance, truth[part.source]
                assert figure.value is not None and figure.low is not None and figure.high is not None
                sums.setdefault(f"{name}: {part.source}", []).append(figure.value / planted)
                holds.setdefault(f"{name}: {part.source}", []).append(figure.low <= planted <= figure.high)
    for source, values in sums.items():
        yield Kept(f"{source}: mean of the estimates", float(np.mean(values)), least=0.97, most=1.03)
        yield Kept(f"{source}: interval holds", float(np.mean(holds[source])), least=0.93 - _slack(0.93, runs))
    mean_coefficient = float(np.mean(coefficients)) / TRUE_GENERALIZABILITY
    yield Kept("generalizability of four judges twice", mean_coefficient, least=0.99, most=1.01)


STUDIES: dict[str, Callable[[int, int], Iterator[Kept]]] = {
    "replacing": replacing, "allocation": allocation, "stopping": stopping, "trust": trust,
    "drift": drift, "reaching": reaching, "variance": variance,
}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description="How often guarantees are kept in planted worlds.")
    parser.add_argument("study", choices=STUDIES, help="which guarantee")
    parser.add_argument("--runs", type=int, default=1000, help="simulated data sets of each world (1000)")
    parser.add_argument("--seed", type=int, default=1, help="where chance starts (1)")
    arguments = parser.parse_args()
    started, failed = time.monotonic(), 0
    for row in STUDIES[arguments.study](arguments.runs, arguments.seed):
        good = row.least <= row.share <= row.most
        failed += not good
        sys.stdout.write(
            f"{row.name}: {f'{row.share:.0f}' if row.counts else f'{row.share:.1%}'}{'' if good else '  <-- no'}\n"
        )
        sys.stdout.flush()
    sys.stdout.write(f"{time.monotonic() - started:.0f} s\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
