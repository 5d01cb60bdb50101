"""What the batch road takes: memory and time of one worker, whatever the size. `python -m lab.bench.batches`

    python -m lab.bench.batches --units 200000

Each unit is a request of its own, in batches of 50,000 at most, as OpenAI takes them. The simulated provider works on a
batch for a second, in a process of its own, so that what is measured is Dicast's part: forming, handing over, settling.
"""

from __future__ import annotations

import argparse
import json
import time

from lab.bench.pipeline import POOLS, Figures, Machine
from lab.bench.scale import DIMENSIONS, Watched

POOL = "halved"
HALVED = f"""
[pools.{POOL}]
provider = "simulated"
base_url = "{{url}}/v1"
dialect = "openai"
price = {{ input = 2, output = 8, batch = 0.5 }}
"""
FULL_BATCH = 50_000
"""The most requests of one batch."""
DEADLINE_S = 3600.0


def sized(units: int) -> Figures:
    """A job of so many units from submission to report."""
    with Machine("--price", "2/8", "--batch-time", "1", pools=POOLS + HALVED) as m:
        watched = Watched(m, m.worker())
        try:
            return _sized(units, m, watched)
        finally:
            watched.stop()


def _sized(units: int, m: Machine, watched: Watched) -> Figures:
    job_id, ledger = watched.submit(units, pool=POOL, road="batch", batching=False), m.cluster.app.ledger
    started, handed_over = time.monotonic(), dict[str, float]()

    def is_judged(done: int) -> bool:
        for batch in ledger.batches():
            if batch.provider_id:
                handed_over.setdefault(batch.name, time.monotonic())
        return done == units

    watched.wait(job_id, lambda status: is_judged(status.done), DEADLINE_S)
    judged_s = time.monotonic() - started
    watched.wait(job_id, lambda status: status.state.ended, DEADLINE_S)
    report, bill = m.cluster.report(job_id), m.provider.invoice()
    paid = bill["roads"]["batch"]["requests"], bill["repeated"]
    assert (report["scored"], *paid) == (units, units, 0), (report["scored"], paid)
    figures = watched.figures
    return {
        "batches": sum(m.provider.stats()["batches"]["states"].values()),
        "the first is handed over after, s": min(handed_over.values()) - started,
        "all results after, s": judged_s,
        "units/s": units / judged_s,
        "worker's peak with the report, MB": figures["worker's peak, MB"],
        "client's peak, MB": figures["client's peak, MB"],
        "store over its base, MB": figures["store over its base, MB"],
    }


def one_full() -> Figures:
    """50,000 units by batch, as many as one may hold: each a request of its own, and a batch is worked on for 1 s."""
    return sized(FULL_BATCH)


def four_full() -> Figures:
    """200,000 units by batch, which takes four at least; the rest is as above."""
    return sized(4 * FULL_BATCH)


CASES = {"batch-1": one_full, "batch-4": four_full}


def main() -> None:
    parse = argparse.ArgumentParser(prog="python -m lab.bench.batches", description=(__doc__ or "").splitlines()[0])
    parse.add_argument("--units", type=int, default=FULL_BATCH, help=f"a multiple of {DIMENSIONS}")
    given = parse.parse_args()
    if given.units < DIMENSIONS or given.units % DIMENSIONS:
        parse.error(f"--units must be a multiple of {DIMENSIONS}, got {given.units}")
    print(json.dumps(sized(given.units), indent=1))


if __name__ == "__main__":
    main()
