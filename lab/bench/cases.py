"""What is measured of each contender: one fresh provider and one fresh folder a run; the provider's own log decides."""

from __future__ import annotations

import json
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lab.bench import observed
from lab.bench.contenders import Contender, Running, Work
from lab.bench.observed import Cap, Observed
from lab.bench.processes import ProcessOutcome, ProcessUsage
from tests.e2e.cluster import Simulated, until

CAP, LATENCY_S = 40, 0.5
CUT_AFTER, CUT_TO = 300, 10
KILL_AFTER = 450
WIDE = 400
DEADLINE_S = 1200.0
"""Enough for curator's default rates on 3,000 calls."""
OPENAI_BUDGETS = "bucket:30000/60+bucket:10000000/60:tokens"


@dataclass(frozen=True)
class Measured:
    """One run. `curve` is the mean number of calls served in each half second."""

    figures: Mapping[str, float]
    versions: Mapping[str, str] = field(default_factory=dict)
    curve: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Case:
    """`who` are the contenders that make sense; `measure` takes one of them and the number of the run."""

    name: str
    title: str
    about: str
    who: tuple[str, ...]
    measure: Callable[[Contender, int], Measured]


class Bench:
    """One provider and one folder; what was started is stopped on leaving."""

    def __init__(self, folder: Path, provider: Simulated) -> None:
        self.folder, self.provider = folder, provider
        self._running: Running | None = None

    def start(self, contender: Contender, units: int, *, tell: int, resume: bool = False) -> Running:
        """Ready to go, and the provider's count at nothing (unless it resumes)."""
        if self._running is not None:
            self._running.stop()
            self._running = None
        work = Work(self.provider.base_url, units, tell, self.folder, resume)
        self._running = contender.start(work)
        if not resume:
            self.provider.control(reset=True)
        return self._running

    def answered(self) -> int:
        return int(self.provider.stats()["by_status"].get("200", 0))

    def log(self) -> list[dict[str, Any]]:
        with urllib.request.urlopen(f"{self.provider.base_url}/log", timeout=60) as reply:
            found: list[dict[str, Any]] = json.load(reply)
            return found

    def stop(self) -> None:
        if self._running is not None:
            self._running.stop()
        self.provider.stop()


@contextmanager
def bench(seed: int, *options: str, cap: int | None = CAP) -> Iterator[Bench]:
    capped = [] if cap is None else ["--cap", str(cap)]
    manners = ["--latency", str(LATENCY_S), "--sigma", "0.5", "--seed", str(seed)]
    with tempfile.TemporaryDirectory(prefix="dicast-bench-", ignore_cleanup_errors=True) as folder:
        made = Bench(Path(folder), Simulated(*capped, *manners, *options))
        try:
            yield made
        finally:
            made.stop()


def measured(running: Running, units: int) -> tuple[ProcessOutcome, dict[str, float]]:
    """Go, to the end: what it took of the machine."""
    before, started = running.usage(), time.monotonic()
    running.go()
    outcome = running.outcome(DEADLINE_S)
    whole_s = time.monotonic() - started
    return outcome, {"whole_s": whole_s, **_usage(before, running.usage(), units)}


def _usage(before: Mapping[str, ProcessUsage], after: Mapping[str, ProcessUsage], units: int) -> dict[str, float]:
    """CPU ms a unit and peak MB of each part, and `peak_mb` of whoever does the work: worker and client."""
    found: dict[str, float] = {"peak_mb": sum(after[part].peak_mb for part in ("worker", "client") if part in after)}
    for part, used in after.items():
        prefix = "" if part == "worker" else f"{part}_"
        found[f"{prefix}cpu_ms"] = 1000 * (used.cpu_s - before[part].cpu_s) / units
        if prefix:
            found[f"{prefix}mb"] = used.peak_mb
    return found


def _seen(seen: Observed, units: int, outcome: ProcessOutcome) -> dict[str, float]:
    figures = {"wall_s": seen.wall_s, "refused": seen.refused, "lost": units - outcome.answered, "calls": seen.calls}
    if seen.capacity is not None:
        figures["capacity_%"] = 100 * seen.capacity
    return figures


def steady(units: int, *options: str) -> Callable[[Contender, int], Measured]:
    def measure(contender: Contender, run: int) -> Measured:
        with bench(run, *options) as b:
            running = b.start(contender, units, tell=CAP)
            outcome, usage = measured(running, units)
            log = b.log()
        seen = observed.observe(log, Cap(CAP))
        return Measured(_seen(seen, units, outcome) | usage, outcome.versions, observed.curve(log))

    return measure


