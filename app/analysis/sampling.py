"""Draws the items that people should rate, so that their ratings are representative of all items.

Every way of drawing gives each item a known probability of being drawn, above 0; intervals need it (`powered`). The sum
of the probabilities is the size of the sample.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dicast.app.analysis.estimates import CONFIDENCE, Floats, Ints, quantile

EVERYBODY = 0.5
FEWEST_OF_PILOT = 30
LEAST_ERROR = 0.3
TINY = 1e-9


@dataclass(frozen=True, slots=True)
class Sample:
    """The places of the drawn items, ascending, and how likely each of all items was to be drawn."""

    chosen: Ints
    probabilities: Floats


def draw_sample(items: int, size: int, rng: np.random.Generator) -> Sample:
    """Draw `size` of `items` items, all equally likely. Raises ValueError unless 1 <= size <= items."""
    _check(items, size)
    return Sample(np.sort(rng.choice(items, size, replace=False)), np.full(items, size / items))


def draw_stratified(strata: npt.ArrayLike, size: int, rng: np.random.Generator) -> Sample:
    """Draw from each stratum its share of `size`, at least one item. `strata` names each item's stratum.

    Raises ValueError if there are more strata than places in the sample.
    """
    names, stratum = np.unique(np.asarray(strata), return_inverse=True)
    counts = np.bincount(stratum)
    _check(len(stratum), size)
    if len(names) > size:
        raise ValueError(f"{len(names)} strata do not fit into a sample of {size}")
    places = _shares(counts, size)
    chosen = [rng.choice(np.flatnonzero(stratum == at), places[at], replace=False) for at in range(len(names))]
    return Sample(np.sort(np.concatenate(chosen)), (places / counts)[stratum])


def draw_weighted(disagreement: Floats, size: int, rng: np.random.Generator) -> Sample:
    """Draw `size` items, likelier the more the judges disagree (0 or more per item, as the spread of their scores).

    Half of the sample is spread evenly, so that items on which the judges agree are rated too. Raises ValueError for a
    disagreement that is negative or no finite number.
    """
    items = len(disagreement)
    _check(items, size)
    if not (np.isfinite(disagreement) & (disagreement >= 0)).all():
        raise ValueError("disagreement is a finite number, 0 or more, for every item")
    total = float(disagreement.sum())
    pull = disagreement / total if total > 0 else np.full(items, 1 / items)
    return _draw_systematic(inclusion((1 - EVERYBODY) * pull + EVERYBODY / items, size), size, rng)


def draw_allocated(errors: Floats, size: int, rng: np.random.Generator, costs: Floats | None = None) -> Sample:
    """Draw `size` items, each with a probability in proportion to its expected error (`expected_errors`): J. Neyman's
    allocation (Journal of the Royal Statistical Society 97, 1934, 558-625), item by item. With `costs`, a number above
    0 an item, in proportion to the error divided by the root of the cost.

    Raises ValueError for an error or a cost that is not above 0.
    """
    _check(len(errors), size)
    costs = np.ones(len(errors)) if costs is None else costs
    if not (np.isfinite(errors) & (errors > 0) & np.isfinite(costs) & (costs > 0)).all():
        raise ValueError("expected errors and costs are finite numbers above 0, for every item")
    return _draw_systematic(inclusion(errors / np.sqrt(costs), size), size, rng)


def _draw_systematic(probabilities: Floats, size: int, rng: np.random.Generator) -> Sample:
    """Draw exactly `size` items, each with exactly its probability: systematic sampling in random order."""
    items = len(probabilities)
    order = rng.permutation(items)
    ends = np.cumsum(probabilities[order])
    hits = np.searchsorted(ends, np.arange(size) + rng.random(), side="right").clip(max=items - 1)
    return Sample(np.sort(order[hits]), probabilities)


@dataclass(frozen=True, slots=True)
class ExpectedErrors:
    """How far people's score of each item is expected to lie from what the judges predict (`each`, a standard
    deviation), and from people's mean (`alone`, of all items). `weight` is that of the judges' scores in the
    prediction; `learned_from` is the number of rated items that it comes from, 0 for the judges' spread alone."""

    each: Floats
    alone: float
    weight: float
    outer: float
    learned_from: int


