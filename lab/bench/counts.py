"""Counts for each unit, beside those that are kept: `python -m lab.bench.counts [--renew]`.

The kept ones are in lab/bench/counts.json; tests/bench/test_counts.py fails when one has risen by more than its
tolerance. `--renew` keeps what is counted now: after a change that lowered something, or one that is worth its price.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path

from lab.bench import admission
from lab.bench.counting import IN_SCRIPTS, Counts, commands, parts

KEPT = Path(__file__).parent / "counts.json"
COMMANDS = "commands: "
COMMANDS_MAX = 12.0
"""Of client and worker for a unit, all kinds together, those within scripts apart."""
COMMANDS_MAY_RISE = 0.5
"""By kind: how many callers share a round trip depends on the machine; one command more for each unit does not."""
WORTH_KEEPING = 0.02
SHARE_MAY_RISE = {IN_SCRIPTS: 0.25, "": 0.04}
"""Of anything else: within scripts, the sizes of batches count too."""

GRAIN = 0.25
"""What is counted for a page or a job falls on few units here: a turn of the loop more is a quarter of a call."""


def counted() -> Counts:
    """All counts, by a real worker on servers of their own. Takes about ten seconds."""
    with admission.server() as url:
        return parts(url) | commands()


def kept() -> Counts:
    found: Counts = json.loads(KEPT.read_text())
    return found


def all_commands(counts: Mapping[str, float]) -> float:
    """Commands for a unit, those within scripts apart."""
    return sum(n for name, n in counts.items() if name.startswith(COMMANDS) and IN_SCRIPTS not in name)


def risen(counts: Mapping[str, float], before: Mapping[str, float]) -> list[str]:
    """What is more than it was, and more than chance can make it: a line each."""
    lines = []
    for name, now in counts.items():
        was = before.get(name, 0.0)
        if now > most(name, was):
            lines.append(f"{name}: {now:.4g} for each unit, {was:.4g} before")
    return lines


def most(name: str, was: float) -> float:
    """The most that a count may be which was `was`."""
    if name.startswith(COMMANDS) and IN_SCRIPTS not in name:
        return was + COMMANDS_MAY_RISE
    return was * (1 + next(share for part, share in SHARE_MAY_RISE.items() if part in name)) + GRAIN


def main() -> None:
    parse = argparse.ArgumentParser(prog="python -m lab.bench.counts", description=(__doc__ or "").splitlines()[0])
    parse.add_argument("--renew", action="store_true", help=f"write {KEPT.name} anew")
    given = parse.parse_args()
    now = {name: round(n, 2) for name, n in sorted(counted().items()) if n >= WORTH_KEEPING}
    before = kept() if KEPT.exists() else {}
    for name in sorted({*now, *before}):
        print(f"{name:45} {now.get(name, 0.0):9.3f} {before.get(name, 0.0):9.3f}")
    print(f"{'commands in all, outside scripts':45} {all_commands(now):9.3f} {all_commands(before):9.3f}")
    if given.renew:
        KEPT.write_text(json.dumps(now, indent=1) + "\n")


if __name__ == "__main__":
    main()
