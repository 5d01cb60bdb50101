"""Starts a worker process before it is known whether it is needed, because it takes long to load."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from dicast.app.cli.local_worker import WorkerOrder


def local_changes(out: str | None) -> dict[str, str]:
    """Return the changes of settings for `--local`: the command's own worker writes the files to where they are
    wanted."""
    return {} if out is None else {"DICAST_RESULTS_DIR": str(Path(out).resolve())}


def early_worker(out: str | None) -> EarlyWorker:
    """Return the early worker of `dicast run --local --out OUT`, to be entered before the command's own imports."""
    return EarlyWorker(local_changes(out))


class EarlyWorker:
    """A process that loads what a worker needs, and becomes a worker only when `begin` is called. Leaving the block
    ends a process that has not begun. `changes` are made to this process's environment."""

    def __init__(self, changes: Mapping[str, str]) -> None:
        self._begun = False
        self._process = subprocess.Popen(
            [sys.executable, "-m", "dicast.app.cli.local_worker"], env={**os.environ, **changes}, stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip

    def begin(self, name: str, environ: Mapping[str, str], log: Path) -> subprocess.Popen[bytes] | None:
        """Make the process the worker `name`, with the settings in `environ`. Return None if the process has ended
        for any reason."""
        assert self._process.stdin is not None
        try:
            with self._process.stdin as order:
                order.write(WorkerOrder(name, environ, str(log)).line())
        except OSError:
            return None
        self._begun = True
        return self._process

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End the process, unless it has become a worker."""
        if not self._begun:
            self._process.kill()
            self._process.wait()
            assert self._process.stdin is not None
            with contextlib.suppress(OSError):
                self._process.stdin.close()