def cut(contender: Contender, run: int) -> Measured:
    units = 900
    with bench(run, "--step", f"{CUT_AFTER}:{CUT_TO}") as b:
        running = b.start(contender, units, tell=CAP)
        outcome, usage = measured(running, units)
        log = b.log()
    seen = observed.observe(log, Cap(CAP, CUT_AFTER, CUT_TO))
    return Measured(_seen(seen, units, outcome) | usage, outcome.versions, observed.curve(log))


def kill(contender: Contender, run: int) -> Measured:
    units = 900
    with bench(run) as b:
        running = b.start(contender, units, tell=CAP)
        running.go()
        until(lambda: b.answered() >= KILL_AFTER, "half of the answers", DEADLINE_S)
        running.kill()
        killed = time.monotonic()
        running = b.start(contender, units, tell=CAP, resume=True)
        ready_s = time.monotonic() - killed
        running.go()
        outcome = running.outcome(DEADLINE_S)
        log = b.log()
    seen = observed.observe(log, Cap(CAP))
    figures = {
        "paid_twice": seen.answered - units,
        "cut_off": seen.cut_off,
        "lost": units - outcome.answered,
        "refused": seen.refused,
        "restart_s": ready_s,
        "after_kill_s": time.monotonic() - killed,
    }
    return Measured(figures, outcome.versions, observed.curve(log))


def ceiling(contender: Contender, run: int) -> Measured:
    units = 3000
    with bench(run, cap=None) as b:
        running = b.start(contender, units, tell=WIDE)
        outcome, usage = measured(running, units)
        log = b.log()
    seen = observed.observe(log)
    figures = _seen(seen, units, outcome) | usage
    figures |= {"calls_per_s": seen.answered / seen.wall_s, "most_open": seen.most_open}
    return Measured(figures, outcome.versions, observed.curve(log))


_ALL_PEERS = (
    "aiohttp-told", "openai-told", "openai-default", "openai-guess", "inspect", "inspect-told", "curator",
    "curator-told", "deepeval", "deepeval-told",
)  # fmt: skip
_CAPPED = f"A provider that serves {CAP} calls at once, of {LATENCY_S} s on average (lognormal), and refuses the rest"

CASES: Mapping[str, Case] = {
    case.name: case
    for case in (
        Case(
            "steady-900", "A cap of 40, 900 calls", f"{_CAPPED}. Ideal: 11.25 s, and less than 100 % of the capacity, "
            "since a run begins and ends empty.", ("dicast", "dicast-warm", *_ALL_PEERS), steady(900),
        ),
        Case(
            "steady-3000", "A cap of 40, 3,000 calls", f"{_CAPPED}. Ideal: 37.5 s.",
            ("dicast", "dicast-warm", *_ALL_PEERS), steady(3000),
        ),
        Case(
            "headers-900", "A cap of 40, 900 calls, with OpenAI's headers", f"{_CAPPED}; every answer tells of 30,000 "
            "requests and 10,000,000 tokens a minute, which do not bind, as OpenAI's headers do. Ideal: 11.25 s.",
            ("dicast", "dicast-warm", *_ALL_PEERS),
            steady(900, "--budgets", OPENAI_BUDGETS, "--told", "openai"),
        ),
        Case(
            "cut", "The quota is cut", f"{_CAPPED}; after {CUT_AFTER} of 900 answers it serves {CUT_TO}. "
            "Ideal: 33.75 s.",
            ("dicast", "inspect", "inspect-told", "curator-told"), cut,
        ),
        Case(
            "kill", "kill -9 in the middle", f"{_CAPPED}. After {KILL_AFTER} of 900 answers everything that the "
            "contender started is killed at once (Dicast: worker, beat, client, store), then started again to go on. "
            f"Ideal: no answer paid twice, and at most {CAP} calls cut off.",
            ("dicast", "inspect", "curator-told"), kill,
        ),
        Case(
            "ceiling", "What one process can do", f"A provider without a cap, calls of {LATENCY_S} s on average, "
            f"{WIDE} open at once: told to all. Ideal: {WIDE / LATENCY_S:g} calls a second.",
            (
                "dicast-told", "aiohttp-told", "openai-told", "openai-default", "inspect-told", "curator-told",
                "deepeval-told",
            ), ceiling,
        ),
    )
}  # fmt: skip
