"""Finds the cheapest panel of a job's judges that agrees enough with people.

Every panel of up to so many judges, with every way of combining their scores, is compared with people. The best of many
looks better than it is (the winner's curse), so a panel's agreement is measured on items that had no part in choosing
it: for each budget the best affordable panel is chosen without a tenth of the items and measured on that tenth, in
turn. That `agreement`, with its interval, is what choosing at this budget is worth; `apparent` is what the panel shows
on the items that chose it.

There is no result unless the best panel looks better than the best one does in 95 of 100 shuffles of people's scores,
and the interval of its agreement excludes 0. The first test guards the second: if one panel happens to fit the noise so
well that it is chosen whatever is left out, leaving items out corrects nothing. A panel that reaches what was asked for
is named only if that is proved (`cheapest_reaching`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

import numpy as np
import scipy

from dicast.app.analysis.agreement import correlation
from dicast.app.analysis.assess import SEED
from dicast.app.analysis.combining import (
    COMBINATIONS,
    LearnedTrust,
    learn_trust,
    learned_weights,
    weighted_mean,
)
from dicast.app.analysis.estimates import CONFIDENCE, Bools, Estimate, Floats, Ints, Result, Unknown
from dicast.app.analysis.raters import NO_MEAN, person
from dicast.app.analysis.scores import DimensionScores, JobScores, cascade, figure, is_not_chief
from dicast.app.domain.figure import Figure
from dicast.app.domain.judge_statistics import PanelFront, PanelOption, TrustedPanel

Measure = Literal["pearson", "spearman"]
LEARNED = "learned"
FEWEST = 20
SHUFFLES = 199


@dataclass(frozen=True, slots=True)
class Panel:
    """Judges (columns of the scores), how their scores are combined, and their cost per item."""

    judges: tuple[int, ...]
    combination: str
    cost: float


@dataclass(frozen=True, slots=True)
class PanelChoice:
    """The best panel within a budget, its apparent agreement, and what choosing it is worth on other items."""

    panel: Panel
    apparent: float
    agreement: Result


@dataclass(frozen=True, slots=True)
class Search:
    """`front` has the choices that look better than all cheaper ones, by cost; `panels` has all that were tried, with
    `apparent`."""

    panels: tuple[Panel, ...]
    apparent: Floats
    front: tuple[PanelChoice, ...]
    items: int


def cheapest_reaching(
    scores: Floats, people: Floats, costs: Floats, agreement: float, rng: np.random.Generator, *,
    largest: int = 3, measure: Measure = "pearson", clusters: Ints | None = None,
) -> PanelChoice | Unknown:  # fmt: skip
    """Return the cheapest panel that is proved to reach this agreement with people: the lower end of its interval does.

    Panels are chosen on a random half of the items (or clusters) and tested on the other half, from the one that looks
    best to the cheapest, until one fails: so none that does not reach it is named in more than one search of 40,
    however many there are (a fixed sequence of tests: W. Maurer, L. Hothorn and W. Lehmacher, 1995).
    """
    usable = ~(np.isnan(scores).any(axis=1) | np.isnan(people))
    scores, people, pieces = scores[usable], people[usable], None if clusters is None else clusters[usable]
    if len(people) < 2 * FEWEST:
        return Unknown(f"that a panel reaches it is proved on {2 * FEWEST} rated items, and there are {len(people)}")
    choosing = _folds(len(people), 2, pieces, rng) == 0
    panels = tuple(panels_of(scores.shape[1], costs, largest))
    combined = _combined(scores, people, panels, choosing)
    apparent = _agreement(combined[choosing], people[choosing], measure)
    proved: PanelChoice | None = None
    of_test = None if pieces is None else pieces[~choosing]
    for best in dict.fromkeys(_best(apparent, panels, cost) for cost in sorted({p.cost for p in panels}, reverse=True)):
        tested = correlation(combined[~choosing, best], people[~choosing], measure, rng, clusters=of_test)
        if not isinstance(tested, Estimate) or tested.low < agreement:
            break
        proved = PanelChoice(panels[best], float(apparent[best]), tested)
    return proved or Unknown(f"that a panel reaches an agreement of {agreement:g} with people is not proved")


def _folds(items: int, folds: int, clusters: Ints | None, rng: np.random.Generator) -> Ints:
    """Return the fold of each item; a cluster's items share one."""
    piece = np.arange(items) if clusters is None else np.unique(clusters, return_inverse=True)[1]
    count = int(piece.max()) + 1
    return np.asarray(rng.permutation(np.arange(count) % min(folds, count))[piece], dtype=np.int64)


