"""Options and help of the commands on rubrics, on gates, and on how far judges can be trusted."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from dicast.app.cli.console import AsJson

# ruff: noqa: PLC0415  (what takes long to load is imported by the command that needs it)


FinishedJob = Annotated[
    str, typer.Argument(metavar="JOB", help="A finished job's id, or the folder that holds its report.json.")
]
By = Annotated[
    list[str] | None,
    typer.Option(
        "--by", metavar="COLUMN", help="Group by this metadata of the items (kept by the job); may be repeated."
    ),
]
Cluster = Annotated[
    str | None,
    typer.Option(metavar="COLUMN", help="Metadata that says which items belong together, as answers to one question."),
]
These = Annotated[
    list[str] | None,
    typer.Option(metavar="WHAT", help="Take these `items`, `raters` or `clusters` for all there is; may be repeated."),
]
Page = Annotated[
    str | None,
    typer.Option("--output", "-o", metavar="FILE", help="Write it as one HTML file, complete in itself, instead."),
]


def add_to(cli: typer.Typer) -> None:
    """Register the commands."""
    for command in (report, compare, sample, panel, calibrate, certify, watch, verify):
        cli.command(no_args_is_help=True)(command)
    cli.command()(rubrics)
    cli.command()(schema)


def report(
    context: typer.Context,
    job: FinishedJob,
    by: By = None,
    cluster: Cluster = None,
    these: These = None,
    again: Annotated[bool, typer.Option("--again", help="Compute anew what the report holds already.")] = False,
    output: Page = None,
    ratings: Annotated[
        str | None, typer.Option(metavar="FILE", help="People's ratings, made since: they are kept with the job.")
    ] = None,
    forget_ratings: Annotated[
        bool, typer.Option("--forget-ratings", help="Take back all ratings that were added since the job has ended.")
    ] = False,
    whole: Annotated[bool, typer.Option("--all", help="Show all tables and figures, too.")] = False,
    json: AsJson = False,
) -> None:
    """Show a finished job's report: what is best, and what to trust.

    \b
      dicast report JOB
      dicast report JOB --all
      dicast report JOB --by system --cluster question
      dicast report JOB -o report.html
      dicast report JOB --ratings FILE

    --all adds agreement with people, bias, what people would have said, groups: each with its interval, or why it
    cannot be said. What the job asks for and is not computed yet is computed now and kept in report.json. --by,
    --cluster and --these are another view, which changes nothing there. Needs `pip install -e '.[scores]'`.
    """
    from dicast.app.cli.statistics import show_statistics

    if json and output is not None:
        raise typer.BadParameter("--json and --output are two forms: give one")
    for what in these or []:
        if what not in ("items", "raters", "clusters"):
            raise typer.BadParameter(f"--these {what}: one of items, raters and clusters is wanted")
    show_statistics(
        context.obj, job, by or [], cluster, these or [], recompute=again, json=json, page=output,
        ratings=ratings, forget_ratings=forget_ratings, whole=whole,
    )  # fmt: skip


def compare(
    context: typer.Context,
    first: FinishedJob,
    second: FinishedJob,
    most: Annotated[int, typer.Option(min=0, max=1000, help="How many of the items that moved most to show.")] = 10,
    force: Annotated[
        bool, typer.Option("--force", help="Compare runs whose rubric or scale differs, all the same.")
    ] = False,
    output: Page = None,
    json: AsJson = False,
) -> None:
    """Compare two finished jobs over the same items.

    Tells how far each judge's scores moved.

    \b
      dicast compare JOB-A JOB-B
      dicast compare JOB-A JOB-B -o compare.html

    Paired by item, dimension and judge; with intervals, p corrected by Holm, and what was said of the items that moved
    most. Items are the same where their ids are.
    """
    from dicast.app.cli.statistics import show_comparison

    if json and output is not None:
        raise typer.BadParameter("--json and --output are two forms: give one")
    show_comparison(context.obj, first, second, most=most, force=force, json=json, page=output)


def sample(
    context: typer.Context,
    job: Annotated[str, typer.Argument(metavar="JOB", help="A job's file, YAML or JSON.")],
    size: Annotated[int | None, typer.Option("--size", "-n", min=1, help="How many items people should rate.")] = None,
    to: Annotated[str | None, typer.Option(metavar="FILE", help="Where to: a new file, .csv or .jsonl.")] = None,
    strata: Annotated[
        str | None, typer.Option("--by", metavar="COLUMN", help="Draw from each value of this metadata its share.")
    ] = None,
    disagreement_of: Annotated[
        str | None, typer.Option(metavar="JOB", help="Draw where this finished job's judges disagreed, more likely.")
    ] = None,
    pilot: Annotated[
        str | None,
        typer.Option(metavar="JOB", help="Plan by what this finished job's judges say, and by its ratings, if any."),
    ] = None,
    neyman: Annotated[
        bool, typer.Option("--neyman", help="Draw items about which people and judges differ more, more likely.")
    ] = False,
    cost: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="With --neyman: metadata that says what rating an item costs.")
    ] = None,
    width: Annotated[
        float | None, typer.Option(min=0, metavar="POINTS", help="Say whether people's mean is known this exactly.")
    ] = None,
    rater: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Who rates; a row each. May be repeated.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="The same seed draws the same items.")] = 1,
    json: AsJson = False,
) -> None:
    """Draw the items that people should rate, as a file to fill in.

    \b
      dicast sample job.yaml -n 200 --to ratings.csv
      dicast sample job.yaml -n 200 --to ratings.csv --by system --rater ada --rater ben
      dicast sample job.yaml -n 200 --to ratings.csv --disagreement-of JOB
      dicast sample job.yaml -n 200 --to ratings.csv --pilot JOB --neyman
      dicast sample job.yaml --pilot JOB --width 0.2     what ratings buy, and whether there are enough

    No judge's score is in it. Filled in, it is what `ratings:` reads; a sample that is not drawn evenly carries each
    item's probability, which the statistics need.
    """
    from dicast.app.cli.statistics import sample_job, show_rating_plan
    from dicast.app.submission.sampling import SampleOptions

    if (strata is not None) + (disagreement_of is not None) + neyman > 1:
        raise typer.BadParameter("--by, --disagreement-of and --neyman are ways of drawing: give one")
    if (neyman or width is not None) and pilot is None:
        raise typer.BadParameter("--neyman and --width need a finished job: --pilot JOB")
    if cost is not None and not neyman:
        raise typer.BadParameter("--cost belongs to --neyman")
    if (size is None) != (to is None) or (size is None and pilot is None):
        raise typer.BadParameter("to draw a sample, give --size and --to; to plan one, --pilot JOB")
    if pilot is not None and (size is None or json):
        show_rating_plan(context.obj, pilot, width, json=json)
    if size is None or to is None:
        return
    wishes = SampleOptions(size=size, strata=strata, raters=rater or (), seed=seed, cost=cost)
    sample_job(context.obj, job, to, wishes, disagreement_of, pilot if neyman else None)


def panel(
    context: typer.Context,
    job: FinishedJob,
    dimension: Annotated[
        list[str] | None, typer.Option(metavar="ID", help="Only this dimension; may be repeated.")
    ] = None,
    largest: Annotated[int, typer.Option(min=1, max=6, help="The most judges of a panel.")] = 3,
    measure: Annotated[
        Literal["pearson", "spearman"], typer.Option(help="By which agreement is measured.")
    ] = "pearson",
    reach: Annotated[
        float | None, typer.Option(min=0, max=1, metavar="X", help="Name the cheapest panel that reaches this.")
    ] = None,
    agree: Annotated[
        float | None,
        typer.Option(min=0, max=1, metavar="X", help="Learn when these judges may decide, so that people agree."),
    ] = None,
    confidence: Annotated[
        float, typer.Option(min=0, max=1, metavar="X", help="With --agree: how sure that is to be.")
    ] = 0.9,
    within: Annotated[
        float, typer.Option(min=0, metavar="POINTS", help="With --agree: how near people's mean must be.")
    ] = 0.5,
    cost: Annotated[
        list[str] | None,
        typer.Option(metavar="JUDGE=X", help="What a judge costs an item; for all judges, or none."),
    ] = None,
    plot: Annotated[str | None, typer.Option(metavar="FILE", help="Draw agreement against cost, .svg or .png.")] = None,
    json: AsJson = False,
) -> None:
    """Find the cheapest of a job's panels that agrees with people.

    \b
      dicast panel JOB --reach 0.7
      dicast panel JOB --cost large=0.9 --cost small=0.1 --plot panels.svg
      dicast panel JOB --agree 0.8 --confidence 0.9

    Without --cost, judges cost what their calls have cost an item, or a call each where a model has no price.

    Every panel is tried, with every way of combining its scores; what is told of it is measured on items that had no
    say in choosing it.
    """
    from dicast.app.cli.statistics import PanelQuery, show_panels, show_trusted_panels

    if agree is not None:
        if not (0 < agree < 1 and 0 < confidence < 1):
            raise typer.BadParameter("--agree and --confidence lie between 0 and 1")
        show_trusted_panels(context.obj, job, dimension or [], agree, confidence, within, json=json)
        return

    wishes = PanelQuery(dimension or (), largest, measure, reach, cost or ())
    show_panels(context.obj, job, wishes, plot=plot, json=json)


def calibrate(
    context: typer.Context,
    job: FinishedJob,
    out: Annotated[str, typer.Option("--out", "-o", metavar="FILE", help="Where to, .json; replaced if it is there.")],
    method: Annotated[
        Literal["isotonic", "ordinal", "linear"],
        typer.Option(help="The best map that never falls, people's mean at each score, or a straight line."),
    ] = "isotonic",
    dimension: Annotated[
        list[str] | None, typer.Option(metavar="ID", help="Only this dimension; may be repeated.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Learn from people's ratings how to correct a job's judges.

    \b
      dicast calibrate JOB -o calibration.json
      calibration: calibration.json              in a later job

    A map for each judge, and for the panel, from its scores to people's; what it is worth is measured on the half of
    the items that it was not learned on. It holds for this judge, model, prompt and rubric alone.
    """
    from dicast.app.cli.statistics import calibrate_job

    calibrate_job(context.obj, job, out, method=method, dimensions=dimension or [], json=json)


