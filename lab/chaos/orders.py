"""Operators who give nodes contrary orders at the same time, while jobs flow, end, and workers are killed.

    python -m lab.chaos.orders --rounds 1000 --seed 1

Several threads cordon, uncordon, drain, steal and kill at random. Each order is recorded with when it was given and
acknowledged, each grant with its time in a worker's log. Afterwards it is looked up that no lease was granted to a node
between the acknowledgement of a cordon and the next word to take it back, that each unit has one score, that no call
was made again but those that were cut or whose worker was killed, and that nothing is left over.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from dicast.app.cluster.cluster import UnknownNode
from dicast.app.cluster.view import NodeStatus, NodeView
from dicast.workers.admission.leases import read_holder
from dicast.workers.store.embedded import ensure_running, stop
from tests.e2e.cluster import Cluster, Simulated, Worker, a_job, until

POOLS = """
default = "sim"
[pools.sim]
provider = "simulated"
base_url = "{url}/v1"
dialect = "openai"
"""
LIMIT, WORKERS, OPERATORS = 12, 3, 3
UNITS_ITEMS = 30
"""Items of a job; each is ten units."""
VERBS = {"cordon": 30, "uncordon": 60, "drain": 12, "cut": 3, "steal": 10, "kill": 1}
PAUSE_S = 0.15
"""An operator's longest pause, in which calls begin and end."""


@dataclass(frozen=True, slots=True)
class Word:
    """One order: when it was given and answered, Unix seconds, and whether the node had acknowledged it then."""

    node: str
    verb: str
    given: float
    answered: float
    acknowledged: bool


@dataclass(slots=True)
class Races:
    """What a campaign did and found."""

    words: list[Word] = field(default_factory=list)
    verbs: Counter[str] = field(default_factory=Counter)
    open_at_kills: int = 0
    """Calls of killed workers that had a lease."""
    claimed_at_kills: int = 0
    """Units of killed workers that may have been called and had no result. A lease is given back before the result is
    written, so these may be more."""
    jobs: int = 0
    units: int = 0
    violations: list[str] = field(default_factory=list)


class Campaign:
    """So many rounds on a running installation."""

    def __init__(self, cluster: Cluster, provider: Simulated, rounds: int, seed: int) -> None:
        self._c, self._provider, self._rounds, self._seed = cluster, provider, rounds, seed
        self._lock = threading.Lock()
        self._left = rounds
        self._starting: list[Worker] = []
        self.tally = Races()

    def run(self) -> Races:
        """Raises `TimeoutError` if jobs do not end afterwards."""
        for _ in range(WORKERS):
            self._c.worker()
        operators = [
            threading.Thread(target=self._operate, args=(random.Random(f"{self._seed}.{n}"),)) for n in range(OPERATORS)
        ]
        jobs = [self._submit()]
        for operator in operators:
            operator.start()
        while any(operator.is_alive() for operator in operators):
            if self._c.app.ledger.status(jobs[-1]).done > 200:
                jobs.append(self._submit())
            time.sleep(0.05)
        for operator in operators:
            operator.join()
        self._settle()
        self._judge([self._c.report(job_id, 120) for job_id in jobs])
        return self.tally

    def _submit(self) -> str:
        self.tally.jobs += 1
        self.tally.units += 10 * UNITS_ITEMS
        return self._c.submit(a_job(agents=1, items=UNITS_ITEMS))

    # ------------------------------------------------------------------ operators
    def _operate(self, chance: random.Random) -> None:
        while True:
            with self._lock:
                if not self._left:
                    return
                self._left -= 1
            (verb,) = chance.choices(list(VERBS), VERBS.values())
            living = [node for node in self._c.app.cluster.nodes() if node.status is not NodeStatus.OFFLINE]
            if not living:
                time.sleep(0.1)
                continue
            self._do(verb, chance.choice(living))
            self.tally.verbs[verb] += 1
            time.sleep(chance.uniform(0, PAUSE_S))

    def _do(self, verb: str, node: NodeView) -> None:
        cluster = self._c.app.cluster
        given = time.time()
        if verb == "steal":
            cluster.steal(by="campaign")
        elif verb == "kill":
            self._kill(node)
        else:
            orders: dict[str, Callable[[], NodeView]] = {
                "cordon": lambda: cluster.cordon(node.id, by="campaign"),
                "uncordon": lambda: cluster.uncordon(node.id, by="campaign"),
                "drain": lambda: cluster.drain(node.id, by="campaign", deadline_s=60),
                "cut": lambda: cluster.drain(node.id, by="campaign", deadline_s=0),
            }
            with contextlib.suppress(UnknownNode):  # it was killed meanwhile
                after = orders[verb]()
                cordoned = after.status in (NodeStatus.CORDONED, NodeStatus.DRAINING)
                sure = cordoned and "not acknowledged" not in after.reason
                self.tally.words.append(Word(node.id, verb, given, time.time(), sure))

    def _kill(self, node: NodeView) -> None:
        with self._lock:
            worker = next((w for w in self._c.workers if w.process.pid == node.pid and w.process.poll() is None), None)
            if worker is None or any(not _is_up(w) for w in self._starting):
                return
            worker.kill()
            holders = self._c.app.store.hvals(self._c.app.keys.holders)
            self.tally.open_at_kills += sum(read_holder(record).node == node.id for record in holders)
            self.tally.claimed_at_kills += self._claims(node.id)
            name = f"w{len(self._c.workers)}"
            started = Worker(self._c.environ, name, self._c.folder / f"{name}.log")
            self._c.workers.append(started)
            self._starting = [started]

    def _claims(self, node_id: str) -> int:
        store = self._c.app.store
        pages = [key for key in store.scan_iter(f"{self._c.app.keys.at('job')}:*:page:*") if store.type(key) == "hash"]
        fields = [field for page in pages for field in store.hgetall(page).items()]
        return sum(name.startswith("u:") and state.split("|")[1] == node_id for name, state in fields)

    # ------------------------------------------------------------------ afterwards
    def _settle(self) -> None:
        until(lambda: all(map(_is_up, self._starting)), "those that were started are up")

        def all_online() -> bool:
            living = [node for node in self._c.app.cluster.nodes() if node.status is not NodeStatus.OFFLINE]
            for node in living:
                if node.status is not NodeStatus.ONLINE:
                    self._do("uncordon", node)
            return len(living) == WORKERS and all(node.status is NodeStatus.ONLINE for node in living)

        until(all_online, "all nodes are online again")

    def _judge(self, reports: list[dict[str, Any]]) -> None:
        tally, found = self.tally, self.tally.violations
        scored, calls = sum(report["scored"] for report in reports), self._provider.stats()["calls"]
        if scored != tally.units:
            found.append(f"{tally.units - scored} of {tally.units} units have no score")
        lines = list(self._c.logs())
        cut = sum(int(line["left"]) for line in lines if line.get("event") == "drained")
        if calls - tally.units > cut + tally.claimed_at_kills:
            again = f"{calls - tally.units} calls were made again"
            found.append(f"{again}, {cut} cut, {tally.claimed_at_kills} without a result at kills")
        most = self._provider.stats()["max_open"]
        if most > LIMIT + tally.open_at_kills:
            found.append(f"{most} calls were open, at most {LIMIT} may be")
        granted: dict[str, list[float]] = {}
        for line in lines:
            if line.get("event") == "acquired":
                granted.setdefault(line["node"], []).append(datetime.fromisoformat(line["ts"]).timestamp())
        found += granted_though_cordoned(tally.words, granted)
        try:
            self._c.quiet()
        except (TimeoutError, AssertionError) as error:
            found.append(f"leases are left over: {error}")
        if orders := self._c.app.store.hkeys(self._c.app.keys.orders):
            found.append(f"orders are left over: {orders}")


