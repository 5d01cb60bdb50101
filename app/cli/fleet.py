"""`dicast fleet status` shows several installations at once."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from dicast.app.cli.console import Terminal
from dicast.app.domain.printable import printable
from dicast.app.fleet import FleetAnswer, FleetMember, FleetStatus, Totals, ask, fleet_of, totals
from dicast.config.settings import Settings, environment
from dicast.errors import Exit
from dicast.workers.admission.pool_state import span

WATCH_EVERY_S = 1.0
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
    said = [*status.unsatisfied, *degraded]
    more = [f"and {len(said) - REMARKS} more; --json lists all"] if len(said) > REMARKS else []
    return [_remark(name, text, "yellow") for text in [*said[:REMARKS], *more]]


def _nodes(by_status: Mapping[str, int]) -> Text:
    parts = [f"{count:,} {printable(status, INSTALLATION_CHARS)}" for status, count in by_status.items() if count]
    return Text(", ".join(parts) or "none")


def _remark(name: str, text: str, style: str) -> Text:
    return Text(f"! {printable(name, INSTALLATION_CHARS)}: {printable(text, TROUBLE_CHARS)}", style=style)