def search(
    scores: Floats,
    people: Floats,
    costs: Floats,
    rng: np.random.Generator,
    *,
    largest: int = 3,
    measure: Measure = "pearson",
    folds: int = 10,
    clusters: Ints | None = None,
) -> Search | Unknown:
    """Search all panels of up to `largest` judges (scores: items x judges, people: one score per item, costs: one per
    judge).

    It rests on the items that all judges scored and people rated. Returns Unknown with fewer than `FEWEST` of them.
    """
    usable = ~(np.isnan(scores).any(axis=1) | np.isnan(people))
    scores, people, pieces = scores[usable], people[usable], None if clusters is None else clusters[usable]
    if len(people) < FEWEST:
        return Unknown(f"a search needs {FEWEST} items with all scores or more, and there are {len(people)}")
    if np.ptp(people) == 0:
        return Unknown("people gave every item the same score")
    panels = tuple(panels_of(scores.shape[1], costs, largest))
    fold = _folds(len(people), folds, pieces, rng)
    everything = np.ones(len(people), dtype=bool)
    apparent = _agreement(_combined(scores, people, panels, everything), people, measure)
    budgets = np.unique([panel.cost for panel in panels])
    if not _beats_chance(scores, people, panels, measure, rng):
        return Search(panels, apparent, (), len(people))
    outside = _outside(scores, people, panels, budgets, fold, measure)
    front: list[PanelChoice] = []
    for at, budget in enumerate(budgets):
        # Which panels are shown depends on those items alone that chose them, so that what is told of them stays fair.
        best = _best(apparent, panels, float(budget))
        if front and front[-1].panel == panels[best]:
            continue
        agreement = correlation(outside[:, at], people, measure, rng, clusters=pieces)
        front.append(PanelChoice(panels[best], float(apparent[best]), agreement))
    last = front[-1].agreement if front else None
    if not isinstance(last, Estimate) or last.low <= 0:
        return Search(panels, apparent, (), len(people))
    return Search(panels, apparent, tuple(front), len(people))


def panels_of(judges: int, costs: Floats, largest: int) -> list[Panel]:
    """Return every panel of up to `largest` of so many judges, with every way of combining their scores."""
    panels = []
    for size in range(1, min(largest, judges) + 1):
        for members in combinations(range(judges), size):
            ways = [*COMBINATIONS, LEARNED] if size > 1 else ["mean"]
            # Of two scores the median and the trimmed mean are the mean, and the majority is the lower one.
            ways = ["mean", "worst", LEARNED] if size == 2 else ways
            panels += [Panel(members, way, float(sum(costs[list(members)]))) for way in ways]
    return panels


def _combined(scores: Floats, people: Floats, panels: tuple[Panel, ...], learn: Bools) -> Floats:
    """Return each panel's scores of all items (items x panels); weights are learned on the items of `learn`."""
    columns = []
    for panel in panels:
        selected = scores[:, panel.judges]
        if panel.combination == LEARNED:
            columns.append(weighted_mean(selected, learned_weights(selected[learn], people[learn])))
        else:
            columns.append(COMBINATIONS[panel.combination](selected))
    return np.stack(columns, axis=1)


