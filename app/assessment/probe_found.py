"""The result of a probe for one rater, before p is corrected for the number of all probes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from dicast.app.assessment.figures import figure
from dicast.app.domain.figure import Figure
from dicast.app.domain.judge_statistics import AttackFamily, AttackFound, ProbeStatistics
from dicast.app.domain.probes import ProbeName
from dicast.app.statistics.estimates import Result, Unknown


class ChangedShares(NamedTuple):
    """The share of scores that changed for the variants, the share that changed among replicates alone, and the
    difference."""

    moved: Figure
    by_itself: Figure
    beyond: Figure


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """Like `ProbeStatistics`, but `p` is that of this comparison alone."""

    probe: ProbeName
    voice: str
    effect: Result
    p: float | None
    variant: str = ""
    against: Literal["people", "judges", "itself"] = "people"
    moved: ChangedShares | None = None
    families: list[AttackFamily] = field(default_factory=list)
    attacks: list[AttackFound] = field(default_factory=list)
    first: Figure | None = None

    def unknown(self, reason: str) -> ProbeResult:
        """Return the same comparison as unknown, for this reason."""
        return ProbeResult(self.probe, self.voice, Unknown(reason), None, self.variant, self.against)

    def statistics(self, p: float | None) -> ProbeStatistics:
        """Return the comparison as the report has it, with the corrected `p`."""
        shares = {} if self.moved is None else self.moved._asdict()
        return ProbeStatistics(
            probe=self.probe, voice=self.voice, effect=figure(self.effect), p=p, variant=self.variant,
            tried=self.against == "itself", against=self.against,
            families=self.families, attacks=self.attacks, first=self.first, **shares,
        )  # fmt: skip
