"""Options and help of `dicast cluster`, `fleet`, `token`, `audit`, `governor`, `batches` and `cache`.

Their work is done by `dicast.app.cli.cluster`, `access`, `governor`, `jobs` and `machine`.
"""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from dicast.app.cli.console import AsJson, Watch

# ruff: noqa: PLC0415  (what takes long to load is imported by the command that needs it)


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


# ruff: noqa: PLC0415  (what takes long to load is imported by the command that needs it)


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
    from dicast.app.cli.cluster import show_fleet

    raise typer.Exit(show_fleet(context.obj, installations or [], file, timeout, json=json, watch=watch))


# ruff: noqa: PLC0415  (what takes long to load is imported by the command that needs it)


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


# ruff: noqa: PLC0415  (what takes long to load is imported by the command that needs it)


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


# Named here to keep the signature of `governor_set` readable.
Settle = Annotated[
    float | None, typer.Option(metavar="SECONDS", help="How long after a cut nothing changes (profile classic).")
]
LatencyTarget = Annotated[
    float | None, typer.Option(metavar="SECONDS", help="Median latency to stay below (profile default).")
]
FirstBreak = Annotated[
    float | None, typer.Option("--break", metavar="SECONDS", help="The circuit breaker's first break.")
]
CpuHigh = Annotated[
    float | None,
    typer.Option(metavar="PERCENT", help="CPU, in percent of one core, that halves the limit (rules)."),
]
CpuReading = Annotated[
    str | None, typer.Option(metavar="READING", help="CPU by `sample`, or by `load` of five minutes (rules).")
]
ErrorHigh = Annotated[
    float | None, typer.Option(metavar="SHARE", help="Failed calls above which the limit falls (profile rules).")
]
ErrorLow = Annotated[
    float | None, typer.Option(metavar="SHARE", help="Failed calls below which it may grow (profile rules).")
]
ErrorWindow = Annotated[
    float | None, typer.Option(metavar="SECONDS", help="Over which the error rate is measured (profile rules).")
]
Sustain = Annotated[
    float | None, typer.Option(metavar="SECONDS", help="How long errors must be few for one more (rules).")
]
SloTarget = Annotated[
    float | None, typer.Option(metavar="SHARE", help="Share of calls that should succeed; 0: no cap.")
]
SloWindow = Annotated[float | None, typer.Option(metavar="SECONDS", help="Over which that share is measured.")]
SloBurnRate = Annotated[float | None, typer.Option(metavar="N", help="Cap when errors come N times too fast.")]


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
    latency_target: LatencyTarget = None,
    settle: Settle = None,
    break_: FirstBreak = None,
    cpu_high: CpuHigh = None,
    cpu_by: CpuReading = None,
    error_high: ErrorHigh = None,
    error_low: ErrorLow = None,
    window: ErrorWindow = None,
    sustain: Sustain = None,
    slo_target: SloTarget = None,
    slo_window: SloWindow = None,
    slo_burn_rate: SloBurnRate = None,
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
        "latency_target_s": latency_target,
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


batches = typer.Typer(
    help="Look after batches at providers' batch APIs (`road: batch`).", no_args_is_help=True, rich_markup_mode=None
)

BatchName = Annotated[str, typer.Argument(metavar="BATCH", help="Its name, as `dicast batches list` shows it.")]


@batches.command("list")
def batches_list(
    context: typer.Context,
    every: Annotated[bool, typer.Option("--all", help="Also the last ones that are over.")] = False,
    json: AsJson = False,
) -> None:
    """List batches: jobs, places, what they do, how long.

    A job with `road: batch` waits for them without holding a worker's slot.
    """
    from dicast.app.cli.jobs import show_batches

    show_batches(context.obj, over=every, json=json)


@batches.command("show", no_args_is_help=True)
def batches_show(context: typer.Context, batch: BatchName, json: AsJson = False) -> None:
    """Show one batch: its place, size, times, and id there."""
    from dicast.app.cli.jobs import show_batch

    raise typer.Exit(show_batch(context.obj, batch, json=json))


@batches.command("cancel", no_args_is_help=True)
def batches_cancel(context: typer.Context, batch: BatchName) -> None:
    """Have a batch cancelled at its provider.

    What was done of it counts and is recorded. The rest goes into a later batch, unless its job is cancelled, too.
    """
    from dicast.app.cli.jobs import cancel_one_batch

    raise typer.Exit(cancel_one_batch(context.obj, batch))


cache = typer.Typer(
    help="Look after the opinions that are kept here to be used again.", no_args_is_help=True, rich_markup_mode=None
)


@cache.command("stats")
def cache_stats(context: typer.Context, json: AsJson = False) -> None:
    """Show how many opinions are kept here, and by which judges.

    Jobs with `cache: use` keep their opinions and use those of earlier jobs.
    """
    from dicast.app.cli.machine import show_cache

    show_cache(context.obj, json=json)


@cache.command("prune", no_args_is_help=True)
def cache_prune(
    context: typer.Context,
    older_than: Annotated[str, typer.Option("--older-than", metavar="AGE", help="Such as 30d or 12h; 0s: all.")],
) -> None:
    """Remove opinions that were kept longer ago.

    \b
      dicast cache prune --older-than 30d
    """
    from dicast.app.cli.machine import prune_cache

    prune_cache(context.obj, older_than)


@cache.command("export", no_args_is_help=True)
def cache_export(
    context: typer.Context, to: Annotated[str, typer.Argument(metavar="FILE", help="A new file, JSON Lines.")]
) -> None:
    """Write all kept opinions to a file.

    It can be imported elsewhere, or replayed by `dicast run JOB --cassette FILE`. It holds judges' arguments, and so
    parts of the judged texts.
    """
    from dicast.app.cli.machine import export_cache

    export_cache(context.obj, to)


@cache.command("import", no_args_is_help=True)
def cache_import(
    context: typer.Context, path: Annotated[str, typer.Argument(metavar="FILE", help="What `export` has written.")]
) -> None:
    """Add the opinions of an exported file, all or none.

    Import only what you trust: a later job takes these opinions for its judges' own.
    """
    from dicast.app.cli.machine import import_cache

    import_cache(context.obj, path)
