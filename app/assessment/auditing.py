"""Measures what it costs that an escalating panel asks fewer judges, on the items of the audit, on which all judges
were asked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from dicast.app.assessment.figures import figure
from dicast.app.assessment.scores import DimensionScores, JobScores
from dicast.app.assessment.telling import figure_text
from dicast.app.domain.escalation import is_settled, standard_error
from dicast.app.domain.judge_statistics import EscalationAudit
from dicast.app.domain.panel import PanelRule
from dicast.app.domain.scale import Scale
from dicast.app.statistics.means import mean


def audited(job: JobScores, dimension: DimensionScores) -> EscalationAudit | None:
    """Return the figures of the audit, None for a panel without one. Items on which a judge has no score are left
    out, since the full panel has no score of them."""
    if dimension.audited is None:
        return None
    scores = dimension.judges
    whole = dimension.audited & ~np.isnan(scores).any(axis=1)
    rule, scale = dimension.spec.panel, Scale(min=dimension.spec.scale_min, max=dimension.spec.scale_max)
    calls: list[float] = []
    shift: list[float] = []
    for row, answers in zip(scores[whole].tolist(), dimension.answers[whole], strict=True):
        errors = [standard_error(rounds[~np.isnan(rounds)].tolist()) for rounds in answers]
        everybody = dict(zip(job.judges, row, strict=True))
        asked_scores = _scores_of_asked(rule, everybody, dict(zip(job.judges, errors, strict=True)), scale)
        full, escalated = rule.combined(everybody), rule.combined(asked_scores)
        assert full is not None and escalated is not None
        calls.append(len(asked_scores) / len(row))
        shift.append(escalated - full)
    apart = np.array(shift, dtype=np.float64)
    return EscalationAudit(
        items=len(calls),
        calls=figure(mean(np.array(calls, dtype=np.float64), bounds=(0.0, 1.0))),
        off=figure(mean(np.abs(apart), bounds=(0.0, float(scale.max - scale.min)))),
        shift=figure(mean(apart)),
    )


def _scores_of_asked(
    rule: PanelRule, scores: Mapping[str, float], errors: Mapping[str, float], scale: Scale
) -> Mapping[str, float]:
    """Return the scores of those judges whom the panel would have asked."""
    judges = list(scores)
    for count in range(1, len(judges)):
        asked_scores, asked_errors = ({name: values[name] for name in judges[:count]} for values in (scores, errors))
        if is_settled(rule, asked_scores, judges[count:], scale, asked_errors):
            return asked_scores
    return scores


def audit_sentences(audit: EscalationAudit | None) -> Iterator[str]:
    if audit is None:
        return
    if not audit.items:
        yield (
            "What asking fewer judges costs cannot be said, because no item of the audit has a score by every judge."
        )
        return
    yield (
        f"On {audit.items:,} items of the audit all judges were asked. The share of the calls that escalating would "
        f"have made there: {figure_text(audit.calls)}; how far its score lies from the full panel's: "
        f"{figure_text(audit.off)}; in "
        f"which direction: {figure_text(audit.shift)}."
    )
