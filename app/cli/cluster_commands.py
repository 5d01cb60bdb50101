"""`dicast cluster`: its commands, options and help; see `dicast.app.cli.cluster` for the work."""
# ruff: noqa: PLC0415  (what takes long to load is imported by the command that needs it)

from __future__ import annotations

from typing import Annotated, Literal

import typer

cluster = typer.Typer(
    help="See and steer the nodes: the worker processes.", no_args_is_help=True, rich_markup_mode=None
)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else, on standard output.")]
Watch = Annotated[bool, typer.Option("--watch", help="Renew the output each second, until Ctrl-C.")]
Status = Annotated[
    Literal["online", "cordoned", "draining", "offline", "degraded"] | None,
    typer.Option("--status", help="Only nodes of this status."),
]


@cluster.command()
def nodes(context: typer.Context, status: Status = None, json: AsJson = False, watch: Watch = False) -> None:
    """List the nodes: status, open calls, free slots, pools, labels.

    Nodes that are gone stay listed as offline for a day.
    """
    from dicast.app.cli.cluster import show_nodes

    show_nodes(context.obj, status, json=json, watch=watch)


@cluster.command("status")
def status_(context: typer.Context, json: AsJson = False, watch: Watch = False) -> None:
    """Show the installation in numbers: nodes, capacity, open calls, what waits, and what nobody may take."""
    from dicast.app.cli.cluster import show_status

    show_status(context.obj, json=json, watch=watch)
