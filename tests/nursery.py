"""A process that has loaded what workers, beats, providers and commands load, and splits off a new one for each.

Loading takes a second of a core, and the tests start some hundreds of processes. It reads no settings and imports
nothing that does: each child does so by itself, from its own environment.

    python -m tests.nursery FD     # a socket: see `tests.command.Child`, which asks for children
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import struct
import sys
import threading
import time
from pathlib import Path
from typing import Any

LOADED = [
    "celery.apps.beat", "celery.apps.worker", "celery.bin.celery", "celery.fixups.django", "celery.worker.autoscale",
    "celery.worker.consumer", "celery.worker.strategy", "kombu.transport.redis", "dicast.app.access.secret",
    "dicast.app.cli.main", "dicast.app.commands.remote_control", "dicast.app.commands.worker_options",
    "dicast.app.monitoring.heartbeat", "dicast.app.pipeline.announce", "dicast.app.pipeline.celery_settings",
    "dicast.app.pipeline.housekeeping", "dicast.app.pipeline.nonce_key", "dicast.app.pipeline.pools",
    "dicast.app.pipeline.route", "dicast.app.pipeline.start", "dicast.app.providers.anthropic",
    "dicast.app.providers.openai", "dicast.app.providers.simulated.__main__", "dicast.app.submission.submit",
    "dicast.workers.admission.overrides", "dicast.workers.runtime.bootsteps",
]  # fmt: skip
READS_SETTINGS = "dicast.app.application"
MOST_BYTES = 1 << 20
NUMBER = struct.Struct("i")


class Nursery:
    """Splits off children as the socket asks, and tells each one's status to the pipe that came with its request."""

    def __init__(self, requests: socket.socket) -> None:
        self._requests = requests
        self._pipes: dict[int, int] = {}
        self._ended, told = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._told = told

    def serve(self) -> dict[str, Any] | None:
        """Until nobody can ask any more, None; in each child, what is asked of it."""
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._told, warn_on_full_buffer=False)
        while True:
            ready, _, _ = select.select([self._requests.fileno(), self._ended], [], [])
            if self._ended in ready:
                self._reap()
            if self._requests.fileno() in ready:
                packed, descriptors, _, _ = socket.recv_fds(self._requests, MOST_BYTES, 4)
                if not packed:
                    return None
                request: dict[str, Any] = json.loads(packed)
                if self._split_off(descriptors):
                    return request

    def _split_off(self, descriptors: list[int]) -> bool:
        """Whether this is the child."""
        pid = os.fork()
        if pid:
            *streams, pipe = descriptors
            for stream in streams:
                os.close(stream)
            self._pipes[pid] = pipe
            os.write(pipe, NUMBER.pack(pid))
            return False
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number, stream in enumerate(descriptors[:3]):
            os.dup2(stream, number)
        for left in (*descriptors, *self._pipes.values(), self._ended, self._told):
            os.close(left)
        self._requests.close()
        return True

    def _reap(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(self._ended, 1000):
                pass
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    break
                pipe = self._pipes.pop(pid)
                with contextlib.suppress(OSError):  # whoever asked has gone
                    os.write(pipe, NUMBER.pack(status))
                os.close(pipe)


def become(request: dict[str, Any]) -> None:
    """Run the module that is asked for, as `python -m` with these words, this environment and this folder would."""
    if request["new_session"]:
        os.setsid()
    os.environ.clear()
    os.environ.update(request["environ"])
    time.tzset()
    os.chdir(request["folder"])
    folders = [place for place in os.environ.get("PYTHONPATH", "").split(os.pathsep) if place]
    sys.path[0:1] = [str(Path.cwd()), *folders]
    importlib.invalidate_caches()
    sys.argv = request["words"]
    runpy.run_module(request["module"], run_name="__main__", alter_sys=True)


def main() -> None:
    for module in LOADED:
        importlib.import_module(module)
    assert READS_SETTINGS not in sys.modules
    assert threading.active_count() == 1
    for module in ("dicast.app.cli.main", "dicast.app.providers.simulated.__main__"):
        del sys.modules[module]  # it will be run under another name
    gc.collect()
    gc.freeze()
    request = Nursery(socket.socket(fileno=int(sys.argv[1]))).serve()
    if request is not None:
        become(request)


if __name__ == "__main__":
    main()
