"""Computes all statistics of a job."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dicast.app.assessment.auditing import audit_sentences, audited
from dicast.app.assessment.calibrating import calibrated_raters
from dicast.app.assessment.combined import is_not_chief, panel_scores
from dicast.app.assessment.figures import among_raters, figure
from dicast.app.assessment.grouping import group_statistics
from dicast.app.assessment.labelled import label_shares, preferences
from dicast.app.assessment.probing import probe_statistics
from dicast.app.assessment.scores import DimensionScores, JobScores
from dicast.app.assessment.spared import skipped_sentences
from dicast.app.assessment.stopping import stopped_early, with_difference, with_sequence
from dicast.app.assessment.voices import (
    NO_MEAN,
    NOBODY_IN_AUDIT,
    NOBODY_RATED,
    partly_asked_judge,
    person,
    rater_statistics,
)
from dicast.app.assessment.words import (
    calibration_sentences,
    label_sentences,
    panel_sentences,
    preference_sentences,
    summary,
)
from dicast.app.domain.figure import Figure
from dicast.app.domain.judge_statistics import (
    UNKNOWABLE,
    DimensionStatistics,
    GroupStatistics,
    JobStatistics,
    ProbeStatistics,
    RaterAgreement,
    RaterStatistics,
)
from dicast.app.statistics.agreement import inter_rater_agreement
from dicast.app.statistics.arrays import Floats
from dicast.app.statistics.independence import effective_judges

SOME_JUDGES = "the later judges were asked only where those before had not settled the outcome"
SEED = 1
"""The seed of all random numbers, so that the same scores give the same figures."""


def assess(job: JobScores) -> JobStatistics:
    """Compute the statistics of all dimensions. The same scores give the same figures."""
    rng = np.random.default_rng(SEED)
    rated = any(dimension.people.raters for dimension in job.dimensions)
    return JobStatistics(
        state="computed",
        rated=rated,
        items=job.items,
        probabilities=any(dimension.people.probabilities is not None for dimension in job.dimensions),
        unknowable=[] if rated else list(UNKNOWABLE),
        stopped=stopped_early(job),
        dimensions=[_dimension_statistics(job, dimension, rng) for dimension in job.dimensions],
    )


def _dimension_statistics(job: JobScores, dimension: DimensionScores, rng: np.random.Generator) -> DimensionStatistics:
    panel, people, nominal = panel_scores(job, dimension), dimension.people, dimension.spec.nominal
    raters = [_judge(name, at, dimension, rng) for at, name in enumerate(job.judges)]
    if len(job.judges) > 1:
        raters.append(rater_statistics("panel", "panel", panel[:, None], dimension, rng))
    raters = with_sequence(job, dimension, raters)
    ceiling = person(dimension, rng)
    independent = _independent(job, dimension, rng)
    groups = [
        GroupStatistics(by=by, reason=NO_MEAN)
        if nominal
        else with_difference(job, dimension, group_statistics(job, dimension, panel, by, rng))
        for by in job.groups
    ]
    calibrated = (
        calibrated_raters(job, dimension, panel, job.calibration) if job.calibration is not None and not nominal else []
    )
    shares, chosen = label_shares(dimension), preferences(job, dimension, panel, _always_asked(job, dimension), rng)
    probes = [] if nominal else _probes(job, dimension)
    audit = audited(job, dimension)
    drawn = people.probabilities is not None
    sentences = summary(raters, ceiling, independent, groups, probes, known_probabilities=drawn)
    return DimensionStatistics(
        dimension=dimension.spec.id,
        scale_min=dimension.spec.scale_min,
        scale_max=dimension.spec.scale_max,
        ratings=int((~np.isnan(people.scores)).sum()),
        rated_items=len(people.rated),
        raters=list(people.raters),
        panel=dimension.spec.panel.combine,
        voices=raters,
        person=ceiling,
        judges=_among_judges(job, dimension, rng),
        people=_among(people.scores, dimension, rng) if people.raters else None,
        independent=independent,
        groups=groups,
        probes=probes,
        calibrated=calibrated,
        shares=shares,
        preferences=chosen,
        audit=audit,
        summary=[*sentences, *label_sentences(shares), *preference_sentences(chosen), *panel_sentences(dimension.spec),
                 *skipped_sentences(dimension.spec, raters, job.items), *audit_sentences(audit),
                 *calibration_sentences(calibrated)],
    )  # fmt: skip


def _probes(job: JobScores, dimension: DimensionScores) -> list[ProbeStatistics]:
    varied = {} if job.variants is None else _all_raters(job, replace(dimension, scores=dimension.varied), learns=False)
    orders = (
        []
        if dimension.orders is None
        else [_in_order(job, dimension, dimension.orders[..., which]) for which in (0, 1)]
    )
    return probe_statistics(job, dimension, _all_raters(job, dimension), varied, orders)


def _always_asked(job: JobScores, dimension: DimensionScores) -> dict[str, Floats]:
    """Return the scores of those raters that have scores of all items."""
    seldom = [name for name, everywhere in zip(job.judges, dimension.asked_everywhere, strict=True) if not everywhere]
    return {name: scores for name, scores in _all_raters(job, dimension).items() if name not in seldom}


def _in_order(job: JobScores, dimension: DimensionScores, scores: Floats) -> dict[str, Floats]:
    """Return the raters' scores from the rounds in one of the orders."""
    return _all_raters(job, replace(dimension, scores=scores, orders=None), learns=False)


