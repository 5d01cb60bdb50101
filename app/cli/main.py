"""Options and help of `dicast`, the command line.

Groups of commands are in `dicast.app.cli.commands`. What does their work is in `dicast.app.cli` and
`dicast.app.operator.doctor`.

Modules that take long to load are imported by the command that needs them, so that `--help` answers at once.
"""
# ruff: noqa: PLC0415  (see above)

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import Annotated, Literal

import typer

from dicast.app.cli.commands.judging import (
    Calibrated,
    Comment,
    Confident,
    FailUnder,
    GateCertificate,
    GateCsv,
    Junit,
    JunitItems,
    Link,
    MaxErrors,
    MinAgreement,
    NotWorseThan,
    Shift,
    Summary,
    add_to,
    demands,
    gate,
)
from dicast.app.cli.commands.operating import audit, batches, cache, cluster, fleet, governor, token
from dicast.app.cli.console import AsJson

cli = typer.Typer(
    name="dicast",
    help="Judge texts with panels of LLM judges, at any scale.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Settings come from the environment and .env. Exit codes: 0 all went well, 1 some units have no score or "
    "something is wrong, 2 refused, 3 interrupted or cancelled, 4 the gate failed, 5 the gate cannot be told.",
)
jobs = typer.Typer(help="Look after submitted jobs.", no_args_is_help=True, rich_markup_mode=None)
cli.add_typer(jobs, name="jobs")
cli.add_typer(governor, name="governor")
cli.add_typer(fleet, name="fleet")
cli.add_typer(token, name="token")
cli.add_typer(audit, name="audit")
cli.add_typer(cluster, name="cluster")
cli.add_typer(batches, name="batches")
cli.add_typer(cache, name="cache")


JobFile = Annotated[str, typer.Argument(metavar="JOB", help="A YAML or JSON file; '-' is standard input (YAML).")]
Project = Annotated[str | None, typer.Option(metavar="NAME", help="The project to run for, instead of the file's.")]
Assignments = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a value of the job; may be repeated.")
]
JobId = Annotated[str, typer.Argument(metavar="ID", help="The job's id, as `dicast jobs list` shows it.")]
Out = Annotated[
    str | None,
    typer.Option("--out", metavar="DIR", help="Put the job's files into DIR/<job id>/, by copying if necessary."),
]
Local = Annotated[
    bool, typer.Option("--local", help="Start store, worker, beat and local model, and stop them at the end.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only check and show the job, like `dicast validate`.")]
Detach = Annotated[bool, typer.Option("--detach", "-d", help="Submit the job, print its id, and exit.")]
New = Annotated[
    bool, typer.Option("--new", help="Judge a job anew whose id has ended; its earlier results are moved aside.")
]
Cassette = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Make no call: take all opinions from this export of `dicast cache`."),
]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask, whatever the job is expected to cost.")]
Interrupted = Annotated[
    Literal["ask", "detach", "cancel"] | None,
    typer.Option(help="What Ctrl-C does to the job. Default: ask on a terminal, else detach (with --local: cancel)."),
]


def main() -> None:
    """Run the console script."""
    from dicast.app.cli.console import Terminal

    terminal = Terminal()
    try:
        cli(obj=terminal)
    except Exception as error:  # noqa: BLE001  (`fail` reports it, with its cause)
        sys.exit(terminal.fail(error))


def _show_version(requested: bool) -> None:
    if requested:
        from importlib.metadata import PackageNotFoundError, version

        try:
            typer.echo(f"dicast {version('dicast')}")
        except PackageNotFoundError:
            typer.echo("dicast, run from its sources and not installed")
        raise typer.Exit


