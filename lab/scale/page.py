"""The tables of docs/scale.md, each between its markers."""

from __future__ import annotations

import json
import platform
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lab.scale.bearing import CONNECTIONS, UNITS, one_store, sharded
from lab.scale.distance import ROUND_TRIPS_MS, distances
from lab.scale.groups import ROOT, keys_of_scripts
from lab.scale.needs import BUSY_MOST, CallCost, needs, slot_used
from lab.scale.whole import LATENCY_S, MEMORY_UNITS, OPEN, a_unit, in_flight, memory

PAGE = ROOT / "docs" / "scale.md"
MEASURED = Path(__file__).with_name("measured.json")
RUNS = 3
SHARDED_CONNECTIONS = 64
WHOLE_UNITS = {40: 1000, 400: 6000}
CALLS_PER_S = (10, 50, 200, 1000, 5000, 20_000)
CALL_S = 2.0
"""Of a provider's answer, in the examples of what so many calls need."""
CALL_TIMES_S = (0.5, 2.0, 10.0)
SLOT_GAP_S = 0.019
"""docs/benchmarks.md, *Dicast alone: slots*: from an answer to its slot's next call, the store beside the worker."""


def table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Markdown; all columns but the first are numbers."""
    lines = [head, ["---", *["--:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def store(units: int = UNITS, connections: Sequence[int] = CONNECTIONS) -> str:
    """What one store bears, operation by operation."""
    rates = one_store(units, connections)
    by_tcp = {rate.operation: rate for rate in one_store(units, connections[-1:], over_tcp=True)}
    head = [
        "operation",
        *(f"µs, {n} connection{'s' if n > 1 else ''}" for n in connections),
        f"µs, {connections[-1]} over TCP",
        f"a second at most, {connections[-1]}",
        "asked a second",
    ]
    rows = []
    for operation in dict.fromkeys(rate.operation for rate in rates):
        own = [rate for rate in rates if rate.operation == operation]
        times = [f"{max(rate.store_us):.0f}" for rate in own]
        times.append(f"{max(by_tcp[operation].store_us):.0f}")
        rows.append([operation, *times, f"{_round(own[-1].borne_per_s):,}", f"{_round(own[-1].asked_per_s):,}"])
    return table(head, rows)


def unit(units: Mapping[int, int] = WHOLE_UNITS) -> str:
    """What a whole unit costs store and worker."""
    found = {str(number): a_unit(number, units[number]) for number in OPEN}
    _keep(unit=found)
    rows = [
        [
            f"{number} calls open, {of['calls_per_s']:.0f} a second",
            f"{of['store_ms']:.2f}",
            f"{of['worker_ms']:.2f}",
            f"{_round(1000 / of['store_ms']):,}",
            f"{_round(1000 / of['worker_ms']):,}",
            f"{of['worker_ms'] / of['store_ms']:.0f}",
        ]
        for number, of in found.items()
    ]
    head = ["", "store, CPU ms a call", "worker", "calls/s at most: a store", "a worker", "workers that fill a store"]
    return table(head, rows)


def bytes_of_unit(units: int = MEMORY_UNITS) -> str:
    """What a unit takes of the store's memory, and what a million would."""
    found = memory(units)
    _keep(bytes=found)
    rows = [[what, f"{n:.0f}", f"{n:,.0f}"] for what, n in found.items()]
    rows += [[f"**a unit {what}**", f"**{n:.0f}**", f"**{n:,.0f}**"] for what, n in in_flight(found).items()]
    return table(["", "bytes a unit", "MB a million"], rows)


def shards(units: int = UNITS, connections: int = SHARDED_CONNECTIONS, runs: int = RUNS) -> str:
    """Whole units of two pools and two jobs on one store, on two, and on a cluster of two."""
    rows, alone = [], 0.0
    for name, count, clustered in (("one", 1, False), ("two", 2, False), ("a cluster of two", 2, True)):
        found = [sharded(count, units, connections=connections, clustered=clustered) for _ in range(runs)]
        assert not any(spreading.misplaced for spreading in found)
        most = statistics.median(spreading.rate.borne_per_s for spreading in found)
        us = statistics.median(max(spreading.rate.store_us) for spreading in found)
        alone = alone or most
        keys = " and ".join(map(str, found[0].keys))
        rows.append([name, f"{us:.0f}", f"{_round(most):,}", f"{most / alone:.2f}", keys])
    return table(["stores", "busiest store, CPU µs a unit", "units a second at most", "times", "keys at the end"], rows)


