"""Processes of this host, distinguished from every other that has had or will have their pid.

A process is named by its pid, by when it started in clock ticks since boot (field 22 of `/proc/<pid>/stat`), and by
where both mean something: the boot, the pid namespace and the time namespace. None of these moves with the host's
clock. A process is reported as gone only if that is certain; what `/proc` hides or lacks proves nothing.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import NamedTuple

_PROC = Path("/proc")
_STATE, _THREADS, _STARTED = 0, 17, 19
"""The indices of fields 3, 20 and 22 among those behind the command's name."""
_DEAD = {"Z", "X", "x"}


class Liveness(Enum):
    ALIVE = "alive"
    GONE = "gone"
    UNKNOWN = "unknown"


class Process(NamedTuple):
    """One process. `boot` names the context in which pid and ticks are valid, '' if it is unknown."""

    pid: int
    boot: str
    started: int

    @classmethod
    def find(cls, pid: int) -> Process | None:
        """Return the process that has this pid now; None if there is none, or it cannot be inspected."""
        boot = boot_id()
        try:
            fields = _stat(pid)
        except (OSError, ValueError):
            return None
        return cls(pid, boot, int(fields[_STARTED])) if boot else None

    @classmethod
    def current(cls) -> Process:
        """Return this process. If it cannot be inspected, it will never be proven dead."""
        return cls.find(os.getpid()) or cls(os.getpid(), "", 0)

    def fate(self) -> Liveness:
        """Return whether the process is alive. A zombie is gone once all its threads are, which may have connections
        open."""
        if not self.boot or self.boot != boot_id():
            return Liveness.UNKNOWN
        try:
            fields = _stat(self.pid)
            state, threads, started = fields[_STATE], int(fields[_THREADS]), int(fields[_STARTED])
        except (OSError, ValueError):
            return Liveness.UNKNOWN if _has_a_process(self.pid) else Liveness.GONE
        if started != self.started or (state in _DEAD and threads <= 1):
            return Liveness.GONE
        return Liveness.ALIVE


def boot_id() -> str:
    """Return an id that distinguishes boots and containers, '' if that is not possible.

    Ticks are counted in the reader's own time namespace, and a `/proc` of another pid namespace than this process's
    shows other processes.
    """
    try:
        if int((_PROC / "self/stat").read_bytes().split(b" ", 1)[0]) != os.getpid():
            return ""
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        pids = (_PROC / "self/ns/pid").readlink()
    except (OSError, ValueError):
        return ""
    try:
        times = str((_PROC / "self/ns/time").readlink())
    except OSError:  # before Linux 5.6
        times = "-"
    return f"{boot}/{pids}/{times}"


def _stat(pid: int) -> list[str]:
    """Return the fields behind the command's name, which may contain spaces and brackets."""
    return (_PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].decode("ascii").split()


def _has_a_process(pid: int) -> bool:
    """Return whether a process has this pid, even one that `/proc` hides (`hidepid`): the kernel says so when
    signalling."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


AGAIN_AFTER_S = 0.1
SIGNALS: dict[type[BaseException], signal.Signals] = {SystemExit: signal.SIGTERM, KeyboardInterrupt: signal.SIGINT}
"""The signals by the exceptions that their handlers raise."""


@contextlib.contextmanager
def sent_again() -> Iterator[None]:
    """Send a signal again, inside the context, whose SystemExit or KeyboardInterrupt Python has dropped, until it takes
    effect.

    This works on the main thread only, which alone runs handlers; on others nothing is done.

    Signals get lost because their handlers raise in finalizers or callbacks of weak references, where Python drops
    exceptions.
    """
    main = threading.get_ident()
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    timers: list[threading.Timer] = []

    def resend(dropped: sys.UnraisableHookArgs) -> None:
        number = SIGNALS.get(dropped.exc_type)
        if number is None:
            before(dropped)
            return
        timer = threading.Timer(AGAIN_AFTER_S, signal.pthread_kill, (main, number))
        timer.daemon = True
        timers.append(timer)
        timer.start()

    before, sys.unraisablehook = sys.unraisablehook, resend
    try:
        yield
    finally:
        sys.unraisablehook = before
        for timer in timers:
            timer.cancel()