Local = Annotated[bool, typer.Option("--local", help="Start all that is needed, as `dicast run --local` does.")]


def certify(
    context: typer.Context,
    job: Annotated[str, typer.Argument(metavar="JOB", help="A job's file, YAML or JSON.")],
    out: Annotated[str, typer.Option("--out", "-o", metavar="FILE", help="Where to, .json; replaced if it is there.")],
    replicates: Annotated[int, typer.Option(min=2, max=100, help="How often each item is judged.")] = 5,
    anchors: Annotated[int, typer.Option(min=1, max=1000, help="How many items `dicast watch` may judge again.")] = 60,
    days: Annotated[float, typer.Option(min=0, help="After how many days it expires.")] = 90,
    local: Local = False,
    json: AsJson = False,
) -> None:
    """Measure a job's judges, and write a certificate.

    \b
      dicast certify job.yaml -o certificate.json
      dicast watch certificate.json              each day, from then on
      dicast gate JOB --certificate certificate.json

    The job is judged several times over, with the probes for verbosity, attacks and, of pairs, position. The
    certificate holds for these judges, models as they answered, prompt and rubrics alone.
    """
    from dicast.app.cli.run import certify_judges

    code = certify_judges(
        context.obj, job, out, replicates=replicates, anchors=anchors, days=days, local=local, json=json
    )
    raise typer.Exit(code)


