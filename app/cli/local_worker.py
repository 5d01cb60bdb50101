"""The worker of `dicast run --local`, which loads its modules while the command still checks the job.

`python -m dicast.app.cli.local_worker` then waits for a `WorkerOrder`, one line on standard input. Without one, for
example because the job is refused, it ends and has touched nothing. Celery's command line is not used because it would
load the commands of Celery and Flower first.
"""
# ruff: noqa: PLC0415  (what takes long is loaded while the command does other things)

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Mapping
from typing import NamedTuple

LOADED_AHEAD = (
    "dicast.app.tasks", "dicast.app.bootstrap", "dicast.app.assembly", "dicast.app.commands.worker_options",
    "dicast.app.doctor.broker", "dicast.app.doctor.store", "dicast.app.providers.openai", "celery.apps.worker",
    "dicast.workers.runtime.bootsteps", "dicast.workers.runtime.consumer",
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
