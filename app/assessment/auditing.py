"""What an escalating panel's difference costs, from the items on which all judges were asked all the same."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dicast.app.assessment.figures import figure
from dicast.app.assessment.scores import DimensionScores, JobScores
from dicast.app.assessment.telling import told
from dicast.app.domain.escalation import settled
from dicast.app.domain.judge_statistics import EscalationAudit
from dicast.app.domain.scale import Scale
from dicast.app.statistics.means import mean


def audited(job: JobScores, of: DimensionScores) -> EscalationAudit | None:
    """None of a panel without an audit. Items on which a judge has no score are left out: there the panel was none."""
    if of.audited is None:
        return None
    rows = of.judges[of.audited]
    rows = rows[~np.isnan(rows).any(axis=1)]
    rule, scale = of.dimension.panel, Scale(min=of.dimension.scale_min, max=of.dimension.scale_max)
    calls: list[float] = []
    shift: list[float] = []
    for row in rows.tolist():
        given: dict[str, float] = {}
        for number, (name, score) in enumerate(zip(job.judges, row, strict=True), 1):
            given[name] = score
            if settled(rule, given, job.judges[number:], scale):
                break
        full = rule.combined(dict(zip(job.judges, row, strict=True)))
        escalated = rule.combined(given)
        assert full is not None and escalated is not None
        calls.append(len(given) / len(row))
        shift.append(escalated - full)
    apart = np.array(shift, dtype=np.float64)
    return EscalationAudit(
        items=len(rows),
        calls=figure(mean(np.array(calls, dtype=np.float64), bounds=(0.0, 1.0))),
        off=figure(mean(np.abs(apart), bounds=(0.0, float(scale.max - scale.min)))),
        shift=figure(mean(apart)),
    )


def audit_words(audit: EscalationAudit | None) -> Iterator[str]:
    if audit is None:
        return
    if not audit.items:
        yield "What the difference costs cannot be said, because no item of the audit has a score by every judge."
        return
    yield (
        f"On {audit.items:,} items of the audit all judges were asked. The share of the calls that escalating would "
        f"have made there: {told(audit.calls)}; how far its score lies from the full panel's: {told(audit.off)}; in "
        f"which direction: {told(audit.shift)}."
    )
