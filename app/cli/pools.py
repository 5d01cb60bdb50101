"""Draws the state of pools: a block of lines for each pool, with what needs attention last and in colour."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from dicast.app.domain.printable import printable
from dicast.app.operations.pools import bound, summary
from dicast.workers.admission.open_leases import OpenLease
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
    means = [f"load {totals['mean_load']:.0%}"]
    if totals["mean_success_rate"] is not None:
        means.append(f"{totals['mean_success_rate']:.1%} of the calls succeed")
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
        load = f"{cpu}, {status.error_rate:.1%} of {status.window_size:,} failed"
        rows.add_row(Text(printable(node.name, NAME_CHARS), style="bold"), Text(f"{width}; {load}"))
    return rows


def _line(state: PoolState) -> Text:
    """Describe an idle pool in one line."""
    text = f"idle; limit {state.limit:,} of at most {state.ceiling:,}, {state.granted:,} granted"
    breaker = "" if state.breaker == BreakerPhase.CLOSED.value else "; half open: the next call tries the provider"
    count = len(state.override)
    overrides = f"; {count} override{'s' if count > 1 else ''} set live" if count else ""
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
        text.append(f"; it settles for {state.settle_for_s:.0f} s more")
    return text


def _open(state: PoolState) -> Text:
    free = max(0, state.effective_limit - state.open)
    text = Text(f"{state.open:,} of {state.effective_limit:,}, {free:,} free, granted {state.granted:,} in all")
    if state.cut:
        text.append(f"; cut: {state.cut:,}, which count for up to {span(state.cut_for_s)} more", style="yellow")
    if state.waiting:
        some = "1 project waits" if len(state.waiting) == 1 else f"{len(state.waiting)} projects wait"
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
        text += f" for {state.breaker_for_s:.0f} s more"
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
    text.append(f"; lately {state.error_rate:.1%} failed", style="red" if state.error_rate > 0.05 else "")
    text.append(f"; {state.input_tokens:,} tokens in, {state.output_tokens:,} out")
    return text


def _models(state: PoolState) -> Text:
    """Describe the recent health of each model, by which deployments are chosen."""
    lines = []
    for model, health in state.health.items():
        took = f", {health.latency_s:.2f} s each" if health.latency_s is not None else ""
        lines.append(f"{printable(model, NAME_CHARS)}: {health.success_rate:.1%} expected to succeed{took}")
    return Text("\n".join(lines))


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
    printed = [printable(name, NAME_CHARS) for name in names]
    more = len(printed) - NAMES_SHOWN
    return ", ".join(printed[:NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
