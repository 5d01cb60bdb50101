"""Real parts for end-to-end tests: worker processes, a simulated provider over HTTP, one real store.

What happened is read from the provider's own count, the ledger, the files and the logs, never from a worker's word.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import redis

from dicast.app.application import Dicast, create_app
from dicast.app.pipeline.messages import CONTROL_QUEUE, EVALUATE
from dicast.workers.store.scripts import vouch
from tests.patience import Stopwatch
from tests.processes import start

ROOT = Path(__file__).parents[2]
SOON = {"CHAOS_CLOCKS": "0.2", "CHAOS_TICKS": "1"}
"""Settings of workers that look each second for what was lost, and take a fifth of the usual silence for loss."""
DEADLINE_S = float(os.environ.get("TEST_DEADLINE_S", "60"))


def until(condition: Callable[[], Any], what: str, deadline_s: float = DEADLINE_S) -> Any:
    """Wait for an event, with a deadline."""
    watch = Stopwatch()
    while True:
        found = condition()
        if found:
            return found
        if watch.s > deadline_s:
            raise TimeoutError(f"{what}: not within {deadline_s} s")
        time.sleep(0.02)


class Simulated:
    """A simulated provider in a process of its own."""

    def __init__(self, *options: str) -> None:
        reading, writing = os.pipe()
        try:
            self.process = start(["lab.provider", "--port", "0", *options], dict(os.environ), ROOT, writing, 2)
        finally:
            os.close(writing)
        with os.fdopen(reading) as lines:
            self.base_url = json.loads(lines.readline())["base_url"].rstrip("/").removesuffix("/v1")

    def stats(self) -> dict[str, Any]:
        return self._told("stats")

    def invoice(self) -> dict[str, Any]:
        """What it has billed."""
        return self._told("invoice")

    def _told(self, page: str) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self.base_url}/{page}", timeout=10) as reply:
            found: dict[str, Any] = json.load(reply)
            return found

    def control(self, **changes: Any) -> None:
        """Change its behaviour; with `answer=True` the calls that are open are answered at once."""
        body = json.dumps(changes).encode()
        request = urllib.request.Request(
            f"{self.base_url}/control", data=body, headers={"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=10) as reply:
            assert reply.status == 200

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(timeout=10)


class Worker:
    """`celery -A app worker` in a process group of its own."""

    def __init__(self, environ: dict[str, str], name: str, log: Path, *options: str) -> None:
        self.log = log
        command = ["celery", "-A", "app", "worker", "-n", f"{name}@%h", *options]
        with log.open("ab") as file:
            self.process = start(command, environ, ROOT, file.fileno(), file.fileno())

    def ready(self) -> bool:
        if self.process.poll() is not None:
            raise RuntimeError(f"the worker ended: {self.log.read_text()[-3000:]}")
        return b"ready." in self.log.read_bytes()

    def kill(self) -> None:
        """kill -9 of everything it started."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(timeout=30)

    def stop(self, deadline_s: float = 30.0) -> int:
        """Polite stop; its exit code."""
        self.process.terminate()
        return self.ended(deadline_s)

    def ended(self, deadline_s: float = 30.0) -> int:
        """Wait until a worker that has been told to stop has ended; its exit code."""
        try:
            return self.process.wait(timeout=deadline_s)
        except subprocess.TimeoutExpired as late:
            self.process.send_signal(signal.SIGUSR1)  # Celery writes all stacks into its log
            time.sleep(1)
            self.kill()
            late.add_note(self.log.read_text()[-5000:])
            raise


