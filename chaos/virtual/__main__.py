"""`python -m chaos.virtual --seeds 10000`: many seeds over a few servers; every violation prints its seed."""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import sys
import time

from chaos.virtual.batch import work
from chaos.virtual.seeds import Verdict


def main() -> int:
    """Exit status 1 if any seed violated anything."""
    parser = argparse.ArgumentParser("python -m chaos.virtual", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--parallel", type=int, default=2)
    parser.add_argument("--trace", action="store_true", help="print what happened in every seed that is violated")
    wish = parser.parse_args()
    began = time.monotonic()
    pieces = [range(n, min(n + 100, wish.first + wish.seeds)) for n in range(wish.first, wish.first + wish.seeds, 100)]
    verdicts: list[Verdict] = []
    if wish.parallel == 1 or len(pieces) == 1:
        for piece in pieces:
            verdicts += work(piece)
    else:
        with multiprocessing.get_context("spawn").Pool(wish.parallel) as pool:
            for found in pool.imap_unordered(work, pieces):
                verdicts += found
    bad = [v for v in verdicts if v.violations]
    for verdict in bad[:20]:
        print(f"seed {verdict.seed} ({verdict.faults}):\n    " + "\n    ".join(verdict.violations[:5]))
        print(f"  replay: python -m chaos.virtual --first {verdict.seed} --seeds 1 --trace")
        if wish.trace:
            print("    " + "\n    ".join(verdict.trace))
    print(
        f"{len(verdicts)} seeds in {time.monotonic() - began:.0f} s, {len(bad)} with violations; "
        f"virtual time {statistics.median(v.virtual_s for v in verdicts):.0f} s (median), "
        f"{sum(v.commands for v in verdicts)} commands to the store"
    )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
