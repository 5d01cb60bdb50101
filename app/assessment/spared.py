"""Sentences on escalating panels: which judges were not asked about all items, and what cannot be said because
of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dicast.app.domain.judge_statistics import RaterStatistics
from dicast.app.domain.report import ReportDimension


def spared_words(dimension: ReportDimension, voices: Sequence[RaterStatistics], items: int) -> Iterator[str]:
    """Yield the sentences; none if every judge was asked about all items."""
    spared, rule = [voice for voice in voices if voice.spared], dimension.panel.escalate
    if not spared or rule is None:
        return
    who = " and ".join(voice.name for voice in spared) + (" was" if len(spared) == 1 else " were")
    opinions = sum(voice.spared for voice in spared)
    drawn = ", and on the items of the audit" if rule.audit is not None else ""
    told = "What is told of judges rests on those who were asked everywhere"
    if audited := spared[0].audited:
        told = (
            f"What is told of {' and '.join(voice.name for voice in spared)} rests on the {audited:,} items of the "
            "audit alone, a random sample of all items; of the other judges on all"
        )
    yield (
        f"{who} asked only where the judges before {rule.asks_when}{drawn} ({opinions:,} opinions on "
        f"{items:,} items were not needed). {told}; the panel is held against people as it judged."
    )
    if not rule.lossless or dimension.panel.threshold is not None:
        yield "The panel's score of an item is that of the judges who were asked about it, not the full panel's."
