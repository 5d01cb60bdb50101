"""Escalating panels in sentences: whom they did not ask everywhere, and what that leaves unsaid."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dicast.app.domain.judge_statistics import VoiceStatistics
from dicast.app.domain.report import ReportDimension


def spared_words(dimension: ReportDimension, voices: Sequence[VoiceStatistics], items: int) -> Iterator[str]:
    """Nothing where every judge was asked everywhere."""
    spared = [voice for voice in voices if voice.spared]
    if not spared:
        return
    who = " and ".join(voice.name for voice in spared) + (" was" if len(spared) == 1 else " were")
    opinions = sum(voice.spared for voice in spared)
    rule = dimension.panel
    drawn = ", and on the items of the audit" if rule.escalate is not None and rule.escalate.audit is not None else ""
    yield (
        f"{who} asked only where the judges before had not settled the outcome{drawn} ({opinions:,} opinions on "
        f"{items:,} items were not needed). What is told of judges rests on those who were asked everywhere; the panel "
        "is held against people as it judged."
    )
    if rule.escalate is not None and (rule.escalate.difference is not None or rule.threshold is not None):
        yield "The panel's score of an item is that of the judges who were asked about it, not the full panel's."
