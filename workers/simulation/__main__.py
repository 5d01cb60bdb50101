"""`python -m workers.simulation`: the policy against the oracle, in one process and distributed."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from workers.simulation.catalogue import CATALOGUE, random_scenario
from workers.simulation.client import Central, Client, Oracle
from workers.simulation.distributed import Effects, admitters
from workers.simulation.provider import Provider
from workers.simulation.report import FLOOR, Result, judge, shortfalls
from workers.simulation.scenario import Scenario
from workers.simulation.world import Record, World

MODES = ("central", "distributed")


def run(scenario: Scenario, seed: int, mode: str) -> Record:
    """One run of a mode, or of the oracle."""

    def build(provider: Provider) -> list[Client]:
        if mode == "central":
            return [Central(scenario.ceiling, seed)]
        if mode == "distributed":
            return list(admitters(scenario.ceiling, seed, Effects()))
        return [Oracle(provider)]

    return World(scenario, seed, build).run()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and print; 1 if a scenario of the catalogue misses its goal."""
    parser = argparse.ArgumentParser(prog="python -m workers.simulation", description=__doc__)
    parser.add_argument("--seeds", default="1", help="comma-separated (default: 1)")
    parser.add_argument("--only", default="", help="comma-separated names of scenarios")
    parser.add_argument("--modes", default=",".join(MODES), help="comma-separated: central, distributed")
    parser.add_argument("--fuzz", type=int, default=0, metavar="N", help="N random scenarios in place of the catalogue")
    parser.add_argument("--fuzz-start", type=int, default=0, metavar="INDEX", help="index of the first of them")
    parser.add_argument("--json", action="store_true", help="one JSON document in place of the table")
    chosen = parser.parse_args(arguments)
    names = [name for name in chosen.only.split(",") if name] or list(CATALOGUE)
    unknown = [name for name in names if name not in CATALOGUE]
    if unknown:
        parser.error(f"unknown scenario {unknown[0]}; known: {', '.join(CATALOGUE)}")
    modes = chosen.modes.split(",")
    if any(mode not in MODES for mode in modes):
        parser.error(f"--modes must be of {', '.join(MODES)}, got {chosen.modes}")
    scenarios = [CATALOGUE[name] for name in names]
    if chosen.fuzz:
        scenarios = [random_scenario(index) for index in range(chosen.fuzz_start, chosen.fuzz_start + chosen.fuzz)]
    rows: dict[str, list[Result]] = {mode: [] for mode in modes}
    missed = 0
    for scenario in scenarios:
        for seed in map(int, chosen.seeds.split(",")):
            oracle = run(scenario, seed, "oracle")
            for mode in modes:
                result = judge(run(scenario, seed, mode), oracle)
                rows[mode].append(result)
                short = shortfalls(scenario, result, FLOOR)
                missed += bool(short) and not chosen.fuzz
                if not chosen.json:
                    _say(_line(result, mode, seed, [] if chosen.fuzz else short))
    if chosen.json:
        _say(json.dumps({mode: [result.as_dict() for result in results] for mode, results in rows.items()}))
    else:
        for mode, results in rows.items():
            _say(_summary(mode, results))
    return 1 if missed else 0


def _line(result: Result, mode: str, seed: int, short: list[str]) -> str:
    rtts = "/".join("never" if value is None else f"{value:.1f}" for value in result.convergence)
    return (
        f"{result.scenario:<16} {mode:<12} seed {seed:<3} utilisation {result.utilisation:7.2%}"
        f"  refused {result.refused:6.2%}  round trips {rtts:<16} Jain {result.fairness:.3f}"
        f"  unresolved {result.unresolved}  {'; '.join(short)}"
    )


def _summary(mode: str, results: list[Result]) -> str:
    utilisation = [result.utilisation for result in results]
    refused = [result.refused for result in results]
    return (
        f"{mode}: {len(results)} runs,"
        f" utilisation mean {sum(utilisation) / len(results):.2%} worst {min(utilisation):.2%},"
        f" refused mean {sum(refused) / len(results):.2%} worst {max(refused):.2%},"
        f" unresolved {sum(result.unresolved for result in results)},"
        f" least Jain {min(result.fairness for result in results):.3f}"
    )


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
