"""`dicast governor show|set|unset|slo`: shows what the governor does in each pool, and sets what an operator wants."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

import orjson
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from dicast.app.access.audit import operator
from dicast.app.application import Dicast
from dicast.app.cli.console import Refused, Terminal
from dicast.app.cli.run import application
from dicast.app.cluster.snapshot import SharedState
from dicast.app.domain.text import counted, first_few, percent, printable
from dicast.app.operator import pools
from dicast.app.operator.pools import bound, summary
from dicast.errors import alternatives
from dicast.workers.admission.leases import OpenLease
from dicast.workers.admission.overrides import OverrideError, Overrides
from dicast.workers.admission.pool_state import PoolState, findings, span
from dicast.workers.nodes.registry import Node
from dicast.workers.policy.parameters import BreakerPhase
from dicast.workers.policy.rules import RulesStatus

LEASES_SHOWN = 5
BRIEF_CHANGES = 2
NAME_CHARS = 60
REASON_CHARS = 200
NAMES_SHOWN = 8
CHANGES_SHOWN = 5


def pool_blocks(
    states: Sequence[PoolState],
    unused: Sequence[str],
    configured: Mapping[str, Mapping[str, Any]],
    leases: Sequence[OpenLease] = (),
    *,
    brief: bool = False,
    whole: bool = False,
) -> RenderableType:
    """Draw busy pools as blocks, those that need attention first, and the others, also those that have not been used
    yet, as a line each.

    `configured` has the overrides of the pools file. `brief` leaves out details; `whole` draws blocks for idle pools,
    too.
    """
    parts: list[RenderableType] = []
    if states and states[0].slo is not None:
        parts += [Text(f"SLO: no pool's limit is above {states[0].slo}", style="yellow"), Text()]
    busy = sorted(
        (state for state in states if whole or is_busy(state)),
        key=lambda state: (not findings(state), -state.open, state.pool),
    )
    for state in busy:
        pool_leases = [lease for lease in leases if lease.pool == state.pool]
        parts += [_block(state, configured.get(state.pool, {}), pool_leases, brief=brief), Text()]
    rows = Table.grid(padding=(0, 2, 0, 0))
    names = [printable(state.pool, NAME_CHARS) for state in states if state not in busy]
    rows.add_column(no_wrap=True, min_width=max(map(len, [*names, *unused]), default=0))
    rows.add_column(no_wrap=True, overflow="ellipsis")
    for state in states:
        if state not in busy:
            rows.add_row(Text(printable(state.pool, NAME_CHARS), style="bold"), _line(state))
    for name in unused:
        rows.add_row(Text(printable(name, NAME_CHARS), style="bold"), Text("not used yet", style="dim"))
    if rows.rows:
        parts.append(rows)
    if len(states) > 1 and not brief:
        parts += [Text(), summary_line(states)]
    return Group(*parts)


def summary_line(states: Sequence[PoolState]) -> Text:
    """Describe the summary of the pools in one line."""
    totals = summary(states)
    parts = [
        f"{totals['ready']} ready ({totals['idle']} idle)",
        f"{totals['busy']} busy",
        f"{totals['offline']} offline",
    ]
    means = [f"load {percent(totals['mean_load'])}"]
    if totals["mean_success_rate"] is not None:
        means.append(f"{percent(totals['mean_success_rate'], 1)} of the calls succeed")
    if totals["mean_latency_s"] is not None:
        means.append(f"in {totals['mean_latency_s']:.2f} s")
    return Text(f"{len(states)} pools: {', '.join(parts)}; on average {', '.join(means)}")


def is_busy(state: PoolState) -> bool:
    """Return whether a pool has anything to show: calls, waiting projects, or findings that need attention."""
    return bool(state.open or state.waiting or state.assigned or findings(state))


def node_lines(nodes: Sequence[tuple[Node, RulesStatus]], leases: Sequence[OpenLease] = ()) -> RenderableType:
    """Draw a line for each living worker: its width, its free slots, and the figures that its rules use."""
    rows = Table.grid(padding=(0, 2, 0, 0))
    open_calls = Counter(lease.node for lease in leases if not lease.cut)
    for node, status in nodes:
        free = max(0, status.current - open_calls[node.id])
        width = f"{status.current} of {status.configured} calls wide: {status.reason}; {free} free"
        cpu = f"CPU {status.cpu_percent:.0f} % of one core, load {status.load_percent:.0f} % over 5 min"
        load = f"{cpu}, {percent(status.error_rate, 1)} of {status.window_size:,} failed"
        rows.add_row(Text(printable(node.name, NAME_CHARS), style="bold"), Text(f"{width}; {load}"))
    return rows


def _line(state: PoolState) -> Text:
    """Describe an idle pool in one line."""
    text = f"idle; limit {state.limit:,} of at most {state.ceiling:,}, {state.granted:,} granted"
    breaker = "" if state.breaker == BreakerPhase.CLOSED.value else "; half open: the next call tries the provider"
    overrides = f"; {counted(len(state.override), 'override')} set live" if state.override else ""
    return Text(text + breaker + overrides)


def _block(
    state: PoolState, configured: Mapping[str, Any], leases: Sequence[OpenLease], *, brief: bool
) -> RenderableType:
    rows = Table.grid(padding=(0, 2, 0, 0))
    rows.add_column(no_wrap=True, style="dim")
    rows.add_column(overflow="fold")
    rarely = not brief
    for name, text, included in (
        ("limit", _limit(state, configured), True),
        ("open", _open(state), True),
        ("leases", _leases(leases), bool(leases) and rarely),
        ("breaker", _breaker(state, leases), rarely or state.breaker != BreakerPhase.CLOSED.value),
        ("answers", _answers(state), True),
        ("latency", _knee(state), state.knee is not None and rarely),
        ("models", _models(state), bool(state.health) and rarely),
        ("refused", _counts(state.refused) or Text("nobody who asked for a lease"), rarely),
        ("budgets", _budgets(state), rarely or bool(state.budgets)),
        ("overrides", _overrides(state.override, configured), rarely),
        ("changes", _changes(state, BRIEF_CHANGES if brief else CHANGES_SHOWN), rarely or bool(state.changes)),
    ):
        if included:
            rows.add_row("  " + name, text)
    attention = Table.grid(padding=(0, 1, 0, 0))
    for finding in findings(state):
        attention.add_row(Text("  !", style="yellow"), Text(printable(finding, REASON_CHARS), style="yellow"))
    title = Text.assemble((printable(state.pool, NAME_CHARS), "bold"), f"  {state.profile}")
    return Group(title, rows, attention)


def _limit(state: PoolState, configured: Mapping[str, Any]) -> Text:
    text = Text(f"{state.limit:,}, between {state.floor:,} and {state.ceiling:,}: ")
    text.append(printable(state.reason, REASON_CHARS))
    if state.effective_limit != state.limit:
        text.append(f"; in force now: {state.effective_limit:,}", style="yellow")
    if (cut := bound(state, configured)) is not None:
        text.append(f"; {cut}", style="yellow")
    if state.settle_for_s:
        text.append(f"; it settles for {span(state.settle_for_s)} more")
    return text


def _open(state: PoolState) -> Text:
    free = max(0, state.effective_limit - state.open)
    text = Text(f"{state.open:,} of {state.effective_limit:,}, {free:,} free, granted {state.granted:,} in all")
    if state.cut:
        text.append(f"; cut: {state.cut:,}, which count for up to {span(state.cut_for_s)} more", style="yellow")
    if state.waiting:
        some = counted(len(state.waiting), "project waits", "projects wait")
        text.append(f"; {some}: {_few(state.waiting)}", style="cyan")
    return text


def _leases(leases: Sequence[OpenLease]) -> Text:
    """Describe the oldest leases."""
    lines = [
        f"{printable(lease.project, 30)}, {_unit(lease)} on {printable(lease.node, 40)}, "
        f"{f'model {printable(lease.model, 40)}, ' if lease.model else ''}{span(lease.age_s)} old, "
        f"ends in {span(lease.left_s)}{', the probe' if lease.probe else ''}{', was cut' if lease.cut else ''}"
        for lease in leases[:LEASES_SHOWN]
    ]
    more = len(leases) - LEASES_SHOWN
    return Text("\n".join([*lines, *([f"and {more:,} younger ones; --json lists all"] if more > 0 else [])]))


def _unit(lease: OpenLease) -> str:
    job = f"job {printable(lease.job, 40)}"
    return f"unit {printable(lease.unit, 30)} of {job}" if lease.unit else job


def _breaker(state: PoolState, leases: Sequence[OpenLease]) -> Text:
    text = state.breaker.replace("_", " ")
    if state.breaker_for_s:
        text += f" for {span(state.breaker_for_s)} more"
    elif state.breaker != BreakerPhase.CLOSED.value:
        pending = any(lease.probe for lease in leases)
        text = "half open, its probe is under way" if pending else "half open: the next call tries the provider"
    if state.breaks:
        text += f", break number {state.breaks}"
    return Text(text, style="" if state.breaker == BreakerPhase.CLOSED.value else "red")


def _answers(state: PoolState) -> Text:
    if not state.statuses:
        return Text("none yet")
    labelled = {("no answer" if status == 0 else str(status)): n for status, n in state.statuses.items()}
    text = _counts(labelled)
    text.append(f"; lately {percent(state.error_rate, 1)} failed", style="red" if state.error_rate > 0.05 else "")
    text.append(f"; {state.input_tokens:,} tokens in, {state.output_tokens:,} out")
    return text


def _models(state: PoolState) -> Text:
    """Describe the recent health of each model, by which deployments are chosen."""
    lines = []
    for model, health in state.health.items():
        took = f", {health.latency_s:.2f} s each" if health.latency_s is not None else ""
        lines.append(f"{printable(model, NAME_CHARS)}: {percent(health.success_rate, 1)} expected to succeed{took}")
    return Text("\n".join(lines))


def _knee(state: PoolState) -> Text:
    """Describe how latency grows with load, and the level that is kept because of it."""
    knee = state.knee
    if knee is None:
        return Text("nothing is known yet")
    lines = [
        f"{point.open:>7,.0f} open  {point.per_s:>9,.1f} answers a second  {point.latency_s:>8.2f} s each, "
        f"{span(state.now - point.at)} ago"
        for point in knee.curve
    ]
    return Text("\n".join([knee.summary, *lines]))


def _budgets(state: PoolState) -> Text:
    if not state.budgets:
        return Text("none known")
    lines = [
        f"{printable(name, NAME_CHARS)}: {max(0.0, budget.level):,.0f} of {budget.capacity:,.0f} left, "
        f"{budget.refill_per_min:,.0f} a minute"
        for name, budget in state.budgets.items()
    ]
    return Text("\n".join(lines))


def _overrides(live: Mapping[str, Any], configured: Mapping[str, Any]) -> Text:
    parts = [f"{name} {_value(value)} (set live)" for name, value in live.items()]
    parts += [f"{name} {_value(value)}" for name, value in configured.items() if name not in live]
    return Text(", ".join(parts) or "none: the limit finds itself")


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return " ".join(f"{printable(project, NAME_CHARS)}={weight:g}" for project, weight in value.items())
    return str(value).lower() if isinstance(value, bool) else f"{value}"


def _changes(state: PoolState, most: int) -> Text:
    """Describe the latest changes with their ages: the lease clock stands still while nobody works, so times would
    mislead."""
    lines = [
        f"{span(state.now - change['at']):>8} ago  {change['from']} -> {change['to']}  "
        f"{printable(str(change['reason']), REASON_CHARS)}"
        for change in state.changes[:most]
    ]
    return Text("\n".join(lines) or "none yet")


def _counts(counts: Mapping[str, int]) -> Text:
    return Text(", ".join(f"{name}: {count:,}" for name, count in counts.items()))


def _few(names: Iterable[str]) -> str:
    return first_few((printable(name, NAME_CHARS) for name in names), NAMES_SHOWN)


WATCH_EVERY_S = 1.0
SHORT_NAMES = {
    "latency-target": "latency_target_s",
    "settle": "settle_s", "break": "break_s", "pacing": "pacing_s", "window": "window_s", "sustain": "sustain_s",
    "error-high": "error_high", "error-low": "error_low",
    "slo-target": "slo_target", "slo-window": "slo_window_s", "slo-burn-rate": "slo_burn_rate",
    "weight": "weights", "project-max": "project_max", "fixed": "adaptive",
}  # fmt: skip
"""The options of `set` whose names differ from the override's, with the override's name."""


# ------------------------------------------------------------------ show
def show(terminal: Terminal, pool: str | None = None, *, json: bool, watch: bool) -> None:
    """Show every pool, or everything about one; with `watch`, again each second until interrupted (JSON: a document a
    line). Raises `UnknownPool` for a name that is neither in the pools file nor in use."""
    dicast = application(terminal)
    only = None if pool is None else pool or dicast.pools.default

    def print_once() -> None:
        if json:
            _emit(terminal, pools.document(dicast, pools.read_state(dicast, only)), indent=not watch)
        else:
            terminal.out.print(_blocks(dicast, pools.read_state(dicast, only), only=only))

    if not watch:
        print_once()
        return
    with contextlib.suppress(KeyboardInterrupt):  # that is how watching ends
        if json or not terminal.out.is_terminal:
            while True:
                print_once()
                time.sleep(WATCH_EVERY_S)
        with Live(console=terminal.out, auto_refresh=False, screen=True) as live:
            while True:
                live.update(
                    _Screenful(_blocks(dicast, pools.read_state(dicast, only), only=only, brief=True)), refresh=True
                )
                time.sleep(WATCH_EVERY_S)


class _Screenful:
    """As many lines as fit on the screen, and a count of those that do not."""

    def __init__(self, whole: RenderableType) -> None:
        self._whole = whole

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = console.render_lines(self._whole, options.update(height=None), pad=False)
        most = options.height or console.height
        cut = len(lines) > most
        for line in lines[: most - 1 if cut else most]:
            yield from line
            yield Segment.line()
        if cut:
            yield Text(f"... and {len(lines) - most + 1} lines more than this window is high", style="dim", end="")


def _blocks(dicast: Dicast, shared: SharedState, *, only: str | None, brief: bool = False) -> RenderableType:
    states = shared.pools
    configured = {state.pool: pools.configured(dicast, state.pool) for state in states}
    unused = [name for name in pools.idle(dicast, states) if only in (None, name)]
    blocks = pool_blocks(states, unused, configured, shared.leases, brief=brief, whole=only is not None)
    return Group(blocks, Text(), node_lines(shared.nodes, shared.leases)) if shared.nodes else blocks


def _emit(terminal: Terminal, document: Mapping[str, Any], *, indent: bool) -> None:
    option = orjson.OPT_NON_STR_KEYS | (orjson.OPT_INDENT_2 if indent else 0)
    terminal.emit(orjson.dumps(document, option=option).decode())


# ------------------------------------------------------------------ set
def set_overrides(terminal: Terminal, pool: str | None, overrides: Mapping[str, Any], **tables: Sequence[str]) -> None:
    """Set the live overrides that are not None, and merge those of `tables` by project with the ones set before."""
    override = {name: value for name, value in overrides.items() if value is not None}
    by_project = {
        name: dict(_parse_project_entry(name, entry) for entry in entries)
        for name, entries in tables.items()
        if entries
    }
    if not override and not by_project:
        raise Refused("nothing to set; `dicast governor set --help` lists the overrides")
    dicast = application(terminal)
    pool = _resolve_pool(dicast, pool)
    _change(terminal, dicast, pool, {**override, **by_project})


def unset_overrides(terminal: Terminal, pool: str | None, names: Sequence[str], *, every: bool) -> None:
    """Take live overrides back, so that the pools file applies again."""
    valid_names = [spec.name for spec in fields(Overrides)]
    taken = valid_names if every else [SHORT_NAMES.get(name, name) for name in names]
    if not taken:
        raise Refused("nothing to take back; name overrides, or say --all")
    for name in taken:
        if name not in valid_names:
            raise OverrideError(f"there is no override {name!r}{alternatives(name, valid_names)}")
    dicast = application(terminal)
    pool = _resolve_pool(dicast, pool)
    _change(terminal, dicast, pool, dict.fromkeys(taken))


def set_slo(terminal: Terminal, most: str) -> None:
    """Cap every pool's limit; 'none' lifts the cap."""
    try:
        cap = None if most == "none" else int(most)
    except ValueError:
        raise Refused(f"slo must be a whole number >= 1, or none, got {most!r}") from None
    if cap is not None and cap < 1:
        raise Refused(f"slo must be a whole number >= 1, or none, got {cap}")
    dicast = application(terminal)
    pools.cap_all(dicast, cap)
    dicast.record(operator(), "pool.cap", "*", "done", {"slo": cap})
    terminal.say("The SLO cap is lifted." if cap is None else f"No pool's limit is above {cap} from now on.")


