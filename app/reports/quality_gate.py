"""Checks whether a finished job passes a quality gate, from its files, and writes the verdict for other programs.

The formats are JUnit XML, Markdown and CSV.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from urllib.parse import quote
from xml.sax.saxutils import escape, quoteattr

from dicast.app.analysis import MISSING, NoLibraries
from dicast.app.domain.calibrated import fits_of
from dicast.app.domain.calibration import describe_differences as parts_text
from dicast.app.domain.concluding import conclude, counts_of
from dicast.app.domain.figure import Figure, figure_text, interval_text
from dicast.app.domain.price import shown
from dicast.app.domain.quality_gate import LEVEL, Check, QualityGate, QualityVerdict
from dicast.app.domain.report import Report, ReportDimension
from dicast.app.domain.text import cell, counted, percent, printable
from dicast.app.reports import formats
from dicast.app.reports.certificates import (
    NoCertificate,
    answering,
    find_drift,
    read_certificate,
    read_judgements,
)
from dicast.app.reports.folders import replacing
from dicast.app.reports.statistics import compute

OPINIONS = "opinions.parquet"


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """A finished job's folder and report."""

    folder: Path
    report: Report


@dataclass(frozen=True, slots=True)
class _Scores:
    """The panel's scores by dimension and item, the clusters of the items, and how many items have no score."""

    values: dict[str, dict[str, float]]
    clusters: dict[str, int] | None
    missing: dict[str, int]

    def cluster(self, items: list[str]) -> list[int] | None:
        return None if self.clusters is None else [self.clusters[item] for item in items]


def quality_verdict(gate: QualityGate, run: FinishedRun, baseline: FinishedRun | None = None) -> QualityVerdict:
    """Check the run against the gate; `baseline` is the job that the run must not be worse than. Raises ValueError if
    a threshold names no dimension of the job, `NoLibraries` if an interval or p-value is needed, OSError."""
    report = run.report
    nominal = [d.id for d in report.dimensions if d.nominal]
    gate.check_dimensions({d.id: (d.scale_min, d.scale_max) for d in report.dimensions}, nominal)
    return QualityVerdict(job_id=report.job_id, checks=list(_checks(gate, run, baseline)))


def _checks(gate: QualityGate, run: FinishedRun, baseline: FinishedRun | None) -> Iterator[Check]:
    report = run.report
    if report.status != "completed":
        planned = counted(counts_of(report).planned, "judgement")
        text = f"the job was cancelled, and {report.missing:,} of its {planned} were never made"
        yield Check(name="complete", kind="complete", passed=None, told=text)
    if gate.max_errors is not None:
        yield _errors(report, gate.max_errors)
    if gate.max_cost is not None:
        yield _cost(report, Decimal(gate.max_cost))
    stale = list(_calibration(report)) if gate.calibrated else []
    yield from stale
    if any(not check.passed for check in stale):
        return
    if gate.certificate is not None:
        yield _certificate(Path(gate.certificate), run)
    if gate.fail_under or baseline is not None:
        scores = _scores(run, calibrated=gate.calibrated)
        people = _peoples_means(gate, run)
        for dimension in report.dimensions:
            if dimension.id in gate.fail_under:
                yield _mean(gate, dimension, scores, people.get(dimension.id))
        if baseline is not None:
            yield from _not_worse(gate, run, scores, baseline)
    if gate.min_agreement is not None:
        yield from _agreement(gate, gate.min_agreement, run)


def _errors(report: Report, most: float) -> Check:
    counts = counts_of(report)
    share = counts.failed / counts.made if counts.made else 0.0
    text = (
        f"{counts.failed:,} of {counted(counts.made, 'judgement')} have no score "
        f"({percent(share, 2)}; at most {percent(most, 2)})"
    )
    return Check(name="errors", kind="max_errors", passed=share <= most, value=share, bound=most, told=text)


