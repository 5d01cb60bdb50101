"""`dicast governor show|set|unset|slo`: what the governor does in each pool, and what an operator wants of it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from typing import Any, TypeVar

import orjson
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.segment import Segment
from rich.text import Text

from dicast.app.application import Dicast
from dicast.app.cli.console import Refused, Terminal
from dicast.app.cli.pools import bound, node_lines, pool_blocks, summary
from dicast.app.cli.run import application
from dicast.app.monitoring.snapshot import SharedState, read_shared
from dicast.workers.admission.governor import Governor
from dicast.workers.admission.overrides import OverrideError, Overrides
from dicast.workers.admission.pool_state import PoolState, findings
from dicast.workers.store.connection import AsyncStoreClient, connect_async

WATCH_EVERY_S = 1.0
SHORT_NAMES = {
    "settle": "settle_s", "break": "break_s", "pacing": "pacing_s", "window": "window_s", "sustain": "sustain_s",
    "slo-target": "slo_target", "slo-window": "slo_window_s", "slo-burn-rate": "slo_burn_rate",
    "weight": "weights", "project-max": "project_max", "fixed": "adaptive",
}  # fmt: skip
"""What the options of `set` are called where that is not the override's own name."""

T = TypeVar("T")


# ------------------------------------------------------------------ show
def show(terminal: Terminal, pool: str | None = None, *, json: bool, watch: bool) -> None:
    """Every pool, or all that is known of one; with `watch`, again each second until interrupted (JSON: a document a
    line). Raises `UnknownPool` for a name that neither the pools file nor anybody's calls know."""
    dicast = application(terminal)
    only = None if pool is None else pool or dicast.pools.default

    def tell() -> None:
        if json:
            _emit(terminal, _document(dicast, _look(dicast, only)), indent=not watch)
        else:
            terminal.out.print(_blocks(dicast, _look(dicast, only), only=only))

    if not watch:
        tell()
        return
    with contextlib.suppress(KeyboardInterrupt):  # that is how watching ends
        if json or not terminal.out.is_terminal:
            while True:
                tell()
                time.sleep(WATCH_EVERY_S)
        with Live(console=terminal.out, auto_refresh=False, screen=True) as live:
            while True:
                live.update(_Screenful(_blocks(dicast, _look(dicast, only), only=only, brief=True)), refresh=True)
                time.sleep(WATCH_EVERY_S)


class _Screenful:
    """As much as the screen holds; what stands below is counted."""

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


def _look(dicast: Dicast, only: str | None = None) -> SharedState:
    shared = read_shared(dicast.store_url, dicast.keys)
    if only is None:
        return shared
    states = [state for state in shared.pools if state.pool == only]
    if not states:
        dicast.pools.get(only)
    return replace(shared, pools=states)


def _blocks(dicast: Dicast, shared: SharedState, *, only: str | None, brief: bool = False) -> RenderableType:
    states = shared.pools
    configured = {state.pool: _configured(dicast, state.pool) for state in states}
    unused = [name for name in _idle(dicast, states) if only in (None, name)]
    blocks = pool_blocks(states, unused, configured, shared.leases, brief=brief, whole=only is not None)
    return Group(blocks, Text(), node_lines(shared.nodes, shared.leases)) if shared.nodes else blocks


def _document(dicast: Dicast, shared: SharedState) -> dict[str, Any]:
    states = shared.pools
    live = [
        {
            **asdict(state), "live": True, "waiting": state.waiting, "rate_limited": state.rate_limited,
            "error_rate": state.error_rate, "load": state.load, "configured": _configured(dicast, state.pool),
            "findings": findings(state), "bound": bound(state, _configured(dicast, state.pool)),
            "availability": state.availability, "latency_s": state.latency_s,
            "leases": [asdict(lease) for lease in shared.leases if lease.pool == state.pool],
        }
        for state in states
    ]  # fmt: skip
    idle = [{"pool": name, "live": False, "configured": _configured(dicast, name)} for name in _idle(dicast, states)]
    held = Counter(lease.node for lease in shared.leases)
    nodes = [
        {"node": node.name, "host": node.host, **asdict(status), "free": max(0, status.current - held[node.id])}
        for node, status in shared.nodes
    ]
    totals = summary(states)
    return {"slo": states[0].slo if states else None, "summary": totals, "pools": [*live, *idle], "nodes": nodes}


def _idle(dicast: Dicast, states: Sequence[PoolState]) -> list[str]:
    """Pools of the pools file that nobody has used yet."""
    return sorted(set(dicast.pools.pools) - {state.pool for state in states})


def _configured(dicast: Dicast, pool: str) -> dict[str, Any]:
    """The overrides that the pools file has for a pool."""
    return _overridden(dicast.configured_overrides(pool))


