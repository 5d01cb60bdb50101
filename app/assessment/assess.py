"""Computes all statistics of a job."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dicast.app.assessment.auditing import audit_words, audited
from dicast.app.assessment.calibrating import calibrated_voices
from dicast.app.assessment.combined import beside_chief, panel_scores
from dicast.app.assessment.figures import among_raters, figure
from dicast.app.assessment.grouping import grouped
from dicast.app.assessment.labelled import label_shares, preferences
from dicast.app.assessment.probing import probed
from dicast.app.assessment.scores import DimensionScores, JobScores
from dicast.app.assessment.spared import spared_words
from dicast.app.assessment.stopping import stopped_early, with_asked_difference, with_sequence
from dicast.app.assessment.voices import NO_MEAN, NOBODY_IN_AUDIT, NOBODY_RATED, person, spared_judge, voice
from dicast.app.assessment.words import calibrated_words, label_words, panel_words, preference_words, summary
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
    rated = any(of.people.raters for of in job.dimensions)
    return JobStatistics(
        state="computed",
        rated=rated,
        items=job.items,
        probabilities=any(of.people.probabilities is not None for of in job.dimensions),
        unknowable=[] if rated else list(UNKNOWABLE),
        stopped=stopped_early(job),
        dimensions=[_dimension(job, of, rng) for of in job.dimensions],
    )


def _dimension(job: JobScores, of: DimensionScores, rng: np.random.Generator) -> DimensionStatistics:
    panel, people, nominal = panel_scores(job, of), of.people, of.dimension.nominal
    voices = [_judge(name, at, of, rng) for at, name in enumerate(job.judges)]
    if len(job.judges) > 1:
        voices.append(voice("panel", "panel", panel[:, None], of, rng))
    voices = with_sequence(job, of, voices)
    ceiling = person(of, rng)
    independent = _independent(job, of, rng)
    groups = [
        GroupStatistics(by=by, reason=NO_MEAN)
        if nominal
        else with_asked_difference(job, of, grouped(job, of, panel, by, rng))
        for by in job.groups
    ]
    calibrated = (
        calibrated_voices(job, of, panel, job.calibration) if job.calibration is not None and not nominal else []
    )
    shares, chosen = label_shares(of), preferences(job, of, panel, _always_asked(job, of), rng)
    probes = [] if nominal else _probes(job, of)
    audit = audited(job, of)
    drawn = people.probabilities is not None
    told = summary(voices, ceiling, independent, groups, probes, known_probabilities=drawn)
    return DimensionStatistics(
        dimension=of.dimension.id,
        scale_min=of.dimension.scale_min,
        scale_max=of.dimension.scale_max,
        ratings=int((~np.isnan(people.scores)).sum()),
        rated_items=len(people.rated),
        raters=list(people.raters),
        panel=of.dimension.panel.combine,
        voices=voices,
        person=ceiling,
        judges=_among_judges(job, of, rng),
        people=_among(people.scores, of, rng) if people.raters else None,
        independent=independent,
        groups=groups,
        probes=probes,
        calibrated=calibrated,
        shares=shares,
        preferences=chosen,
        audit=audit,
        summary=[*told, *label_words(shares), *preference_words(chosen), *panel_words(of.dimension),
                 *spared_words(of.dimension, voices, job.items), *audit_words(audit), *calibrated_words(calibrated)],
    )  # fmt: skip


def _probes(job: JobScores, of: DimensionScores) -> list[ProbeStatistics]:
    varied = {} if job.variants is None else _all_voices(job, replace(of, scores=of.varied), learns=False)
    orders = [] if of.orders is None else [_in_order(job, of, of.orders[..., which]) for which in (0, 1)]
    return probed(job, of, _all_voices(job, of), varied, orders)


def _always_asked(job: JobScores, of: DimensionScores) -> dict[str, Floats]:
    """Return the scores of those raters that have scores of all items."""
    seldom = [name for name, everywhere in zip(job.judges, of.everywhere, strict=True) if not everywhere]
    return {name: scores for name, scores in _all_voices(job, of).items() if name not in seldom}


def _in_order(job: JobScores, of: DimensionScores, scores: Floats) -> dict[str, Floats]:
    """Return the raters' scores from the rounds in one of the orders."""
    return _all_voices(job, replace(of, scores=scores, orders=None), learns=False)


def _all_voices(job: JobScores, of: DimensionScores, *, learns: bool = True) -> dict[str, Floats]:
    """Return one score an item from each judge, and from the panel if there are several. A panel whose rule learns
    from all items is included only with `learns`."""
    judged = {name: of.judges[:, at] for at, name in enumerate(job.judges)}
    alone = len(job.judges) == 1 or (of.dimension.panel.learns and not learns)
    return judged if alone else judged | {"panel": panel_scores(job, of)}


def _judge(name: str, at: int, of: DimensionScores, rng: np.random.Generator) -> RaterStatistics:
    if of.everywhere[at]:
        return voice(name, "judge", of.scores[:, at, :], of, rng)
    return spared_judge(name, at, of, rng)


def _independent(job: JobScores, of: DimensionScores, rng: np.random.Generator) -> Figure:
    """Estimate how many independent judges the panel is worth, on items that all judges were asked about."""
    if of.dimension.nominal or not of.people.raters:
        return Figure.unknown(NO_MEAN if of.dimension.nominal else NOBODY_RATED)
    whole = of if of.everywhere.all() else of.of_audit
    if whole is None:
        return Figure.unknown(SOME_JUDGES)
    if not len(whole.people.rated):
        return Figure.unknown(NOBODY_IN_AUDIT)
    alone = whole.judges[whole.people.rated][:, beside_chief(job.judges, whole)]
    return figure(effective_judges(alone, whole.people.scores, rng))


def _among_judges(job: JobScores, of: DimensionScores, rng: np.random.Generator) -> RaterAgreement | None:
    """Measure the agreement among the judges who were asked about all items: the others were asked where the first
    ones disagree.

    If only one judge was asked about all items, the items of the audit are used, with all judges. A chief knows what
    the others say, so its agreement with them says nothing, and it is left out.
    """
    left_out = [name for name, everywhere in zip(job.judges, of.everywhere, strict=True) if not everywhere]
    scores = of.scores[:, of.everywhere & beside_chief(job.judges, of), 0]
    if not left_out or scores.shape[1] > 1:
        found = _among(scores, of, rng)
        return found if found is None else found.model_copy(update={"left_out": left_out})
    if of.of_audit is not None:
        return _among_judges(job, of.of_audit, rng)
    unknown = Figure.unknown(SOME_JUDGES)
    return RaterAgreement(
        raters=1, alpha=unknown, fleiss=unknown, icc_single=unknown, icc_mean=unknown, base_rate=None, items=0,
        missing=0.0, left_out=left_out,
    )  # fmt: skip


def _among(scores: Floats, of: DimensionScores, rng: np.random.Generator) -> RaterAgreement | None:
    raters = scores.shape[1]
    if raters < 2:
        return None
    return among_raters(inter_rater_agreement(scores, of.level, of.levels, rng), raters, of)