def _cost(report: Report, most: Decimal) -> Check:
    """Return whether the job has cost at most this, with what is not known of it. It cannot be told of several
    currencies, nor where calls have no price."""
    cost = report.cost
    unsure = sum((total.unknown for total in cost.sums), cost.unheard or Decimal(0))
    whole = sum((total.spent for total in cost.sums), unsure)
    why = None
    if cost.unpriced or (report.calls and not cost.lines):
        why = f"nobody has told the price of {', '.join(cost.unpriced) or 'its calls'}"
    elif len(cost.sums) > 1:
        why = f"its calls are paid for in {' and '.join(total.currency for total in cost.sums)}"
    elif cost.unreported_calls and cost.unheard is None:
        why = f"{counted(cost.unreported_calls, 'call')} may have been made that nobody has told of"
    if why is not None and whole <= most:
        return Check(name="cost", kind="max_cost", passed=None, value=float(whole), bound=float(most), told=why)
    currency = cost.sums[0].currency if cost.sums else ""
    charged, bound = shown(whole, currency).strip(), shown(most, currency).strip()
    text = f"it has cost {charged}, with what is unknown; at most {bound}"
    return Check(name="cost", kind="max_cost", passed=whole <= most, value=float(whole), bound=float(most), told=text)


def _calibration(report: Report) -> Iterator[Check]:
    if report.calibration is None:
        text = "the job has no calibration: learn one with `dicast calibrate` and name it in the job"
        yield Check(name="calibration", kind="calibrated", passed=None, told=text)
        return
    for dimension in report.dimensions:
        fit = fits_of(report, dimension)[-1]
        name = f"calibration of {dimension.id}"
        if fit.map is None:
            text, passed = fit.reason or "there is no map", None
        elif fit.differing:
            text, passed = f"it is stale: it was made with {parts_text(list(fit.differing))}", None
        else:
            text, passed = f"learned from {fit.map.items:,} rated items, for this judge, model, prompt and rubric", True
        yield Check(name=name, kind="calibrated", dimension=dimension.id, passed=passed, told=text)


def _certificate(path: Path, run: FinishedRun) -> Check:
    """Check that the certificate speaks for the judges as they were when the job ended, and that none has changed."""
    try:
        certificate = read_certificate(path)
    except NoCertificate as error:
        return Check(name="certificate", kind="certificate", passed=None, told=str(error))
    objections = certificate.objections(run.report, answering(run.folder), run.report.finished)
    changed = [drift for drift in find_drift(certificate, read_judgements(path)) if drift.changed]
    objections += [f"{drift.judge} has changed in {drift.dimension}" for drift in changed]
    told = (
        "; ".join(objections) or f"it holds until {certificate.expires:%Y-%m-%d}, and no judge is seen to have changed"
    )
    return Check(name="certificate", kind="certificate", passed=not objections, told=told)


def _scores(run: FinishedRun, *, calibrated: bool) -> _Scores:
    import pyarrow.parquet as pq  # noqa: PLC0415  (takes long to load)

    from dicast.app.reports.columns import kept_columns  # noqa: PLC0415
    from dicast.app.reports.panel import panel_scores  # noqa: PLC0415

    by_dimension: dict[str, dict[str, float]] = {dimension.id: {} for dimension in run.report.dimensions}
    missing = dict.fromkeys(by_dimension, 0)
    for row in panel_scores(run.folder, run.report):
        score = row.calibrated if calibrated else row.score
        if score is not None:
            by_dimension[row.criterion_id][row.item_id] = score
        elif row.score is None and not run.report.unpublished:
            missing[row.criterion_id] += 1
    clusters = None
    if run.report.cluster is not None:
        (column,) = kept_columns([run.report.cluster])
        table = pq.read_table(run.folder / OPINIONS, columns=["item_id", column])
        cluster_names = dict(zip(table["item_id"].to_pylist(), table[column].to_pylist(), strict=True))
        places: dict[object, int] = {}
        clusters = {
            item: places.setdefault(("item", item) if name is None else name, len(places))
            for item, name in cluster_names.items()
        }
    return _Scores(by_dimension, clusters, missing)


