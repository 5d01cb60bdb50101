"""Options and help of `dicast token ...` and `dicast audit ...`. The commands are implemented in
`dicast.app.cli.access`."""
# ruff: noqa: PLC0415  (what takes long to load is imported by the command that needs it)

from __future__ import annotations

from typing import Annotated

import typer

from dicast.app.cli.options import AsJson

token = typer.Typer(help="Issue and end the tokens of the HTTP interface.", no_args_is_help=True, rich_markup_mode=None)
audit = typer.Typer(
    help="Read and check the log of operations and refusals.", no_args_is_help=True, rich_markup_mode=None
)

Span = "a number of seconds, or with a unit: 90s, 15m, 12h, 30d"


@token.command(no_args_is_help=True)
def issue(
    context: typer.Context,
    subject: Annotated[str, typer.Argument(metavar="SUBJECT", help="Whose token it is, for lists and the audit log.")],
    scopes: Annotated[
        list[str],
        typer.Option(
            "--scope", metavar="SCOPE",
            help="What it is for, one of those above; may be repeated.",
        ),
    ],
    ttl: Annotated[str, typer.Option(metavar="TIME", help=f"How long it is good: {Span}.")] = "30d",
    node: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="With node:register: the only name under which a node may join with it; else the only node that it "
            "sees and steers.",
        ),
    ] = "",
    pools: Annotated[
        list[str] | None,
        typer.Option("--pool", metavar="POOL", help="It uses, sees and changes only this pool; may be repeated."),
    ] = None,
    labels: Annotated[
        list[str] | None,
        typer.Option("--label", metavar="NAME=VALUE", help="Jobs of it may demand only this; may be repeated."),
    ] = None,
) -> None:  # fmt: skip
    """Issue a token and print it. It is kept nowhere, so keep it well.

    \b
    Scopes, none of which includes another:
      node:register  to join as a node
      node:admin     to see nodes, and to cordon, drain, remove and steal
      job:submit     to submit, cancel and resume jobs, and to upload files
      job:read       to see jobs, results, pools, nodes, and how all stands
      pool:admin     to see pools, and to change their limits
      rating:write   to rate a job's sample blind

    \b
      dicast token issue gpu-machines --scope node:register --ttl 30d
      dicast token issue newsroom --scope job:submit --scope job:read --pool openai
    """
    from dicast.app.cli.access import issue_token

    issue_token(context.obj, subject, scopes, ttl=ttl, node=node, pools=pools, labels=labels)


@token.command("list")
def list_(context: typer.Context, json: AsJson = False) -> None:
    """List the tokens whose time is not over, newest first."""
    from dicast.app.cli.access import list_tokens

    list_tokens(context.obj, json=json)


@token.command(no_args_is_help=True)
def revoke(
    context: typer.Context,
    id: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="A token, and all nodes that joined with it.")
    ] = None,
    node: Annotated[
        str, typer.Option(metavar="NODE", help="A node by its id, or all of a name, and all tokens bound to it.")
    ] = "",
    every: Annotated[bool, typer.Option("--all", help="All tokens, and all nodes that joined over HTTP.")] = False,
) -> None:
    """End a token or a node at once.

    What it has open is closed, and it can do nothing any more.

    \b
      dicast token revoke 5f0c0a9d3c1b2e4f6a7b8c9d
      dicast token revoke --node w1@gpu-7#8d3e01aa
    """
    from dicast.app.cli.access import revoke_tokens

    revoke_tokens(context.obj, id, node=node, every=every)


@token.command()
def rotate(
    context: typer.Context,
    overlap: Annotated[str, typer.Option(metavar="TIME", help=f"How long the older key is accepted: {Span}.")] = "24h",
) -> None:
    """Sign with a new key from now on. Tokens of the older one are good until the overlap ends."""
    from dicast.app.cli.access import rotate_key

    rotate_key(context.obj, overlap)


@audit.command("show")
def show(
    context: typer.Context,
    newest: Annotated[int, typer.Option("--newest", "-n", min=1, max=1_000_000, help="How many lines at most.")] = 50,
    json: Annotated[bool, typer.Option("--json", help="One JSON object a line, as they are kept.")] = False,
) -> None:
    """Show the newest lines, oldest first.

    \b
      dicast audit show --json --newest 1000000 >audit.jsonl
    """
    from dicast.app.cli.access import show_audit

    show_audit(context.obj, newest, json=json)


@audit.command()
def verify(context: typer.Context, json: AsJson = False) -> None:
    """Check that nobody has altered the log since it was written.

    No line may be changed, removed, added or reordered: the first one that was is named, and the exit code is 1. Needs
    the same DICAST_TOKEN_SECRET that the lines were written with.
    """
    from dicast.app.cli.access import verify_audit

    raise typer.Exit(verify_audit(context.obj, json=json))
