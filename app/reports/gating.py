"""Checks whether a finished job passes a gate, from its files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dicast.app.domain.calibrated import fits_of
from dicast.app.domain.calibration import describe_differences as parts_told
from dicast.app.domain.figure import Figure
from dicast.app.domain.gate import LEVEL, Check, GateVerdict, JobGate
from dicast.app.domain.report import Report, ReportDimension
from dicast.app.reports.assessing import MISSING, NoLibraries, compute

OPINIONS = "opinions.parquet"


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """A finished job's folder and report."""

    folder: Path
    report: Report


@dataclass(frozen=True, slots=True)
class _Scores:
    """The panel's scores by dimension and item, and the clusters of the items."""

    of: dict[str, dict[str, float]]
    clusters: dict[str, int] | None

    def cluster(self, items: list[str]) -> list[int] | None:
        return None if self.clusters is None else [self.clusters[item] for item in items]


def judged(gate: JobGate, run: FinishedRun, baseline: FinishedRun | None = None) -> GateVerdict:
    """Check the run against the gate; `baseline` is the job that the run must not be worse than. Raises ValueError if
    a threshold names no dimension of the job, `NoLibraries` if an interval or p-value is needed, OSError."""
    report = run.report
    nominal = [d.id for d in report.dimensions if d.nominal]
    gate.check_dimensions({d.id: (d.scale_min, d.scale_max) for d in report.dimensions}, nominal)
    return GateVerdict(job_id=report.job_id, checks=list(_checks(gate, run, baseline)))


def _checks(gate: JobGate, run: FinishedRun, baseline: FinishedRun | None) -> Iterator[Check]:
    report = run.report
    if report.status != "completed":
        told = f"the job was cancelled, and {report.missing:,} of its {report.units:,} units were never judged"
        yield Check(name="complete", kind="complete", passed=None, told=told)
    if gate.max_errors is not None:
        yield _errors(report, gate.max_errors)
    stale = list(_calibration(report)) if gate.calibrated else []
    yield from stale
    if any(not check.passed for check in stale):
        return
    if gate.fail_under or baseline is not None:
        scores = _scores(run, calibrated=gate.calibrated)
        for dimension in report.dimensions:
            if dimension.id in gate.fail_under:
                yield _mean(gate, dimension, scores)
        if baseline is not None:
            yield from _not_worse(gate, run, scores, baseline)
    if gate.min_agreement is not None:
        yield from _agreement(gate, gate.min_agreement, run)


def _errors(report: Report, most: float) -> Check:
    asked = report.units - report.missing
    share = report.failed / asked if asked else 0.0
    told = f"{report.failed:,} of {asked:,} units have no score ({share:.2%}; at most {most:.2%})"
    return Check(name="errors", kind="max_errors", passed=share <= most, value=share, bound=most, told=told)


def _calibration(report: Report) -> Iterator[Check]:
    if report.calibration is None:
        told = "the job has no calibration: learn one with `dicast calibrate` and name it in the job"
        yield Check(name="calibration", kind="calibrated", passed=None, told=told)
        return
    for dimension in report.dimensions:
        fit = fits_of(report, dimension)[-1]
        name = f"calibration of {dimension.id}"
        if fit.map is None:
            told, passed = fit.reason or "there is no map", None
        elif fit.differing:
            told, passed = f"it is stale: it was made with {parts_told(list(fit.differing))}", None
        else:
            told, passed = f"learned from {fit.map.items:,} rated items, for this judge, model, prompt and rubric", True
        yield Check(name=name, kind="calibrated", dimension=dimension.id, passed=passed, told=told)


def _scores(run: FinishedRun, *, calibrated: bool) -> _Scores:
    import pyarrow.parquet as pq  # noqa: PLC0415  (takes long to load)

    from dicast.app.reports.columns import kept_columns  # noqa: PLC0415
    from dicast.app.reports.panel import panel_scores  # noqa: PLC0415

    found: dict[str, dict[str, float]] = {dimension.id: {} for dimension in run.report.dimensions}
    for row in panel_scores(run.folder, run.report):
        score = row.calibrated if calibrated else row.score
        if score is not None:
            found[row.criterion_id][row.item_id] = score
    clusters = None
    if run.report.cluster is not None:
        (column,) = kept_columns([run.report.cluster])
        table = pq.read_table(run.folder / OPINIONS, columns=["item_id", column])
        named = dict(zip(table["item_id"].to_pylist(), table[column].to_pylist(), strict=True))
        places: dict[object, int] = {}
        clusters = {
            item: places.setdefault(("item", item) if name is None else name, len(places))
            for item, name in named.items()
        }
    return _Scores(found, clusters)


def _mean(gate: JobGate, dimension: ReportDimension, scores: _Scores) -> Check:
    own, least = scores.of[dimension.id], gate.fail_under[dimension.id]
    if not own:
        return _mean_check(dimension, None, least, None, "there is no score")
    items = list(own)
    value = sum(own.values()) / len(own)
    bounds = (float(dimension.scale_min), float(dimension.scale_max))
    found = _interval([own[item] for item in items], bounds, scores.cluster(items), needed=gate.confident)
    if found is None or found.low is None or found.high is None:
        reason = found.reason if found is not None else None
        if gate.confident:
            return _mean_check(dimension, None, least, value, f"its interval cannot be said, because {reason}")
        return _mean_check(dimension, value >= least, least, value, f"{value:.2f} on average; at least {least:g}")
    passed = (found.low if gate.confident else value) >= least
    what = f"the lower end must be at least {least:g}" if gate.confident else f"at least {least:g}"
    told = f"{value:.2f} on average ({found.low:.2f} to {found.high:.2f}); {what}"
    check = _mean_check(dimension, passed, least, value, told)
    return check.model_copy(update={"low": found.low, "high": found.high})