def _peoples_means(gate: QualityGate, run: FinishedRun) -> dict[str, Figure]:
    """Return what people would say of all items, by dimension, where they rated some and the gate goes by it."""
    if gate.opinion == "judges" or gate.calibrated or not gate.fail_under or not run.report.rated:
        return {}
    kept = run.report.statistics
    try:
        statistics = kept if kept is not None and kept.state == "computed" else compute(run.folder, run.report)
    except NoLibraries:
        if gate.confident:
            raise
        return {}
    wholes = {dimension.dimension: dimension.voices[-1].peoples_mean for dimension in statistics.dimensions}
    return {name: means.powered for name, means in wholes.items() if means is not None and means.powered.is_known}


def _mean(gate: QualityGate, dimension: ReportDimension, scores: _Scores, people: Figure | None) -> Check:
    """Check the mean: people's, if it is known, else the panel's. Items without a score count as the lowest there is,
    unless the gate says how many units may fail."""
    least, missing = gate.fail_under[dimension.id], scores.missing[dimension.id]
    check = _peoples_check(gate, dimension, people) if people is not None else _panels_mean(gate, dimension, scores)
    if not missing or check.value is None:
        return check
    scored = len(scores.values[dimension.id])
    ends = [
        (scored * check.value + missing * end) / (scored + missing)
        for end in (dimension.scale_min, dimension.scale_max)
    ]
    text = f"{check.told}; {missing:,} items have no score, with which it would be {ends[0]:.2f} to {ends[1]:.2f}"
    undecided = check.passed and gate.max_errors is None and ends[0] < least
    return check.model_copy(update={"told": text, "passed": None if undecided else check.passed})


def _peoples_check(gate: QualityGate, dimension: ReportDimension, people: Figure) -> Check:
    assert people.value is not None and people.low is not None
    least = gate.fail_under[dimension.id]
    demand = f"the lower end must be at least {least:g}" if gate.confident else f"at least {least:g}"
    text = f"people's mean of all items would be {figure_text(people)}; {demand}"
    check = _mean_check(dimension, (people.low if gate.confident else people.value) >= least, least, people.value, text)
    return check.model_copy(update={"low": people.low, "high": people.high})


def _panels_mean(gate: QualityGate, dimension: ReportDimension, scores: _Scores) -> Check:
    by_item, least = scores.values[dimension.id], gate.fail_under[dimension.id]
    if not by_item:
        return _mean_check(dimension, None, least, None, "there is no score")
    items = list(by_item)
    value = sum(by_item.values()) / len(by_item)
    bounds = (float(dimension.scale_min), float(dimension.scale_max))
    interval = _interval([by_item[item] for item in items], bounds, scores.cluster(items), needed=gate.confident)
    if interval is None or interval.low is None or interval.high is None:
        reason = interval.reason if interval is not None else None
        if gate.confident:
            return _mean_check(dimension, None, least, value, f"its interval cannot be said, because {reason}")
        return _mean_check(
            dimension,
            value >= least,
            least,
            value,
            f"{value:.2f} on average, in the judges' opinion; at least {least:g}",
        )
    passed = (interval.low if gate.confident else value) >= least
    demand = f"the lower end must be at least {least:g}" if gate.confident else f"at least {least:g}"
    text = f"{value:.2f} on average ({interval.low:.2f} to {interval.high:.2f}), in the judges' opinion; {demand}"
    check = _mean_check(dimension, passed, least, value, text)
    return check.model_copy(update={"low": interval.low, "high": interval.high})


def _mean_check(dimension: ReportDimension, passed: bool | None, least: float, value: float | None, text: str) -> Check:
    return Check(
        name=f"mean of {dimension.id}", kind="fail_under", dimension=dimension.id, passed=passed, value=value,
        bound=least, told=text,
    )  # fmt: skip


