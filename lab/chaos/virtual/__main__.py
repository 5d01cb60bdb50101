"""Worlds in virtual time, over a few servers; every violation prints how to see it again.

python -m lab.chaos.virtual --seeds 10000             worlds drawn at random
python -m lab.chaos.virtual --batches --seeds 1000    such in which units go by providers' batch APIs
python -m lab.chaos.virtual --losses                  small worlds, with each answer of the store lost in each way
python -m lab.chaos.virtual --story all --seeds 100   what is told in order: settings, ids, files, a store that forgets
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial

from lab.chaos.virtual import batch
from lab.chaos.virtual.batch import VirtualFinding
from lab.chaos.virtual.repeats import SMALL, lose
from lab.chaos.virtual.seeds import BatchSeed, Seed
from lab.chaos.virtual.stories import STORIES

TOGETHER = 25
LOSSES_PARTS = 8
SHOWN = 20

Work = Callable[[], list[VirtualFinding]]


def main() -> int:
    """Exit status 1 if any world violated anything."""
    parser = argparse.ArgumentParser("python -m lab.chaos.virtual", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--batches", action="store_true", help="worlds whose units go by batch APIs")
    parser.add_argument("--story", choices=["all", *STORIES], help="with --seeds and --first")
    parser.add_argument("--losses", action="store_true")
    parser.add_argument("--only", help="with --losses: WORLD:PARCEL:WAY")
    parser.add_argument("--parallel", type=int, default=2)
    parser.add_argument("--trace", action="store_true", help="print what happened in every world that is violated")
    wish = parser.parse_args()
    began = time.monotonic()
    found = _done(_work(wish), wish.parallel)
    bad = [one for one in found if one.verdict.violations]
    for verdict, replay in bad[:SHOWN]:
        print(f"{replay} ({verdict.faults}):\n    " + "\n    ".join(verdict.violations[:5]))
        print(f"  replay: python -m lab.chaos.virtual {replay} --trace")
        if wish.trace:
            print("    " + "\n    ".join(verdict.trace))
    for what, count in Counter(v.split(":")[0] for one in bad for v in set(one.verdict.violations)).most_common():
        print(f"{what}: {count}")
    kills = sum((one.verdict.batch_kills for one in found), Counter[str]())
    for step, count in kills.most_common():
        print(f"workers killed with a batch, {step}: {count}")
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    cpu_s = sum(u.ru_utime + u.ru_stime for u in used)
    print(
        f"{len(found)} worlds in {time.monotonic() - began:.0f} s, {cpu_s:.0f} s of CPU, "
        f"{len(bad)} with violations; virtual time {statistics.median(v.virtual_s for v, _ in found):.0f} s "
        f"(median), {sum(v.commands for v, _ in found)} commands to the store"
    )
    return 1 if bad else 0


def _work(wish: argparse.Namespace) -> list[Work]:
    if wish.only:
        return [partial(_one_loss, wish.only)]
    if wish.losses:
        return [partial(batch.losses, n, part, LOSSES_PARTS) for n in range(len(SMALL)) for part in range(LOSSES_PARTS)]
    end = wish.first + wish.seeds
    pieces = [range(n, min(n + TOGETHER, end)) for n in range(wish.first, end, TOGETHER)]
    if wish.story:
        names = list(STORIES) if wish.story == "all" else [wish.story]
        return [partial(batch.stories, name, piece) for name in names for piece in pieces]
    return [partial(batch.seeds, BatchSeed if wish.batches else Seed, piece) for piece in pieces]


def _one_loss(name: str) -> list[VirtualFinding]:
    world, parcel, way = name.split(":")
    small = next(small for small in SMALL if small.name == world)
    with batch.server() as client:
        return [
            VirtualFinding(lose(client, small, int(parcel), way.replace("_", " ")).verdict, f"--losses --only {name}")
        ]


def _done(work: list[Work], parallel: int) -> list[VirtualFinding]:
    if parallel == 1 or len(work) == 1:
        return [found for piece in work for found in piece()]
    with ProcessPoolExecutor(parallel, multiprocessing.get_context("spawn")) as pool:
        return [found for piece in as_completed([pool.submit(one) for one in work]) for found in piece.result()]


if __name__ == "__main__":
    sys.exit(main())
