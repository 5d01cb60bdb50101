"""Options and help of `dicast governor`. The commands are implemented in `dicast.app.cli.governor`."""
# ruff: noqa: PLC0415  (what takes long to load is imported by the command that needs it)

from __future__ import annotations

from typing import Annotated

import typer

from dicast.app.cli.options import AsJson, Watch

governor = typer.Typer(rich_markup_mode=None)

Pool = Annotated[
    str | None,
    typer.Option("--pool", metavar="POOL", help="The pool; '' is the default one. Not needed if there is only one."),
]
OnePool = Annotated[str | None, typer.Option("--pool", metavar="POOL", help="Only this pool; '' is the default one.")]


@governor.callback(invoke_without_command=True)
def governor_alone(context: typer.Context, json: AsJson = False, watch: Watch = False) -> None:
    """See and set the pools' limits. Without a command: `show`."""
    if context.invoked_subcommand is None:
        governor_show(context, json=json, watch=watch)
    elif json or watch:
        raise typer.BadParameter(f"give the option to the command: dicast governor {context.invoked_subcommand} ...")


@governor.command("show")
def governor_show(context: typer.Context, pool: OnePool = None, json: AsJson = False, watch: Watch = False) -> None:
    """Show every pool's limit and why it is so.

    Also who waits, what was refused, and what needs attention.
    Busy pools come first, idle ones take a line each; --pool shows everything about one.
    """
    from dicast.app.cli.governor import show

    show(context.obj, pool, json=json, watch=watch)


@governor.command("set", no_args_is_help=True)
def governor_set(
    context: typer.Context,
    pool: Pool = None,
    limit: Annotated[
        int | None, typer.Option(metavar="N", help="Open calls: at first, or always with --fixed.")
    ] = None,
    adaptive: Annotated[
        bool | None, typer.Option("--adaptive/--fixed", help="Whether the limit moves by itself.")
    ] = None,
    ceiling: Annotated[
        int | None, typer.Option(metavar="N", help="The most the limit may become; default: twice --limit.")
    ] = None,
    floor: Annotated[int | None, typer.Option(metavar="N", help="The least the limit may become.")] = None,
    rpm: Annotated[int | None, typer.Option(metavar="N", help="Requests a minute, never exceeded.")] = None,
    tpm: Annotated[int | None, typer.Option(metavar="N", help="Tokens a minute, never exceeded.")] = None,
    settle: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="How long after a cut nothing changes (profile classic).")
    ] = None,
    break_: Annotated[
        float | None, typer.Option("--break", metavar="SECONDS", help="The circuit breaker's first break.")
    ] = None,
    cpu_high: Annotated[
        float | None,
        typer.Option(metavar="PERCENT", help="CPU, in percent of one core, that halves the limit (rules)."),
    ] = None,
    cpu_by: Annotated[
        str | None, typer.Option(metavar="READING", help="CPU by `sample`, or by `load` of five minutes (rules).")
    ] = None,
    error_high: Annotated[
        float | None, typer.Option(metavar="SHARE", help="Failed calls above which the limit falls (profile rules).")
    ] = None,
    error_low: Annotated[
        float | None, typer.Option(metavar="SHARE", help="Failed calls below which it may grow (profile rules).")
    ] = None,
    window: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Over which the error rate is measured (profile rules).")
    ] = None,
    sustain: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="How long errors must be few for one more (rules).")
    ] = None,
    slo_target: Annotated[
        float | None, typer.Option(metavar="SHARE", help="Share of calls that should succeed; 0: no cap.")
    ] = None,
    slo_window: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Over which that share is measured.")
    ] = None,
    slo_burn_rate: Annotated[
        float | None, typer.Option(metavar="N", help="Cap when errors come N times too fast.")
    ] = None,
    pacing: Annotated[float | None, typer.Option(metavar="SECONDS", help="Between two grants, +-50 %.")] = None,
    profile: Annotated[str | None, typer.Option(metavar="NAME", help="default, classic, rules or fixed.")] = None,
    fair: Annotated[str | None, typer.Option(metavar="MODE", help="work_conserving, strict or off.")] = None,
    weight: Annotated[
        list[str] | None, typer.Option(metavar="PROJECT=W", help="A project's weight; may be repeated.")
    ] = None,
    project_max: Annotated[
        list[str] | None,
        typer.Option(metavar="PROJECT=N", help="A project's most open calls, or a share below 1; '*': the others."),
    ] = None,
) -> None:
    """Set overrides for a pool. They take effect at once, for all workers, until they are unset.

    \b
      dicast governor set --pool openai --limit 40 --ceiling 200
      dicast governor set --pool openai --limit 10 --fixed
      dicast governor set --pool openai --weight newsroom=3

    A limit below the number of open calls lets them finish and admits none.
    """
    from dicast.app.cli.governor import set_overrides

    overrides = {
        "limit": limit, "adaptive": adaptive, "ceiling": ceiling, "floor": floor, "rpm": rpm, "tpm": tpm,
        "settle_s": settle, "break_s": break_, "cpu_high": cpu_high, "cpu_by": cpu_by,
        "error_high": error_high, "error_low": error_low, "window_s": window, "sustain_s": sustain,
        "slo_target": slo_target, "slo_window_s": slo_window, "slo_burn_rate": slo_burn_rate,
        "pacing_s": pacing, "profile": profile,
        "fair": fair,
    }  # fmt: skip
    set_overrides(context.obj, pool, overrides, weights=weight or [], project_max=project_max or [])


@governor.command("unset", no_args_is_help=True)
def governor_unset(
    context: typer.Context,
    pool: Pool = None,
    overrides: Annotated[list[str] | None, typer.Argument(metavar="NAME", help="limit, ceiling, rpm, ...")] = None,
    every: Annotated[bool, typer.Option("--all", help="All overrides of the pool.")] = False,
) -> None:
    """Remove overrides of a pool; the pools file applies again.

    \b
      dicast governor unset --pool openai limit ceiling
    """
    from dicast.app.cli.governor import unset_overrides

    unset_overrides(context.obj, pool, overrides or [], every=every)


@governor.command("slo", no_args_is_help=True)
def governor_slo(
    context: typer.Context,
    most: Annotated[str, typer.Argument(metavar="N|none", help="A whole number, or none to lift the cap.")],
) -> None:
    """Cap the limit of every pool, whatever else is set."""
    from dicast.app.cli.governor import set_slo

    set_slo(context.obj, most)