def watch(
    context: typer.Context,
    certificate: Annotated[str, typer.Argument(metavar="FILE", help="A certificate, from `dicast certify`.")],
    size: Annotated[int, typer.Option("--size", "-n", min=1, max=1000, help="How many anchors to judge now.")] = 3,
    look: Annotated[bool, typer.Option("--look", help="Judge nothing; only say what is known.")] = False,
    local: Local = False,
    json: AsJson = False,
) -> None:
    """Judge a few anchors again, and say whether a judge has changed.

    \b
      dicast watch certificate.json              from a timer, once a day
      dicast watch certificate.json --look

    The test holds however often one looks: a judge that stays as it is is ever said to have changed with a probability
    of 5 % at most. Exit codes: 0 no change is seen, 4 a judge has changed, 5 the certificate does not hold any more.
    """
    from dicast.app.cli.run import watch_judges

    raise typer.Exit(watch_judges(context.obj, certificate, size, look=look, local=local, json=json))


def verify(context: typer.Context, job: FinishedJob, json: AsJson = False) -> None:
    """Compare a finished job's files with its run.lock.

    \b
      dicast verify JOB

    run.lock has the digests of the job, its items, prompt, rubrics and judges, the models as they answered, the
    versions, and the results. Exit code 1 if anything differs.
    """
    from dicast.app.cli.statistics import verify_files

    raise typer.Exit(verify_files(context.obj, job, json=json))