def _interval(
    scores: list[float], bounds: tuple[float, float], clusters: list[int] | None, *, needed: bool
) -> Figure | None:
    try:
        from dicast.app.analysis.group_figures import panel_mean  # noqa: PLC0415  (takes long to load)
    except ImportError as error:
        if needed:
            raise NoLibraries(MISSING) from error
        return None
    return panel_mean(scores, bounds, clusters)


def _not_worse(gate: QualityGate, run: FinishedRun, scores: _Scores, baseline: FinishedRun) -> Iterator[Check]:
    try:
        from dicast.app.analysis.group_figures import drop, holm  # noqa: PLC0415  (takes long to load)
        from dicast.app.analysis.runs import incompatibilities  # noqa: PLC0415
    except ImportError as error:
        raise NoLibraries(MISSING) from error
    name = f"not worse than {baseline.report.job_id}"
    if problems := incompatibilities(baseline.report, run.report):
        text = f"the runs measure different things: {'; '.join(problems)}"
        yield Check(name=name, kind="not_worse_than", passed=None, told=text)
        return
    baseline_ids = {dimension.id for dimension in baseline.report.dimensions}
    dimensions = [d.id for d in run.report.dimensions if d.id in baseline_ids and not d.nominal]
    if not dimensions:
        yield Check(name=name, kind="not_worse_than", passed=None, told="the runs have no dimension in common")
        return
    before = _scores(baseline, calibrated=gate.calibrated)
    drops = {}
    for dimension in dimensions:
        items = [item for item in scores.values[dimension] if item in before.values[dimension]]
        drops[dimension] = drop(
            [before.values[dimension][item] for item in items], [scores.values[dimension][item] for item in items],
            gate.shift, scores.cluster(items),
        )  # fmt: skip
    p_values = [(dimension, loss.p) for dimension, loss in drops.items() if loss.p is not None]
    corrected = dict(zip((d for d, _ in p_values), holm([p for _, p in p_values]), strict=True))
    for dimension, loss in drops.items():
        yield _loss_check(
            gate, f"{dimension} {name}", dimension, (loss.moved, corrected.get(dimension), loss.detectable)
        )


def _loss_check(
    gate: QualityGate, name: str, dimension: str, measured: tuple[Figure, float | None, float | None]
) -> Check:
    moved, p, detectable = measured
    if moved.value is None or moved.low is None or p is None:
        text = figure_text(moved)
        return Check(name=name, kind="not_worse_than", dimension=dimension, passed=None, told=text)
    if gate.confident:
        passed = moved.low > -gate.shift
        rule = f"the lower end must be above {-gate.shift:g}"
    else:
        passed = p >= LEVEL
        rule = f"a loss of more than {gate.shift:g} must not be proved (p < {LEVEL:g})"
    power_note = f"; a loss of {gate.shift + (detectable or 0):.2f} would be found in four of five cases"
    text = (
        f"moved by {interval_text(moved, signed=True)} over {moved.items:,} items, p {formats.chance(p)}; "
        f"{rule}{power_note}"
    )
    return Check(
        name=name, kind="not_worse_than", dimension=dimension, passed=passed, value=moved.value, low=moved.low,
        high=moved.high, bound=-gate.shift, p=p, told=text,
    )  # fmt: skip