def granted_though_cordoned(words: list[Word], granted: dict[str, list[float]]) -> list[str]:
    """Grants between the acknowledgement of a cordon and the next word to take it back; an acknowledgement during
    which somebody took it back promises nothing."""
    found = []
    for word in words:
        if word.verb == "uncordon" or not word.acknowledged:
            continue
        others = [w for w in words if w.node == word.node and w.verb == "uncordon" and w.answered > word.given]
        until_s = min((w.given for w in others), default=float("inf"))
        late = [at for at in granted.get(word.node, ()) if word.answered < at < until_s]
        found += [f"{word.node} was granted a lease {at - word.answered:.3f} s after its {word.verb}" for at in late]
    return found


def _is_up(worker: Worker) -> bool:
    return worker.process.poll() is not None or worker.ready()


def main() -> int:
    """Exit status 1 if something was violated."""
    parser = argparse.ArgumentParser("python -m lab.chaos.orders", description=__doc__)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    wish = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="dicast-orders-"))
    provider = Simulated("--latency", "0.1", "--sigma", "0")
    try:
        store = ensure_running(folder / "state")
        cluster = Cluster(
            folder, store.url, POOLS.format(url=provider.base_url), MAX_CONCURRENT_LLM_CALLS=str(LIMIT),
            DICAST_WINDOW_SECONDS="30",
        )  # fmt: skip
        began = time.monotonic()
        try:
            tally = Campaign(cluster, provider, wish.rounds, wish.seed).run()
        finally:
            cluster.stop()
    finally:
        provider.stop()
        stop(folder / "state")
    sure = sum(word.acknowledged for word in tally.words)
    waits = sorted(word.answered - word.given for word in tally.words if word.acknowledged)
    print(f"{wish.rounds} rounds in {time.monotonic() - began:.0f} s: {dict(tally.verbs)}")
    print(f"{tally.jobs} jobs, {tally.units} units, at kills {tally.open_at_kills} calls open, "
          f"{tally.claimed_at_kills} units without a result")  # fmt: skip
    if waits:
        print(f"{sure} acknowledged, half within {waits[len(waits) // 2] * 1000:.0f} ms, the last {waits[-1]:.2f} s")
    print("\n".join(tally.violations) or "nothing was violated", f"(logs in {folder})")
    return 1 if tally.violations else 0


if __name__ == "__main__":
    sys.exit(main())
