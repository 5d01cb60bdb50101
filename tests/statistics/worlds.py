"""Simulated ratings on a 5-point scale: one latent quality, seen by each rater with an error of his own."""

import numpy as np

LEVELS = np.arange(1.0, 6.0)
SKEWED = np.array([-1.9, -1.4, -0.8, 0.1])
EVEN = np.array([-1.3, -0.5, 0.5, 1.3])


def scores(rng, items, raters, *, cuts=SKEWED, reliability=0.7, missing=0.0):
    """Items x raters; `missing` is the share of empty cells."""
    quality = rng.normal(size=(items, 1))
    seen = np.sqrt(reliability) * quality + np.sqrt(1 - reliability) * rng.normal(size=(items, raters))
    given = 1.0 + np.searchsorted(cuts, seen)
    given[rng.random(given.shape) < missing] = np.nan
    return given
