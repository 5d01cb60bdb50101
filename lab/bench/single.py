"""Dicast's own cases, each a function without arguments: numbers by name."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from lab.bench import (
    admission,
    batches,
    counts,
    governor_http,
    headers,
    joins,
    layers,
    moved_slots,
    pipeline,
    resting,
    scale,
    several,
    slots,
    starting,
)
from lab.bench.counting import IN_SCRIPTS

Figures = Mapping[str, float]


def admission_costs() -> Figures:
    """Grants by the store's scripts, without a provider: `python -m lab.bench.admission`."""
    with admission.server() as url:
        return {
            f"{measure.__name__}: {name}": value
            for measure in (admission.throughput, admission.handover)
            for name, value in asyncio.run(measure(url)).items()
        }


def counts_of_a_unit() -> Figures:
    """What one unit costs in things that can be counted, each unit a call of its own: `python -m lab.bench.counts`."""
    found = counts.counted()
    rest = {name: n for name, n in found.items() if not name.startswith(counts.COMMANDS)}
    within = found[counts.COMMANDS + IN_SCRIPTS]
    return {"commands to the store": counts.all_commands(found), "commands within its scripts": within, **rest}


def _governed(scenario: Callable[[int, int], Mapping[str, object]]) -> Callable[[], Figures]:
    def measure() -> Figures:
        return {name: value for name, value in scenario(2, 1).items() if isinstance(value, int | float)}

    measure.__doc__ = f"Two workers. {scenario.__doc__}"
    return measure


SINGLE: Mapping[str, Callable[[], Figures]] = {
    **pipeline.SCENARIOS,
    "layers": layers.layers,
    "million": scale.million,
    **{f"size-{units}": scale.of_size(units) for units in scale.SIZES},
    "inline": scale.inline,
    **batches.CASES,
    "resting": resting.resting,
    "slots": slots.slots,
    "start": starting.starting,
    "workers": several.workers,
    "slots-workers": several.narrow,
    "slots-moved": moved_slots.moved_slots,
    "joins": joins.joins,
    "counts": counts_of_a_unit,
    "admission": admission_costs,
    **headers.CASES,
    **{f"governor-{name}": _governed(scenario) for name, scenario in governor_http.SCENARIOS.items()},
}
