"""Calls are cut in every way there is, at a provider that goes on working on them, and that counts what it has open.

    python -m lab.chaos.cuts --runs 100 --seed 1 [--way drain,kill] [--cut-frees]

Each run puts more units into a pool than it may call at once, cuts the calls that are open in one way, and lets the
units go on for a while; the calls cut in one run are still open at the provider when those of the next begin. A
run is violated if the provider has more calls open than the limit at any instant, as it counts them itself, or if units
that were to go on do not. At last nothing may be left counted. `--cut-frees` says of the pool what is not true: so
many runs are violated then, which shows that the runs can tell.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dicast.app.cluster.view import NodeStatus, NodeView
from dicast.workers.store.embedded import ensure_running, stop
from tests.e2e.cluster import Cluster, Simulated, Worker, a_job, until

LIMIT, WORKERS, TIMEOUT_S = 8, 2, 3.0
LATENCY_S, SLOW_S = 2.0, 4.5
"""Within the calls' own time; and beyond it, but within as much again."""
POOLS = """
default = "sim"
[pools.sim]
provider = "simulated"
base_url = "{url}/v1"
limit = {limit}
adaptive = false
timeout_s = {timeout_s}
cut_frees = {cut_frees}
"""


class Cuts:
    """Runs on one installation, whose workers are started again where a run has ended one."""

    def __init__(self, cluster: Cluster, provider: Simulated, seed: int) -> None:
        self._c, self._provider, self._chance = cluster, provider, random.Random(seed)
        self.cut = 0
        self.ways: dict[str, Callable[[str], None]] = {
            "cordon": self._cordon, "drain": self._drain, "remove": self._remove, "remove-force": self._remove_force,
            "revoke": self._revoke, "cancel": self._cancel, "unit-deadline": self._wait, "finish-by": self._wait,
            "timeout": self._wait, "kill": self._kill, "cold-stop": self._cold_stop,
        }  # fmt: skip

    def run(self, way: str) -> str:
        """What was violated; '' if nothing was."""
        while len(self._living()) < WORKERS:
            self._c.worker()
        slow = way == "timeout"
        self._provider.control(latency=SLOW_S if slow else LATENCY_S, sigma=0.0, reset=True)
        bounds = {"unit-deadline": {"unit_deadline": "4s"}, "finish-by": {"finish_by": "4s"}}
        if way in bounds:  # its units would end before any call of theirs may begin
            until(lambda: not self._c.app.store.hlen(self._c.app.keys.holders), f"{way}: nothing counts")
        job = self._c.submit(a_job(agents=1, dimensions=10, items=4, **bounds.get(way, {})))
        until(lambda: self._begun() >= LIMIT, f"{way}: calls begin")
        time.sleep(self._chance.uniform(0.0, 1.0))  # the calls are cut in any part of their time
        begun = self._begun()
        self.ways[way](job)
        again = job
        if way in ("revoke", "cancel", "unit-deadline", "finish-by"):
            self._c.report(job)
            again = self._c.submit(a_job(agents=1, dimensions=10, items=1))
        until(lambda: self._begun() >= begun + LIMIT, f"{way}: calls go on")
        most = self._provider.stats()["max_open"]
        self._c.app.ledger.cancel(again)
        self._c.app.control.revoke(again, terminate=True)  # those of the next run begin while these are open
        self._c.report(again)
        return f"{way}: {most} calls were open, at most {LIMIT} may be" if most > LIMIT else ""

    def at_rest(self) -> str:
        """What is left when all calls have ended."""
        try:
            until(lambda: not self._c.app.store.hlen(self._c.app.keys.holders), "nothing counts", 3 * TIMEOUT_S + 30)
        except TimeoutError as late:
            return str(late)
        left = self._c.app.store.hgetall(self._c.app.keys.open)
        return f"counts are left over: {left}" if left else ""

    def _begun(self) -> int:
        return int(self._provider.stats()["calls"])

    def _living(self) -> list[Worker]:
        return [worker for worker in self._c.workers if worker.process.poll() is None]

    def _node(self) -> NodeView:
        """One of those that call."""
        nodes = self._c.app.cluster.nodes(NodeStatus.ONLINE)
        return self._chance.choice([node for node in nodes if node.open] or nodes)

    def _process(self, node: NodeView) -> Worker:
        return next(worker for worker in self._living() if worker.process.pid == node.pid)

    # ------------------------------------------------------------------ ways
    def _cordon(self, _: str) -> None:
        node = self._node()
        self._c.app.cluster.cordon(node.id, by="campaign")
        self._c.app.cluster.uncordon(node.id, by="campaign")

    def _drain(self, _: str) -> None:
        node = self._drained()
        self._c.app.cluster.uncordon(node.id, by="campaign")

    def _drained(self) -> NodeView:
        node = self._node()
        self._c.app.cluster.drain(node.id, by="campaign", deadline_s=0.2)
        until(lambda: not self._c.app.cluster.node(node.id).open, f"{node.id} has no calls open")
        return node

    def _remove(self, _: str) -> None:
        node = self._drained()
        process = self._process(node).process
        self._c.app.cluster.remove(node.id, by="campaign")
        process.wait(60)

    def _remove_force(self, _: str) -> None:
        node = self._node()
        process = self._process(node).process
        self._c.app.cluster.remove(node.id, by="campaign", force=True)
        process.wait(60)

    def _revoke(self, job: str) -> None:
        self._c.app.control.revoke(job, terminate=True)

    def _cancel(self, job: str) -> None:
        self._c.app.ledger.cancel(job)

    def _wait(self, _: str) -> None:
        """The calls are cut by themselves."""

    def _kill(self, _: str) -> None:
        self._process(self._node()).kill()

    def _cold_stop(self, _: str) -> None:
        worker = self._process(self._node())
        os.kill(worker.process.pid, signal.SIGQUIT)
        worker.process.wait(60)


