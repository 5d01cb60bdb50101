"""Where the variance of scores comes from, and what more judges, replicates, raters or items would buy.

Generalizability theory (L. J. Cronbach, G. C. Gleser, H. Nanda and N. Rajaratnam, "The Dependability of Behavioral
Measurements", Wiley 1972; R. L. Brennan, "Generalizability Theory", Springer 2001): items, judges and dimensions have
crossed random effects, and so have their interactions. Variances are estimated from expected mean squares, on the items
that have all scores; with one replicate, the highest interaction cannot be told from the residual. For people, who need
not rate all items, raters' strictness is fitted within items first.

Intervals are by the jackknife over 20 groups of items. They are about these judges, raters and dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain, combinations
from math import prod

import numpy as np

from dicast.app.analysis.estimates import CONFIDENCE, Estimate, Floats, quantile
from dicast.app.analysis.powered import within_items
from dicast.app.analysis.scores import DimensionScores, JobScores, figure
from dicast.app.domain.figure import Figure
from dicast.app.domain.judge_statistics import DesignStudy, VarianceComponent, VarianceComponents

FEWEST = 20
GROUPS = 20
RESIDUAL = "residual"
Components = dict[str, float]
"""By what varies, such as "item" or "item x judge"."""


def crossed_components(scores: Floats, facets: Sequence[str]) -> Components:
    """Return the variance of each facet, of each interaction and of the residual. `scores` have an axis for each facet,
    and one for replicates; nothing may be missing. Variances below 0 are estimates of 0, and stay as they are."""
    *sizes, rounds = scores.shape
    cells, axes = scores.mean(axis=-1), range(len(facets))
    subsets = [*chain.from_iterable(combinations(axes, size) for size in range(len(facets) + 1))]
    means = {subset: cells.mean(axis=tuple(set(axes) - set(subset)), keepdims=True) for subset in subsets}

    def mean_square(subset: tuple[int, ...]) -> float:
        parts = (((-1) ** (len(subset) - len(part))) * means[part] for part in subsets if set(part) <= set(subset))
        effect = np.asarray(sum(parts))
        times = rounds * cells.size / effect.size
        degrees: int = prod(sizes[at] - 1 for at in subset)
        return float((effect**2).sum() * times / degrees)

    top = tuple(axes)
    if rounds > 1:
        residual = float(((scores - cells[..., None]) ** 2).sum()) / (cells.size * (rounds - 1))
    else:
        residual = mean_square(top)
    variances: dict[tuple[int, ...], float] = {}
    for subset in sorted(subsets[1:], key=len, reverse=True):
        if subset == top and rounds == 1:
            continue
        above = residual + sum(
            variance * rounds * prod(sizes[at] for at in axes if at not in other)
            for other, variance in variances.items()
            if set(subset) < set(other)
        )
        variances[subset] = (mean_square(subset) - above) / (
            rounds * prod(sizes[at] for at in axes if at not in subset)
        )
    named_variances = {
        " x ".join(facets[at] for at in subset): variances[subset]
        for subset in sorted(variances, key=lambda subset: (len(subset), subset))
    }
    return named_variances | {RESIDUAL: residual}


def rater_components(people: Floats) -> Components | None:
    """Return the variances of items, raters and the residual from ratings (items x raters, NaN where missing); None
    where raters cannot be compared.

    Raters' strictness is fitted by least squares within items, as for `within_items`; what is left is a one-way layout
    by item.
    """
    rated = ~np.isnan(people)
    inside = rated.any(axis=1)
    people, rated = people[inside][:, rated.any(axis=0)], rated[inside][:, rated.any(axis=0)]
    raters = people.shape[1]
    fit = within_items(people, rated) if raters > 1 else None
    if fit is None:
        return None
    strictness, noise, residual = fit
    apart = np.where(rated, people - strictness, 0.0)
    count = rated.sum(axis=1)
    item_means, total = apart.sum(axis=1) / count, int(count.sum())
    between = float((count * (item_means - apart.sum() / total) ** 2).sum()) / (len(count) - 1)
    ratings_an_item = (total - float((count**2).sum()) / total) / (len(count) - 1)
    spread = (float(((strictness - strictness.mean()) ** 2).sum()) - noise) / (raters - 1)
    return {"item": (between - residual) / ratings_an_item, "rater": spread, RESIDUAL: residual}


def judge_components(job: JobScores, dimension: DimensionScores) -> VarianceComponents | None:
    """Return the components of the judges' scores in one dimension; None where there is one score an item."""
    scores = dimension.scores[:, dimension.asked_everywhere]
    items, judges, rounds = scores.shape
    if dimension.spec.nominal or (judges < 2 and rounds < 2):
        return None
    scores = scores[~np.isnan(scores).any(axis=(1, 2))]
    facets = ["item", "judge"] if judges > 1 else ["item"]
    if len(scores) < FEWEST:
        return VarianceComponents(of="judges", reason=_too_few(len(scores)))
    scores = scores if judges > 1 else scores[:, 0]
    variances_by_source = crossed_components(scores, facets)
    designs = _designs(variances_by_source, judges, rounds, items, "judge")
    return VarianceComponents(
        of="judges",
        items=len(scores),
        components=_with_intervals(variances_by_source, scores, lambda some: crossed_components(some, facets)),
        designs=designs,
    )