def _overridden(overrides: Overrides) -> dict[str, Any]:
    """Those that differ from what is so without any override."""
    plain = Overrides()
    return {
        spec.name: value
        for spec in fields(overrides)
        if (value := getattr(overrides, spec.name)) != getattr(plain, spec.name)
    }


def _emit(terminal: Terminal, document: Mapping[str, Any], *, indent: bool) -> None:
    option = orjson.OPT_NON_STR_KEYS | (orjson.OPT_INDENT_2 if indent else 0)
    terminal.emit(orjson.dumps(document, option=option).decode())


# ------------------------------------------------------------------ set
def set_overrides(terminal: Terminal, pool: str | None, overrides: Mapping[str, Any], **tables: Sequence[str]) -> None:
    """Set the live overrides that are not None, and those of `tables` by project beside the ones set before."""
    override = {name: value for name, value in overrides.items() if value is not None}
    given = {name: dict(_of_project(name, entry) for entry in entries) for name, entries in tables.items() if entries}
    if not override and not given:
        raise Refused("nothing to set; `dicast governor set --help` lists the overrides")
    dicast = application(terminal)
    pool = _meant(dicast, pool)

    async def change(governor: Governor) -> Overrides:
        def changed(live: dict[str, Any]) -> dict[str, Any]:
            merged = {name: {**live.get(name, {}), **entries} for name, entries in given.items()}
            return {**live, **override, **merged}

        return await governor.revise(await _known(dicast, governor, pool), changed)

    _tell(terminal, dicast, pool, _governing(dicast, change))


def unset_overrides(terminal: Terminal, pool: str | None, names: Sequence[str], *, every: bool) -> None:
    """Take live overrides back: what the pools file says is in force again."""
    known = [spec.name for spec in fields(Overrides)]
    taken = known if every else [SHORT_NAMES.get(name, name) for name in names]
    if not taken:
        raise Refused("nothing to take back; name overrides, or say --all")
    for name in taken:
        if name not in known:
            raise OverrideError(f"there is no override {name!r}; there are {', '.join(known)}")
    dicast = application(terminal)
    pool = _meant(dicast, pool)

    async def change(governor: Governor) -> Overrides:
        return await governor.set(await _known(dicast, governor, pool), **dict.fromkeys(taken))

    _tell(terminal, dicast, pool, _governing(dicast, change))


def set_slo(terminal: Terminal, most: str) -> None:
    """Cap every pool's limit; 'none' lifts the cap."""
    try:
        cap = None if most == "none" else int(most)
    except ValueError:
        raise Refused(f"slo must be a whole number >= 1, or none, got {most!r}") from None
    if cap is not None and cap < 1:
        raise Refused(f"slo must be a whole number >= 1, or none, got {cap}")
    dicast = application(terminal)
    _governing(dicast, lambda governor: governor.set_slo(cap))
    terminal.say("The SLO cap is lifted." if cap is None else f"No pool's limit is above {cap} from now on.")


def _of_project(name: str, given: str) -> tuple[str, float]:
    project, separator, text = given.rpartition("=")
    try:
        number = float(text)
    except ValueError:
        separator = ""
    if not separator or not project:
        option = next((short for short, long in SHORT_NAMES.items() if long == name), name)
        raise Refused(f"{option} must be PROJECT=NUMBER, got {given!r}")
    return project, number


def _meant(dicast: Dicast, pool: str | None) -> str:
    """The pool that was named, or the only one; raises `Refused` where there are several to choose from."""
    if pool is not None:
        return pool
    names = list(dicast.pools.pools)
    if len(names) > 1:
        raise Refused(f"which pool? --pool names one of {', '.join(names)} ('' is {dicast.pools.default})")
    return names[0]


async def _known(dicast: Dicast, governor: Governor, pool: str) -> str:
    """The pool's name, '' being the default one; raises `UnknownPool` if neither the pools file nor anybody's calls
    know it."""
    name = pool or dicast.pools.default
    if name not in dicast.pools.pools and name not in await governor.store.pools():
        dicast.pools.get(name)
    return name


def _tell(terminal: Terminal, dicast: Dicast, pool: str, overrides: Overrides) -> None:
    name = pool or dicast.pools.default
    state = next(state for state in _look(dicast).pools if state.pool == name)
    said = ", ".join(f"{override} {value}" for override, value in _overridden(overrides).items()) or "none"
    terminal.say(f"Pool {name}: limit {state.limit} of at most {state.ceiling}. Overrides in force: {said}.")


def _governing(dicast: Dicast, work: Callable[[Governor], Awaitable[T]]) -> T:
    return _with_store(dicast, lambda client: work(Governor(client, dicast.keys, dicast.configured_overrides)))


def _with_store(dicast: Dicast, work: Callable[[AsyncStoreClient], Awaitable[T]]) -> T:
    async def run() -> T:
        async with connect_async(dicast.store_url) as client:
            return await work(client)

    return asyncio.run(run())
