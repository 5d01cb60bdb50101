"""The table of what came of a campaign's runs, and the file in which runs are kept for it."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

import orjson

from lab.chaos.runs import RunResult

TWO = "two faults, one after the other"


def record(path: Path, verdicts: Iterable[RunResult]) -> None:
    """Add runs to a file, one JSON object a line."""
    with path.open("ab") as file:
        for verdict in verdicts:
            file.write(orjson.dumps(asdict(verdict)) + b"\n")


def recorded(paths: Iterable[Path]) -> list[RunResult]:
    """The runs of such files."""
    return [RunResult(**orjson.loads(line)) for path in paths for line in path.read_bytes().splitlines()]


def table(verdicts: Sequence[RunResult]) -> str:
    """Markdown, a row for each fault and one for all. Recovery is the time from healing to the end of the job: the work
    that was left is in it."""
    by_fault: dict[str, list[RunResult]] = defaultdict(list)
    for verdict in verdicts:
        by_fault[TWO if "+" in verdict.fault else verdict.fault.replace("_", " ")].append(verdict)
    lines = [
        "| fault | runs | violations | calls repeated | recovery, s: median (range) |",
        "|---|---|---|---|---|",
        *(_row(name, found) for name, found in sorted(by_fault.items())),
        _row("**all**", verdicts),
    ]
    return "\n".join(lines)


def _row(name: str, found: Sequence[RunResult]) -> str:
    times = [v.recovery_s for v in found if v.recovery_s >= 0]
    shown = f"{statistics.median(times):.1f} ({min(times):.1f} to {max(times):.1f})" if times else "-"
    bad = sum(bool(v.violations) for v in found)
    return f"| {name} | {len(found)} | {bad} | {sum(v.repeated for v in found)} | {shown} |"
