"""Finds the maps of a calibration that apply to a job: those made with the same judge, model, prompt and rubric."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dicast.app.domain.calibration import Calibration, CalibrationMap, MadeFor, describe_differences
from dicast.app.domain.fingerprints import model_digest, panel_digest
from dicast.app.domain.report import ReportAgent, ReportDimension, ReportHeader


@dataclass(frozen=True, slots=True)
class ScoringContext:
    """Everything that a job's scores depend on besides its items. `prompt` is the digest of how judges are prompted."""

    agents: Sequence[ReportAgent]
    dimensions: Sequence[ReportDimension]
    prompt: str

    def of_judge(self, agent: ReportAgent, dimension: ReportDimension) -> MadeFor:
        """Return what a map of this judge's scores is bound to."""
        model = model_digest(agent.model or "")
        return MadeFor(judge=agent.judge, model=model, prompt=self.prompt, rubric=dimension.rubric)

    def of_panel(self, dimension: ReportDimension) -> MadeFor:
        """Return what a map of the whole panel's scores is bound to."""
        judges = panel_digest([agent.judge for agent in self.agents], dimension.panel.model_dump(mode="json"))
        models = model_digest(", ".join(agent.model or "" for agent in self.agents))
        return MadeFor(judge=judges, model=models, prompt=self.prompt, rubric=dimension.rubric)


@dataclass(frozen=True, slots=True)
class Fit:
    """A map together with what differs from what it was made for; or no map, with the `reason`."""

    map: CalibrationMap | None
    differing: tuple[str, ...] = ()
    reason: str | None = None

    def usable_map(self, calibration: Calibration) -> CalibrationMap | None:
        """Return the map if it may be used: if nothing differs, or the calibration only warns of a mismatch."""
        return self.map if not self.differing or calibration.on_mismatch == "warn" else None


def fit_of_judge(
    calibration: Calibration, context: ScoringContext, agent: ReportAgent, dimension: ReportDimension
) -> Fit:
    """Return how the calibration fits one judge in one dimension."""
    calibration_map = calibration.find(agent.name, dimension.id)
    if calibration_map is None:
        return Fit(None, reason="the calibration has no map of this judge and dimension")
    return _fit(calibration_map, context.of_judge(agent, dimension))


def fit_of_panel(calibration: Calibration, context: ScoringContext, dimension: ReportDimension) -> Fit:
    """Return how the calibration fits the panel in one dimension; a panel of one judge uses that judge's map."""
    if len(context.agents) == 1:
        return fit_of_judge(calibration, context, context.agents[0], dimension)
    calibration_map = calibration.find_panel(dimension.id)
    if calibration_map is None:
        return Fit(None, reason="the calibration has no map of the panel in this dimension")
    if calibration_map.judges != [agent.name for agent in context.agents]:
        return Fit(None, reason=f"the calibration's panel has other judges ({', '.join(calibration_map.judges)})")
    return _fit(calibration_map, context.of_panel(dimension))


def scoring_context(report: ReportHeader) -> ScoringContext:
    """Return the circumstances of a finished job."""
    return ScoringContext(report.agents, report.dimensions, report.prompt)


def fits_of(report: ReportHeader, dimension: ReportDimension) -> list[Fit]:
    """Return how the report's calibration fits each judge, followed by the panel if there are several judges; []
    without a calibration."""
    if report.calibration is None:
        return []
    context = scoring_context(report)
    fits = [fit_of_judge(report.calibration, context, agent, dimension) for agent in report.agents]
    return [*fits, fit_of_panel(report.calibration, context, dimension)] if len(report.agents) > 1 else fits


def mismatches(calibration: Calibration, context: ScoringContext) -> list[str]:
    """Return a line for each map that was made for something else, and a single line if no map applies to this job at
    all."""
    lines, any_map = [], False
    for dimension in context.dimensions:
        fits = {agent.name: fit_of_judge(calibration, context, agent, dimension) for agent in context.agents}
        if len(context.agents) > 1:
            fits["the panel"] = fit_of_panel(calibration, context, dimension)
        for name, fit in fits.items():
            any_map |= fit.map is not None
            if fit.differing:
                lines.append(f"{name}, {dimension.id}: it was made with {describe_differences(list(fit.differing))}")
    return lines if any_map else ["it has no map for any judge and dimension of this job"]


def _fit(calibration_map: CalibrationMap, current: MadeFor) -> Fit:
    return Fit(calibration_map, tuple(calibration_map.made_for.differing_parts(current)))