def expected_errors(judges: Floats, panel: Floats, people: Floats, bounds: tuple[float, float]) -> ExpectedErrors:
    """Return the expected errors of all items, from the judges' scores (items x judges), the panel's, and people's mean
    where there is one (NaN elsewhere).

    With a pilot of `FEWEST_OF_PILOT` rated items or more, the squared error is fitted by nonnegative least squares to
    a constant, the variance of the judges' scores of the item, and how far the panel's score is from both ends of the
    scale. Without one, a person is expected to differ from the panel as the judges differ from each other, half by item
    and half as on the average item: errors that all judges share are not in it. No item is expected to err less than
    `LEAST_ERROR` of the average, so none is left out for good.
    """
    middle = np.nanmean(panel)
    score = np.where(np.isnan(panel), middle, panel)
    count = (~np.isnan(judges)).sum(axis=1)
    sums = np.where(np.isnan(judges), 0.0, (judges - score[:, None]) ** 2).sum(axis=1)
    apart = np.divide(sums, count - 1, out=np.full(len(judges), np.nan), where=count > 1)
    usual = float(np.nanmean(apart)) if (count > 1).any() else 0.0
    apart = np.where(np.isnan(apart), usual, apart)
    low, high = bounds
    room = ((score - low) * (high - score)).clip(min=0) / (high - low) ** 2
    rated = ~np.isnan(people) & ~np.isnan(panel)
    spread = float(np.var(score))
    if rated.sum() >= FEWEST_OF_PILOT and np.ptp(people[rated]) > 0:
        from scipy.optimize import nnls  # noqa: PLC0415  (takes long to load)

        inside = score[rated] - score[rated].mean()
        weight = float(np.clip((inside * people[rated]).sum() / max((inside**2).sum(), TINY), 0, None))
        residuals = people[rated] - people[rated].mean() - weight * inside
        features = np.column_stack([np.ones(len(score)), apart, np.sqrt(apart), room])
        sizes = np.maximum(features[rated].max(axis=0), TINY)
        squared = (features / sizes) @ nnls(features[rated] / sizes, residuals**2)[0]
        alone, learned_from = float(people[rated].std(ddof=1)), int(rated.sum())
    else:
        weight, learned_from = 1.0, 0
        squared = (apart + usual) / 2 * (1 + 1 / max(float(count.mean()), 1.0)) if usual > 0 else room
        alone = float(np.sqrt(spread + float(squared.mean())))
    deviations = np.sqrt(squared.clip(min=0))
    floor = max(LEAST_ERROR * float(np.sqrt((deviations**2).mean())), TINY)
    return ExpectedErrors(np.maximum(deviations, floor), alone, weight, weight**2 * spread, learned_from)


def expected_width(errors: ExpectedErrors, probabilities: Floats) -> float:
    """Return how wide the 95 % interval of people's mean is expected to be, with the judges' help, if each item is
    rated with this probability."""
    items, size = len(probabilities), float(probabilities.sum())
    variance = float((errors.each**2 / probabilities).sum()) / items**2 + errors.outer / items
    return 2 * quantile((1 + CONFIDENCE) / 2, max(size - 1, 1)) * float(np.sqrt(variance))


def width_alone(errors: ExpectedErrors, size: int) -> float:
    """Return how wide it is expected to be from `size` ratings alone, drawn evenly."""
    return 2 * quantile((1 + CONFIDENCE) / 2, max(size - 1, 1)) * errors.alone / float(np.sqrt(size))


def inclusion(pull: Floats, size: int) -> Floats:
    """Return probabilities in proportion to `pull` that sum to `size`; what would exceed 1 is 1, the others share the
    rest."""
    probabilities: Floats = size * pull / pull.sum()
    while (probabilities > 1 + 1e-12).any():
        sure = probabilities >= 1
        rest = pull * ~sure
        probabilities = np.where(sure, 1.0, (size - sure.sum()) * rest / rest.sum())
    return probabilities.clip(max=1.0)


def _shares(counts: Ints, size: int) -> Ints:
    """Split `size` in proportion to `counts`, each 1 or more and none above its count; largest remainders first."""
    exact = size * counts / counts.sum()
    places: Ints = np.clip(np.floor(exact), 1, counts).astype(np.int64)
    while places.sum() != size:
        step = 1 if places.sum() < size else -1
        allowed = places < counts if step > 0 else places > 1
        places[np.argmax(np.where(allowed, step * (exact - places), -np.inf))] += step
    return places


def _check(items: int, size: int) -> None:
    if not 1 <= size <= items:
        raise ValueError(f"a sample of {items} items has 1 to {items} of them, not {size}")
