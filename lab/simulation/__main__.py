"""`python -m lab.simulation`: the policy in one process and distributed against an oracle, and in short runs."""

from __future__ import annotations

import argparse
import functools
import json
import multiprocessing
import os
import sys
from collections.abc import Sequence
from typing import NamedTuple

from lab.simulation import ablation
from lab.simulation.ablation import MECHANISMS, Measure
from lab.simulation.catalogue import CATALOGUE, random_scenario
from lab.simulation.client import Central, Client, Oracle
from lab.simulation.distributed import Effects, admitters
from lab.simulation.live import EFFECTS, SCENARIOS, LiveResult, judge_live, live_shortfalls
from lab.simulation.provider import SimProvider
from lab.simulation.report import FLOOR, SimResult, judge, shortfalls
from lab.simulation.scenario import Class, Scenario
from lab.simulation.world import SimRecord, SimWorld

MODES = ("central", "distributed")


class Job(NamedTuple):
    """One scenario with one seed, in the modes asked for."""

    scenario: Scenario
    seed: int
    modes: tuple[str, ...]


class SimRow(NamedTuple):
    """One run's result and what it falls short of."""

    mode: str
    seed: int
    result: SimResult | LiveResult
    short: list[str]


def run(scenario: Scenario, seed: int, mode: str) -> SimRecord:
    """One run: `central`, `distributed`, `live`, or `oracle`."""

    def build(provider: SimProvider) -> list[Client]:
        if mode == "oracle":
            return [Oracle(provider)]
        if mode == "central":
            return [Central(scenario.ceiling, seed)]
        return list(admitters(scenario.ceiling, seed, EFFECTS if mode == "live" else Effects()))

    return SimWorld(scenario, seed, build).run()


def work(job: Job) -> list[SimRow]:
    """All runs of one job."""
    scenario, seed, modes = job
    if scenario.kind is Class.LIVE:
        live = judge_live(run(scenario, seed, "live"))
        return [SimRow("live", seed, live, live_shortfalls(live))]
    oracle = run(scenario, seed, "oracle")
    results = [(mode, judge(run(scenario, seed, mode), oracle)) for mode in modes]
    return [SimRow(mode, seed, result, shortfalls(scenario, result, FLOOR)) for mode, result in results]


def measured(scenario: Scenario, seeds: Sequence[int]) -> Measure:
    """The policy in one process, or in a short run: the mean over the seeds."""
    found = []
    for seed in seeds:
        if scenario.kind is Class.LIVE:
            live = judge_live(run(scenario, seed, "live"))
            found.append(Measure(live.utilisation / live.possible, live.refused, live.unresolved))
        else:
            oracle = _oracles.get((scenario, seed)) or run(scenario, seed, "oracle")
            _oracles[scenario, seed] = oracle
            result = judge(run(scenario, seed, "central"), oracle)
            found.append(Measure(result.utilisation, result.refused, result.unresolved, result.latency))
    return Measure(*(sum(values) / len(values) for values in zip(*found, strict=True)))


_oracles: dict[tuple[Scenario, int], SimRecord] = {}