def people_components(dimension: DimensionScores) -> VarianceComponents | None:
    """Return the components of people's ratings in one dimension; None where fewer than two people rated."""
    people = dimension.people.scores
    if dimension.spec.nominal or len(dimension.people.raters) < 2:
        return None
    variances_by_source = rater_components(people) if len(people) >= FEWEST else None
    if variances_by_source is None:
        reason = _too_few(len(people)) if len(people) < FEWEST else "the raters share too few items to be compared"
        return VarianceComponents(of="people", reason=reason)
    an_item = max(1, round(float((~np.isnan(people)).sum() / len(people))))
    return VarianceComponents(
        of="people",
        items=len(people),
        components=_with_intervals(variances_by_source, people, rater_components),
        designs=_designs(variances_by_source, an_item, 1, len(people), "rater"),
    )


def dimension_components(job: JobScores) -> VarianceComponents | None:
    """Return the components of all judges' scores over items, judges and dimensions; None unless there are two
    dimensions on the same scale, in which all judges were asked everywhere."""
    dimensions = [
        dimension for dimension in job.dimensions if not dimension.spec.nominal and dimension.asked_everywhere.all()
    ]
    if (
        len(dimensions) < 2
        or len({dimension.bounds for dimension in dimensions}) > 1
        or len(dimensions) < len(job.dimensions)
    ):
        return None
    scores = np.stack([dimension.scores for dimension in dimensions], axis=2)
    scores = scores[~np.isnan(scores).any(axis=(1, 2, 3))]
    if len(scores) < FEWEST:
        return VarianceComponents(of="dimensions", reason=_too_few(len(scores)))
    facets = ["item", "judge", "dimension"] if len(job.judges) > 1 else ["item", "dimension"]
    scores = scores if len(job.judges) > 1 else scores[:, 0]
    variances_by_source = crossed_components(scores, facets)
    components = _with_intervals(variances_by_source, scores, lambda some: crossed_components(some, facets))
    return VarianceComponents(of="dimensions", items=len(scores), components=components)


def _too_few(items: int) -> str:
    return f"it takes {FEWEST} items with all scores, and there are {items}"


def _with_intervals(
    variances_by_source: Components, scores: Floats, estimate: Callable[[Floats], Components | None]
) -> list[VarianceComponent]:
    """Return the components with intervals by the jackknife over groups of items."""
    group = np.arange(len(scores)) % GROUPS
    without = [estimate(scores[group != at]) for at in range(GROUPS)]
    total = sum(max(variance, 0.0) for variance in variances_by_source.values())
    components = []
    for name, variance in variances_by_source.items():
        values = np.array([others[name] for others in without if others is not None])
        if len(values) < GROUPS:
            interval = Figure.unknown("without some of the items, raters cannot be compared")
        else:
            error = float(np.sqrt(((values - values.mean()) ** 2).sum() * (GROUPS - 1) / GROUPS))
            reach, value = quantile((1 + CONFIDENCE) / 2, GROUPS - 1) * error, max(variance, 0.0)
            low, high = max(variance - reach, 0.0), max(variance + reach, 0.0)
            interval = figure(Estimate(value, low, high, len(scores), "expected mean squares, jackknife"))
        share = max(variance, 0.0) / total if total > 0 else 0.0
        components.append(VarianceComponent(source=name, variance=interval, share=share))
    return components


def _designs(variances_by_source: Components, sources: int, rounds: int, items: int, facet: str) -> list[DesignStudy]:
    """Return the present design, and what twice as many of each would buy (a D-study)."""
    designs = [("as it is", sources, rounds, items), (f"twice the {facet}s", 2 * sources, rounds, items)]
    if rounds > 1:
        designs.append(("twice the replicates", sources, 2 * rounds, items))
    designs.append(("twice the items", sources, rounds, 2 * items))
    return [
        DesignStudy(
            design=name,
            sources=some,
            replicates=times,
            items=many,
            **_worth(variances_by_source, some, times, many, facet),
        )
        for name, some, times, many in designs
        if facet in variances_by_source or not name.endswith(f"{facet}s")
    ]


def _worth(variances_by_source: Components, sources: int, rounds: int, items: int, facet: str) -> Mapping[str, float]:
    """Return the coefficients of an item's mean score (Brennan, sections 1.1 and 3.1), and the standard error of the
    mean of all items."""
    item, source, both, residual = (
        max(variances_by_source.get(name, 0.0), 0.0) for name in ("item", facet, f"item x {facet}", RESIDUAL)
    )
    relative = both / sources + residual / (sources * rounds)
    absolute = relative + source / sources
    return {
        "generalizability": item / (item + relative) if item + relative > 0 else 0.0,
        "dependability": item / (item + absolute) if item + absolute > 0 else 0.0,
        "error_of_mean": float(np.sqrt(source / sources + (item + relative) / items)),
    }
