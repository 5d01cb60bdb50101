"""Simulated items, judges and people with what is planted known: for coverage studies and for tests.

Every item has a latent quality. A person sees it with noise and marks it on a 5-point scale by cuts; a judge does the
same with a bias and with errors that he shares in part with the other judges. Cells are missing at random.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dicast.app.analysis.estimates import Floats

LEVELS = np.arange(1.0, 6.0)
SKEWED = (-1.9, -1.4, -0.8, 0.1)
CEILING = (-2.6, -2.1, -1.6, -0.9)
EVEN = (-1.3, -0.5, 0.5, 1.3)


@dataclass(frozen=True, slots=True)
class RatingWorld:
    """What is planted. `noise` are standard deviations beside a quality of 1, `shared` is the part of the judges' error
    variance that they have in common, `bias` one a judge, `missing` the share of people's ratings that are not there.
    """

    cuts: tuple[float, ...] = SKEWED
    people: int = 3
    people_noise: float = 0.6
    judges_noise: float = 0.7
    shared: float = 0.4
    bias: tuple[float, ...] = (0.0, 0.3, -0.4)
    missing: float = 0.1


@dataclass(frozen=True, slots=True)
class Drawn:
    """Scores of the same items: items x judges, items x people (NaN where missing)."""

    judges: Floats
    people: Floats


def draw(world: RatingWorld, items: int, rng: np.random.Generator) -> Drawn:
    """Items from this world, each with all judges' scores; every item has one person's rating at the least."""
    quality = rng.normal(size=(items, 1))
    seen = quality + world.people_noise * rng.normal(size=(items, world.people))
    common = np.sqrt(world.shared) * rng.normal(size=(items, 1))
    own = np.sqrt(1 - world.shared) * rng.normal(size=(items, len(world.bias)))
    judged = quality + np.array(world.bias) + world.judges_noise * (common + own)
    people = _marked(seen, world.cuts)
    gaps = rng.random(people.shape) < world.missing
    gaps[np.arange(items), rng.integers(0, world.people, items)] = False
    return Drawn(_marked(judged, world.cuts), np.where(gaps, np.nan, people))


def _marked(seen: Floats, cuts: tuple[float, ...]) -> Floats:
    return LEVELS[np.searchsorted(np.array(cuts), seen)]
