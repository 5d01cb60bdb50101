"""`dicast`: the command line. Options and help stand here, the work in `app.terminal` and `app.doctor`.

Everything that takes long to load is imported by the command that needs it, so that `--help` answers at once.
"""
# ruff: noqa: PLC0415  (imports wait, see above)

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

cli = typer.Typer(
    name="dicast",
    help="Judge texts with panels of LLM judges, at any scale.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
jobs = typer.Typer(help="Look after submitted jobs.", no_args_is_help=True)
cli.add_typer(jobs, name="jobs")


class OnInterrupt(StrEnum):
    """What Ctrl-C does to the job that is watched."""

    ASK = "ask"
    DETACH = "detach"
    CANCEL = "cancel"


Job = Annotated[str, typer.Argument(metavar="JOB", help="A YAML or JSON file; '-' reads standard input.")]
JobId = Annotated[str, typer.Argument(metavar="ID", help="The job's id, as `dicast jobs list` shows it.")]
AsJson = Annotated[bool, typer.Option("--json", help="Only JSON on standard output.")]


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"dicast {version('dicast')}")
        raise typer.Exit


@cli.callback()
def _dicast(
    context: typer.Context,
    debug: Annotated[bool, typer.Option("--debug", help="Whole tracebacks, and Dicast's own log.")] = False,
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show it.")] = False,
) -> None:
    terminal = context.obj
    terminal.debug = debug


@cli.command(no_args_is_help=True)
def run(
    context: typer.Context,
    job: Job,
    local: Annotated[bool, typer.Option(help="Start store, worker and beat for this run, and stop them after.")] = False,
    ...
) -> None:
    """Submit a job, watch it, and print its report."""
