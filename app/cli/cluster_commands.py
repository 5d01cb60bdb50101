"""Options and help of `dicast cluster`. The commands are implemented in `dicast.app.cli.cluster`."""
# ruff: noqa: PLC0415  (what takes long to load is imported by the command that needs it)

from __future__ import annotations

from typing import Annotated, Literal

import typer

from dicast.app.cli.options import AsJson, Watch

cluster = typer.Typer(
    help="See and steer the nodes: the worker processes.", no_args_is_help=True, rich_markup_mode=None
)

Status = Annotated[
    Literal["online", "cordoned", "draining", "offline", "degraded"] | None,
    typer.Option("--status", help="Only nodes of this status."),
]

Node = Annotated[str, typer.Argument(metavar="NODE", help="The node's id, or a name that only one node has.")]


@cluster.command()
def nodes(context: typer.Context, status: Status = None, json: AsJson = False, watch: Watch = False) -> None:
    """List the nodes: status, open calls, free slots, pools, labels.

    Nodes that are gone stay listed as offline for a day.
    """
    from dicast.app.cli.cluster import show_nodes

    show_nodes(context.obj, status, json=json, watch=watch)


@cluster.command("status")
def status_(context: typer.Context, json: AsJson = False, watch: Watch = False) -> None:
    """Show the installation in numbers.

    Nodes, capacity, open calls, what waits, and what nobody may take.
    """
    from dicast.app.cli.cluster import show_status

    show_status(context.obj, json=json, watch=watch)


@cluster.command(no_args_is_help=True)
def cordon(context: typer.Context, node: Node, json: AsJson = False) -> None:
    """Have a node begin no more calls.

    Open calls go on, and what waits there goes back to the queues. Exit code 1 if the node has not acknowledged it
    within some seconds: it is granted nothing all the same.
    """
    from dicast.app.cli.cluster import cordon_node

    raise typer.Exit(cordon_node(context.obj, node, json=json))


@cluster.command(no_args_is_help=True)
def uncordon(context: typer.Context, node: Node, json: AsJson = False) -> None:
    """Have a cordoned or drained node take work again."""
    from dicast.app.cli.cluster import uncordon_node

    raise typer.Exit(uncordon_node(context.obj, node, json=json))


@cluster.command(no_args_is_help=True)
def drain(
    context: typer.Context,
    node: Node,
    deadline: Annotated[
        float, typer.Option("--deadline", metavar="SECONDS", help="Calls still open then are cut and made elsewhere.")
    ] = 60.0,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Return as soon as it has begun.")] = False,
    json: AsJson = False,
) -> None:
    """Cordon a node, and wait until its open calls have ended.

    The process stays, cordoned, until it is uncordoned, removed, or stopped. Exit code 1 if calls had to be cut.
    """
    from dicast.app.cli.cluster import drain_node

    raise typer.Exit(drain_node(context.obj, node, deadline, wait=not no_wait, json=json))


@cluster.command(no_args_is_help=True)
def remove(
    context: typer.Context,
    node: Node,
    force: Annotated[bool, typer.Option("--force", help="Cut its open calls; they are made elsewhere.")] = False,
) -> None:
    """Stop a node's process, and list it no more.

    A node with open calls is left alone, with exit code 2, unless --force is given.
    """
    from dicast.app.cli.cluster import remove_node

    remove_node(context.obj, node, force=force)


@cluster.command()
def steal(context: typer.Context, json: AsJson = False) -> None:
    """Have waiting messages go back for idle nodes, now.

    Those that wait at overloaded, cordoned or silent nodes. The housekeeping does the same each second, unless
    DICAST_STEAL=false.
    """
    from dicast.app.cli.cluster import steal_work

    steal_work(context.obj, json=json)
