"""An exception thrown into every loop, thread and callback of a real worker, one after the other."""

import contextlib
import json
import re

import pytest

from tests.e2e.cluster import a_job, until
from tests.e2e.servers import free_ports

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

NOTICED_S = 5.0
STOP_S = 30.0
LAST_WORDS = (b"Unrecoverable error", b"the worker stops")
HELPERS = re.compile(r"(asyncio|uvloop)_\d+|off-loop_\d+|execution-pool-task_\d+")
"""Threads that do one call and tell its caller how it ended; between two calls they run nothing that could raise."""
EXPECTED = {
    "task": {
        "gate sim",
        "gate claude",
        "see-off",
        "ear",
        "backlog",
        "watchdog",
        "loop-beat",
        "housekeeper",
        "batches",
        "execution-pool",
    },
    "thread": {"MainThread", "beacon", "execution-pool-loop", "metrics", "metrics-server"},
    "callback": {"loop callback", "hub timer", "hub callback", "pool callback"},
}


class Victim:
    """A worker that can be struck; another one takes its place when it has ended."""

    def __init__(self, cluster, folder):
        self.cluster, self.folder = cluster, folder
        self.start()

    def start(self):
        with contextlib.suppress(FileNotFoundError):
            (self.folder / "names").unlink()
        self.worker = self.cluster.worker("-I", "lab.chaos.strikes", CHAOS_STRIKES=str(self.folder))
        until(lambda: EXPECTED["task"] <= set(self.names().get("task", [])), "all its loops run")

    def names(self):
        with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):
            found = json.loads((self.folder / "names").read_text())
            if found["pid"] == self.worker.process.pid:
                return found
        return {}

    def strike(self, kind, name):
        """What came of it: "mended", or "ended with" an exit code. Raises TimeoutError if nobody noticed."""
        log = self.worker.log
        seen = log.stat().st_size
        (self.folder / "strike.new").write_text(f"{kind} {name}")
        (self.folder / "strike.new").replace(self.folder / "strike")

        def told():
            with log.open("rb") as file:
                file.seek(seen)
                text = file.read()
            return text if b"Struck" in text else None

        def runs():
            there = kind == "callback" or name in self.names().get(kind, [])
            return there and not (self.folder / "strike").exists()

        text = until(lambda: told() or self.worker.process.poll() is not None, f"{kind} {name} is noticed", NOTICED_S)
        if self.worker.process.poll() is None and not any(word in text for word in LAST_WORDS):
            until(runs, f"{kind} {name} is mended", NOTICED_S)
            return "mended"
        code = self.worker.process.wait(STOP_S)
        return f"ended with {code}" if any(word in told() for word in LAST_WORDS) else f"ended with {code}, no word"


def test_every_loop_that_is_struck_is_mended_or_ends_the_worker_with_a_word(cluster, tmp_path):
    c = cluster("--latency", "0.05", DICAST_METRICS_PORT=str(free_ports(1)[0]))
    folder = tmp_path / "strikes"
    folder.mkdir()
    victim, outcomes = Victim(c, folder), {}
    until(lambda: set(victim.names().get("task", [])) == EXPECTED["task"], "no task lasts that is not known here")
    threads = [name for name in until(victim.names, "the names")["thread"] if not HELPERS.fullmatch(name)]
    assert set(threads) >= EXPECTED["thread"]
    for kind, names in {**EXPECTED, "thread": threads}.items():
        for name in sorted(names):
            outcomes[kind, name] = victim.strike(kind, name)
            if victim.worker.process.poll() is not None:
                victim.start()
    assert set(outcomes.values()) <= {"mended", "ended with 1"}, outcomes
    survived = {(kind, name) for (kind, name), outcome in outcomes.items() if outcome == "mended"}
    assert survived >= {("task", name) for name in EXPECTED["task"] - {"execution-pool"}}
    assert survived >= {("thread", "beacon"), ("thread", "metrics")}
    assert c.report(c.submit(a_job(agents=1, dimensions=5)))["scored"] == 5