def keys() -> str:
    """Every script's group."""
    found, groups = keys_of_scripts(), dict[str, list[str]]()
    for script in found:
        groups.setdefault(("**crosses**: " if script.crosses else "") + script.group, []).append(script.script)
    rows = [[group, len(names), ", ".join(names)] for group, names in sorted(groups.items())]
    return table(["keys of", "scripts", "which"], rows)


def many() -> str:
    """Stores and workers for so many calls a second."""
    cost = measured()
    rows = []
    for calls in CALLS_PER_S:
        n = needs(calls, CALL_S, cost)
        memory_mb = f"{n.worker_mb:.0f}", f"{n.store_mb:.1f}"
        rows.append([f"{calls:,}", f"{n.open_calls:,}", n.stores, n.workers, f"{n.open_each:,}", *memory_mb])
    head = ["calls a second", "open", "stores", "workers, a core each", "open in each", "MB of each", "MB of a store"]
    return table(head, rows)


def far(round_trips_ms: Sequence[float] = ROUND_TRIPS_MS) -> str:
    """What a round trip to the store costs."""
    found = distances(round_trips_ms)
    rows = [
        [
            f"{of.round_trip_ms:g}",
            f"{of.grant_ms:.1f}",
            f"{of.claim_ms:.1f}",
            f"{of.empty_ms:.1f}",
            *(
                f"{100 * slot_used(call_s, SLOT_GAP_S, of.round_trip_ms / 1000, of.trips):.0f}"
                for call_s in CALL_TIMES_S
            ),
        ]
        for of in found
    ]
    head = ["round trip, ms", "grant, ms", "claim, ms", "slot empty, ms"]
    return table([*head, *(f"slot used, %, calls of {call_s:g} s" for call_s in CALL_TIMES_S)], rows)


PARTS: Mapping[str, Callable[[], str]] = {
    "store": store, "unit": unit, "memory": bytes_of_unit, "shards": shards, "keys": keys, "far": far, "many": many,
}  # fmt: skip
"""In their order: the last one goes by what `unit` and `memory` have measured."""


def measured(open_calls: int = OPEN[-1]) -> CallCost:
    """What a call costs, as it was measured last."""
    found = json.loads(MEASURED.read_text())
    whole = found["unit"][str(open_calls)]
    return CallCost(whole["store_ms"], whole["worker_ms"], in_flight(found["bytes"])["called"])


def written(text: str, tables: Mapping[str, str]) -> str:
    """The page with these tables in their places. Raises `ValueError` for one that has none."""
    for name, found in tables.items():
        place = re.compile(rf"(<!-- {name} -->\n\n)(?:(?:(?!<!--).)*\n\n)?(<!-- end -->)", re.DOTALL)
        if not place.search(text):
            raise ValueError(f"{PAGE.name} has no place for the table {name!r}")
        text = place.sub(lambda at, found=found: f"{at[1]}{found}\n\n{at[2]}", text, count=1)  # type: ignore[misc]
    return text


def machine() -> str:
    """Where it was measured."""
    return f"{platform.machine()}, Python {platform.python_version()}, embedded Valkey"


def _keep(**figures: Any) -> None:
    kept = json.loads(MEASURED.read_text()) if MEASURED.exists() else {}
    MEASURED.write_text(json.dumps({**kept, **figures}, indent=1) + "\n")


def _round(value: float) -> int:
    """To two digits."""
    return int(float(f"{value:.2g}"))


__all__ = ["BUSY_MOST", "LATENCY_S", "PAGE", "PARTS", "machine", "measured", "needs", "written"]
