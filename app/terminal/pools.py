"""How a pool's state is shown: a block of lines a pool, what needs attention last and in colour."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from app.reports.text import printable
from workers.nodes import Node
from workers.policy.parameters import BreakerPhase
from workers.policy.rules import RulesStatus
from workers.pool_state import PoolState, findings

NAME_CHARS = 60
REASON_CHARS = 200
NAMES_SHOWN = 8
CHANGES_SHOWN = 5


def pool_blocks(
    states: Sequence[PoolState], idle: Sequence[str], configured: Mapping[str, Mapping[str, Any]]
) -> RenderableType:
    """Every pool with live state, then the names of those without; `configured` are the wishes of the pools file."""
    parts: list[RenderableType] = []
    if states and states[0].slo is not None:
        parts += [Text(f"SLO: no pool's limit is above {states[0].slo}", style="yellow"), Text()]
    for state in states:
        parts += [_block(state, configured.get(state.pool, {})), Text()]
    if idle:
        parts.append(Text(f"Without live state, for nobody has used them yet: {', '.join(idle)}", style="dim"))
    return Group(*parts)


def node_lines(nodes: Sequence[tuple[Node, RulesStatus]]) -> RenderableType:
    """A line a living worker: its width, and what its rules go by."""
    rows = Table.grid(padding=(0, 2, 0, 0))
    for node, status in nodes:
        width = f"{status.current} of {status.configured} calls wide: {status.reason}"
        load = f"CPU {status.cpu_percent:.0f} % of one core, {status.error_rate:.1%} of {status.window_size:,} failed"
        rows.add_row(Text(printable(node.name, NAME_CHARS), style="bold"), Text(f"{width}; {load}"))
    return rows


def _block(state: PoolState, configured: Mapping[str, Any]) -> RenderableType:
    rows = Table.grid(padding=(0, 2, 0, 0))
    rows.add_column(no_wrap=True, style="dim")
    rows.add_column(overflow="fold")
    for name, text in (
        ("limit", _limit(state)),
        ("open", _open(state)),
        ("breaker", _breaker(state)),
        ("answers", _answers(state)),
        ("refused", _counts(state.refused) or Text("nobody who asked for a lease")),
        ("budgets", _budgets(state)),
        ("wishes", _wishes(state.wish, configured)),
        ("changes", _changes(state)),
    ):
        rows.add_row("  " + name, text)
    attention = Table.grid(padding=(0, 1, 0, 0))
    for said in findings(state):
        attention.add_row(Text("  !", style="yellow"), Text(printable(said, REASON_CHARS), style="yellow"))
    title = Text.assemble((printable(state.pool, NAME_CHARS), "bold"), f"  {state.profile}")
    return Group(title, rows, attention)


def _limit(state: PoolState) -> Text:
    text = Text(f"{state.limit:,}, between {state.floor:,} and {state.ceiling:,}: ")
    text.append(printable(state.reason, REASON_CHARS))
    if state.effective_limit != state.limit:
        text.append(f"; in force now: {state.effective_limit:,}", style="yellow")
    return text


def _open(state: PoolState) -> Text:
    text = Text(f"{state.open:,}, granted {state.granted:,} in all")
    if state.waiting:
        some = "1 project waits" if len(state.waiting) == 1 else f"{len(state.waiting)} projects wait"
        text.append(f"; {some}: {_few(state.waiting)}", style="cyan")
    return text


def _breaker(state: PoolState) -> Text:
    said = state.breaker.replace("_", " ")
    if state.breaker_for_s:
        said += f" for {state.breaker_for_s:.0f} s more"
    if state.breaks:
        said += f", break number {state.breaks}"
    return Text(said, style="" if state.breaker == BreakerPhase.CLOSED.value else "red")


def _answers(state: PoolState) -> Text:
    if not state.statuses:
        return Text("none yet")
    named = {("no answer" if status == 0 else str(status)): n for status, n in state.statuses.items()}
    text = _counts(named)
    text.append(f"; lately {state.error_rate:.1%} failed", style="red" if state.error_rate > 0.05 else "")
    text.append(f"; {state.input_tokens:,} tokens in, {state.output_tokens:,} out")
    return text


def _budgets(state: PoolState) -> Text:
    if not state.budgets:
        return Text("none known")
    lines = [
        f"{printable(name, NAME_CHARS)}: {max(0.0, budget.level):,.0f} of {budget.capacity:,.0f} left, "
        f"{budget.refill_per_min:,.0f} a minute"
        for name, budget in state.budgets.items()
    ]
    return Text("\n".join(lines))


def _wishes(live: Mapping[str, Any], configured: Mapping[str, Any]) -> Text:
    said = [f"{name} {_value(value)} (set live)" for name, value in live.items()]
    said += [f"{name} {_value(value)}" for name, value in configured.items() if name not in live]
    return Text(", ".join(said) or "none: the limit finds itself")


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return " ".join(f"{printable(project, NAME_CHARS)}={weight:g}" for project, weight in value.items())
    return str(value).lower() if isinstance(value, bool) else f"{value}"


def _changes(state: PoolState) -> Text:
    lines = [
        f"{_ago(state.now - change['at']):>8} ago  {change['from']} -> {change['to']}  "
        f"{printable(str(change['reason']), REASON_CHARS)}"
        for change in state.changes[:CHANGES_SHOWN]
    ]
    return Text("\n".join(lines) or "none yet")


def _ago(seconds: float) -> str:
    """Ages, because the lease clock stands still while nobody works."""
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


def _counts(counts: Mapping[str, int]) -> Text:
    return Text(", ".join(f"{name}: {count:,}" for name, count in counts.items()))


def _few(names: Iterable[str]) -> str:
    shown = [printable(name, NAME_CHARS) for name in names]
    more = len(shown) - NAMES_SHOWN
    return ", ".join(shown[:NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