@cli.callback()
def _every_command(
    context: typer.Context,
    debug: Annotated[bool, typer.Option("--debug", help="Show whole tracebacks.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    context.obj.debug = debug


@cli.command(no_args_is_help=True)
def run(
    context: typer.Context,
    job: JobFile,
    local: Local = False,
    dry_run: DryRun = False,
    detach: Detach = False,
    new: New = False,
    cassette: Cassette = None,
    yes: Yes = False,
    json: AsJson = False,
    out: Out = None,
    project: Project = None,
    assignments: Assignments = None,
    on_interrupt: Interrupted = None,
    fail_under: FailUnder = None,
    confident: Confident = False,
    max_errors: MaxErrors = None,
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
) -> None:
    """Submit a job, show its progress, and print its report.

    \b
      dicast run job.yaml                     judged by the workers that run
      dicast run job.yaml --local             no worker, no Redis, no key needed
      dicast run job.yaml --json >report.json
      dicast run job.yaml --set replicates=3 --set agents.0.model=gpt-4.1
      id=$(dicast run job.yaml --detach) && dicast jobs watch $id
      dicast run job.yaml --fail-under clarity=4.2 --max-errors 1%

    With a gate (`gate:` in the job, or these options) the exit code tells whether the results pass: see `dicast gate`.
    Progress goes to standard error. A person is asked before a job that is to cost more than DICAST_CONFIRM_ABOVE. One
    that has an id is judged only once: running it again says when that was, and shows its report; --new judges it anew.
    """
    from dicast.app.cli.local_worker import early_worker

    with early_worker(out) if local and not detach and not dry_run else nullcontext() as early:
        from dicast.app.cli.quality_gate import QualityGateOptions
        from dicast.app.cli.run import RunOptions, run_job

        overrides = demands(
            confident=confident, max_errors=max_errors, not_worse_than=not_worse_than, shift=shift,
            min_agreement=min_agreement, calibrated=calibrated, certificate=certificate,
        )  # fmt: skip
        options = RunOptions(
            json=json, out=out, on_interrupt=_unless_ask(on_interrupt), local=local, detach=detach, dry_run=dry_run,
            new=new, cassette=cassette, yes=yes,
            gate=QualityGateOptions(overrides, fail_under or (), junit, junit_items, csv, summary, comment, link),
        )  # fmt: skip
        raise typer.Exit(run_job(context.obj, job, project, assignments or [], options, early))


@cli.command(no_args_is_help=True)
def validate(
    context: typer.Context, job: JobFile, json: AsJson = False, project: Project = None, assignments: Assignments = None
) -> None:
    """Check a job and show what it would do.

    \b
      dicast validate job.yaml
      dicast validate job.yaml --set items.limit=20

    Counts, judges, and the first prompt as it will be sent. Every item of its file is read. Nothing is started, stored
    or called.
    """
    from dicast.app.cli.run import validate_job

    validate_job(context.obj, job, project, assignments or [], json=json)


@cli.command(no_args_is_help=True)
def quote(
    context: typer.Context,
    job: JobFile,
    pilot: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, max=1000, help="Make up to N real calls first."),
    ] = None,
    local: Annotated[bool, typer.Option("--local", help="Start what a pilot needs, and stop it at the end.")] = False,
    json: AsJson = False,
    project: Project = None,
    assignments: Assignments = None,
) -> None:
    """Tell what a job will take: calls, tokens, money and minutes.

    \b
      dicast quote job.yaml                          from earlier jobs, or a guess
      dicast quote job.yaml --pilot 30               from 30 real calls
      dicast quote job.yaml --set cache=use --json

    Without --pilot nothing is called. A pilot is a job of its own, which is paid for and keeps its opinions: a job with
    `cache: use` takes them as its results.
    """
    from dicast.app.cli.run import quote_job

    quote_job(context.obj, job, project, assignments or [], pilot=pilot, local=local, json=json)


@cli.command()
def init(
    context: typer.Context,
    folder: Annotated[str, typer.Argument(metavar="DIR", help="Where to.")] = ".",
) -> None:
    """Write a commented job.yaml and config/pools.toml to begin with."""
    from dicast.app.cli.machine import make_files

    make_files(context.obj, folder)


@cli.command()
def demo(
    context: typer.Context,
    folder: Annotated[str, typer.Argument(metavar="DIR", help="Where its files go.")] = "dicast-demo",
) -> None:
    """See a whole report within seconds, from recorded judgements.

    Which of three help desks answers best, and which judges may be believed? The texts, the judgements and the people's
    ratings are invented. No model is called and no key is needed; all else is as in any job.
    """
    from dicast.app.cli.machine import run_demo

    raise typer.Exit(run_demo(context.obj, folder))


add_to(cli)
cli.command(no_args_is_help=True)(gate)


@jobs.command("list")
def list_(
    context: typer.Context,
    newest: Annotated[int, typer.Option("--newest", "-n", min=1, max=10_000, help="How many to list at most.")] = 20,
    json: AsJson = False,
) -> None:
    """List the newest jobs."""
    from dicast.app.cli.jobs import list_jobs

    list_jobs(context.obj, newest, json=json)


@jobs.command(no_args_is_help=True)
def show(context: typer.Context, job_id: JobId, json: AsJson = False) -> None:
    """Show a job's state or, when it has ended, its report."""
    from dicast.app.cli.jobs import show_job

    show_job(context.obj, job_id, json=json)


@jobs.command(no_args_is_help=True)
def watch(
    context: typer.Context, job_id: JobId, json: AsJson = False, out: Out = None, on_interrupt: Interrupted = None
) -> None:
    """Show a job's progress until it ends, then its report."""
    from dicast.app.cli.run import RunOptions, watch_job

    options = RunOptions(json=json, out=out, on_interrupt=_unless_ask(on_interrupt))
    raise typer.Exit(watch_job(context.obj, job_id, options))


@jobs.command(no_args_is_help=True)
def cancel(context: typer.Context, job_id: JobId) -> None:
    """Make no new calls for a job.

    Open calls end and count, and a report is written of what there is.
    """
    from dicast.app.cli.jobs import cancel_job

    cancel_job(context.obj, job_id)


@jobs.command(no_args_is_help=True)
def resume(
    context: typer.Context,
    job_id: JobId,
    max_cost: Annotated[str | None, typer.Option(help="A higher cap on its cost, of a job with such a cap.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="The same for tokens.")] = None,
    max_calls: Annotated[int | None, typer.Option(min=1, help="The same for calls.")] = None,
) -> None:
    """Judge again what has no score in an ended job.

    That is, failed units, and units that a cancelled job, or one that met its cap, did not reach. Scores stay as they
    are.
    """
    from dicast.app.cli.jobs import resume_job

    resume_job(context.obj, job_id, max_cost=max_cost, max_tokens=max_tokens, max_calls=max_calls)


@jobs.command(no_args_is_help=True)
def delete(
    context: typer.Context,
    job_id: JobId,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Delete an ended job: its record, its results and people's ratings.

    Results of earlier jobs of the same id, and uploaded files, stay. A job that has not ended is refused.
    """
    from dicast.app.cli.jobs import delete_job

    raise typer.Exit(delete_job(context.obj, job_id, yes=yes))


@jobs.command(no_args_is_help=True)
def export(
    context: typer.Context,
    job_id: JobId,
    to: Annotated[str, typer.Option(metavar="FILE", help="Where to.")],
    format: Annotated[
        Literal["csv", "jsonl", "parquet"],
        typer.Option(help="CSV is made safe for spreadsheets; the others are exact."),
    ],
    panel: Annotated[
        bool, typer.Option("--panel", help="The panel's scores, one an item and dimension, instead of the opinions.")
    ] = False,
) -> None:
    """Write the opinions of a finished job to a file.

    \b
      dicast jobs export ID --format csv --to opinions.csv
      dicast jobs export ID --format csv --to scores.csv --panel
    """
    from dicast.app.cli.jobs import export_job

    export_job(context.obj, job_id, format, to, panel=panel)


@cli.command()
def doctor(
    context: typer.Context,
    call: Annotated[
        bool, typer.Option("--call", help="Ask each usable pool one tiny question (real calls, within the limits).")
    ] = False,
    json: AsJson = False,
) -> None:
    """Check settings, pools, store, workers and keys.

    This machine and this environment are checked; a worker elsewhere may have other keys.
    Exit code 1 if something keeps jobs from being judged, or from being safe.
    """
    from dicast.app.cli.machine import show_findings

    raise typer.Exit(show_findings(context.obj, call=call, json=json))


@cli.command()
def pools(context: typer.Context) -> None:
    """Print the pools file in its current form, as it is understood.

    \b
      dicast pools >pools.toml && mv pools.toml config/pools.toml
    """
    from dicast.app.cli.run import application

    context.obj.emit(application(context.obj).pools.to_toml().rstrip())


@cli.command()
def metrics(context: typer.Context) -> None:
    """Print the installation's metrics as Prometheus reads them.

    A worker with DICAST_METRICS_PORT serves the same, and its own metrics.
    """
    from dicast.app.cli.machine import show_metrics

    show_metrics(context.obj)


@cli.command()
def serve(
    context: typer.Context,
    host: Annotated[str | None, typer.Option(metavar="ADDRESS", help="Instead of DICAST_SERVER_HOST.")] = None,
    port: Annotated[int | None, typer.Option(metavar="N", help="Instead of DICAST_SERVER_PORT.")] = None,
) -> None:
    """Serve jobs, results, pools and nodes over HTTP.

    Requests need tokens, which `dicast token issue` makes; without them (DICAST_REQUIRE_AUTH=false) only a loopback
    address is served. docs/http.md describes the interface.
    """
    from dicast.app.cli.machine import run_server

    run_server(context.obj, host, port)


@cli.command()
def spend(
    context: typer.Context,
    by: Annotated[
        str, typer.Option(metavar="KEYS", help="Of project, job, judge, pool, model and day, joined by commas.")
    ] = "project,pool,model",
    since: Annotated[str, typer.Option(metavar="DAY", help="From this day on (UTC), as in 2026-11-24.")] = "",
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    json: AsJson = False,
) -> None:
    """Tell what calls have cost, and where budgets stand.

    \b
      dicast spend --by project,day --since 2026-11-01
      dicast spend --by job,judge --csv >spend.csv

    Of the jobs in the store, and of earlier ones whose results are here.
    """
    from dicast.app.cli.jobs import show_spending

    show_spending(context.obj, by, since, csv=csv, json=json)


@cli.command()
def health(
    beat: Annotated[
        bool, typer.Option("--beat", help="The beat of this host, with the same DICAST_STATE_DIR.")
    ] = False,
) -> None:
    """Check whether the worker on this host is well. Exit code 1 if not; made for containers' health checks.

    A worker is well if the store hears its beacon and it takes the work that waits for it; a beat, if the broker took
    a tick of it in the last 30 s.
    """
    from dicast.app.cli.machine import check_health

    raise typer.Exit(check_health(beat=beat))


@cli.command()
def stop(
    context: typer.Context,
    force: Annotated[bool, typer.Option("--force", help="Even if workers use that store.")] = False,
) -> None:
    """Stop the embedded store and local model of this machine.

    They keep running after the command that started them, and end by themselves when nobody has used them for a
    while. Jobs stay on disk; the next command finds them again.
    """
    from dicast.app.cli.machine import stop_daemons

    stop_daemons(context.obj, force=force)


def _unless_ask(choice: str | None) -> str | None:
    return None if choice == "ask" else choice


if __name__ == "__main__":
    main()