def ablate(scenario: Scenario, seeds: Sequence[int], mechanisms: Sequence[str]) -> tuple[str, dict[str, Measure]]:
    """The scenario's name, and what it loses without each of the mechanisms that act in it."""
    return scenario.name, ablation.losses(functools.partial(measured, scenario, seeds), mechanisms)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and print; 1 if a scenario of the catalogue misses its goal in one process, or a unit is left unresolved."""
    known = {**CATALOGUE, **SCENARIOS}
    parser = argparse.ArgumentParser(prog="python -m lab.simulation", description=__doc__)
    parser.add_argument("--seeds", default="1", help="comma-separated (default: 1)")
    parser.add_argument("--only", default="", help="comma-separated names of scenarios")
    parser.add_argument("--modes", default=",".join(MODES), help="comma-separated: central, distributed")
    parser.add_argument(
        "--fuzz",
        type=int,
        default=0,
        metavar="N",
        help="N random scenarios in place of the catalogue (--ablate: beside it)",
    )
    parser.add_argument("--fuzz-start", type=int, default=0, metavar="INDEX", help="index of the first of them")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="runs at the same time")
    parser.add_argument("--ablate", nargs="?", const=",".join(MECHANISMS), default="", metavar="MECHANISMS",
                        help="what is lost without each mechanism of the default engine")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="one JSON document in place of the table")
    chosen = parser.parse_args(arguments)
    names = [name for name in chosen.only.split(",") if name] or list(known)
    unknown = [name for name in names if name not in known]
    if unknown:
        parser.error(f"unknown scenario {unknown[0]}; known: {', '.join(known)}")
    mechanisms = [name for name in chosen.ablate.split(",") if name]
    if strangers := [name for name in mechanisms if name not in MECHANISMS]:
        parser.error(f"unknown mechanism {strangers[0]!r}; known: {', '.join(MECHANISMS)}")
    modes = tuple(chosen.modes.split(","))
    if any(mode not in MODES for mode in modes):
        parser.error(f"--modes must be of {', '.join(MODES)}, got {chosen.modes}")
    scenarios = [known[name] for name in names]
    if chosen.fuzz:
        drawn = [random_scenario(index) for index in range(chosen.fuzz_start, chosen.fuzz_start + chosen.fuzz)]
        scenarios = [*scenarios, *drawn] if chosen.ablate else drawn
    seeds = [int(seed) for seed in chosen.seeds.split(",")]
    if mechanisms:
        with multiprocessing.Pool(min(chosen.processes, len(scenarios))) as pool:
            one = functools.partial(ablate, seeds=seeds, mechanisms=mechanisms)
            lost: dict[str, dict[str, Measure]] = {}
            for name, losses in pool.imap_unordered(one, scenarios):
                lost[name] = losses
                sys.stderr.write(f"{name}: {len(losses)} of {len(mechanisms)} mechanisms act\n")
        _say(ablation.HEAD)
        for mechanism in mechanisms:
            _say(
                ablation.line(mechanism, {name: found[mechanism] for name, found in lost.items() if mechanism in found})
            )
        return 0
    jobs = [Job(scenario, seed, modes) for scenario in scenarios for seed in seeds]
    rows: list[SimRow] = []
    with multiprocessing.Pool(min(chosen.processes, len(jobs))) as pool:
        for found in pool.imap(work, jobs):
            rows += found
            if not chosen.json:
                for row in found:
                    _say(_line(row, goals=not chosen.fuzz))
    by_mode = {mode: [row for row in rows if row.mode == mode] for mode in (*modes, "live")}
    by_mode = {mode: found for mode, found in by_mode.items() if found}
    if chosen.json:
        _say(json.dumps({mode: [row.result.as_dict() for row in found] for mode, found in by_mode.items()}))
    else:
        for mode, found in by_mode.items():
            _say(_summary(mode, found))
    missed = any(row.short for row in rows if row.mode == "central") and not chosen.fuzz
    return 1 if missed or any(row.result.unresolved for row in rows) else 0


def _line(row: SimRow, *, goals: bool) -> str:
    result, short = row.result, "; ".join(row.short) if goals else ""
    start = (
        f"{result.scenario:<16} {row.mode:<12} seed {row.seed:<3} utilisation {result.utilisation:7.2%}"
        f"  refused {result.refused:6.2%}  unresolved {result.unresolved}"
    )
    if isinstance(result, LiveResult):
        return f"{start}  possible {result.possible:.1%}  took {result.seconds:.1f} s  {short}"
    rtts = "/".join("never" if value is None else f"{value:.1f}" for value in result.convergence)
    return f"{start}  latency {result.latency:5.2f}  round trips {rtts:<16} Jain {result.fairness:.3f}  {short}"


def _summary(mode: str, rows: list[SimRow]) -> str:
    utilisation = [row.result.utilisation for row in rows]
    refused = [row.result.refused for row in rows]
    passed = sum(not row.short for row in rows)
    return (
        f"{mode}: {passed} of {len(rows)} runs reach their goals,"
        f" utilisation mean {sum(utilisation) / len(rows):.2%} worst {min(utilisation):.2%},"
        f" refused mean {sum(refused) / len(rows):.2%} worst {max(refused):.2%},"
        f" unresolved {sum(row.result.unresolved for row in rows)}"
    )


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
