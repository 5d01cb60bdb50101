"""Processes that a bench starts: what they use, and how they end."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import psutil

STOP_GRACE_S = 30.0


class ProcessUsage(NamedTuple):
    """Of a process and its descendants: CPU time so far, and the sum of the most memory that each ever held."""

    cpu_s: float
    peak_mb: float


def usage(pid: int, *, without: int | None = None) -> ProcessUsage:
    """Of a process and all that it started, but for the one `without`."""
    root = psutil.Process(pid)
    cpu_s = peak_mb = 0.0
    for process in (root, *root.children(recursive=True)):
        if process.pid == without:
            continue
        try:
            times = process.cpu_times()
            status = Path(f"/proc/{process.pid}/status").read_text()
        except (psutil.NoSuchProcess, OSError):
            continue  # a child that ended: its parent's count has it
        cpu_s += times.user + times.system + times.children_user + times.children_system
        peak = re.search(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)
        peak_mb += int(peak[1]) / 1e3 if peak else 0.0
    return ProcessUsage(cpu_s, peak_mb)


class MeasuredProcess:
    """A process in a session of its own, whose output goes to a log."""

    def __init__(self, command: Sequence[str], *, environ: Mapping[str, str], folder: Path, log: Path) -> None:
        self.log = log
        with log.open("ab") as file:
            self.popen = subprocess.Popen(
                command, env=environ, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file,
                start_new_session=True,
            )  # fmt: skip

    def usage(self, *, without: int | None = None) -> ProcessUsage:
        return usage(self.popen.pid, without=without)

    def kill(self) -> None:
        """kill -9 of it and all that it started."""
        if self.popen.poll() is None:
            os.killpg(self.popen.pid, signal.SIGKILL)
        self._close()

    def stop(self) -> None:
        if self.popen.poll() is None:
            self.popen.terminate()
            try:
                self.popen.wait(STOP_GRACE_S)
            except subprocess.TimeoutExpired:
                os.killpg(self.popen.pid, signal.SIGKILL)
        self._close()

    def _close(self) -> None:
        self.popen.wait()
        for pipe in (self.popen.stdin, self.popen.stdout):
            if pipe is not None:
                pipe.close()


@dataclass(frozen=True)
class ProcessOutcome:
    """What a script says at its end."""

    answered: int
    versions: Mapping[str, str]


class Script(MeasuredProcess):
    """One that keeps the protocol of `lab/bench/peers/peer_task.py`."""

    def ready(self, deadline_s: float) -> None:
        assert self._line(deadline_s) == {"ready": True}

    def go(self) -> None:
        assert self.popen.stdin is not None
        self.popen.stdin.write(b"go\n")
        self.popen.stdin.flush()

    def outcome(self, deadline_s: float) -> ProcessOutcome:
        """Waits for it; the process stays until it is stopped."""
        return ProcessOutcome(**self._line(deadline_s))

    def _line(self, deadline_s: float) -> dict[str, Any]:
        assert self.popen.stdout is not None
        end = time.monotonic() + deadline_s
        found = b""
        while not found.endswith(b"\n"):
            ready, _, _ = select.select([self.popen.stdout], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                raise TimeoutError(f"no word within {deadline_s:g} s: {self._tail()}")
            part = os.read(self.popen.stdout.fileno(), 65536)
            if not part:
                raise RuntimeError(f"ended without a word: {self._tail()}")
            found += part
        said: dict[str, Any] = json.loads(found)
        return said

    def _tail(self) -> str:
        return self.log.read_text(errors="replace")[-3000:]