def _agreement(combined: Floats, people: Floats, measure: Measure) -> Floats:
    """Return the correlation of each column with people; -1 for a column without spread, which is never chosen."""
    if measure == "spearman":
        combined, people = scipy.stats.rankdata(combined, axis=0), scipy.stats.rankdata(people)
    x, y = combined - combined.mean(axis=0), people - people.mean()
    spread = np.sqrt((x**2).sum(axis=0) * (y**2).sum())
    return np.asarray(np.divide(y @ x, spread, out=np.full(x.shape[1], -1.0), where=spread > 1e-12))


def _beats_chance(
    scores: Floats, people: Floats, panels: tuple[Panel, ...], measure: Measure, rng: np.random.Generator
) -> bool:
    """Return whether the best panel without learned weights agrees more than the best does with shuffled people."""
    fixed = tuple(panel for panel in panels if panel.combination != LEARNED)
    combined = _combined(scores, people, fixed, np.ones(len(people), dtype=bool))
    best = _agreement(combined, people, measure).max()
    shuffled = [_agreement(combined, rng.permutation(people), measure).max() for _ in range(SHUFFLES)]
    return bool((1 + np.sum(shuffled >= best)) / (1 + SHUFFLES) <= 1 - CONFIDENCE)


def _outside(
    scores: Floats, people: Floats, panels: tuple[Panel, ...], budgets: Floats, fold: Ints, measure: Measure
) -> Floats:
    """Return, for each budget, each item's score by the panel that was chosen without its fold (items x budgets).

    Panels of several folds are brought to one scale by the mean and spread of the items that chose them.
    """
    fixed = tuple(panel for panel in panels if panel.combination != LEARNED)
    learning = tuple(panel for panel in panels if panel.combination == LEARNED)
    columns = _combined(scores, people, fixed, np.ones(len(people), dtype=bool))
    ordered = (*fixed, *learning)
    result = np.empty((len(people), len(budgets)))
    for part in np.unique(fold):
        inside = fold != part
        combined = np.hstack([columns, _combined(scores, people, learning, inside)]) if learning else columns
        agreement = _agreement(combined[inside], people[inside], measure)
        for at, budget in enumerate(budgets):
            chosen = combined[:, _best(agreement, ordered, float(budget))]
            spread = float(chosen[inside].std())
            result[~inside, at] = (chosen[~inside] - chosen[inside].mean()) / (spread if spread > 0 else 1.0)
    return result


def _best(agreement: Floats, panels: tuple[Panel, ...], budget: float) -> int:
    affordable = np.array([panel.cost <= budget for panel in panels])
    return int(np.argmax(np.where(affordable, agreement, -np.inf)))


SOME_ITEMS = (
    "judged only where the judges before had not settled the outcome: choose from a job without `escalate`, or from "
    "one with a difference or an uncertainty that has an `audit`"
)