def campaign(plan: list[str], seed: int, *, cut_frees: bool = False, folder: Path | None = None) -> list[str]:
    """Make the runs; what was violated."""
    folder = folder or Path(tempfile.mkdtemp(prefix="dicast-cuts-"))
    provider = Simulated("--deaf")
    violations: list[str] = []
    try:
        store = ensure_running(folder / "state")
        pools = POOLS.format(url=provider.base_url, limit=LIMIT, timeout_s=TIMEOUT_S, cut_frees=str(cut_frees).lower())
        settings: dict[str, Any] = {"MAX_CONCURRENT_LLM_CALLS": str(LIMIT), "DICAST_WINDOW_SECONDS": "30"}
        cluster = Cluster(folder, store.url, pools, **settings)
        try:
            cuts = Cuts(cluster, provider, seed)
            for number, way in enumerate(plan):
                try:
                    said = cuts.run(way)
                except TimeoutError as late:
                    said = f"{way}: {late}"
                if said:
                    violations.append(f"run {number}: {said}")
            violations += filter(None, [cuts.at_rest()])
        finally:
            cluster.stop()
    finally:
        provider.stop()
        stop(folder / "state")
    return violations


def main() -> int:
    """Exit status 1 if something was violated."""
    parser = argparse.ArgumentParser("python -m lab.chaos.cuts", description=__doc__)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--way", default="", help="some of the ways, separated by commas")
    parser.add_argument("--cut-frees", action="store_true", help="say that the provider notices closed connections")
    wish = parser.parse_args()
    ways = wish.way.split(",") if wish.way else WAYS
    if unknown := sorted(set(ways) - set(WAYS)):
        parser.error(f"--way must be some of {', '.join(WAYS)}, got {', '.join(unknown)}")
    plan = [ways[number % len(ways)] for number in range(wish.runs)]
    random.Random(wish.seed).shuffle(plan)
    began = time.monotonic()
    violations = campaign(plan, wish.seed, cut_frees=wish.cut_frees)
    print(f"{wish.runs} runs in {time.monotonic() - began:.0f} s: {dict(sorted(Counter(plan).items()))}")
    print("\n".join(violations) or "nothing was violated")
    return 1 if violations else 0


WAYS = [
    "cordon", "drain", "remove", "remove-force", "revoke", "cancel", "unit-deadline", "finish-by", "timeout", "kill",
    "cold-stop",
]  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
