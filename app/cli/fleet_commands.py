"""Options and help of `dicast fleet`. The command is implemented in `dicast.app.cli.fleet`."""
# ruff: noqa: PLC0415  (what takes long to load is imported by the command that needs it)

from __future__ import annotations

from typing import Annotated

import typer

from dicast.app.cli.options import AsJson, Watch

fleet = typer.Typer(help="See several installations at a glance.", no_args_is_help=True, rich_markup_mode=None)


@fleet.callback()
def _every_command() -> None:
    """Make `fleet` a group, although it has only one command."""


@fleet.command("status")
def status(
    context: typer.Context,
    installations: Annotated[
        list[str] | None, typer.Argument(metavar="[URL|NAME]...", help="Default: all that the file names.")
    ] = None,
    file: Annotated[str | None, typer.Option(metavar="FILE", help="Instead of DICAST_FLEET_FILE.")] = None,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", min=0.1, max=300, help="For each installation.")] = 5.0,
    json: AsJson = False,
    watch: Watch = False,
) -> None:
    """Roll up several installations.

    Their nodes, open calls and waiting work, in a line each.

    \b
      dicast fleet status https://judges.eu.example:8700 https://judges.us.example:8700
      dicast fleet status eu us                      # names in config/fleet.toml

    Each one's server is asked with DICAST_FLEET_TOKEN, or with a token of its own. Exit code 1 if one does not
    answer, or has work that none of its nodes may take.
    """
    from dicast.app.cli.fleet import show_fleet

    raise typer.Exit(show_fleet(context.obj, installations or [], file, timeout, json=json, watch=watch))
