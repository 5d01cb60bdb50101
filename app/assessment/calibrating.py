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


def calibrations(job: JobScores, seen: ScoringContext, method: Method) -> Iterator[CalibrationMap | NotCalibrated]:
    """Yield a map for each judge and dimension, and for the panel if there are several judges, or the reason why
    there is none."""
    for of in job.dimensions:
        for at, agent in enumerate(seen.agents):
            bound = seen.of_judge(agent, of.dimension)
            about = {"judge": agent.name, "kind": "judge", "model": agent.model or "", "made_for": bound}
            sample = of if of.everywhere[at] else of.of_audit
            flaw, known = (SPARED, of) if sample is None else (None, sample)
            yield _learned(known, known.judges[:, at], method, about, flaw)
        if len(seen.agents) > 1:
            models = ", ".join(dict.fromkeys(agent.model or "" for agent in seen.agents))
            about = {"judge": "panel", "kind": "panel", "model": models, "made_for": seen.of_panel(of.dimension)}
            about["judges"] = [agent.name for agent in seen.agents]
            yield _learned(of, panel_scores(job, of), method, about, _not_full(of))


def _not_full(of: DimensionScores) -> str | None:
    """Return why the panel's scores are not those of the full panel, which a later job has; None if they are."""
    rule = of.dimension.panel
    same = rule.threshold is None and rule.escalate is not None and rule.escalate.lossless
    return None if of.everywhere.all() or same else "its scores are those of the judges who were asked, not of all"


def _learned(
    of: DimensionScores, scores: Floats, method: Method, about: Mapping[str, Any], flaw: str | None
) -> CalibrationMap | NotCalibrated:
    if flaw is not None:
        return NotCalibrated(judge=about["judge"], dimension=of.dimension.id, reason=flaw)
    people = of.people.means(len(scores))
    found = learn(scores, people, method) if of.people.raters else Unknown(NOBODY_RATED)
    if of.dimension.nominal:
        found = Unknown(NO_MEAN)
    worth = found if isinstance(found, Unknown) else gain(scores, people, method, np.random.default_rng(SEED))
    if isinstance(found, Unknown) or isinstance(worth, Unknown):
        reason = found.reason if isinstance(found, Unknown) else worth.reason  # type: ignore[union-attr]
        return NotCalibrated(judge=about["judge"], dimension=of.dimension.id, reason=reason)
    return CalibrationMap(
        **about, dimension=of.dimension.id, method=method, x=list(found.x), y=list(found.y), items=found.items,
        error=worth.raw, calibrated_error=worth.calibrated, gain=figure(worth.fall),
    )  # fmt: skip


def calibrated_voices(
    job: JobScores, of: DimensionScores, panel: Floats, calibration: Calibration
) -> list[CalibratedRater]:
    """Return the statistics of each judge and of the panel (`panel` has one score an item) after calibration."""
    told = [_voice(of, of.judges[:, at], name, "judge", of.fits[at], calibration) for at, name in enumerate(job.judges)]
    if len(job.judges) > 1:
        told.append(_voice(of, panel, "panel", "panel", of.fits[-1], calibration))
    return told


def _voice(
    of: DimensionScores, scores: Floats, name: str, kind: Literal["judge", "panel"], fit: Fit, calibration: Calibration
) -> CalibratedRater:
    found, raw = fit.usable_map(calibration), figure(mean(scores, bounds=of.bounds))
    if found is None:
        differs = f"the map was made with another {' and another '.join(fit.differing)}"
        unknown = Figure.unknown(fit.reason or differs)
        return CalibratedRater(
            name=name, kind=kind, differing=list(fit.differing), raw=raw, calibrated=unknown, bias=unknown
        )
    mended = np.asarray(np.interp(scores, found.x, found.y))
    apart = mended - of.people.means(len(scores))
    return CalibratedRater(
        name=name, kind=kind, method=found.method, learned_on=found.items, differing=list(fit.differing), raw=raw,
        calibrated=figure(mean(mended, bounds=of.bounds)),
        bias=figure(mean(apart)) if of.people.raters else Figure.unknown(NOBODY_RATED),
    )  # fmt: skip
