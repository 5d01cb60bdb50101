"""`dicast cluster ...` shows and steers the nodes, `dicast fleet status` shows several installations at once.

Output is a table or JSON, once or each second.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from dicast.app.access.audit import operator
from dicast.app.application import Dicast
from dicast.app.cli.console import Terminal
from dicast.app.cli.run import application
from dicast.app.cluster.cluster import ClusterStatus
from dicast.app.cluster.view import NodeStatus, NodeView
from dicast.app.domain.text import printable
from dicast.app.operator.fleet import FleetAnswer, FleetMember, FleetStatus, Totals, ask, fleet_of, totals
from dicast.config.settings import Settings, environment
from dicast.errors import Exit
from dicast.workers.admission.pool_state import span

WATCH_EVERY_S = 1.0
DRAIN_LOOK_S = 0.2
NAME_CHARS, TEXT_CHARS = 60, 200
STYLES = {
    NodeStatus.ONLINE: "green", NodeStatus.CORDONED: "yellow", NodeStatus.DRAINING: "yellow",
    NodeStatus.OFFLINE: "dim", NodeStatus.DEGRADED: "red",
}  # fmt: skip


def show_nodes(terminal: Terminal, status: str | None, *, json: bool, watch: bool) -> None:
    """Show a line for each node, or a JSON list of them."""
    only = NodeStatus(status) if status else None
    _show(
        terminal, lambda dicast: dicast.cluster.nodes(only), lambda nodes: [asdict(node) for node in nodes], _table,
        json=json, watch=watch,
    )  # fmt: skip


def show_status(terminal: Terminal, *, json: bool, watch: bool) -> None:
    """Show the installation in numbers, and its nodes."""
    _show(terminal, lambda dicast: dicast.cluster.status(), asdict, _summary, json=json, watch=watch)


# ------------------------------------------------------------------ operations
def cordon_node(terminal: Terminal, node: str, *, json: bool) -> Exit:
    """Cordon a node. Like the other operations, it raises `UnknownNode` or `NodeLeaves`."""
    return _print_node(terminal, application(terminal).cluster.cordon(node, by=operator()), json=json)


def uncordon_node(terminal: Terminal, node: str, *, json: bool) -> Exit:
    return _print_node(terminal, application(terminal).cluster.uncordon(node, by=operator()), json=json)


def drain_node(terminal: Terminal, node: str, deadline_s: float, *, wait: bool, json: bool) -> Exit:
    """Drain a node; with `wait`, return once it has no open calls or is gone."""
    cluster = application(terminal).cluster
    view = cluster.drain(node, by=operator(), deadline_s=deadline_s)
    while wait and view.status is NodeStatus.DRAINING:
        time.sleep(DRAIN_LOOK_S)
        view = cluster.node(view.id)
    return _print_node(terminal, view, json=json)


def remove_node(terminal: Terminal, node: str, *, force: bool) -> None:
    """Remove a node. Also raises `NodeBusy`."""
    cluster = application(terminal).cluster
    view = cluster.node(node)
    cluster.remove(view.id, by=operator(), force=force)
    is_left = any(other.id == view.id for other in cluster.nodes())
    terminal.say(f"{view.id} {'was told to stop, and has not yet' if is_left else 'is removed'}")


def steal_work(terminal: Terminal, *, json: bool) -> None:
    """Move waiting work to idle nodes, and show the moves and their total."""
    result = application(terminal).cluster.steal(by=operator())
    if json:
        moves = [{"donor": donor, "receiver": receiver, "units": units} for donor, receiver, units in result.moves]
        terminal.emit(orjson.dumps({"moves": moves, "total": result.total}, option=orjson.OPT_INDENT_2).decode())
        return
    for donor, receiver, units in result.moves:
        terminal.say(f"{units} from {donor} for {receiver or 'whoever comes'}")
    terminal.say(f"{result.total} units went back")


def _print_node(terminal: Terminal, node: NodeView, *, json: bool) -> Exit:
    if json:
        terminal.emit(orjson.dumps(asdict(node), option=orjson.OPT_INDENT_2).decode())
    else:
        terminal.say(f"{node.id} is {node.status}" + (f": {node.reason}" if node.reason else ""))
    return Exit.OK if node.acknowledged and not node.cut else Exit.FAILED


def _show(
    terminal: Terminal, read: Callable[[Dicast], Any], document: Callable[[Any], Any],
    render: Callable[[Any], RenderableType], *, json: bool, watch: bool,
) -> None:  # fmt: skip
    dicast = application(terminal)

    def print_once() -> None:
        if json:
            option = 0 if watch else orjson.OPT_INDENT_2
            terminal.emit(orjson.dumps(document(read(dicast)), option=option).decode())
        else:
            terminal.out.print(render(read(dicast)))

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
                live.update(render(read(dicast)), refresh=True)
                time.sleep(WATCH_EVERY_S)


def _table(nodes: Sequence[NodeView]) -> RenderableType:
    if not nodes:
        return Text("no node is known")
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for column in ("node", "status", "open", "free", "pools", "labels", "heard", "reason"):
        table.add_column(column, overflow="fold")
    for node in nodes:
        last_heard = "-" if node.heard_s_ago is None else f"{span(node.heard_s_ago)} ago"
        table.add_row(
            Text(printable(node.id, NAME_CHARS), style="bold"), Text(node.status, style=STYLES[node.status]),
            f"{node.open} of {node.width}", str(node.available), _text(", ".join(node.pools)),
            _text(_labels(node.labels)), last_heard, _text(node.reason),
        )  # fmt: skip
    return table


def _summary(status: ClusterStatus) -> RenderableType:
    counts = ", ".join(f"{count} {name}" for name, count in status.by_status.items() if count) or "no node is known"
    waits = ", ".join(f"{pool} {count:,}" for pool, count in status.waiting.items()) or "nothing"
    oldest = f", the next for {span(status.oldest_wait_s)}" if status.waiting and status.oldest_wait_s else ""
    lines = [
        _text(f"{status.installation}: {counts}"),
        _text(f"calls: {status.open:,} open of {status.capacity:,}, {status.available:,} slots free"),
        _text(f"waiting: {waits}{oldest}"),
        *(Text(printable(sentence, TEXT_CHARS), style="yellow") for sentence in status.unsatisfied),
    ]
    return Group(*lines, Text(), _table(status.nodes))


def _labels(labels: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in sorted(labels.items()))


def _text(text: str) -> Text:
    return Text(printable(text, TEXT_CHARS))


INSTALLATION_CHARS = 60
TROUBLE_CHARS = 200
REMARKS = 5


def show_fleet(
    terminal: Terminal, installations: Sequence[str], file: str | None, timeout_s: float, *, json: bool, watch: bool
) -> Exit:
    """Show the installations. Returns `Exit.FAILED` if one did not answer, or has work that no living node may take;
    with `watch`, the last answers count. Raises `FleetRefused` and `SettingsError`."""
    environ = environment()
    settings = Settings.from_env(environ)
    fleet = fleet_of(installations, Path(file or settings.fleet_file), environ, settings.fleet_token)
    terminal.secrets = [*settings.secrets(), *(member.token for member in fleet if member.token)]
    if not watch:
        answers = _ask_fleet(fleet, timeout_s)
        _print(terminal, answers, json=json)
        return _exit(answers)
    answers = []
    with contextlib.suppress(KeyboardInterrupt):  # that is how watching ends
        if json or not terminal.out.is_terminal:
            while True:
                answers = _ask_fleet(fleet, timeout_s)
                _print(terminal, answers, json=json, indent=False)
                time.sleep(WATCH_EVERY_S)
        with Live(console=terminal.out, auto_refresh=False, screen=True) as live:
            while True:
                answers = _ask_fleet(fleet, timeout_s)
                live.update(_fleet_table(answers), refresh=True)
                time.sleep(WATCH_EVERY_S)
    return _exit(answers)


def _ask_fleet(fleet: Sequence[FleetMember], timeout_s: float) -> list[FleetAnswer]:
    return asyncio.run(ask(fleet, timeout_s))


def _exit(answers: Sequence[FleetAnswer]) -> Exit:
    return Exit.OK if totals(answers).well else Exit.FAILED


def _print(terminal: Terminal, answers: Sequence[FleetAnswer], *, json: bool, indent: bool = True) -> None:
    if not json:
        terminal.out.print(_fleet_table(answers))
        return
    option = orjson.OPT_INDENT_2 if indent else 0
    terminal.emit(orjson.dumps(_document(answers), option=option).decode())


def _document(answers: Sequence[FleetAnswer]) -> dict[str, Any]:
    summed = totals(answers)
    return {
        "well": summed.well,
        "totals": asdict(summed),
        "installations": [
            {
                "name": reply.name, "url": reply.url, "reached": reply.status is not None,
                "trouble": reply.trouble, "took_s": round(reply.took_s, 3),
                "status": reply.status.model_dump() if reply.status is not None else None,
            }
            for reply in answers
        ],
    }  # fmt: skip


def _fleet_table(answers: Sequence[FleetAnswer]) -> RenderableType:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("installation", "nodes", "open", "of", "free", "waiting", "oldest wait"):
        table.add_column(title, justify="left" if title in {"installation", "nodes"} else "right", no_wrap=True)
    remarks: list[Text] = []
    for reply in answers:
        name = Text(printable(reply.name, INSTALLATION_CHARS), style="bold")
        if reply.status is None:
            table.add_row(name, Text("UNREACHABLE", style="bold red"))
            remarks.append(_remark(reply.name, reply.trouble, "red"))
        else:
            sums = totals([reply])
            table.add_row(name, *_row(sums))
            remarks += _attention(reply.name, reply.status)
    if len(answers) > 1:
        table.add_section()
        summed = totals(answers)
        reached = f"{summed.installations - summed.unreachable} of {summed.installations} reached"
        table.add_row(Text(reached, style="red" if summed.unreachable else ""), *_row(summed))
    return Group(table, *([Text(), *remarks] if remarks else []))


def _row(sums: Totals) -> list[Text | str]:
    numbers = (sums.open, sums.capacity, sums.available, sums.waiting)
    wait = "" if sums.oldest_wait_s is None else span(sums.oldest_wait_s)
    return [_nodes(sums.by_status), *(f"{number:,}" for number in numbers), wait]


def _attention(name: str, status: FleetStatus) -> list[Text]:
    degraded = [f"node {node.name} is degraded: {node.reason}" for node in status.nodes if node.status == "degraded"]
    remarks = [*status.unsatisfied, *degraded]
    more = [f"and {len(remarks) - REMARKS} more; --json lists all"] if len(remarks) > REMARKS else []
    return [_remark(name, text, "yellow") for text in [*remarks[:REMARKS], *more]]


def _nodes(by_status: Mapping[str, int]) -> Text:
    parts = [f"{count:,} {printable(status, INSTALLATION_CHARS)}" for status, count in by_status.items() if count]
    return Text(", ".join(parts) or "none")


def _remark(name: str, text: str, style: str) -> Text:
    return Text(f"! {printable(name, INSTALLATION_CHARS)}: {printable(text, TROUBLE_CHARS)}", style=style)
