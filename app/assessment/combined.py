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


def with_learned_panels(job: JobScores) -> JobScores:
    """Return the job with everything that its panels' rules learn, unless it is there already."""
    return replace(job, dimensions=tuple(_learn(job, dimension) for dimension in job.dimensions))


def panel_scores(job: JobScores, dimension: DimensionScores) -> Floats:
    """Return one score an item, NaN for items without any score."""
    rule, learned_panel = dimension.spec.panel, dimension.spec.learned
    if rule.learns:
        assert learned_panel is not None, "see `with_learned_panels`"
        return (
            _likeliest(job, dimension, learned_panel)
            if learned_panel.prior
            else _by_halves(job, dimension, learned_panel)
        )
    if rule.combine == "weighted":
        return weighted_mean(dimension.judges, np.array([rule.given_weights[name] for name in job.judges]))
    scores = dimension.labels if dimension.spec.nominal else dimension.judges
    return scores[:, ~is_not_chief(job.judges, dimension)][:, 0] if rule.chief else COMBINATIONS[rule.combine](scores)


def is_not_chief(judges: Sequence[str], dimension: DimensionScores) -> Bools:
    """Return which judges were not told what the others say: all but a chief."""
    return np.array([name != dimension.spec.panel.chief for name in judges], dtype=bool)


def _learn(job: JobScores, dimension: DimensionScores) -> DimensionScores:
    rule = dimension.spec.panel
    if not rule.learns or dimension.spec.learned is not None:
        return dimension
    learned_panel = _errors(job, dimension) if rule.combine == "dawid_skene" else _weights(job, dimension)
    return replace(dimension, spec=dimension.spec.model_copy(update={"learned": learned_panel}))


def _weights(job: JobScores, dimension: DimensionScores) -> LearnedPanel:
    people = dimension.people.means(job.items)
    rated = ~np.isnan(people) & ~np.isnan(dimension.judges).any(axis=1)
    sizes = [int((rated & (job.halves == half)).sum()) for half in (0, 1)]
    equal = dict.fromkeys(job.judges, 1 / len(job.judges))
    if min(sizes) < FEWEST_RATED:
        reason = (
            f"weights are learned on {FEWEST_RATED} rated items with all scores or more in each half, and there are "
            f"{sizes[0]} and {sizes[1]}"
        )
        return LearnedPanel(items=sum(sizes), weights=equal, reason=reason)

    def of_items(inside: Bools) -> dict[str, float]:
        weights = learned_weights(dimension.judges, np.where(inside, people, np.nan))
        return dict(zip(job.judges, weights.tolist(), strict=True))

    halves = [of_items(job.halves == half) for half in (0, 1)]
    return LearnedPanel(items=sum(sizes), weights=of_items(np.ones(job.items, dtype=bool)), halves=halves)


def _by_halves(job: JobScores, dimension: DimensionScores, learned_panel: LearnedPanel) -> Floats:
    """Combine rated items with the weights learned from the other half, and the other items with the weights learned
    from all."""
    scores = weighted_mean(dimension.judges, np.array([learned_panel.weights[name] for name in job.judges]))
    rated = ~np.isnan(dimension.people.means(job.items))
    for half, weights in enumerate(learned_panel.halves):
        other_half = rated & (job.halves != half)
        scores[other_half] = weighted_mean(
            dimension.judges[other_half], np.array([weights[name] for name in job.judges])
        )
    return scores


def _coded(dimension: DimensionScores) -> Floats:
    return np.where(np.isnan(dimension.labels), -1, dimension.labels - dimension.spec.scale_min)


def _errors(job: JobScores, dimension: DimensionScores) -> LearnedPanel:
    labels = dimension.spec.scale_max - dimension.spec.scale_min + 1
    estimates = dawid_skene(_coded(dimension).astype(np.int64), labels)
    errors = dict(zip(job.judges, estimates.errors.tolist(), strict=True))
    return LearnedPanel(items=job.items, prior=estimates.prior.tolist(), errors=errors)


def _likeliest(job: JobScores, dimension: DimensionScores, learned_panel: LearnedPanel) -> Floats:
    """Return each item's likeliest label, as a score of the scale."""
    codes = _coded(dimension).astype(np.int64)
    evidence = np.tile(np.log(np.clip(learned_panel.prior, UNLIKELY, None)), (job.items, 1))
    for at, name in enumerate(job.judges):
        has_label = codes[:, at] >= 0
        evidence[has_label] += np.log(np.clip(learned_panel.errors[name], UNLIKELY, None))[:, codes[has_label, at]].T
    return np.where((codes < 0).all(axis=1), np.nan, evidence.argmax(axis=1) + float(dimension.spec.scale_min))