def rubrics(
    context: typer.Context,
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Show this one whole.")] = None,
) -> None:
    """List the rubrics that come with Dicast, or show one.

    \b
      dicast rubrics faithfulness
      dicast rubrics faithfulness >mine.yaml     to begin one of your own with

    A job names them: `dimensions: [faithfulness, mine.yaml]`.
    """
    from dicast.app.cli.statistics import show_rubrics

    show_rubrics(context.obj, name)


def schema(
    context: typer.Context,
    output: Annotated[
        str | None, typer.Option("--output", "-o", metavar="FILE", help="Write it to a file, not to the terminal.")
    ] = None,
) -> None:
    """Print the JSON Schema of a job's file, for editors.

    \b
      dicast schema -o job.schema.json

    An editor with a YAML language server completes and checks a job whose first line is
    `# yaml-language-server: $schema=job.schema.json`.
    """
    from dicast.app.cli.machine import show_schema

    show_schema(context.obj, output)


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
MostCost = Annotated[
    str | None, typer.Option("--max-cost", metavar="AMOUNT", help="Fail if its calls may have cost more than this.")
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
GateCertificate = Annotated[
    str | None, typer.Option("--certificate", metavar="FILE", help="Fail unless this certificate holds for the judges.")
]
Junit = Annotated[str | None, typer.Option(metavar="FILE", help="Write JUnit XML, a test case a check.")]
JunitItems = Annotated[bool, typer.Option("--junit-items", help="With a test case an item, too.")]
GateCsv = Annotated[str | None, typer.Option("--csv", metavar="FILE", help="Write the checks as CSV.")]
Summary = Annotated[
    bool, typer.Option("--summary", help="A Markdown summary, to $GITHUB_STEP_SUMMARY or else standard output.")
]
Comment = Annotated[
    str | None, typer.Option(metavar="FILE", help="Write the Markdown summary as a pull request's comment.")
]
Link = Annotated[
    str | None, typer.Option(metavar="URL", help="Where the summary's readers find the report; on GitHub, the run.")
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
    max_cost: MostCost = None,
    not_worse_than: NotWorseThan = None,
    shift: Shift = None,
    min_agreement: MinAgreement = None,
    calibrated: Calibrated = False,
    certificate: GateCertificate = None,
    junit: Junit = None,
    junit_items: JunitItems = False,
    csv: GateCsv = None,
    summary: Summary = False,
    comment: Comment = None,
    link: Link = None,
    json: AsJson = False,
) -> None:
    """Say whether a finished job passes its quality gate.

    The gate is that of the job, with what the options change.

    \b
      dicast gate JOB --fail-under faithfulness=4.2 --max-errors 1%
      dicast gate JOB --not-worse-than LAST-WEEK --shift 0.1 --confident
      dicast gate JOB --junit gate.xml --summary

    Exit codes: 0 passed, 4 failed, 5 cannot be told (no calibration for this judge and rubric, no ratings, too few
    items, a cancelled job), 2 refused.
    """
    from dicast.app.cli.quality_gate import QualityGateOptions, decide_job

    overrides = demands(
        confident=confident, max_errors=max_errors, max_cost=max_cost, not_worse_than=not_worse_than, shift=shift,
        min_agreement=min_agreement, calibrated=calibrated, certificate=certificate,
    )  # fmt: skip
    options = QualityGateOptions(overrides, fail_under or (), junit, junit_items, csv, summary, comment, link)
    raise typer.Exit(decide_job(context.obj, job, options, json=json))