def panel_front(
    dimension: DimensionScores,
    judges: Sequence[str],
    costs: Sequence[float],
    *,
    largest: int,
    measure: Measure,
    reach: float | None = None,
) -> PanelFront:
    """Return the front of all panels of up to `largest` judges; `costs` has each judge's cost of an item.

    A chief is in none of them, since its scores rest on the others'. For an escalating panel, only the items of its
    audit are used, on which all judges were asked.
    """
    alone = is_not_chief(judges, dimension)
    costs = [cost for cost, included in zip(costs, alone, strict=True) if included]
    judges = [name for name, included in zip(judges, alone, strict=True) if included]
    if dimension.spec.nominal:
        return _no_front(dimension, measure, NO_MEAN)
    whole = dimension if dimension.asked_everywhere.all() else dimension.of_audit
    if whole is None:
        names = [
            name for name, everywhere in zip(judges, dimension.asked_everywhere[alone], strict=True) if not everywhere
        ]
        return _no_front(dimension, measure, f"{' and '.join(names)} {SOME_ITEMS}")
    rng = np.random.default_rng(SEED)
    ceiling = person(dimension, rng)
    reached = getattr(ceiling, measure) if ceiling is not None else Figure.unknown("nobody has rated this dimension")
    people = whole.people.means(len(whole.scores))
    result = search(
        whole.judges[:, alone], people, np.asarray(costs, dtype=np.float64), rng, largest=largest, measure=measure,
        clusters=whole.clusters,
    )  # fmt: skip
    audited = len(whole.scores) if whole is not dimension else 0
    if isinstance(result, Unknown):
        return _no_front(dimension, measure, result.reason).model_copy(update={"person": reached, "audited": audited})
    enough: PanelChoice | Unknown | None = None
    if reach is not None and result.front:
        enough = cheapest_reaching(
            whole.judges[:, alone], people, np.asarray(costs, dtype=np.float64), reach, rng, largest=largest,
            measure=measure, clusters=whole.clusters,
        )  # fmt: skip
    reason = enough.reason if isinstance(enough, Unknown) else None
    if not result.front:
        reason = "no panel agrees with people more than chance does"
    return PanelFront(
        dimension=dimension.spec.id,
        measure=measure,
        items=result.items,
        panels=len(result.panels),
        front=[_option(choice, judges) for choice in result.front],
        person=reached,
        enough=_option(enough, judges) if isinstance(enough, PanelChoice) else None,
        reason=reason,
        audited=audited,
        tried=list(zip([panel.cost for panel in result.panels], result.apparent.tolist(), strict=True)),
    )


def _no_front(dimension: DimensionScores, measure: Measure, reason: str) -> PanelFront:
    return PanelFront(
        dimension=dimension.spec.id, measure=measure, items=0, panels=0, front=[], person=Figure.unknown(reason),
        reason=reason,
    )  # fmt: skip


def _option(choice: PanelChoice, judges: Sequence[str]) -> PanelOption:
    return PanelOption(
        judges=[judges[at] for at in choice.panel.judges],
        combination=choice.panel.combination,
        cost=choice.panel.cost,
        agreement=figure(choice.agreement),
        apparent=choice.apparent,
    )


BOUNDS = 40


def trusted_panel(
    job: JobScores, dimension: DimensionScores, *, agree: float, confidence: float, within: float
) -> TrustedPanel:
    """Return how a panel of the job's judges, in their order, escalates so that people agree with what it decides; the
    job must have asked all of them about all items.

    It goes by the uncertainty of their mean where each judge has two answers or more, else by their difference. The
    bounds to be tested are spread evenly over half of the scale, whatever the scores.
    """
    trusted = TrustedPanel(dimension=dimension.spec.id, agree=agree, confidence=confidence, within=within)
    if dimension.spec.nominal:
        return trusted.model_copy(update={"reason": NO_MEAN})
    if len(job.judges) < 2 or not dimension.asked_everywhere.all() or dimension.spec.panel.chief is not None:
        reason = "it takes two judges or more who were asked about all items, and no chief"
        return trusted.model_copy(update={"reason": reason})
    kind: Literal["difference", "uncertainty"] = "uncertainty" if dimension.answers.shape[2] > 1 else "difference"
    low, high = dimension.bounds
    bounds = np.linspace(0, (high - low) / 2, BOUNDS + 1).tolist()
    people, stages = dimension.people.means(job.items), cascade(dimension, kind)
    learned = learn_trust(stages, people, bounds, within=within, agree=agree, confidence=confidence)
    if not isinstance(learned, LearnedTrust):
        return trusted.model_copy(update={"reason": learned.reason})
    bound = learned.bound + (BEYOND if kind == "difference" else 0.0)
    return trusted.model_copy(
        update={
            "by": kind,
            "bound": bound,
            "decided": learned.decided,
            "agreeing": learned.agreeing,
            "coverage": learned.coverage,
        }
    )


BEYOND = 1e-6
"""A difference is too large from its bound on, and an uncertainty beyond it."""
