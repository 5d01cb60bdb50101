"""Sentences on escalating panels: which judges were not asked about all items, and what cannot be said because
of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dicast.app.domain.judge_statistics import RaterStatistics
from dicast.app.domain.report import ReportDimension


def skipped_sentences(dimension: ReportDimension, raters: Sequence[RaterStatistics], items: int) -> Iterator[str]:
    """Yield the sentences; none if every judge was asked about all items."""
    partial, rule = [rater for rater in raters if rater.spared], dimension.panel.escalate
    if not partial or rule is None:
        return
    who = " and ".join(rater.name for rater in partial) + (" was" if len(partial) == 1 else " were")
    opinions = sum(rater.spared for rater in partial)
    drawn = ", and on the items of the audit" if rule.audit is not None else ""
    basis = "What is told of judges rests on those who were asked everywhere"
    if audited := partial[0].audited:
        basis = (
            f"What is told of {' and '.join(rater.name for rater in partial)} rests on the {audited:,} items of the "
            "audit alone, a random sample of all items; of the other judges on all"
        )
    yield (
        f"{who} asked only where the judges before {rule.asks_when}{drawn} ({opinions:,} opinions on "
        f"{items:,} items were not needed). {basis}; the panel is held against people as it judged."
    )
    if not rule.lossless or dimension.panel.threshold is not None:
        yield "The panel's score of an item is that of the judges who were asked about it, not the full panel's."