def _all_raters(job: JobScores, dimension: DimensionScores, *, learns: bool = True) -> dict[str, Floats]:
    """Return one score an item from each judge, and from the panel if there are several. A panel whose rule learns
    from all items is included only with `learns`."""
    judged = {name: dimension.judges[:, at] for at, name in enumerate(job.judges)}
    alone = len(job.judges) == 1 or (dimension.spec.panel.learns and not learns)
    return judged if alone else judged | {"panel": panel_scores(job, dimension)}


def _judge(name: str, at: int, dimension: DimensionScores, rng: np.random.Generator) -> RaterStatistics:
    if dimension.asked_everywhere[at]:
        return rater_statistics(name, "judge", dimension.scores[:, at, :], dimension, rng)
    return partly_asked_judge(name, at, dimension, rng)


def _independent(job: JobScores, dimension: DimensionScores, rng: np.random.Generator) -> Figure:
    """Estimate how many independent judges the panel is worth, on items that all judges were asked about."""
    if dimension.spec.nominal or not dimension.people.raters:
        return Figure.unknown(NO_MEAN if dimension.spec.nominal else NOBODY_RATED)
    whole = dimension if dimension.asked_everywhere.all() else dimension.of_audit
    if whole is None:
        return Figure.unknown(SOME_JUDGES)
    if not len(whole.people.rated):
        return Figure.unknown(NOBODY_IN_AUDIT)
    alone = whole.judges[whole.people.rated][:, is_not_chief(job.judges, whole)]
    return figure(effective_judges(alone, whole.people.scores, rng))


def _among_judges(job: JobScores, dimension: DimensionScores, rng: np.random.Generator) -> RaterAgreement | None:
    """Measure the agreement among the judges who were asked about all items: the others were asked where the first
    ones disagree.

    If only one judge was asked about all items, the items of the audit are used, with all judges. A chief knows what
    the others say, so its agreement with them says nothing, and it is left out.
    """
    left_out = [name for name, everywhere in zip(job.judges, dimension.asked_everywhere, strict=True) if not everywhere]
    scores = dimension.scores[:, dimension.asked_everywhere & is_not_chief(job.judges, dimension), 0]
    if not left_out or scores.shape[1] > 1:
        agreement = _among(scores, dimension, rng)
        return agreement if agreement is None else agreement.model_copy(update={"left_out": left_out})
    if dimension.of_audit is not None:
        return _among_judges(job, dimension.of_audit, rng)
    unknown = Figure.unknown(SOME_JUDGES)
    return RaterAgreement(
        raters=1, alpha=unknown, fleiss=unknown, icc_single=unknown, icc_mean=unknown, base_rate=None, items=0,
        missing=0.0, left_out=left_out,
    )  # fmt: skip


def _among(scores: Floats, dimension: DimensionScores, rng: np.random.Generator) -> RaterAgreement | None:
    raters = scores.shape[1]
    if raters < 2:
        return None
    return among_raters(inter_rater_agreement(scores, dimension.level, dimension.levels, rng), raters, dimension)
