"""Draws the items that people should rate, so that their ratings are representative of all items.

Every way of drawing gives each item a known probability of being drawn, above 0; intervals need it (`powered`). The sum
of the probabilities is the size of the sample.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dicast.app.analysis.estimates import Floats, Ints

EVERYBODY = 0.5


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
    probabilities = _inclusion((1 - EVERYBODY) * pull + EVERYBODY / items, size)
    # Systematic sampling in random order draws exactly `size` items and each with exactly its probability.
    order = rng.permutation(items)
    ends = np.cumsum(probabilities[order])
    hits = np.searchsorted(ends, np.arange(size) + rng.random(), side="right").clip(max=items - 1)
    return Sample(np.sort(order[hits]), probabilities)


def _inclusion(pull: Floats, size: int) -> Floats:
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
