"""Measures what it costs that an escalating panel asks fewer judges, on the items of the audit, on which all judges
were asked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from dicast.app.assessment.figures import figure
from dicast.app.assessment.scores import DimensionScores, JobScores
from dicast.app.assessment.telling import told
from dicast.app.domain.escalation import is_settled, standard_error
from dicast.app.domain.judge_statistics import EscalationAudit
from dicast.app.domain.panel import PanelRule
from dicast.app.domain.scale import Scale
from dicast.app.statistics.means import mean


def audited(job: JobScores, of: DimensionScores) -> EscalationAudit | None:
    """Return the figures of the audit, None for a panel without one. Items on which a judge has no score are left
    out, since the full panel has no score of them."""
    if of.audited is None:
        return None
    scores = of.judges
    whole = of.audited & ~np.isnan(scores).any(axis=1)
    rule, scale = of.dimension.panel, Scale(min=of.dimension.scale_min, max=of.dimension.scale_max)
    calls: list[float] = []
    shift: list[float] = []
    for row, answers in zip(scores[whole].tolist(), of.answers[whole], strict=True):
        errors = [standard_error(own[~np.isnan(own)].tolist()) for own in answers]
        everybody = dict(zip(job.judges, row, strict=True))
        given = _asked(rule, everybody, dict(zip(job.judges, errors, strict=True)), scale)
        full, escalated = rule.combined(everybody), rule.combined(given)
        assert full is not None and escalated is not None
        calls.append(len(given) / len(row))
        shift.append(escalated - full)
    apart = np.array(shift, dtype=np.float64)
    return EscalationAudit(
        items=len(calls),
        calls=figure(mean(np.array(calls, dtype=np.float64), bounds=(0.0, 1.0))),
        off=figure(mean(np.abs(apart), bounds=(0.0, float(scale.max - scale.min)))),
        shift=figure(mean(apart)),
    )


def _asked(
    rule: PanelRule, scores: Mapping[str, float], errors: Mapping[str, float], scale: Scale
) -> Mapping[str, float]:
    """Return the scores of those judges whom the panel would have asked."""
    judges = list(scores)
    for asked in range(1, len(judges)):
        given, theirs = ({name: of[name] for name in judges[:asked]} for of in (scores, errors))
        if is_settled(rule, given, judges[asked:], scale, theirs):
            return given
    return scores


def audit_words(audit: EscalationAudit | None) -> Iterator[str]:
    if audit is None:
        return
    if not audit.items:
        yield (
            "What asking fewer judges costs cannot be said, because no item of the audit has a score by every judge."
        )
        return
    yield (
        f"On {audit.items:,} items of the audit all judges were asked. The share of the calls that escalating would "
        f"have made there: {told(audit.calls)}; how far its score lies from the full panel's: {told(audit.off)}; in "
        f"which direction: {told(audit.shift)}."
    )
