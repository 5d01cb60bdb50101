"""`dicast gate`, and the quality gate of `dicast run`: check whether a finished job passes."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from rich.console import Console
from rich.text import Text

from dicast.app.cli.console import Refused, Terminal
from dicast.app.cli.statistics import finished
from dicast.app.domain.job import EvaluationJob
from dicast.app.domain.quality_gate import QualityGate, QualityVerdict
from dicast.app.domain.refusals import problem
from dicast.app.domain.report import Report, ReportDimension
from dicast.app.domain.text import printable
from dicast.app.reports.statistics import require_statistics
from dicast.errors import Exit

SUMMARY = "GITHUB_STEP_SUMMARY"
COMMENT = "<!-- dicast gate -->"
"""The first line of a pull request's comment, by which a bot finds the one to replace."""
MARKS = {True: ("passed", "green"), False: ("failed", "bold red"), None: ("cannot be told", "yellow")}
CODES = {True: Exit.OK, False: Exit.GATE_FAILED, None: Exit.GATE_UNTOLD}


@dataclass(frozen=True, slots=True)
class QualityGateOptions:
    """What the command line demands in addition to the job, and where the verdict is written."""

    demands: dict[str, Any]
    fail_under: Sequence[str] = ()
    junit: str | None = None
    junit_items: bool = False
    csv: str | None = None
    summary: bool = False
    comment: str | None = None
    link: str | None = None

    def gate(self, of_job: QualityGate | None) -> QualityGate:
        """Return the job's gate with the changes of the command line. Raises `Refused`."""
        fields = of_job.model_dump() if of_job is not None else {}
        thresholds = {**fields.get("fail_under", {}), **dict(map(_threshold, self.fail_under))}
        try:
            return QualityGate.model_validate({**fields, **self.demands, "fail_under": thresholds})
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise Refused(" ".join(filter(None, ("gate:", where, problem(first))))) from None

    @property
    def asks(self) -> bool:
        """Return whether the command line demands anything, or wants the verdict written."""
        return bool(self.demands or self.fail_under or self.junit or self.csv or self.summary or self.comment)


def _threshold(pair: str) -> tuple[str, float]:
    name, _, text = pair.rpartition("=")
    try:
        return name, float(text)
    except ValueError:
        raise Refused(f"--fail-under: DIMENSION=SCORE is wanted, such as clarity=4.2, got {pair!r}") from None


def check_quality_gate(options: QualityGateOptions, job: EvaluationJob) -> None:
    """Check before the job is judged all that a gate needs: its thresholds fit the dimensions, the baseline has ended
    and has files here, the libraries are installed, and the output files can be written. Raises `Refused` or
    `NoLibraries`."""
    gate = options.gate(job.gate)
    dimensions = [ReportDimension.from_dimension(dimension) for dimension in job.dimensions]
    try:
        gate.check_dimensions(
            {d.id: (d.scale_min, d.scale_max) for d in dimensions}, [d.id for d in dimensions if d.nominal]
        )
    except ValueError as error:
        raise Refused(str(error)) from None
    if gate.not_worse_than is not None:
        try:
            baseline = finished(gate.not_worse_than)
        except Refused as error:
            raise Refused(f"gate: not_worse_than: {error}") from None
        if not {d.id for d in baseline.report.dimensions} & {d.id for d in dimensions}:
            raise Refused(f"gate: not_worse_than: {gate.not_worse_than} and this job have no dimension in common")
    if gate.not_worse_than is not None or gate.min_agreement is not None or (gate.confident and gate.fail_under):
        require_statistics()
    check_outputs(options)


def check_outputs(options: QualityGateOptions) -> None:
    """Raise `Refused` if the verdict could not be written."""
    if options.junit_items and options.junit is None:
        raise Refused("--junit-items belongs to --junit FILE, which is not given")
    for option, file in (("--junit", options.junit), ("--csv", options.csv), ("--comment", options.comment)):
        if file is not None:
            check_file(option, file)
    if options.summary and (file := os.environ.get(SUMMARY)):
        check_file(SUMMARY, file)