class Cluster:
    """One installation: a store, pools, workers, and a client application."""

    def __init__(self, folder: Path, redis_url: str, pools: str, **settings: str) -> None:
        (folder / "pools.toml").write_text(pools)
        self.folder = folder
        self.results = folder / "results"
        given = {
            "REDIS_URL": redis_url,
            "DICAST_POOLS_FILE": str(folder / "pools.toml"),
            "DICAST_RESULTS_DIR": str(self.results),
            "DICAST_STATE_DIR": str(folder / "state"),
            "DICAST_HTML_REPORT": "false",  # a second of the machine a job
            "LLM_CALL_TIMEOUT": "20",
            "RETRY_INITIAL_DELAY": "0.1",
            "RETRY_MAX_DELAY": "0.5",
            **settings,
        }
        inherited = {k: v for k, v in os.environ.items() if k in ("PATH", "HOME", "LANG", "PYTHONPATH", "VIRTUAL_ENV")}
        self.environ = {**inherited, **given}
        self.app: Dicast = create_app(given)
        self.workers: list[Worker] = []
        self.provider: Simulated

    def vouch(self) -> None:
        """Say that the store has lost nothing: one that has just been made grants nothing for two seconds."""
        vouch(self.app.store, self.app.keys)

    def worker(self, *options: str, **settings: str) -> Worker:
        """Start a worker and wait until it takes work. Settings that begin with CHAOS_ are those of `lab.chaos.hooks`,
        and have it imported."""
        name, environ = f"w{len(self.workers)}", {**self.environ, **settings}
        if "-I" not in options and any(setting.startswith("CHAOS_") for setting in environ):
            options = ("-I", "lab.chaos.hooks", *options)
        worker = Worker(environ, name, self.folder / f"{name}.log", *options)
        self.workers.append(worker)
        until(worker.ready, "a worker is ready")
        return worker

    def submit(self, job: dict[str, Any]) -> str:
        job_id = self.app.submit(job)
        self.app.send_task(EVALUATE, args=(job_id,), task_id=job_id, queue=CONTROL_QUEUE)
        return job_id

    def report(self, job_id: str, deadline_s: float = DEADLINE_S) -> dict[str, Any]:
        """The report, when the job has ended."""
        status = until(lambda: self._ended(job_id), f"job {job_id} ends", deadline_s)
        found: dict[str, Any] = status.report
        return found

    def _ended(self, job_id: str) -> Any:
        status = self.app.ledger.status(job_id)
        return status if status.state.ended else None

    def done(self, job_id: str) -> int:
        return self.app.ledger.status(job_id).done

    def opinions(self, job_id: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.results / job_id / "opinions.jsonl").read_text().splitlines()]

    def errors(self, job_id: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.results / job_id / "errors.jsonl").read_text().splitlines()]

    def logs(self) -> Iterator[dict[str, Any]]:
        for worker in self.workers:
            for line in worker.log.read_text().splitlines():
                if line.startswith("{"):
                    yield json.loads(line)

    def quiet(self) -> None:
        """Wait until no lease is left: what every run ends with."""
        until(lambda: not self.app.store.zcard(self.app.keys.leases), "all leases are back")
        assert self.app.store.hgetall(self.app.keys.open) == {}

    def stop(self) -> None:
        for worker in self.workers:  # together, as each takes its time
            worker.process.terminate()
        if self.app.store_url.startswith(("unix:", "redis:")):
            self._end_polls()
        for worker in self.workers:
            worker.ended()
        self.app.close()

    def _end_polls(self, deadline_s: float = 5.0) -> None:
        """Have the store answer polls of its queues: a worker that stops waits for up to a second for its last one."""
        end, url = time.monotonic() + deadline_s, self.app.store_url
        with contextlib.suppress(redis.RedisError), redis.Redis.from_url(url, socket_timeout=1) as client:
            while time.monotonic() < end and any(worker.process.poll() is None for worker in self.workers):
                polls: Any = client.client_list(_type="normal")
                for poll in polls:
                    if poll["cmd"] == "brpop" and "b" in poll["flags"]:
                        client.client_unblock(poll["id"])
                time.sleep(0.02)


@contextlib.contextmanager
def one_worker(folder: Path, redis_url: str, pools: str, *provider: str, **settings: str) -> Iterator[Cluster]:
    """Yield a cluster on an empty database, with one worker and a simulated provider that has these options and whose
    address stands for `{url}` in the pools. All of it is stopped at the end, whatever happened."""
    with contextlib.ExitStack() as parts:
        simulated = Simulated(*provider)
        parts.callback(simulated.stop)
        cluster = Cluster(folder, redis_url, pools.format(url=simulated.base_url), **settings)
        parts.callback(cluster.stop)
        cluster.provider = simulated
        cluster.app.store.flushdb()
        cluster.vouch()
        cluster.worker()
        yield cluster


def a_job(agents: int = 3, dimensions: int = 10, items: int = 1, pool: str = "", **more: Any) -> dict[str, Any]:
    return {
        "items": [{"id": f"item-{n}", "text": f"A text to judge, number {n}."} for n in range(items)],
        "agents": [{"name": f"judge-{n}", "pool": pool} for n in range(agents)],
        "dimensions": [{"id": f"dim-{n}", "instructions": f"Is it good in respect {n}?"} for n in range(dimensions)],
        **more,
    }
