"""Options and help of `dicast gate`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from dicast.app.cli.options import AsJson

FailUnder = Annotated[
    list[str] | None,
    typer.Option(metavar="DIMENSION=SCORE", help="Fail if the panel's mean is below this; may be repeated."),
]
Confident = Annotated[
    bool, typer.Option("--confident", help="Judge by the end of the 95 % interval that speaks against passing.")
]
MaxErrors = Annotated[
    str | None, typer.Option(metavar="SHARE", help="Fail if more units have no score: 1% or 0.01. 0: none may.")
]
NotWorseThan = Annotated[
    str | None,
    typer.Option(metavar="JOB", help="Fail if scores fell against this finished job over the same items (paired)."),
]
Shift = Annotated[float | None, typer.Option(min=0, metavar="POINTS", help="The smallest fall that counts.")]
MinAgreement = Annotated[
    float | None, typer.Option(min=-1, max=1, metavar="R", help="Least correlation with the people who rated the job.")
]
Calibrated = Annotated[
    bool, typer.Option("--calibrated", help="Take calibrated scores; refuse where the calibration is not for this job.")
]
Junit = Annotated[str | None, typer.Option(metavar="FILE", help="Write JUnit XML, a test case a check.")]
JunitItems = Annotated[bool, typer.Option("--junit-items", help="With a test case an item, too.")]
GateCsv = Annotated[str | None, typer.Option("--csv", metavar="FILE", help="Write the checks as CSV.")]
Summary = Annotated[
    bool, typer.Option("--summary", help="A Markdown summary, to $GITHUB_STEP_SUMMARY or else standard output.")
]


def demands(**options: Any) -> dict[str, Any]:
    """Return those fields of a gate that were set by an option."""
    return {name: value for name, value in options.items() if value not in (None, False)}


def gate(
    context: typer.Context,
    job: Annotated[str, typer.Argument(metavar="JOB", help="A finished job's id, or its folder.")],
    fail_under: FailUnder = None,
    confident: Confident = False,
    max_errors: MaxErrors = None,
    not_worse_than: NotWorseThan = None,
    shift: Shift = None,
    min_agreement: MinAgreement = None,
    calibrated: Calibrated = False,
    junit: Junit = None,
    junit_items: JunitItems = False,
    csv: GateCsv = None,
    summary: Summary = False,
    json: AsJson = False,
) -> None:
    """Say whether a finished job passes its gate.

    The gate is that of the job, with what the options change.

    \b
      dicast gate JOB --fail-under faithfulness=4.2 --max-errors 1%
      dicast gate JOB --not-worse-than LAST-WEEK --shift 0.1 --confident
      dicast gate JOB --junit gate.xml --summary

    Exit codes: 0 passed, 4 failed, 5 cannot be told (no calibration for this judge and rubric, no ratings, too few
    items, a cancelled job), 2 refused.
    """
    from dicast.app.cli.gating import GateOptions, gate_job  # noqa: PLC0415  (takes long to load)

    overrides = demands(
        confident=confident, max_errors=max_errors, not_worse_than=not_worse_than, shift=shift,
        min_agreement=min_agreement, calibrated=calibrated,
    )  # fmt: skip
    options = GateOptions(overrides, fail_under or (), junit, junit_items, csv, summary)
    raise typer.Exit(gate_job(context.obj, job, options, json=json))
