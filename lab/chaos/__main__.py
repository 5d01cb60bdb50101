"""`python -m lab.chaos`: run the campaign, or one run of it."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from lab.chaos.campaign import SLICE, campaign, command, draw, faults_named
from lab.chaos.faults import CATALOGUE
from lab.chaos.installation import SHORT_CLOCKS
from lab.chaos.report import record, recorded, table


def main() -> int:
    """Exit status 1 if an invariant was violated."""
    parser = argparse.ArgumentParser("python -m lab.chaos", description=__doc__)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1, help="of the campaign, or of the one run with --fault")
    parser.add_argument("--fault", help="one fault, or several joined by '+', or a list separated by ','")
    parser.add_argument("--slice", action="store_true", help="one run of each of the faults that say most")
    parser.add_argument("--repeat", type=int, default=1, help="with --fault: so many seeds from --seed on")
    parser.add_argument("--parallel", type=int, default=2, help="installations side by side")
    parser.add_argument("--clocks", default=SHORT_CLOCKS, help="factor of the intervals of silence; 1: the product's")
    parser.add_argument("--keep", help="folder for the remains of runs that found something")
    parser.add_argument("--record", type=Path, help="add the runs to this file, from which --table makes its table")
    parser.add_argument("--table", type=Path, nargs="+", help="only print the table of these records")
    parser.add_argument("--list", action="store_true", help="list the catalogue")
    parser.add_argument("--verbose", action="store_true")
    wish = parser.parse_args()
    if wish.list:
        for name, fault in CATALOGUE.items():
            print(f"{name:28} {fault.what}")
        return 0
    if wish.table:
        print(table(recorded(wish.table)))
        return 0
    if wish.slice:
        wish.fault = ",".join(SLICE)
    if wish.fault:
        names = [tuple(f.name for f in faults_named(part)) for part in wish.fault.split(",")]
        plan = [(name, wish.seed + n) for n in range(wish.repeat) for name in names]
    else:
        plan = draw(wish.runs, wish.seed)
    began = time.monotonic()
    verdicts = campaign(
        plan, parallel=wish.parallel, clocks=wish.clocks, keep=wish.keep, verbose=wish.verbose or bool(wish.fault)
    )
    if wish.record:
        record(wish.record, verdicts)
    print(table(verdicts))
    bad = [v for v in verdicts if v.violations]
    print(f"\n{len(verdicts)} runs in {time.monotonic() - began:.0f} s, {len(bad)} with violations")
    for verdict in bad:
        print(f"  {command(verdict, wish.clocks)}\n    " + "\n    ".join(verdict.violations))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
