"""`dicast governor show|set|unset|slo`: show what the governor does in each pool, and set what an operator wants of
it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import orjson
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.segment import Segment
from rich.text import Text

from dicast.app.access.audit import operator
from dicast.app.application import Dicast
from dicast.app.cli.console import Refused, Terminal
from dicast.app.cli.pools import node_lines, pool_blocks
from dicast.app.cli.run import application
from dicast.app.monitoring.snapshot import SharedState
from dicast.app.operations import pools
from dicast.errors import alternatives
from dicast.workers.admission.overrides import OverrideError, Overrides

WATCH_EVERY_S = 1.0
SHORT_NAMES = {
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
