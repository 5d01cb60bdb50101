"""Certificates of judges: what one job has measured of them, what that is bound to, and until when it holds.

A certificate also has anchors: items with the scores that the judges gave them then. Whoever has these judged again and
again learns whether a judge has changed (`dicast watch`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, JsonValue

from dicast.app.domain.figure import Figure
from dicast.app.domain.probes import ProbeName
from dicast.app.domain.report import ReportHeader
from dicast.app.domain.text import Id, Strict

MOST_ANCHORS = 1000


class CertifiedProbe(Strict):
    """What a probe has found of a judge: points of the scale, and p, corrected for all claims of that report."""

    probe: ProbeName
    variant: str = ""
    effect: Figure
    p: float | None = None


class CertifiedDimension(Strict):
    """A judge in one dimension: its correlation with people beside a person's, its agreement with itself when asked
    again (`repeats`), the share of its scores that are the highest there is (`ceiling`), and what moved it."""

    dimension: Id
    rubric: str = Field(description="digest of what the judge was told")
    agreement: Figure
    person: Figure
    repeats: Figure
    ceiling: float
    probes: list[CertifiedProbe] = Field(default_factory=list)


class Answering(Strict):
    """The names of all models, and of all their configurations, that have answered for a judge."""

    models: list[str] = Field(default_factory=list)
    fingerprints: list[str] = Field(
        default_factory=list, description="as the provider names configurations, if it does"
    )


class CertifiedJudge(Strict):
    """One judge: `judge` is the digest of its name, persona and temperature."""

    name: Id
    judge: str
    answering: Answering
    dimensions: list[CertifiedDimension]


class Anchor(Strict):
    """An item, and the scores that each judge gave it in each dimension when the certificate was issued."""

    item: dict[str, JsonValue]
    scores: dict[Id, dict[Id, list[float]]]

    @property
    def id(self) -> str:
        return str(self.item["id"])


class Certificate(Strict):
    """What a job has measured of its judges. `prompt` and `template` are digests; `document` is the job without its
    items, so that anchors can be judged as they were."""

    version: Literal[1] = 1
    job: str
    issued: AwareDatetime
    expires: AwareDatetime
    prompt: str
    template: str = ""
    judges: list[CertifiedJudge] = Field(min_length=1)
    document: dict[str, JsonValue]
    anchors: list[Anchor] = Field(min_length=1, max_length=MOST_ANCHORS)

    def objections(self, report: ReportHeader, answering: Mapping[str, Answering], now: datetime) -> list[str]:
        """Return why the certificate does not speak for the judges of this job; nothing if it does."""
        lines = [f"it has expired on {self.expires:%Y-%m-%d}"] if now >= self.expires else []
        for part in ("prompt", "template"):
            if getattr(report, part) != getattr(self, part):
                lines.append(f"it was issued for another {part}")
        judges = {judge.name: judge for judge in self.judges}
        for agent in report.agents:
            judge = judges.get(agent.name)
            if judge is None:
                lines.append(f"{agent.name} is not among its judges")
                continue
            if agent.judge != judge.judge:
                lines.append(f"{agent.name} had another persona or temperature")
            lines += _unknown(agent.name, judge.answering, answering.get(agent.name, Answering()))
            rubrics = {area.dimension: area.rubric for area in judge.dimensions}
            changed = [dimension.id for dimension in report.dimensions if rubrics.get(dimension.id) != dimension.rubric]
            if changed:
                lines.append(f"{agent.name} is not certified for {', '.join(changed)} with the present rubric")
        return lines


def _unknown(name: str, certified: Answering, now: Answering) -> Iterator[str]:
    """Yield which of the models and configurations that answer now did not answer then."""
    if others := [model for model in now.models if model not in certified.models]:
        yield f"for {name} another model answers: {', '.join(others)}"
    fingerprints = certified.fingerprints
    others = [name for name in now.fingerprints if name not in fingerprints]
    if fingerprints and others:
        yield f"for {name} another configuration answers: {', '.join(others)}"


class LockedJudge(Strict):
    """One judge of a run: the digest of its name, persona and temperature, the model that was asked for, and what has
    answered."""

    judge: str
    model: str | None = None
    answering: Answering


class RunLock(Strict):
    """All digests of a run: with the same ones, the same was asked of the same. `items` is that of the items as they
    were judged, or the fingerprint of the file that they came from; `files` are SHA-256 of the results."""

    version: Literal[1] = 1
    job: str
    finished: AwareDatetime
    asked: str = Field(description="digest of the job as it was submitted, without items of its own")
    items: str = ""
    prompt: str
    template: str = ""
    rubrics: dict[Id, str]
    judges: dict[Id, LockedJudge]
    software: dict[str, str]
    files: dict[str, str]

    def differences(self, now: RunLock) -> list[str]:
        """Return in what a run differs from this one, in words."""
        whole = ("asked", "items", "prompt", "template")
        lines = [f"{part} differs" for part in whole if getattr(self, part) != getattr(now, part)]
        for part in ("rubrics", "judges", "files"):
            before, after = getattr(self, part), getattr(now, part)
            changed = sorted(name for name in {*before, *after} if before.get(name) != after.get(name))
            lines += [f"{part}: {name} differs" for name in changed]
        return lines


class AnchorJudgement(BaseModel):
    """One judgement of an anchor, made after the certificate was issued."""

    model_config = ConfigDict(defer_build=True, frozen=True)

    at: AwareDatetime
    job: str
    item: str
    judge: str
    dimension: str
    score: float


class Drift(BaseModel):
    """Whether one judge has changed in one dimension.

    After `judgements` of anchors its scores lie `shift` points above those of the certificate, on average. `evidence`
    is the most that a fair gambler against "it has not changed" ever had for each 1 that was staked; once it is
    `needed`, the judge has changed, as was first seen at `since`.
    """

    model_config = ConfigDict(defer_build=True, frozen=True)

    judge: str
    dimension: str
    judgements: int
    shift: float | None
    evidence: float
    needed: float
    since: AwareDatetime | None = None

    @property
    def changed(self) -> bool:
        return self.since is not None


def due(anchors: Sequence[Anchor], order: Sequence[int], seen: int, count: int) -> list[Anchor]:
    """Return the next anchors in this order, which begins anew when all have been seen."""
    return [anchors[order[(seen + at) % len(anchors)]] for at in range(min(count, len(anchors)))]