def _agreement(gate: QualityGate, least: float, run: FinishedRun) -> Iterator[Check]:
    job_statistics = run.report.statistics
    if run.report.rated and (job_statistics is None or job_statistics.state != "computed"):
        job_statistics = compute(run.folder, run.report)
    rated = (
        [statistics for statistics in job_statistics.dimensions if statistics.rated_items]
        if job_statistics is not None
        else []
    )
    if not rated:
        text = "nobody has rated any of the items, so agreement cannot be told"
        yield Check(name="agreement with people", kind="min_agreement", passed=None, bound=least, told=text)
        return
    for statistics in rated:
        rater = next((rater for rater in statistics.voices if rater.kind == "panel"), statistics.voices[0])
        name, r = f"agreement on {statistics.dimension}", rater.pearson
        if r.value is None or r.low is None or r.high is None:
            text, passed = figure_text(r), None
        else:
            passed = (r.low if gate.confident else r.value) >= least
            demand = f"the lower end must be at least {least:g}" if gate.confident else f"at least {least:g}"
            text = f"{interval_text(r)} with people on {r.items:,} items; {demand}"
        yield Check(
            name=name, kind="min_agreement", dimension=statistics.dimension, passed=passed, value=r.value, low=r.low,
            high=r.high, bound=least, told=text,
        )  # fmt: skip


TEXT_CHARS = 1_000
WORDS = {True: "passed", False: "failed", None: "cannot be told"}
_MARKUP = re.compile(r"([\\`*_{}\[\]()#+!|<>&~@:-])")


def write_junit(
    verdict: QualityVerdict, report: Report, out: Path, items: Iterable[tuple[str, list[str]]] = ()
) -> None:
    """Write a test suite with a case for each check, whole or not at all. A check that cannot be decided is an
    error. `items` are ids with what is wrong with each; they make a second suite with a case for every item.
    Raises OSError."""
    with replacing(out, private=False) as file:
        file.write(b'<?xml version="1.0" encoding="UTF-8"?>\n<testsuites name="dicast">\n')
        failures = sum(check.passed is False for check in verdict.checks)
        errors = sum(check.passed is None for check in verdict.checks)
        file.write(
            f'<testsuite name={_attribute(verdict.job_id)} tests="{len(verdict.checks)}" failures="{failures}" '
            f'errors="{errors}" time="{report.wall_s:.3f}">\n'.encode()
        )
        file.writelines(_case(check, verdict.job_id) for check in verdict.checks)
        file.write(b"</testsuite>\n")
        if items:
            file.write(f"<testsuite name={_attribute(verdict.job_id + ' items')}>\n".encode())
            file.writelines(_item_case(item, wrong, verdict.job_id) for item, wrong in items)
            file.write(b"</testsuite>\n")
        file.write(b"</testsuites>\n")


def items_below(gate: QualityGate, folder: Path, report: Report) -> Iterator[tuple[str, list[str]]]:
    """Yield every item with those of its panel scores that are below the gate's thresholds, in the order of the
    items."""
    from dicast.app.reports.panel import panel_scores  # noqa: PLC0415  (takes long to load)

    last: str | None = None
    wrong: list[str] = []
    for row in panel_scores(folder, report):
        if last is not None and row.item_id != last:
            yield last, wrong
            wrong = []
        last, least = row.item_id, gate.fail_under.get(row.criterion_id)
        score = row.calibrated if gate.calibrated else row.score
        if least is not None and (score is None or score < least):
            finding = "has no score" if score is None else f"has {score:.2f}"
            wrong.append(f"{row.criterion_id} {finding}; at least {least:g}")
    if last is not None:
        yield last, wrong


CONCLUDED = 3
"""Sentences of each kind in a summary; the report has all."""


def markdown(verdict: QualityVerdict, report: Report, *, link: str | None = None) -> str:
    """Return a summary for a pull request: the verdict, what did not pass, what follows from the report, and the means
    with their change against the baseline. Checks that passed are folded. `link` leads to the report."""
    head = {True: "✅ passed its gate", False: "❌ failed its gate", None: "⚠️ cannot be judged by its gate"}
    lines = [f"### Job {_escaped(report.job_id)} {head[verdict.passed]}", ""]
    ordered = verdict.failures_first
    rows = [f"| {_escaped(c.name)} | {WORDS[c.passed]} | {_escaped(c.told, TEXT_CHARS)} |" for c in ordered]
    open_rows = sum(not check.passed for check in ordered)
    heading = ["| check | | |", "|---|---|---|"]
    if open_rows:
        lines += [*heading, *rows[:open_rows], ""]
    lines += _concluded(report)
    lines += _means_table(verdict, report)
    if passed := rows[open_rows:]:
        count = f"{len(passed)} passed" if open_rows else f"all {len(passed)} passed"
        lines += [f"<details><summary>Checks: {count}</summary>", "", *heading, *passed, "", "</details>", ""]
    if link is not None:
        lines += [f"[The whole report]({quote(link, safe=LINK_SAFE)})", ""]
    return "\n".join(lines)


