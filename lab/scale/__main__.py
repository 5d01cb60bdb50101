"""Measure how far one installation goes, or reckon what so many calls a second need.

python -m lab.scale                      all tables of docs/scale.md, some two minutes
python -m lab.scale store shards         some of them
python -m lab.scale --docs               writes them into the page as well
python -m lab.scale --calls 1000 --seconds 2
"""

from __future__ import annotations

import argparse

from lab.scale.needs import BUSY_MOST, needs
from lab.scale.page import PAGE, PARTS, machine, measured, written


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m lab.scale", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all if none is named")
    parser.add_argument("--docs", action="store_true", help=f"write the tables into docs/{PAGE.name}")
    parser.add_argument("--calls", type=float, help="reckon what so many calls a second need, and measure nothing")
    parser.add_argument("--seconds", type=float, default=2.0, help="that a call takes (2)")
    parser.add_argument("--busy", type=float, default=BUSY_MOST, help=f"share of a core to plan with ({BUSY_MOST})")
    given = parser.parse_args()
    if unknown := set(given.parts) - set(PARTS):
        parser.error(f"there is no part {', '.join(sorted(unknown))}")
    if given.calls is not None:
        try:
            print(_told(given.calls, given.seconds, given.busy))
        except ValueError as error:
            parser.error(str(error))
        return 0
    print(machine(), flush=True)
    tables = {}
    for name, make in PARTS.items():
        if not given.parts or name in given.parts:
            tables[name] = make()
            print(f"\n{name}\n\n{tables[name]}", flush=True)
    if given.docs:
        PAGE.write_text(written(PAGE.read_text(), tables))
    return 0


def _told(calls: float, seconds: float, busy: float) -> str:
    n = needs(calls, seconds, measured(), busy)
    return (
        f"{calls:g} calls a second of {seconds:g} s: {n.open_calls:,} open; stores: {n.stores}, of {n.store_mb:.0f} MB;"
        f" workers: {n.workers}, a core each, of {n.worker_mb:.0f} MB, with {n.open_each:,} open calls each"
    )


if __name__ == "__main__":
    raise SystemExit(main())
