"""`dicast cluster ...` shows and steers the nodes; output is a table or JSON, once or each second."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
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
from dicast.app.domain.printable import printable
from dicast.errors import Exit

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
    return Exit.FAILED if "not acknowledged" in node.reason or " cut at " in node.reason else Exit.OK


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
        last_heard = "-" if node.heard_s_ago is None else f"{node.heard_s_ago:.0f} s ago"
        table.add_row(
            Text(printable(node.id, NAME_CHARS), style="bold"), Text(node.status, style=STYLES[node.status]),
            f"{node.open} of {node.width}", str(node.available), _text(", ".join(node.pools)),
            _text(_labels(node.labels)), last_heard, _text(node.reason),
        )  # fmt: skip
    return table


def _summary(status: ClusterStatus) -> RenderableType:
    counts = ", ".join(f"{count} {name}" for name, count in status.by_status.items() if count) or "no node is known"
    waits = ", ".join(f"{pool} {count:,}" for pool, count in status.waiting.items()) or "nothing"
    oldest = f", the next for {status.oldest_wait_s:.0f} s" if status.waiting and status.oldest_wait_s else ""
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
