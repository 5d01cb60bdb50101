"""The worker of `dicast run --local`: a process that loads its modules while the command still checks the job.

It starts before it is known whether it is needed, because it takes long to load. `python -m
dicast.app.cli.local_worker` then waits for a `WorkerOrder`, one line on standard input. Without one, for example
because the job is refused, it ends and has touched nothing. Celery's command line is not used because it would load the
commands of Celery and Flower first.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, Self

# ruff: noqa: PLC0415  (what takes long is loaded while the command does other things)


LOADED_AHEAD = (
    "dicast.app.tasks", "dicast.app.bootstrap", "dicast.app.assembly", "dicast.app.operator.worker_options",
    "dicast.app.operator.store_checks", "dicast.app.providers.openai", "celery.apps.worker",
    "dicast.workers.nodes.beacon", "dicast.workers.runtime.consumer",
)  # fmt: skip
"""The modules that a worker loads before its first call, besides Celery and the application."""


class WorkerOrder(NamedTuple):
    """The order to be the worker `name`, with these settings in its environment, and to write to the file `log`."""

    name: str
    environ: Mapping[str, str]
    log: str

    def line(self) -> bytes:
        """Return the order as a line for standard input."""
        return json.dumps(self._asdict()).encode() + b"\n"


def main() -> None:
    """Become the worker, or end if no order comes."""
    from dicast.app.celery import app

    for module in LOADED_AHEAD:
        importlib.import_module(module)
    if not (line := sys.stdin.buffer.readline()):
        return
    order = WorkerOrder(**json.loads(line))
    _redirect(order.log)
    os.environ.update(order.environ)
    if app.settings.environ() != order.environ:  # an .env file changed meanwhile
        os.execv(sys.executable, [sys.executable, "-m", "celery", "-A", "dicast", "worker", "-n", order.name])  # noqa: S606
    worker = app.Worker(hostname=order.name)
    worker.start()
    sys.exit(worker.exitcode)


def _redirect(log: str) -> None:
    nothing, to = os.open(os.devnull, os.O_RDONLY), os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    for ours, standard in ((nothing, 0), (to, 1), (to, 2)):
        os.dup2(ours, standard)


if __name__ == "__main__":
    main()


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