def _parse_project_entry(name: str, entry: str) -> tuple[str, float]:
    project, separator, text = entry.rpartition("=")
    try:
        number = float(text)
    except ValueError:
        separator = ""
    if not separator or not project:
        option = next((short for short, long in SHORT_NAMES.items() if long == name), name)
        raise Refused(f"{option} must be PROJECT=NUMBER, got {entry!r}")
    return project, number


def _resolve_pool(dicast: Dicast, pool: str | None) -> str:
    """Return the named pool, or the only one. Raises `Refused` if there are several to choose from."""
    if pool is not None:
        return pool
    names = list(dicast.pools.pools)
    if len(names) > 1:
        raise Refused(f"which pool? --pool names one of {', '.join(names)} ('' is {dicast.pools.default})")
    return names[0]


def _change(terminal: Terminal, dicast: Dicast, pool: str, override: Mapping[str, Any]) -> None:
    overrides, name = pools.change(dicast, pool, override), pool or dicast.pools.default
    dicast.record(operator(), "pool.change", name, "done", override)
    state = next(state for state in pools.read_state(dicast).pools if state.pool == name)
    in_force = ", ".join(f"{override} {value}" for override, value in pools.in_force(overrides).items()) or "none"
    terminal.say(f"Pool {name}: limit {state.limit} of at most {state.ceiling}. Overrides in force: {in_force}.")