def _mean_check(dimension: ReportDimension, passed: bool | None, least: float, value: float | None, told: str) -> Check:
    return Check(
        name=f"mean of {dimension.id}", kind="fail_under", dimension=dimension.id, passed=passed, value=value,
        bound=least, told=told,
    )  # fmt: skip


def _interval(
    scores: list[float], bounds: tuple[float, float], clusters: list[int] | None, *, needed: bool
) -> Figure | None:
    try:
        from dicast.app.assessment.gating import panel_mean  # noqa: PLC0415  (takes long to load)
    except ImportError as error:
        if needed:
            raise NoLibraries(MISSING) from error
        return None
    return panel_mean(scores, bounds, clusters)


def _not_worse(gate: JobGate, run: FinishedRun, scores: _Scores, baseline: FinishedRun) -> Iterator[Check]:
    try:
        from dicast.app.assessment.gating import drop, holm  # noqa: PLC0415  (takes long to load)
        from dicast.app.assessment.runs import differing  # noqa: PLC0415
    except ImportError as error:
        raise NoLibraries(MISSING) from error
    name = f"not worse than {baseline.report.job_id}"
    if problems := differing(baseline.report, run.report):
        told = f"the runs measure different things: {'; '.join(problems)}"
        yield Check(name=name, kind="not_worse_than", passed=None, told=told)
        return
    known = {dimension.id for dimension in baseline.report.dimensions}
    dimensions = [d.id for d in run.report.dimensions if d.id in known and not d.nominal]
    if not dimensions:
        yield Check(name=name, kind="not_worse_than", passed=None, told="the runs have no dimension in common")
        return
    before = _scores(baseline, calibrated=gate.calibrated)
    drops = {}
    for dimension in dimensions:
        items = [item for item in scores.of[dimension] if item in before.of[dimension]]
        drops[dimension] = drop(
            [before.of[dimension][item] for item in items], [scores.of[dimension][item] for item in items],
            gate.shift, scores.cluster(items),
        )  # fmt: skip
    told_p = [(dimension, found.p) for dimension, found in drops.items() if found.p is not None]
    corrected = dict(zip((d for d, _ in told_p), holm([p for _, p in told_p]), strict=True))
    for dimension, found in drops.items():
        yield _moved(gate, f"{dimension} {name}", dimension, (found.moved, corrected.get(dimension), found.visible))


def _moved(gate: JobGate, name: str, dimension: str, found: tuple[Figure, float | None, float | None]) -> Check:
    moved, p, visible = found
    if moved.value is None or moved.low is None or p is None:
        told = f"cannot be said, because {moved.reason}"
        return Check(name=name, kind="not_worse_than", dimension=dimension, passed=None, told=told)
    if gate.confident:
        passed = moved.low > -gate.shift
        rule = f"the lower end must be above {-gate.shift:g}"
    else:
        passed = p >= LEVEL
        rule = f"a loss of more than {gate.shift:g} must not be proved (p < {LEVEL:g})"
    seen = f"; a loss of {gate.shift + (visible or 0):.2f} would be found in four of five cases"
    told = (
        f"moved by {moved.value:+.2f} ({moved.low:+.2f} to {moved.high:+.2f}) over {moved.items:,} items, p {p:.3f}; "
        f"{rule}{seen}"
    )
    return Check(
        name=name, kind="not_worse_than", dimension=dimension, passed=passed, value=moved.value, low=moved.low,
        high=moved.high, bound=-gate.shift, p=p, told=told,
    )  # fmt: skip


def _agreement(gate: JobGate, least: float, run: FinishedRun) -> Iterator[Check]:
    found = run.report.statistics
    if run.report.rated and (found is None or found.state != "computed"):
        found = compute(run.folder, run.report)
    rated = [of for of in found.dimensions if of.rated_items] if found is not None else []
    if not rated:
        told = "nobody has rated any of the items, so agreement cannot be told"
        yield Check(name="agreement with people", kind="min_agreement", passed=None, bound=least, told=told)
        return
    for of in rated:
        voice = next((voice for voice in of.voices if voice.kind == "panel"), of.voices[0])
        name, known = f"agreement on {of.dimension}", voice.pearson
        if known.value is None or known.low is None or known.high is None:
            told, passed = f"cannot be said, because {known.reason}", None
        else:
            passed = (known.low if gate.confident else known.value) >= least
            what = f"the lower end must be at least {least:g}" if gate.confident else f"at least {least:g}"
            told = (
                f"{known.value:.2f} ({known.low:.2f} to {known.high:.2f}) with people on {known.items:,} items; {what}"
            )
        yield Check(
            name=name, kind="min_agreement", dimension=of.dimension, passed=passed, value=known.value, low=known.low,
            high=known.high, bound=least, told=told,
        )  # fmt: skip
