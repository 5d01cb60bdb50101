"""Runs drawn from the catalogue, on installations side by side."""

from __future__ import annotations

import contextlib
import multiprocessing
import queue
import random
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lab.chaos.faults import CATALOGUE
from lab.chaos.installation import IDLE_CPU, SHORT_CLOCKS, Installation
from lab.chaos.runs import Fault, RunResult, perform

Plan = list[tuple[tuple[str, ...], int]]


def draw(runs: int, seed: int, doubles: float = 0.1) -> Plan:
    """`runs` runs by weight, a share of them with two faults one after the other; the same for the same seed."""
    chance = random.Random(seed)
    names = [name for name, fault in CATALOGUE.items() if name != "nothing"]
    weights = [CATALOGUE[name].weight for name in names]
    rounds = list(CATALOGUE)  # every fault at least once, as long as there is room
    plan: Plan = []
    for number in range(runs):
        if number < len(rounds):
            chosen: tuple[str, ...] = (rounds[number],)
        elif chance.random() < doubles:
            chosen = tuple(chance.choices(names, weights, k=2))
        else:
            chosen = tuple(chance.choices(names, weights))
        plan.append((chosen, seed * 1_000_000 + number))
    chance.shuffle(plan)
    return plan


SLICE = (
    "kill_worker", "kill_all_workers", "kill_beat", "freeze_worker", "stop_politely", "rolling_restart",
    "kill_after_answer", "kill_after_store", "kill_after_publish", "kill_before_complete", "restart_store",
    "truncate_store", "store_full", "reset_connections", "kill_clients", "double_messages", "broken_messages", "cancel",
    "lose_20_percent_of_answers", "store_stalls_long", "pool_gone", "disk_full",
)  # fmt: skip
"""One run of each shows the mechanisms within a few minutes."""


def command(verdict: RunResult, clocks: str) -> str:
    return f"python -m lab.chaos --fault {verdict.fault} --seed {verdict.seed} --clocks {clocks}"


def work(todo: Any, done: Any, clocks: str, keep: str | None) -> None:
    """One process: runs on one installation after another; a run that finds something is the last on its own."""
    place: Installation | None = None
    while True:
        try:
            names, seed = todo.get(timeout=1)
        except queue.Empty:
            break
        try:
            if place is None:
                place = Installation(clocks=clocks)
            verdict = perform(place, [CATALOGUE[name] for name in names], seed)
            place.heal()
        except Exception as error:
            verdict = RunResult("+".join(names), seed, [f"harness: {type(error).__name__}: {error}"], -1, 0, 0, 0)
        done.put(verdict)
        if verdict.violations and place is not None:
            put_away(place, f"{verdict.fault}-{verdict.seed}" if keep else None, keep)
            place = None
    if place is not None:
        busy = place.idle_cpu()
        if busy > IDLE_CPU:
            done.put(RunResult("idle", 0, [f"bounded: an idle worker takes {busy:.0%} of a core"], 0, 0, 0, 0))
        put_away(place, None, keep)
    done.put(None)


def put_away(place: Installation, name: str | None, keep: str | None) -> None:
    """Stop everything; of a run that found something, the folder is kept."""
    place.stop()
    if name and keep:
        with contextlib.suppress(OSError):
            shutil.copytree(place.folder, Path(keep) / name, dirs_exist_ok=True,
                            ignore=shutil.ignore_patterns("s", "slice-*"))  # fmt: skip
    shutil.rmtree(place.folder, ignore_errors=True)


def campaign(
    plan: Plan, *, parallel: int = 2, clocks: str = SHORT_CLOCKS, keep: str | None = None, verbose: bool = False
) -> list[RunResult]:
    """All verdicts; each violation is told as it comes."""
    context = multiprocessing.get_context("spawn")
    todo, done = context.Queue(), context.Queue()
    for entry in plan:
        todo.put(entry)
    workers = [context.Process(target=work, args=(todo, done, clocks, keep)) for _ in range(min(parallel, len(plan)))]
    for worker in workers:
        worker.start()
    verdicts: list[RunResult] = []
    running = len(workers)
    began = time.monotonic()
    try:
        while running:
            verdict = done.get(timeout=600)
            if verdict is None:
                running -= 1
                continue
            verdicts.append(verdict)
            if verbose or verdict.violations:
                told = "; ".join(verdict.violations) or "holds"
                print(
                    f"[{len(verdicts)}/{len(plan)} {time.monotonic() - began:.0f} s] {verdict.fault} seed"
                    f" {verdict.seed} {verdict.seconds:.1f} s, recovery {verdict.recovery_s:.1f} s: {told}",
                    file=sys.stderr, flush=True,
                )  # fmt: skip
            if verdict.violations:
                print(f"  replay: {command(verdict, clocks)}", file=sys.stderr, flush=True)
    finally:
        for worker in workers:
            worker.join(timeout=30)
            if worker.is_alive():
                worker.terminate()
    return verdicts


def faults_named(names: str) -> Sequence[Fault]:
    return [CATALOGUE[name] for name in names.split("+")]
