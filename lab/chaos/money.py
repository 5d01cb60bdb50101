"""Jobs with caps and budgets in real processes, some of which are killed: no charge goes beyond one.

`python -m lab.chaos.money --runs 50 --workers 8` strikes the workers, the store and the wires between them as
the campaign does (lab/chaos/faults), and holds the provider's own log against the job's record and the project's purse.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Iterator

from redis.exceptions import RedisError

from dicast.app.domain.cost import PurseStanding
from dicast.app.domain.price import PICO, amount_of
from dicast.app.ledger.keys import LedgerKeys
from dicast.app.ledger.work import read_purses
from lab.chaos.faults import CATALOGUE
from lab.chaos.installation import POOLS, Installation, a_job
from lab.chaos.invariants import provider_log
from lab.chaos.runs import Fault, Run
from tests.e2e.cluster import until

PICOS = {"input_tokens": 400_000, "output_tokens": 1_600_000}
BUDGET = "0.016"
PRICES = "price = {{ input = 0.4, output = 1.6 }}\n"
BUDGETS = f'[projects."*"]\nbudget = {{{{ total = {BUDGET} }}}}\n'
MONEY_POOLS = POOLS.replace("[pools.claude]", f"{PRICES}[pools.claude]") + PRICES + BUDGETS
STRIKES = (
    "nothing", "kill_worker", "kill_all_workers", "kill_after_answer", "kill_after_store", "kill_after_publish",
    "freeze_worker", "reset_connections", "kill_clients", "lose_20_percent_of_answers", "store_stalls_long",
)  # fmt: skip
DEADLINE_S = 90.0


def perform(place: Installation, fault: Fault, seed: int) -> tuple[str, list[str]]:
    """Return what came of one job that is struck once, in words, and what is wrong."""
    chance = random.Random(f"money/{fault.name}/{seed}")
    cap = chance.uniform(0.006, 0.03)
    plain = {"panel": None, "question": None, "probes": []}
    job_id = f"money-{seed}-{time.monotonic_ns()}"
    job = {**a_job(chance, job_id), **plain, "project": job_id, "max_cost": f"{cap:.6f}"}
    run = Run(place, seed, [fault], chance, job, 0.2)
    run.log_sizes = {str(log): log.stat().st_size for log in place.logs()}
    place.provider.control(latency=0.2, sigma=0.3, reset=True)
    place.cluster.submit(job)
    wrong: list[str] = []
    try:
        fault.inject(run)
        until(lambda: (s := run.status()) is not None and s.state.ended, "the job ends", DEADLINE_S)
    except (TimeoutError, RedisError, AssertionError) as error:
        wrong.append(f"harness: {type(error).__name__}: {error}")
    time.sleep(1.0)  # late answers are told
    app = place.cluster.app
    record = app.store.hgetall(LedgerKeys(app.keys).job(job_id))
    charged = sum(entry[kind] * picos for entry in provider_log(place) if entry["status"] == 200
                  for kind, picos in PICOS.items())  # fmt: skip
    purses = {p.name: p for p in read_purses(app.store, app.keys) if p.kind == "project"}
    wrong += _wrong(charged, record, purses.get(job_id))
    met = record.get("capped", "none")
    return f"{amount_of(charged)} of {cap:.6f} and {BUDGET} charged, met: {met}", wrong


def _wrong(charged: int, record: dict[str, str], purse: PurseStanding | None) -> Iterator[str]:
    if charged > int(record["max_cost"]):
        yield f"cap: {charged} charged of {record['max_cost']}"
    if charged > (most := round(float(BUDGET) * PICO)):
        yield f"budget: {charged} charged of {most}"
    spent, unsure = int(record.get("spent", 0)), sum(int(record.get(n, 0)) for n in ("unknown", "unheard_cost"))
    if not spent <= charged <= spent + unsure:
        yield f"books: {charged} charged, {spent} spent and {unsure} unsure"
    ever = purse.purses["total"] if purse is not None else None
    if ever is None or purse is None or (ever.spent, ever.unknown, purse.reserved) != (spent, unsure, 0):
        yield f"purse: {purse}, where the record has {spent} spent and {unsure} unsure"


def main() -> int:
    """Exit status 1 if anything is wrong."""
    parser = argparse.ArgumentParser("python -m lab.chaos.money", description=__doc__)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    wish = parser.parse_args()
    place, bad, partial = Installation(pools=MONEY_POOLS, workers=wish.workers), 0, 0
    began = time.monotonic()
    try:
        for number in range(wish.runs):
            fault = CATALOGUE[STRIKES[number % len(STRIKES)]]
            words, wrong = perform(place, fault, wish.seed + number)
            bad, partial = bad + bool(wrong), partial + (not words.endswith("none"))
            print(f"[{number + 1}/{wish.runs} {time.monotonic() - began:.0f} s] {fault.name}: {words}", *wrong,
                  sep="\n    ", flush=True)  # fmt: skip
            place.heal()
    finally:
        place.stop()
    print(f"{wish.runs} runs, {partial} met a cap or the budget, {bad} with anything wrong")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
