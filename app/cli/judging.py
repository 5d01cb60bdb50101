"""Options and help of the commands that ask how far judges can be trusted: `report`, `compare`, `sample`, `panel`."""
# ruff: noqa: PLC0415  (what takes long to load is imported by the command that needs it)

from __future__ import annotations

from typing import Annotated

import typer

Finished = Annotated[
    str, typer.Argument(metavar="JOB", help="A finished job's id, or the folder that holds its report.json.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else, on standard output.")]
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


def add_to(cli: typer.Typer) -> None:
    """Register the commands."""
    cli.command(no_args_is_help=True)(report)


def report(
    context: typer.Context,
    job: Finished,
    by: By = None,
    cluster: Cluster = None,
    again: Annotated[bool, typer.Option("--again", help="Compute anew what the report holds already.")] = False,
    json: AsJson = False,
) -> None:
    """Show a finished job's report and what is known of its judges.

    \b
      dicast report JOB
      dicast report JOB --by system --cluster question

    Agreement with people, bias, what people would have said, groups: each with its interval, or why it cannot be said.
    What is not computed yet is computed now and kept in report.json. Needs `pip install 'dicast[scores]'`.
    """
    from dicast.app.cli.statistics import show_statistics

    show_statistics(context.obj, job, by or [], cluster, again=again, json=json)
