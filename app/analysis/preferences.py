"""Pairwise choices: win rates, strengths after Bradley and Terry, and whether a preference survives a swap.

A choice is 1 where the first of two was preferred, 0 where the second was, and 0.5 for a tie.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy
import scipy.special

from dicast.app.analysis import estimates as student
from dicast.app.analysis.estimates import CONFIDENCE, Estimate, Floats, Ints, Result, Unknown
from dicast.app.analysis.groups import rank_probabilities
from dicast.app.analysis.means import FEWEST, mean


@dataclass(frozen=True, slots=True)
class Strengths:
    """Each contestant's strength with its interval, and how likely each (row) has each rank (column).

    Strengths are on the log-odds scale with mean 0: A beats B with probability 1 / (1 + exp(b - a)).
    """

    names: tuple[str, ...]
    strengths: tuple[Estimate, ...]
    ranks: Floats


@dataclass(frozen=True, slots=True)
class Position:
    """The effect of swapping two answers.

    `consistent` is the share of pairs whose preference stayed, `first_wins` how often the answer shown first won (0.5
    without a position bias; ties count half).
    """

    consistent: Result
    first_wins: Result
    pairs: int


def win_rate(choices: Floats, items: Ints | None = None) -> Result:
    """Return how often the first was preferred, ties half; clustered by item."""
    return mean(choices, clusters=items, bounds=(0.0, 1.0))


def both_orders(shown_first: Floats, shown_second: Floats) -> Floats:
    """Combine the choices in the two orders: a tie if the preference changed with the order.

    `shown_first` is the choice with A shown first, `shown_second` with B shown first, both in favour of A (1 = A). A
    tie in one order leaves the other's preference; the result is NaN if either order is missing.
    """
    clash = np.abs(shown_first - shown_second) == 1
    return np.asarray(np.where(clash, 0.5, np.clip(shown_first + shown_second - 0.5, 0, 1)))


def position(shown_first: Floats, shown_second: Floats) -> Position:
    """Return the position probe of pairs judged in both orders; the arguments are those of `both_orders`."""
    both = ~(np.isnan(shown_first) | np.isnan(shown_second))
    a, b = shown_first[both], shown_second[both]
    first = np.concatenate([a, 1 - b])
    pair = np.tile(np.arange(len(a)), 2)
    return Position(mean((a == b).astype(np.float64), bounds=(0.0, 1.0)), win_rate(first, pair), len(a))


PRIOR_SD = 2.0
"""The standard deviation of a strength before anything was compared, in log odds: of two contestants, one then beats
the other with a probability between 0.02 and 0.98 in five cases of six."""
STEPS_MAX = 100
STEP_LEAST = 1e-10
NORMAL = float(scipy.special.ndtri((1 + CONFIDENCE) / 2))
"""The standard deviations that an interval extends to either side, if they are known."""


def share_of_wins(choices: Floats) -> Result:
    """Return how often the first was preferred, ties half, with Wilson's interval (Journal of the American Statistical
    Association 22, 1927, 209-212).

    The interval also works for few choices, and for choices that are all alike. It takes each for an independent one.
    """
    choices = choices[~np.isnan(choices)]
    count = len(choices)
    if not count:
        return Unknown("there are no choices")
    from statsmodels.stats.proportion import proportion_confint  # noqa: PLC0415  (takes a second of CPU time to load)

    value = float(choices.mean())
    low, high = map(float, proportion_confint(value * count, count, alpha=1 - CONFIDENCE, method="wilson"))
    return Estimate(value, min(low, value), max(high, value), count, "Wilson")


def likely_strengths(
    first: npt.ArrayLike, second: npt.ArrayLike, choices: Floats, rng: np.random.Generator
) -> Strengths | Unknown:
    """Return the strengths behind these choices, where they are too few or too one-sided for `bradley_terry`.

    It is the same model with a prior: each strength is normal with mean 0 and `PRIOR_SD`, which bounds a strength that
    the choices alone leave unbounded. Values are the posterior's mode; intervals and ranks are those of a normal
    distribution there (Laplace's approximation), each choice being an independent one. Unknown without any choice.
    """
    present = ~np.isnan(choices)
    names, who = np.unique(
        np.concatenate([np.asarray(first)[present], np.asarray(second)[present]]).astype(str), return_inverse=True
    )
    a, b, choices = who[: present.sum()], who[present.sum() :], choices[present]
    if (a == b).any():
        raise ValueError("a contestant was compared with itself")
    size = len(names)
    if not size:
        return Unknown("nothing was compared")
    sides, prior = np.eye(size)[a] - np.eye(size)[b], np.eye(size) / PRIOR_SD**2
    values = np.zeros(size)
    for _ in range(STEPS_MAX):  # Newton's method: the posterior is concave
        expected = 1 / (1 + np.exp(-(sides @ values)))
        curvature = (sides * (expected * (1 - expected))[:, None]).T @ sides + prior
        step = np.linalg.solve(curvature, sides.T @ (choices - expected) - prior @ values)
        values = values + step / max(1.0, float(np.abs(step).max()))
        if np.abs(step).max() < STEP_LEAST:
            break
    centred = np.eye(size) - 1 / size
    covariance = centred @ np.linalg.inv(curvature) @ centred
    values = values - values.mean()
    reach = NORMAL * np.sqrt(np.diag(covariance).clip(min=0.0))
    estimates = tuple(
        Estimate(float(v), float(v - r), float(v + r), len(choices), f"Bradley-Terry, prior of sd {PRIOR_SD:g}")
        for v, r in zip(values, reach, strict=True)
    )
    return Strengths(tuple(map(str, names)), estimates, rank_probabilities(values, covariance, rng))


def bradley_terry(
    first: npt.ArrayLike, second: npt.ArrayLike, choices: Floats, items: Ints, rng: np.random.Generator
) -> Strengths | Unknown:
    """Return the strengths behind these choices (R. A. Bradley and M. E. Terry, Biometrika 39 (1952), 324-345).

    They are fitted by choix (a tie is half a win for each); intervals come from the scores of the likelihood, clustered
    by item. Unknown if a contestant never won or never lost against a part of the others: its strength is then
    unbounded.
    """
    present = ~np.isnan(choices)
    names, who = np.unique(
        np.concatenate([np.asarray(first)[present], np.asarray(second)[present]]).astype(str), return_inverse=True
    )
    a, b, choices = who[: present.sum()], who[present.sum() :], choices[present]
    cluster = np.unique(items[present], return_inverse=True)[1]
    if (a == b).any():
        raise ValueError("a contestant was compared with itself")
    size, count = len(names), int(cluster.max()) + 1 if len(cluster) else 0
    if size < 2 or count < max(FEWEST, size):
        return Unknown(f"{count} items are too few to tell {size} apart")
    wins = np.zeros((size, size))
    np.add.at(wins, (a, b), choices)
    np.add.at(wins, (b, a), 1 - choices)
    if scipy.sparse.csgraph.connected_components(scipy.sparse.csr_array(wins > 0), connection="strong")[0] > 1:
        return Unknown("a contestant never won, or never lost, against the others: its strength is unbounded")
    import choix  # noqa: PLC0415  (takes half a second of CPU time to load)

    values = np.asarray(choix.ilsr_pairwise_dense(wins), dtype=np.float64)
    values -= values.mean()
    expected = 1 / (1 + np.exp(values[b] - values[a]))
    sides = np.eye(size)[a] - np.eye(size)[b]
    information = (sides * (expected * (1 - expected))[:, None]).T @ sides
    scores = np.zeros((count, size))
    np.add.at(scores, cluster, sides * (choices - expected)[:, None])
    # Strengths are known but for a constant, so the information is singular; scores add up to 0, and do not see what is
    # added here. A pseudo-inverse has to guess which eigenvalue is 0, and errs with some linear algebra libraries.
    regular = information + information.trace() / size
    influence = scores @ np.linalg.inv(regular) * np.sqrt(count / (count - 1))
    reach = student.quantile((1 + CONFIDENCE) / 2, count - 1) * np.sqrt((influence**2).sum(axis=0))
    if (reach <= 0).any():
        return Unknown("all comparisons came out as expected, which leaves nothing to draw an interval from")
    estimates = tuple(
        Estimate(float(v), float(v - r), float(v + r), count, "Bradley-Terry by item")
        for v, r in zip(values, reach, strict=True)
    )
    return Strengths(tuple(map(str, names)), estimates, rank_probabilities(values, influence.T @ influence, rng))
