"""A daemon: a server process that outlives its starter, at most one per folder, which every other process can find.

The first process that needs it starts it. Whether it runs is decided by a request to it (`probe`), not by a file: the
record of its process only serves to wait for one that does not answer yet, and to stop it. The record identifies the
process for certain (workers/system/processes.py), so that another one with a recycled pid is never waited for or
killed.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from dicast.errors import DicastError
from dicast.workers.system.files import make_folder, try_lock
from dicast.workers.system.processes import Liveness, Process

logger = logging.getLogger(__name__)

POLL_S = 0.02
LOG_TAIL_BYTES = 2000


class DaemonError(DicastError, RuntimeError):
    """A daemon could not be started, found or stopped; the message quotes the end of its log."""

    problem = "daemon"


class DaemonStatus(NamedTuple):
    """The status that a running daemon reports."""

    pid: int
    url: str


class Daemon:
    """The daemon called `name` of one folder. `probe` queries it, within about a second; None: no answer (yet).

    Safe for any number of threads and processes at once: starting and stopping happen under a file lock, which the
    kernel drops with its holder. The folder is created, for this user alone.
    """

    def __init__(self, folder: Path, name: str, probe: Callable[[], DaemonStatus | None]) -> None:
        self.folder, self.name, self._probe = folder, name, probe
        self.log = folder / f"{name}.log"
        self._record = folder / f"{name}.json"
        self._lock = folder / f"{name}.lock"

    def ensure(
        self, command: Callable[[], Sequence[str]], *, env: Mapping[str, str] | None = None, deadline_s: float
    ) -> tuple[DaemonStatus, bool]:
        """Start the daemon unless it runs; returns its status, and whether this call started it. `command` is called
        only then; `env` is added to this process's environment. Raises `DaemonError`."""
        status = self._probe()
        if status is not None:
            return status, False
        end = time.monotonic() + deadline_s
        with self._locked(end):
            status = self._running_status(end)
            if status is not None:
                return status, False
            process = self._spawn(command(), env or {})
            status = self._await_status(lambda: process.poll() is None, end)
            if status is None:
                raise DaemonError(f"{self.name} ended as soon as it was started{self._tail()}")
            return status, True

    def find(self, *, deadline_s: float) -> DaemonStatus | None:
        """Return its status, None if it does not run; one that is just starting is waited for. Raises `DaemonError`."""
        status = self._probe()
        if status is not None or not self.folder.exists():
            return status
        end = time.monotonic() + deadline_s
        with self._locked(end):
            return self._running_status(end)

    def stop(self, grace_s: float) -> bool:
        """Terminate it, and kill it after `grace_s`; False if there was none. Holds on return: it is gone."""
        if not self.folder.exists():
            return False
        with self._locked(time.monotonic() + grace_s):
            process = self._recorded()
            if process is None and (status := self._probe()) is not None:
                process = Process.find(status.pid)
            if process is not None:
                terminate(process, grace_s=grace_s, name=self.name)
            self._record.unlink(missing_ok=True)
            return process is not None

    def _spawn(self, command: Sequence[str], env: Mapping[str, str]) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            process = subprocess.Popen(  # noqa: S603  (the callers' own commands)
                list(command),
                cwd=self.folder,
                env={**os.environ, **env},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # neither the terminal's Ctrl-C nor its end reaches it
            )
        threading.Thread(target=process.wait, name=f"reaper of {self.name}", daemon=True).start()
        identity = Process.find(process.pid)
        if identity is not None:
            fresh = self._record.with_suffix(".new")
            fresh.write_text(json.dumps(identity._asdict()))
            fresh.replace(self._record)
        return process

    def _running_status(self, end: float) -> DaemonStatus | None:
        """Return its status, under the lock; None if it does not run, or was about to end, as after a `stop`
        elsewhere."""
        status = self._probe()
        if status is None and (recorded := self._recorded()) is not None:
            status = self._await_status(lambda: alive(recorded), end)
        return status

    def _await_status(self, lives: Callable[[], bool], end: float) -> DaemonStatus | None:
        """Wait for its status; None if it ends without an answer. Raises `DaemonError` at `end`, monotonic seconds."""
        while True:
            alive_before = lives()
            status = self._probe()
            if status is not None:
                return status
            if not alive_before:
                return None
            if time.monotonic() > end:
                raise DaemonError(f"{self.name} is running but does not answer{self._tail()}")
            time.sleep(POLL_S)

    def _recorded(self) -> Process | None:
        """Return the process that was started last, if it is still alive."""
        try:
            record = json.loads(self._record.read_text())
            process = Process(int(record["pid"]), str(record.get("boot", "")), int(record["started"]))
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DaemonError(f"{self._record} is damaged ({error}): remove it if no {self.name} runs") from None
        return process if alive(process) else None

    def _tail(self) -> str:
        return f"; {self.log} ends with:\n{tail(self.log)}"

    @contextlib.contextmanager
    def _locked(self, end: float) -> Iterator[None]:
        make_folder(self.folder, shared=False)
        with self._lock.open("a") as file:
            while not try_lock(file):
                if time.monotonic() > end:
                    raise DaemonError(f"{self.name}: another process has held {self._lock} for too long")
                time.sleep(POLL_S)
            yield


def alive(process: Process) -> bool:
    """Return whether this very process certainly runs; one that only waits to be reaped does not."""
    return process.fate() is Liveness.ALIVE


def terminate(process: Process, *, grace_s: float, name: str) -> None:
    """Terminate the process, and kill it after `grace_s`. Does nothing if it is gone or another has its pid."""
    end = time.monotonic() + grace_s
    _signal(process, signal.SIGTERM)
    while alive(process) and time.monotonic() < end:
        time.sleep(POLL_S)
    if alive(process):
        logger.warning("%s (pid %d) does not end within %g s; it is killed", name, process.pid, grace_s)
        _signal(process, signal.SIGKILL)
        while alive(process):
            time.sleep(POLL_S)


def tail(log: Path) -> str:
    """Return the end of a log, for error messages; empty if there is none."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - LOG_TAIL_BYTES))
            return file.read().decode(errors="replace").strip()
    except FileNotFoundError:
        return ""


def _signal(process: Process, number: signal.Signals) -> None:
    if alive(process):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)