LINK_SAFE = ":/?&=%#~+,;@-._"


def _concluded(report: Report) -> list[str]:
    """Return the conclusions as a list: which is best, whom to trust, what failed, what to do."""
    conclusions = conclude(report)
    parts = {
        "Result": conclusions.best, "Trust": conclusions.trust, "Failed": conclusions.failures,
        "Do now": [step.text for step in conclusions.actions],
    }  # fmt: skip
    lines = [
        f"* **{name}:** {_escaped(' '.join(sentences[:CONCLUDED]), TEXT_CHARS)}" for name, sentences in parts.items()
    ]  # fmt: skip
    return [*lines, ""]


def _means_table(verdict: QualityVerdict, report: Report) -> list[str]:
    changes = {check.dimension: check for check in verdict.checks if check.kind == "not_worse_than"}
    compared = any(check.value is not None for check in changes.values())
    extra = (" change against the baseline |", "--:|") if compared else ("", "")
    lines = [f"| dimension | mean | scale | failed |{extra[0]}", f"|---|--:|--:|--:|{extra[1]}"]
    for row in report.by_dimension[:50]:
        mean = "–" if row.scores.mean is None else f"{row.scores.mean:.2f}"
        scale = f"{row.dimension.scale_min}–{row.dimension.scale_max}"
        line = f"| {_escaped(row.dimension.name or row.dimension.id)} | {mean} | {scale} | {row.scores.failures:,} |"
        if compared:
            check = changes.get(row.dimension.id)
            moved = None if check is None else Figure.combined(check.value, "gate", low=check.low, high=check.high)
            line += f" {(moved and interval_text(moved, signed=True)) or '–'} |"
        lines.append(line)
    return [*lines, ""]


def write_csv(verdict: QualityVerdict, out: Path) -> None:
    """Write a row for each check, safe for spreadsheets, whole or not at all. Raises OSError."""
    with replacing(out, private=False) as file:
        text = io.TextIOWrapper(file, encoding="utf-8", newline="")
        rows = csv.DictWriter(text, ["job_id", *Check.model_fields], quoting=csv.QUOTE_ALL)
        rows.writeheader()
        for check in verdict.checks:
            row = {"job_id": verdict.job_id, **check.model_dump(), "passed": WORDS[check.passed]}
            rows.writerow(
                {name: cell(printable(value)) if isinstance(value, str) else value for name, value in row.items()}
            )
        text.flush()
        text.detach()


def _attribute(text: str) -> str:
    return quoteattr(printable(text, TEXT_CHARS))


def _case(check: Check, job_id: str) -> bytes:
    message = _attribute(check.told)
    inner = {True: "", False: f"<failure message={message}/>", None: f"<error message={message}/>"}[check.passed]
    output = f"<system-out>{escape(printable(check.told, TEXT_CHARS))}</system-out>"
    return (
        f"<testcase classname={_attribute(job_id)} name={_attribute(check.name)}>{inner}{output}</testcase>\n".encode()
    )


def _item_case(item: str, wrong: list[str], job_id: str) -> bytes:
    inner = f"<failure message={_attribute('; '.join(wrong))}/>" if wrong else ""
    return f"<testcase classname={_attribute(job_id)} name={_attribute(item)}>{inner}</testcase>\n".encode()


def _escaped(text: str, limit: int = 200) -> str:
    """Escape everything that has a meaning in Markdown."""
    return _MARKUP.sub(r"\\\1", printable(text, limit))
