"""Runs all of Dicast on one machine, as long as a command runs: store, model server, worker, beat.

Servers that run already (a Redis that REDIS_URL names, an embedded store or a model server that another process
started) are used and not stopped. Logs are in `<state dir>/logs`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Protocol, Self

from celery import Celery

from dicast.app.providers.local import ensure_local_model, running_local_model, stop_local_model
from dicast.config.settings import Settings
from dicast.errors import DicastError
from dicast.workers.broker.profiles import Broker, Names
from dicast.workers.store import embedded
from dicast.workers.store.connection import connect
from dicast.workers.store.daemon import tail
from dicast.workers.store.keys import Keys
from dicast.workers.store.scripts import vouch
from dicast.workers.system.files import create, make_folder, open_or_create, try_lock
from dicast.workers.system.processes import sent_again

logger = logging.getLogger(__name__)

READY_DEADLINE_S = 60.0
STOP_GRACE_S = 20.0
"""How long a worker that is told to stop may take to end its open calls."""
HASTY_GRACE_S = 4.0
PING_TIMEOUT_S, PING_TIMEOUT_GROWTH, LONGEST_PING_TIMEOUT_S = 0.1, 1.1, 1.0
"""The first time-out of a ping, its growth, and its maximum: on a busy machine the worker may answer late."""
LOOK_EVERY_S = 0.5
LIVES = 3
"""How often a part that dies is started again; after that another start would not help."""


class StackError(DicastError, RuntimeError):
    """A part did not start; the message holds the end of its log."""

    problem = "stack"


class LoadedProcess(Protocol):
    """A process that can become a worker at once, because it has loaded what it needs."""

    def begin(self, name: str, environ: Mapping[str, str], log: Path) -> subprocess.Popen[bytes] | None:
        """Become the worker `name`, with these settings. Returns None if the process has ended."""
        ...


class LocalStack:
    """A context in which `celery -A <app>` runs here, worker and beat, ready for jobs.

    `model` also starts the local model at once; without it, the worker does so when a unit needs it. `early` is the
    worker's process, if there is one already. A worker or beat that dies meanwhile is started again, `LIVES` times at
    most. On leaving, by whatever way, what was started here is stopped in the order beat, worker, model, store, and is
    gone afterwards, except a store that other processes have begun to use; a second interrupt kills what still
    hesitates. SIGTERM, if nobody else handles it, leaves the context like Ctrl-C.

    Raises `StackError`, `DaemonError`, `LocalModelMissing`, and redis-py's errors if REDIS_URL does not answer.
    """

    def __init__(
        self, settings: Settings, *, model: bool = False, app: str = "dicast", early: LoadedProcess | None = None
    ) -> None:
        self._settings, self._model, self._app, self._early = settings, model, app, early
        self._state_dir = Path(settings.state_dir).resolve()
        self._environ = {**os.environ, **settings.environ()}
        self._exit = contextlib.ExitStack()
        self._parts: list[_Process] = []
        self.store_url = ""

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as undo:
            undo.enter_context(_terminable())
            undo.enter_context(sent_again())
            undo.enter_context(_locked(self._state_dir))
            self.store_url = self._store(undo)
            if running_local_model(self._state_dir) is None:
                undo.callback(stop_local_model, self._state_dir)
            node = f"local-{os.getpid()}@localhost"
            worker = _Process(
                "worker", self._celery("worker", "-n", node), self._environ, self._logs, self._begin(node)
            )
            undo.callback(worker.stop)
            beat = _Process("beat", self._celery("beat", "--pidfile="), self._environ, self._logs)
            undo.callback(beat.stop)
            self._parts = [worker, beat]
            if self._model:
                ensure_local_model(self._state_dir)
            self._wait_for(worker, beat, node)
            undo.enter_context(_supervised(worker, beat))
            self._exit = undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._exit.close()

    def hasten(self) -> None:
        """Give the parts less time to end, for a user who does not want to wait."""
        for part in self._parts:
            part.grace_s = HASTY_GRACE_S

    @property
    def _logs(self) -> Path:
        return self._state_dir / "logs"

    def _store(self, undo: contextlib.ExitStack) -> str:
        url = self._settings.redis_url
        if url is None:
            store = embedded.ensure_running(self._state_dir, idle_s=self._settings.store_idle)
            url = store.url
            if store.started_by_us:  # it loses no write when it ends, and whoever called for it ran on this machine
                undo.callback(embedded.leave, self._state_dir)
                with connect(url) as client:
                    vouch(client, Keys(self._settings.namespace))
        with connect(url) as client:
            client.ping()
        return url

    def _begin(self, node: str) -> Begin | None:
        if self._early is None:
            return None
        return partial(self._early.begin, node, self._settings.environ())

    def _celery(self, *command: str) -> list[str]:
        return [sys.executable, "-m", "celery", "-A", self._app, *command]

    def _wait_for(self, worker: _Process, beat: _Process, node: str) -> None:
        """Wait until the worker answers through the broker. Raises `StackError` if it or the beat ends, or takes too
        long."""
        end = time.monotonic() + READY_DEADLINE_S
        with Celery(set_as_current=False) as client:
            broker = Broker.for_urls(self.store_url, self._settings.broker_url)
            client.conf.update(_ping_settings(broker, Names(self._settings.broker_namespace)))
            wait_s = PING_TIMEOUT_S
            while not _answers(client, node, wait_s):
                wait_s = min(wait_s * PING_TIMEOUT_GROWTH, LONGEST_PING_TIMEOUT_S)
                worker.check()
                beat.check()
                if time.monotonic() > end:
                    raise StackError(f"the worker is not ready after {READY_DEADLINE_S:g} s{worker.log_tail()}")
            beat.check()


Begin = Callable[[Path], "subprocess.Popen[bytes] | None"]
"""Starts the work of a process that is already loaded, with its output in a file; None if the process has ended."""


def _ping_settings(broker: Broker, names: Names) -> dict[str, Any]:
    """Return Celery's settings for pings to the workers of one installation. A connection to the store takes as long to
    close as its polling interval, which would be a second by default."""
    exchange = {"control_exchange": names.qualify("celery")}
    if not broker.is_store:
        return {**broker.settings, **exchange}
    options = {**broker.settings["broker_transport_options"], "polling_interval": PING_TIMEOUT_S}
    return {**broker.settings, **exchange, "broker_transport_options": options}


def _answers(client: Celery, node: str, wait_s: float) -> bool:
    """Return whether the worker answers a ping. Each ping has its own connection, so that a late answer is not taken
    for the next one."""
    with client.connection_for_write() as connection:
        asking = client.control.inspect(destination=[node], timeout=wait_s, limit=1, connection=connection)
        return bool(asking.ping())


class _Process:
    """One child, in a session of its own, so that the terminal's Ctrl-C reaches it only through `stop`. `begin` makes
    its first life; without one, or where that is over already, its command does."""

    def __init__(
        self, name: str, command: list[str], environ: Mapping[str, str], logs: Path, begin: Begin | None = None
    ) -> None:
        make_folder(logs, shared=False)
        self.grace_s = STOP_GRACE_S
        self.name, self._log = name, logs / f"{name}.log"
        self._command, self._environ, self._lives = command, environ, LIVES
        self._log.unlink(missing_ok=True)
        create(self._log).close()
        self._process = (begin and begin(self._log)) or self._started()

    def _started(self) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            return subprocess.Popen(  # noqa: S603  (our own command)
                self._command, env=self._environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip

    def revive(self) -> None:
        """Start it again if it has died, and has lives left."""
        code = self._process.poll()
        if code is not None and self._lives:
            self._lives -= 1
            logger.warning("the %s ended with exit code %d, and is started again", self.name, code)
            self._process = self._started()

    def check(self) -> None:
        code = self._process.poll()
        if code is not None:
            raise StackError(f"the {self.name} ended with exit code {code}{self.log_tail()}")

    def log_tail(self) -> str:
        return f"; {self._log} ends with:\n{tail(self._log)}"

    def stop(self) -> None:
        """Ask it to end, and kill it when it takes too long, or when somebody interrupts the wait."""
        try:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(self.grace_s)
        finally:
            if self._process.poll() is None:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()


@contextlib.contextmanager
def _supervised(*processes: _Process) -> Iterator[None]:
    leaving = threading.Event()

    def revive_dead() -> None:
        while not leaving.wait(LOOK_EVERY_S):
            for process in processes:
                process.revive()

    thread = threading.Thread(target=revive_dead, name="stack-keeper", daemon=True)
    thread.start()
    try:
        yield
    finally:
        leaving.set()
        thread.join()


@contextlib.contextmanager
def _locked(state_dir: Path) -> Iterator[None]:
    """Lock the state directory, since two stacks on it would stop each other's parts."""
    make_folder(state_dir, shared=False)
    with open_or_create(state_dir / "stack.lock") as file:
        if not try_lock(file):
            raise StackError(
                f"another command has started Dicast in {state_dir}: its worker takes jobs that are submitted without "
                "--local; or set another DICAST_STATE_DIR"
            )
        yield


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """Turn SIGTERM into SystemExit, so that the context is left properly, unless there is a handler already."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return

    def leave(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