def check_file(option: str, file: str) -> None:
    """Raise `Refused` if this file cannot be written. Nothing is left behind."""
    path = Path(file)
    if path.is_dir():
        raise Refused(f"{option}: {file} is a folder; a file is wanted")
    check_folder(option, path.absolute().parent)


def check_folder(option: str, folder: Path, *, create_later: bool = False) -> None:
    """Raise `Refused` if no file can be created in a folder. With `create_later`, a missing folder is
    checked at its nearest existing parent."""
    place = folder.absolute()
    while create_later and not place.exists() and place != place.parent:
        place = place.parent
    try:
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:  # tried, because rights, a full disk and a read-only one all show in this way
        raise Refused(f"{option}: nothing can be written into {place}: {error.strerror or error}") from None


def decide_job(terminal: Terminal, job: str, options: QualityGateOptions, *, json: bool) -> Exit:
    """Show whether a finished job passes, and write the verdict. Raises `Refused`, `NoLibraries`, OSError."""
    run = finished(job)
    gate = options.gate(run.report.gate)
    check_outputs(options)
    if not gate.has_conditions:
        raise Refused(f"job {run.report.job_id} has no gate: say `gate:` in the job, or --fail-under and the like")
    return hold_to_gate(terminal, run.folder, run.report, gate, options, json=json)


def hold_to_gate(
    terminal: Terminal, folder: Path, report: Report, gate: QualityGate, options: QualityGateOptions, *,
    json: bool = False, console: Console | None = None,
) -> Exit:  # fmt: skip
    """Check a finished job against its gate and return the exit code. The checks are printed to `console`, by default
    standard output. Raises `Refused`, `NoLibraries`, OSError."""
    from dicast.app.reports.quality_gate import (  # noqa: PLC0415  (take long to load)
        FinishedRun,
        items_below,
        markdown,
        quality_verdict,
        write_csv,
        write_junit,
    )

    baseline = finished(gate.not_worse_than) if gate.not_worse_than is not None else None
    before = FinishedRun(baseline.folder, baseline.report) if baseline is not None else None
    try:
        verdict = quality_verdict(gate, FinishedRun(folder, report), before)
    except ValueError as error:
        raise Refused(str(error)) from None
    if options.junit is not None:
        items = items_below(gate, folder, report) if options.junit_items else ()
        write_junit(verdict, report, Path(options.junit), items)
    if options.csv is not None:
        write_csv(verdict, Path(options.csv))
    text = markdown(verdict, report, link=options.link or _run_page()) if options.summary or options.comment else ""
    if options.comment is not None:
        Path(options.comment).write_text(f"{COMMENT}\n{text}", encoding="utf-8")
    summary = text if options.summary else None
    if summary is not None and (file := os.environ.get(SUMMARY)):
        with Path(file).open("a", encoding="utf-8") as out:
            out.write(summary)
        summary = None
    if json:
        terminal.emit(verdict.model_dump_json(indent=2))
    elif summary is not None:
        terminal.emit(summary.rstrip())
    else:
        _show(console or terminal.out, verdict)
    return CODES[verdict.passed]


def _run_page() -> str | None:
    """Return the address of the run of GitHub Actions that this is, None elsewhere."""
    parts = [os.environ.get(f"GITHUB_{name}") for name in ("SERVER_URL", "REPOSITORY", "RUN_ID")]
    return f"{parts[0]}/{parts[1]}/actions/runs/{parts[2]}" if all(parts) else None


def _show(console: Console, verdict: QualityVerdict) -> None:
    for check in verdict.failures_first:
        word, style = MARKS[check.passed]
        name = printable(check.name, 200)
        console.print(Text.assemble((f"{word:<14}", style), f" {name}: {printable(check.told, 600)}"))
    word, style = MARKS[verdict.passed]
    console.print(Text.assemble("Gate ", (word, style)))
