"""Maps from judges' scores to people's: learned from a rated job, and applied to one that has a calibration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import numpy as np

from dicast.app.assessment.combined import panel_scores
from dicast.app.assessment.figures import figure
from dicast.app.assessment.scores import DimensionScores, JobScores
from dicast.app.assessment.voices import NO_MEAN, NOBODY_RATED, SPARED
from dicast.app.domain.calibrated import Fit, ScoringContext
from dicast.app.domain.calibration import Calibration, CalibrationMap, Method
from dicast.app.domain.figure import Figure
from dicast.app.domain.findings import NotCalibrated
from dicast.app.domain.judge_statistics import CalibratedRater
from dicast.app.statistics.arrays import Floats
from dicast.app.statistics.calibration import gain, learn
from dicast.app.statistics.estimates import Unknown
from dicast.app.statistics.means import mean

SEED = 1


def calibrations(
    job: JobScores, circumstances: ScoringContext, method: Method
) -> Iterator[CalibrationMap | NotCalibrated]:
    """Yield a map for each judge and dimension, and for the panel if there are several judges, or the reason why
    there is none."""
    for dimension in job.dimensions:
        for at, agent in enumerate(circumstances.agents):
            bound = circumstances.of_judge(agent, dimension.spec)
            about = {"judge": agent.name, "kind": "judge", "model": agent.model or "", "made_for": bound}
            sample = dimension if dimension.asked_everywhere[at] else dimension.of_audit
            flaw, rated = (SPARED, dimension) if sample is None else (None, sample)
            yield _learn_map(rated, rated.judges[:, at], method, about, flaw)
        if len(circumstances.agents) > 1:
            models = ", ".join(dict.fromkeys(agent.model or "" for agent in circumstances.agents))
            about = {
                "judge": "panel",
                "kind": "panel",
                "model": models,
                "made_for": circumstances.of_panel(dimension.spec),
            }
            about["judges"] = [agent.name for agent in circumstances.agents]
            yield _learn_map(dimension, panel_scores(job, dimension), method, about, _not_full(dimension))


def _not_full(dimension: DimensionScores) -> str | None:
    """Return why the panel's scores are not those of the full panel, which a later job has; None if they are."""
    rule = dimension.spec.panel
    same = rule.threshold is None and rule.escalate is not None and rule.escalate.lossless
    return (
        None
        if dimension.asked_everywhere.all() or same
        else "its scores are those of the judges who were asked, not of all"
    )


def _learn_map(
    dimension: DimensionScores, scores: Floats, method: Method, about: Mapping[str, Any], flaw: str | None
) -> CalibrationMap | NotCalibrated:
    if flaw is not None:
        return NotCalibrated(judge=about["judge"], dimension=dimension.spec.id, reason=flaw)
    people = dimension.people.means(len(scores))
    learned = learn(scores, people, method) if dimension.people.raters else Unknown(NOBODY_RATED)
    if dimension.spec.nominal:
        learned = Unknown(NO_MEAN)
    improvement = learned if isinstance(learned, Unknown) else gain(scores, people, method, np.random.default_rng(SEED))
    if isinstance(learned, Unknown) or isinstance(improvement, Unknown):
        reason = learned.reason if isinstance(learned, Unknown) else improvement.reason  # type: ignore[union-attr]
        return NotCalibrated(judge=about["judge"], dimension=dimension.spec.id, reason=reason)
    return CalibrationMap(
        **about, dimension=dimension.spec.id, method=method, x=list(learned.x), y=list(learned.y), items=learned.items,
        error=improvement.raw, calibrated_error=improvement.calibrated, gain=figure(improvement.fall),
    )  # fmt: skip


def calibrated_raters(
    job: JobScores, dimension: DimensionScores, panel: Floats, calibration: Calibration
) -> list[CalibratedRater]:
    """Return the statistics of each judge and of the panel (`panel` has one score an item) after calibration."""
    raters = [
        _calibrated_rater(dimension, dimension.judges[:, at], name, "judge", dimension.fits[at], calibration)
        for at, name in enumerate(job.judges)
    ]
    if len(job.judges) > 1:
        raters.append(_calibrated_rater(dimension, panel, "panel", "panel", dimension.fits[-1], calibration))
    return raters


def _calibrated_rater(
    dimension: DimensionScores,
    scores: Floats,
    name: str,
    kind: Literal["judge", "panel"],
    fit: Fit,
    calibration: Calibration,
) -> CalibratedRater:
    map_, raw = fit.usable_map(calibration), figure(mean(scores, bounds=dimension.bounds))
    if map_ is None:
        differs = f"the map was made with another {' and another '.join(fit.differing)}"
        unknown = Figure.unknown(fit.reason or differs)
        return CalibratedRater(
            name=name, kind=kind, differing=list(fit.differing), raw=raw, calibrated=unknown, bias=unknown
        )
    corrected = np.asarray(np.interp(scores, map_.x, map_.y))
    apart = corrected - dimension.people.means(len(scores))
    return CalibratedRater(
        name=name, kind=kind, method=map_.method, learned_on=map_.items, differing=list(fit.differing), raw=raw,
        calibrated=figure(mean(corrected, bounds=dimension.bounds)),
        bias=figure(mean(apart)) if dimension.people.raters else Figure.unknown(NOBODY_RATED),
    )  # fmt: skip
