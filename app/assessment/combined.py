"""Combines the judges' scores of an item into one, as the job says, and learns what that takes from the whole job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dicast.app.assessment.scores import DimensionScores, JobScores
from dicast.app.domain.panel import UNLIKELY, LearnedPanel
from dicast.app.statistics.arrays import Bools, Floats
from dicast.app.statistics.combining import COMBINATIONS, learned_weights, weighted_mean
from dicast.app.statistics.labels import dawid_skene

FEWEST_RATED = 20
"""The fewest rated items in each half; with fewer, learned weights are noise."""


def learned(job: JobScores) -> JobScores:
    """Return the job with everything that its panels' rules learn, unless it is there already."""
    return replace(job, dimensions=tuple(_learned(job, of) for of in job.dimensions))


def panel_scores(job: JobScores, of: DimensionScores) -> Floats:
    """Return one score an item, NaN for items without any score."""
    rule, found = of.dimension.panel, of.dimension.learned
    if rule.learns:
        assert found is not None, "see `learned`"
        return _likeliest(job, of, found) if found.prior else _by_halves(job, of, found)
    if rule.combine == "weighted":
        return weighted_mean(of.judges, np.array([rule.given_weights[name] for name in job.judges]))
    scores = of.labels if of.dimension.nominal else of.judges
    return scores[:, ~beside_chief(job.judges, of)][:, 0] if rule.chief else COMBINATIONS[rule.combine](scores)


def beside_chief(judges: Sequence[str], of: DimensionScores) -> Bools:
    """Return which judges were not told what the others say: all but a chief."""
    return np.array([name != of.dimension.panel.chief for name in judges], dtype=bool)


def _learned(job: JobScores, of: DimensionScores) -> DimensionScores:
    rule = of.dimension.panel
    if not rule.learns or of.dimension.learned is not None:
        return of
    found = _errors(job, of) if rule.combine == "dawid_skene" else _weights(job, of)
    return replace(of, dimension=of.dimension.model_copy(update={"learned": found}))


def _weights(job: JobScores, of: DimensionScores) -> LearnedPanel:
    people = of.people.means(job.items)
    rated = ~np.isnan(people) & ~np.isnan(of.judges).any(axis=1)
    sizes = [int((rated & (job.halves == half)).sum()) for half in (0, 1)]
    equal = dict.fromkeys(job.judges, 1 / len(job.judges))
    if min(sizes) < FEWEST_RATED:
        reason = (
            f"weights are learned on {FEWEST_RATED} rated items with all scores or more in each half, and there are "
            f"{sizes[0]} and {sizes[1]}"
        )
        return LearnedPanel(items=sum(sizes), weights=equal, reason=reason)

    def of_items(inside: Bools) -> dict[str, float]:
        found = learned_weights(of.judges, np.where(inside, people, np.nan))
        return dict(zip(job.judges, found.tolist(), strict=True))

    halves = [of_items(job.halves == half) for half in (0, 1)]
    return LearnedPanel(items=sum(sizes), weights=of_items(np.ones(job.items, dtype=bool)), halves=halves)


def _by_halves(job: JobScores, of: DimensionScores, found: LearnedPanel) -> Floats:
    """Combine rated items with the weights learned from the other half, and the other items with the weights learned
    from all."""
    scores = weighted_mean(of.judges, np.array([found.weights[name] for name in job.judges]))
    rated = ~np.isnan(of.people.means(job.items))
    for half, weights in enumerate(found.halves):
        own = rated & (job.halves != half)
        scores[own] = weighted_mean(of.judges[own], np.array([weights[name] for name in job.judges]))
    return scores


def _coded(of: DimensionScores) -> Floats:
    return np.where(np.isnan(of.labels), -1, of.labels - of.dimension.scale_min)


def _errors(job: JobScores, of: DimensionScores) -> LearnedPanel:
    labels = of.dimension.scale_max - of.dimension.scale_min + 1
    found = dawid_skene(_coded(of).astype(np.int64), labels)
    errors = dict(zip(job.judges, found.errors.tolist(), strict=True))
    return LearnedPanel(items=job.items, prior=found.prior.tolist(), errors=errors)


def _likeliest(job: JobScores, of: DimensionScores, found: LearnedPanel) -> Floats:
    """Return each item's likeliest label, as a score of the scale."""
    given = _coded(of).astype(np.int64)
    evidence = np.tile(np.log(np.clip(found.prior, UNLIKELY, None)), (job.items, 1))
    for at, name in enumerate(job.judges):
        said = given[:, at] >= 0
        evidence[said] += np.log(np.clip(found.errors[name], UNLIKELY, None))[:, given[said, at]].T
    return np.where((given < 0).all(axis=1), np.nan, evidence.argmax(axis=1) + float(of.dimension.scale_min))
