"""`dicast`, the command line: options and help. The work is done in `app.terminal` and `app.doctor`.

What takes long to load is imported by the command that needs it, so that `--help` answers at once.
"""
# ruff: noqa: PLC0415  (see above)

from __future__ import annotations

import sys
from typing import Annotated, Literal

import typer

cli = typer.Typer(
    name="dicast",
    help="Judge texts with panels of LLM judges, at any scale.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Settings come from the environment and .env. Exit codes: 0 all went well, 1 some units have no score or "
    "something is wrong, 2 refused, 3 interrupted or cancelled.",
)
jobs = typer.Typer(help="Look after submitted jobs.", no_args_is_help=True, rich_markup_mode=None)
cli.add_typer(jobs, name="jobs")


JobId = Annotated[str, typer.Argument(metavar="ID", help="The job's id, as `dicast jobs list` shows it.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else, on standard output.")]
Out = Annotated[
    str | None,
    typer.Option("--out", metavar="DIR", help="Put the job's files into DIR/<job id>/, copied if need be."),
]
Interrupted = Annotated[
    Literal["ask", "detach", "cancel"] | None,
    typer.Option(help="What Ctrl-C does to the job. Default: ask on a terminal, else detach (with --local: cancel)."),
]


def main() -> None:
    """The console script."""
    from app.terminal.console import Terminal

    terminal = Terminal()
    try:
        cli(obj=terminal)
    except Exception as error:  # noqa: BLE001  (told, with its cause, by `fail`)
        sys.exit(terminal.fail(error))


def _show_version(asked: bool) -> None:
    if asked:
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
    job: Annotated[str, typer.Argument(metavar="JOB", help="A YAML or JSON file; '-' is standard input (YAML).")],
    local: Annotated[
        bool, typer.Option("--local", help="Start store, worker, beat and local model, and stop them at the end.")
    ] = False,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Submit, print the job's id, and leave.")] = False,
    json: AsJson = False,
    out: Out = None,
    project: Annotated[str | None, typer.Option(metavar="NAME", help="On whose behalf; the file's project.")] = None,
    assignments: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a value of the job; may be repeated.")
    ] = None,
    on_interrupt: Interrupted = None,
) -> None:
    """Submit a job, show its progress, and print its report.

    \b
      dicast run job.yaml                     judged by the workers that run
      dicast run job.yaml --local             no worker, no Redis, no key needed
      dicast run job.yaml --json >report.json
      dicast run job.yaml --set replicates=3 --set agents.0.model=gpt-4.1
      id=$(dicast run job.yaml --detach) && dicast jobs watch $id

    Progress goes to standard error. A job with an id of its own is submitted once: run it again to see it again.
    """
    from app.terminal.run import Wishes, run_job

    wishes = Wishes(json=json, out=out, on_interrupt=_unless_ask(on_interrupt), local=local, detach=detach)
    raise typer.Exit(run_job(context.obj, job, project, assignments or [], wishes))


@jobs.command("list")
def list_(
    context: typer.Context,
    newest: Annotated[int, typer.Option("--newest", "-n", min=1, max=10_000, help="At most so many.")] = 20,
    json: AsJson = False,
) -> None:
    """List the newest jobs."""
    from app.terminal.jobs import list_jobs

    list_jobs(context.obj, newest, json=json)


@jobs.command(no_args_is_help=True)
def show(context: typer.Context, job_id: JobId, json: AsJson = False) -> None:
    """Show a job's state or, when it has ended, its report."""
    from app.terminal.jobs import show_job

    show_job(context.obj, job_id, json=json)


@jobs.command(no_args_is_help=True)
def watch(
    context: typer.Context, job_id: JobId, json: AsJson = False, out: Out = None, on_interrupt: Interrupted = None
) -> None:
    """Show a job's progress until it ends, then its report."""
    from app.terminal.run import Wishes, watch_job

    wishes = Wishes(json=json, out=out, on_interrupt=_unless_ask(on_interrupt))
    raise typer.Exit(watch_job(context.obj, job_id, wishes))


@jobs.command(no_args_is_help=True)
def cancel(context: typer.Context, job_id: JobId) -> None:
    """Make no new calls for a job.

    Open calls end and count, and a report is written of what there is.
    """
    from app.terminal.jobs import cancel_job

    cancel_job(context.obj, job_id)


@jobs.command(no_args_is_help=True)
def export(
    context: typer.Context,
    job_id: JobId,
    to: Annotated[str, typer.Option(metavar="FILE", help="Where to.")],
    format: Annotated[
        Literal["csv", "jsonl", "parquet"],
        typer.Option(help="CSV is made safe for spreadsheets; the others are exact."),
    ],
) -> None:
    """Write the opinions of a finished job to a file.

    \b
      dicast jobs export ID --format csv --to opinions.csv
    """
    from app.terminal.jobs import export_job

    export_job(context.obj, job_id, format, to)


@cli.command()
def doctor(
    context: typer.Context,
    call: Annotated[
        bool, typer.Option("--call", help="Ask each usable pool one tiny question (real calls, within the limit).")
    ] = False,
    json: AsJson = False,
) -> None:
    """Check settings, pools, store, workers and keys.

    What is seen is this machine with this environment; a worker elsewhere may have other keys.
    Exit code 1 if something is wrong that keeps jobs from being judged or safe.
    """
    from app.terminal.doctor import show_findings

    raise typer.Exit(show_findings(context.obj, call=call, json=json))


@cli.command()
def stop(
    context: typer.Context,
    force: Annotated[bool, typer.Option("--force", help="Even if workers live on that store.")] = False,
) -> None:
    """Stop the embedded store and local model of this machine.

    They outlive the command that needed them first. Jobs stay on disk; the next command finds them again.
    """
    from app.terminal.stop import stop_residents

    stop_residents(context.obj, force=force)


def _unless_ask(choice: str | None) -> str | None:
    return None if choice == "ask" else choice


if __name__ == "__main__":
    main()
